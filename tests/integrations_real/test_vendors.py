"""`wrap()` on the real google-genai and mistralai: whole and streamed, waiting and awaited, with tools."""

import json
import subprocess

import pytest

from tests.integration.ways.server import CACHED_TOKENS, COMPLETION_TOKENS, PROMPT_TOKENS, serving
from tests.machine import seconds

from .pages import FRAMEWORKS, ROOT

SCRIPT = ROOT / "tests" / "integrations_real" / "vendors.py"


@pytest.mark.parametrize(("vendor", "repairs"), [("google-genai", {}), ("mistralai", {"sort-tools": 2})])
def test_a_wrapped_client_reports_and_repairs(vendor: str, repairs: dict[str, int]) -> None:
    with serving() as server:
        command = [str(ROOT / FRAMEWORKS / "bin" / "python"), str(SCRIPT), server.url, vendor]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds(60))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["sums"] == [4, 4, 4 * PROMPT_TOKENS, 4 * CACHED_TOKENS, 4 * COMPLETION_TOKENS]
    assert found["repairs"] == repairs
    assert found["internal_errors"] == 0
    assert {headers["x-session-affinity"] for _, headers, _ in server.seen} == {"s"}
    assert len({json.dumps(body["tools"]) for _, _, body in server.seen}) == 1
