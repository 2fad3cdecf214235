"""The first hour of docs/tutorial/first-hour.md, and what works after the demo, in a fresh copy of the checkout."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.machine import seconds
from tests.subjects.checkout import copy_of_the_checkout

from .pages import NODE, QUIET, ROOT

PAGE = ROOT / "docs" / "tutorial" / "first-hour.md"
TIMEOUT_S = 240.0
WIDTH = 80
"""Of the terminal of somebody who follows the page."""


def run(script: str, folder: Path) -> str:
    """What a script prints in a fresh copy of the checkout, with a home of its own."""
    checkout, home = copy_of_the_checkout(folder / "warmroute"), folder / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI", "PYTHON"))}
    path = f"{NODE / 'node_modules' / '.bin'}:{os.environ['PATH']}"
    environment = {**kept, **QUIET, "HOME": str(home), "PATH": path, "COLUMNS": str(WIDTH)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=checkout, env=environment, capture_output=True, text=True, check=False, timeout=seconds(TIMEOUT_S),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(seconds(TIMEOUT_S + 20))
def test_replay_works_after_the_demo(tmp_path: Path) -> None:
    printed = run("scripts/demo --harness aider --speed 100\n.venv/bin/warmroute replay --recorded", tmp_path)
    assert "requests in " in printed.splitlines()[-1]


@pytest.mark.timeout(seconds(TIMEOUT_S + 20))
def test_the_first_hour(tmp_path: Path) -> None:
    blocks = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    steps = [f"echo '== step {number}'\n{block}" for number, block in enumerate(blocks)]
    script = "\n".join(["trap 'kill $(jobs -p) 2>/dev/null || :' EXIT", *steps])
    outputs = run(script, tmp_path).split("== step ")[1:]
    assert len(outputs) == len(blocks)

    def said(command: str) -> str:
        """What the step with a command has printed."""
        return next(output for block, output in zip(blocks, outputs, strict=True) if command in block)

    assert "export OPENAI_BASE_URL=" in said("cat up.log")
    usage, engines = said("warmroute usage"), said("warmroute engines list")
    sessions = re.findall(r"^.* \([0-9a-f]{6}\) +(.*)$", usage, re.MULTILINE)
    assert len(sessions) == 1
    turns, prompt, cached = (int(word.replace(",", "")) for word in sessions[0].split()[:3])
    assert turns >= 2
    assert cached > prompt // 4  # the second turn found the first one's prompt
    for words in ("Where: in region ", "Why there: ", "Cached: ", "Cold, with nothing cached, it would have cost "):
        assert words in said("warmroute receipts show")
    assert len(re.findall(r"^(?:east|west)-\w\d ", engines, re.MULTILINE)) == 8
    tables = [line for output in (usage, engines) for line in output.splitlines()[1:]]
    assert [line for line in tables if len(line) > WIDTH and "http" not in line] == []
    shown = re.findall(r"^```text\n([^`]*)^```$", PAGE.read_text(), re.MULTILINE)
    (head,) = [line for block in shown for line in block.splitlines() if line.startswith("policy ")]
    replayed = said("warmroute replay --verify")
    assert head in replayed.splitlines()
    assert "requests in " in replayed
