"""`warmroute run` as a process: a fleet for as long as the program runs, its terminal and status, what it cost.

The real programs are in `tests/harness`. Here stands a small one for them, since what it does is chosen: it sends the
turns that its arguments say, and ends with a status of its choice.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.machine import seconds

COMMAND = (sys.executable, "-m", "warmroute_cli.main", "run")
STATUS = 3
STAND_IN = f"""#!{sys.executable}
import json, os, sys, urllib.request
for number, system in enumerate(sys.argv[1:]):
    said = [{{"role": "assistant", "content": "yes"}}, {{"role": "user", "content": "and"}}] * number
    messages = [{{"role": "system", "content": system * 400}}, {{"role": "user", "content": sys.stdin.readline()}}, *said]
    request = urllib.request.Request(
        os.environ["OPENAI_API_BASE"] + "/chat/completions",
        json.dumps({{"model": os.environ["AIDER_MODEL"].removeprefix("openai/"), "messages": messages}}).encode(),
        {{"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "x-session-affinity": "s",
          "content-type": "application/json"}},
    )
    print(json.load(urllib.request.urlopen(request))["object"])
sys.exit({STATUS})
"""


def run(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """With a stand-in for aider, in a folder whose fleet is started for it."""
    program = folder / "bin" / "aider"
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    return subprocess.run(
        [*COMMAND, "aider", "--speed", "50", "--", *words], cwd=folder, env={**os.environ, "PATH": path},
        input="hello\n" * 2, capture_output=True, text=True, timeout=seconds(50), check=False,
    )  # fmt: skip


def test_a_fleet_is_there_for_as_long_as_the_program_runs(tmp_path: Path) -> None:
    done = run(tmp_path, "one", "one")
    assert done.returncode == STATUS, done.stderr
    assert done.stdout == "chat.completion\n" * 2
    assert "2 turns in 1 session, " in done.stderr
    assert "prefixes:  nothing broke them" in done.stderr
    assert (tmp_path / ".warmroute" / ".gitignore").read_text() == "*\n"
    assert not (tmp_path / ".warmroute" / "fleet.json").exists()


def test_a_broken_prefix_is_named_with_its_turn_and_receipt(tmp_path: Path) -> None:
    done = run(tmp_path, "one", "two")
    assert done.returncode == STATUS, done.stderr
    assert "tokens were computed again" in done.stderr
    assert "(prefix_changed) follow a place where your side rewrote what it had sent; wr-" in done.stderr


@pytest.mark.parametrize("words", [()])
def test_no_turn_is_said_to_be_none(words: tuple[str, ...], tmp_path: Path) -> None:
    assert "warmroute: no turn came to the proxy" in run(tmp_path, *words).stderr
