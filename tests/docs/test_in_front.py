"""The pages that put a proxy in front of three SGLang or three vLLM servers, followed with embedded engines."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.test_plan import blocks
from tests.machine import seconds
from tests.subjects import patient
from tests.subjects.ports import free_ports
from tests.subjects.processes import EngineProcess

from warmroute.contract.receipt import check
from warmroute_cli.processes import stop_all

pytestmark = pytest.mark.full

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
PORTS = {"sglang": (30000, 30001, 30002), "vllm": (8100, 8101, 8102)}


@pytest.mark.parametrize("server", PORTS)
def test_three_servers_get_a_proxy_that_keeps_a_session_where_it_is(tmp_path: Path, server: str) -> None:
    command = tmp_path / "warmroute"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m {patient.MODULE} "$@"\n')
    command.chmod(0o755)
    engines = [EngineProcess(tmp_path, f"e{n}", "aggregated", "--model", "my-model") for n in range(3)]
    try:
        script = "".join(blocks((HOW_TO / f"{server}.md").read_text(), "sh")) + "\nkill %1\nwait\n"
        for port, engine in zip(PORTS[server], engines, strict=True):
            script = script.replace(f"http://127.0.0.1:{port}", engine.listening().url)
        http, admin = free_ports(2)
        script = script.replace("port = 8000", f"port = {http}").replace("admin_port = 8001", f"admin_port = {admin}")
        script = script.replace("127.0.0.1:8000", f"127.0.0.1:{http}")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env={**patient.environment(), "PATH": f"{tmp_path}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds(60),
        )
    finally:
        stop_all([engine.child for engine in engines], seconds(5.0))
    assert done.returncode == 0, done.stderr + (tmp_path / "proxy.log").read_text()
    usages = [json.loads(line)["usage"] for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(usages) == 2
    assert [check(usage) for usage in usages] == [[], []]
    assert len({usage["warmroute"]["workers"][0]["id"] for usage in usages}) == 1
    first, second = (usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert first == 0
    assert second >= 128, "the system prompt, in whole pages"
    listed = done.stdout.splitlines()[2:]
    assert all(any(usage["warmroute"]["id"] in line for line in listed) for usage in usages)
