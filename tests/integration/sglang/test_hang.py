"""The scheduler of the real SGLang hangs, and the launcher sees it by `/metrics`, which goes on answering."""

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.launched import MODEL, Launched, pair_plan
from tests.subjects.ports import free_ports
from tests.subjects.processes import until
from warmroute_backend.launch.hangs import Progress, observed
from warmroute_backend.launch.state_file import load
from warmroute_backend.plan.deployment import Plan
from warmroute_backend.ports import Ports
from warmroute_backend.sglang.server import START_TIMEOUT_S

pytestmark = pytest.mark.timeout(900)
ENGINE = "aggregated-0"


def one_engine() -> Plan:
    plan = pair_plan(split=None)
    return replace(plan, engines=(replace(plan.engines[0], ports=Ports(*free_ports(5))),))


def scheduler_of(launched: Launched) -> int:
    """Its pid: SGLang names the process."""
    record = load(launched.state_dir)
    assert record is not None
    members = record.entries[ENGINE].members
    (found,) = [each.pid for each in members if b"scheduler" in command_line(each.pid)]
    return found


def command_line(pid: int) -> bytes:
    """Empty where the process has ended, as compilers of kernels do."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_scheduler_that_stands_still_with_a_request_is_restarted(tmp_path: Path) -> None:
    with Launched(tmp_path, one_engine(), "--hang-s", f"{seconds(10):g}", engine="sglang-cpu") as launched:
        launched.start().wait_up(START_TIMEOUT_S)
        url = launched.status()[ENGINE]["url"]

        def progress() -> Progress:
            return observed(Progress(0.0), httpx.get(f"{url}/metrics", timeout=seconds(30)).text, 0.0)

        def ask() -> None:
            body = {"model": MODEL, "max_tokens": 4_000, "ignore_eos": True, "prompt": "hello"}
            with pytest.raises(httpx.HTTPError):
                httpx.post(f"{url}/v1/completions", json=body, timeout=seconds(600)).raise_for_status()

        asks = threading.Thread(target=ask)
        asks.start()
        until(lambda: progress().running, "the request runs", 120)
        assert progress().work > 0
        os.kill(scheduler_of(launched), signal.SIGSTOP)
        until(lambda: "1 running request, and no token" in launched.output.read_text(), "the hang is seen", 300)
        asks.join()
        until(lambda: launched.output.read_text().count(f"{ENGINE}: ready") == 2, "it serves again", START_TIMEOUT_S)
