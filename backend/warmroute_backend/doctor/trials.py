"""Finds out what works on a machine without GPUs: the simulated engine, and SGLang on a CPU.

The simulated (embedded) engine is started. SGLang is not: the doctor only looks for its installation.
"""

import json
import subprocess
import sys
from typing import Final

from warmroute_backend.asking import ask
from warmroute_backend.doctor.facts import Finding, Host, Level
from warmroute_backend.plan.hardware import GIB
from warmroute_backend.sglang.installation import NotInstalledError, installation
from warmroute_backend.sglang.speed import slowness

START_TIMEOUT_S: Final = 20.0
PAIR_BYTES: Final = 4 * GIB
"""Memory of a prefill and a decode server with the tiny model."""


def embedded() -> Finding:
    """Start an embedded engine, ask whether it is ready, and end it."""
    timeout_s = START_TIMEOUT_S * slowness()
    command = [sys.executable, "-m", "warmroute_lab.engine", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:  # noqa: S603
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            ready = ask(f"{url}/ready", timeout_s).status == 200
        except ValueError:
            ready = False
        finally:
            process.kill()
    if ready:
        return Finding(
            Level.OK, "embedded engine", "starts and is ready: `warmroute up`, `warmroute launch --engine embedded`"
        )
    return Finding(Level.PROBLEM, "embedded engine", "does not start", "python -m warmroute_backend.engine shows why")


def sglang_on_cpu(host: Host) -> Finding:
    """A finding on whether the real SGLang with the tiny model would start here."""
    topic = "SGLang on a CPU"
    if host.available_bytes is not None and host.available_bytes < PAIR_BYTES:
        text = f"{host.available_bytes / GIB:.1f} GiB of memory are available, and a pair takes {PAIR_BYTES // GIB}"
        return Finding(Level.NOTE, topic, text)
    try:
        found = installation()
    except NotInstalledError as error:
        return Finding(Level.NOTE, topic, "would run here, and is not installed", str(error))
    return Finding(Level.OK, topic, f"is installed ({found.python}): `warmroute launch --engine sglang-cpu`")
