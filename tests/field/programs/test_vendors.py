"""`wrap()` and `transport()` in real libraries: four turns each with tools, whole and streamed, waiting and awaited."""

import json
import os
import subprocess

import pytest
from tests.integration.ways.server import CACHED_TOKENS, COMPLETION_TOKENS, PROMPT_TOKENS, serving
from tests.machine import seconds

from .pages import FRAMEWORKS, LITELLM, QUIET, ROOT

SCRIPT = ROOT / "tests" / "field" / "programs" / "vendors.py"


CASES = [
    ("google-genai", FRAMEWORKS, {}),
    ("mistralai", FRAMEWORKS, {"sort-tools": 2}),
    ("langchain", FRAMEWORKS, {"sort-tools": 2}),
    ("pydantic-ai", FRAMEWORKS, {}),
    ("openai-agents", FRAMEWORKS, {}),
    ("instructor", FRAMEWORKS, {}),
    ("litellm", LITELLM, {"sort-tools": 2}),
    ("llama-index", LITELLM, {"sort-tools": 2}),
]


@pytest.mark.parametrize(("vendor", "environment", "repairs"), CASES, ids=[case[0] for case in CASES])
def test_four_turns_are_reported(vendor: str, environment: str, repairs: dict[str, int]) -> None:
    with serving() as server:
        command = [str(ROOT / environment / "bin" / "python"), str(SCRIPT), server.url, vendor]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=seconds(60), env={**os.environ, **QUIET}
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["sums"] == [4, 4, 4 * PROMPT_TOKENS, 4 * CACHED_TOKENS, 4 * COMPLETION_TOKENS]
    assert found["repairs"] == repairs
    assert found["internal_errors"] == 0
    assert {headers["x-session-affinity"] for _, headers, _ in server.seen} == {"s"}
    tools = {json.dumps(body.get("tools")) for _, _, body in server.seen}
    assert len(tools) == (2 if vendor == "instructor" else 1), "instructor's streams have a schema of their own"
    assert all("look" in each for each in tools)
