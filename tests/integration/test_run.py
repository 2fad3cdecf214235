"""`warmroute run` as a process: a fleet for as long as the program runs, its terminal and status, what it cost.

The real programs are in `tests/field/agents`. Here a small program stands for them, since what it does is chosen: it
sends the turns that its arguments say, and ends with a status of its choice.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.machine import seconds
from tests.subjects.copies import ran

pytestmark = pytest.mark.full

COMMAND = (sys.executable, "-m", "warmroute_cli.main", "run")
STATUS = 3
STAND_IN = f"""#!{sys.executable}
import json, os, sys, urllib.request
for number, system in enumerate(sys.argv[1:]):
    said = [{{"role": "assistant", "content": "yes"}}, {{"role": "user", "content": "and"}}] * number
    asked = {{"role": "user", "content": sys.stdin.readline()}}
    messages = [{{"role": "system", "content": system * 400}}, asked, *said]
    request = urllib.request.Request(
        os.environ["AIDER_OPENAI_API_BASE"] + "/chat/completions",
        json.dumps({{"model": os.environ["AIDER_MODEL"].removeprefix("openai/"), "messages": messages}}).encode(),
        {{"authorization": "Bearer " + os.environ["AIDER_OPENAI_API_KEY"], "x-session-affinity": "s",
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
    command = [*COMMAND, "aider", "--speed", "50", "--", *words]
    environment = {**os.environ, "PATH": path, "HTTP_PROXY": "http://127.0.0.1:9"}
    return ran(command, folder, environment, 50, "hello\n" * 2)


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
    assert "(prefix_changed) follow a place where the client rewrote its history; wr-" in done.stderr


def test_a_fleet_stays_while_another_run_uses_it(tmp_path: Path) -> None:
    slow = tmp_path / "bin" / "mini"
    slow.parent.mkdir()
    asks = "curl -s -o /dev/null -w '%{http_code}' $OPENAI_API_BASE/models"
    slow.write_text(f"#!/bin/sh\necho ready; read line; [ $({asks}) = 401 ] && exit 9\n")
    (tmp_path / "bin" / "qwen").write_text("#!/bin/sh\necho first; read line\n")
    for name in ("mini", "qwen"):
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{slow.parent}:{os.environ['PATH']}"}
    options: dict[str, Any] = {
        "cwd": tmp_path, "env": environment, "text": True, "bufsize": 1,
        "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
    }  # fmt: skip
    with subprocess.Popen([*COMMAND, "qwen"], **options) as owner:
        assert owner.stdout
        assert owner.stdin
        assert owner.stderr
        assert owner.stdout.readline() == "first\n"
        with subprocess.Popen([*COMMAND, "mini-swe-agent"], **options) as user:
            assert user.stdout
            assert user.stdout.readline() == "ready\n"
            owner.stdin.close()
            assert any("another `warmroute run` uses this fleet" in line for line in owner.stderr)
            assert owner.poll() is None
            _, said = user.communicate("\n", timeout=seconds(20))
            assert user.returncode == 9, said  # the proxy was there to refuse a call without a key
        owner.stderr.read()
        assert owner.wait(seconds(30)) == 1  # what `read` gives at the end of its input


def test_no_turn_is_said_to_be_none(tmp_path: Path) -> None:
    assert "warmroute: no turn came to the proxy" in run(tmp_path).stderr
