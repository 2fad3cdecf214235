"""The pages that put a proxy in front of three SGLang or three vLLM servers, followed with embedded engines."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.machine import seconds
from tests.subjects import patient
from tests.subjects.checkout import ROOT, blocks, warmroute_in
from tests.subjects.ports import free_ports

from warmroute.contract.receipt import check

pytestmark = pytest.mark.full

HOW_TO = ROOT / "docs" / "how-to"
PORTS = {"sglang": (30000, 30001, 30002), "vllm": (8100, 8101, 8102)}


@pytest.mark.parametrize("server", PORTS)
def test_three_servers_get_a_proxy_that_keeps_a_session_where_it_is(tmp_path: Path, server: str) -> None:
    warmroute_in(tmp_path, patient.MODULE)
    script = "trap 'kill $(jobs -p); wait' EXIT\n" + "".join(blocks((HOW_TO / f"{server}.md").read_text(), "sh"))
    http, admin, *engines = free_ports(5)
    for named, port in zip((8000, 8001, *PORTS[server]), (http, admin, *engines), strict=True):
        script = re.sub(rf"\b{named}\b", str(port), script)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env={**patient.environment(), "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=seconds(60),
    )  # fmt: skip
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
