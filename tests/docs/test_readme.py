"""The commands of the README run as they stand in a copy of the checkout, and so do those that the demo names."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from tests.machine import seconds
from tests.subjects.checkout import ROOT, copy_of_the_checkout

README: Final = (ROOT / "README.md").read_text()
CLONE, BY_PIP = re.findall(r"^```sh\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
FLEET, TWO_TURNS = re.findall(r"^```bash\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
PROGRAM, PRINTED = re.findall(r"^```(?:python|text)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
DEMO, TEST = CLONE.splitlines()
TIMEOUT_S: Final = 300.0

pytestmark = pytest.mark.timeout(seconds(TIMEOUT_S + 20))


def run(script: str, folder: Path, limit_s: float = TIMEOUT_S) -> str:
    """What a script prints in a copy of the checkout, with a home of its own, as somebody would see it."""
    checkout, home = copy_of_the_checkout(folder / "warmroute"), folder / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI", "PYT", "WARMROUTE"))}
    with subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=checkout, env={**kept, "HOME": str(home)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as shell:  # fmt: skip
        try:
            printed, problems = shell.communicate(timeout=seconds(limit_s))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGTERM)
    assert shell.returncode == 0, printed + problems
    return printed


@pytest.mark.full
def test_the_demo_runs_in_a_clone_and_so_do_the_commands_that_it_names(tmp_path: Path) -> None:
    assert DEMO.startswith("scripts/demo ")
    named = "grep -o '[^ ]*warmroute ladder [^ ]*' shown | while read -r line; do echo \"$ $line\"; $line; done"
    printed = run(f"{DEMO.partition('#')[0]} | tee shown\n{named}", tmp_path)
    shown, *ladders = printed.split("\n$ ")
    assert "Affinity off" in shown
    assert [each.splitlines()[0].rpartition("-")[2] for each in ladders] == ["off", "on"]
    assert all("tokens" in each for each in ladders)


@pytest.mark.nightly
def test_pip_installs_it_in_an_environment(tmp_path: Path) -> None:
    assert "Affinity off" in run(BY_PIP, tmp_path)


@pytest.mark.full
def test_the_two_turns_print_what_is_shown(tmp_path: Path) -> None:
    """Each block in a new terminal of 80 columns, in a folder of its own; the home is empty."""
    there, here, home, programs = [tmp_path / name for name in ("there", "here", "home", "programs")]
    for folder in (home, programs):
        folder.mkdir()
    for name, words in (("python", ""), ("warmroute", "-m warmroute_cli.main ")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
        (programs / name).chmod(0o755)
    for folder in (there, here):  # no other activation than that of the page puts the command into the path
        (folder / ".venv/bin").mkdir(parents=True)
        (folder / ".venv/bin/activate").write_text(f'PATH="{programs}:$PATH"\n')
    environment = {"PATH": os.defpath, "HOME": str(home), "COLUMNS": "80"}
    kept = {name: value for name, value in os.environ.items() if name.startswith("WARMROUTE_TEST")}
    (here / "two_turns.py").write_text(PROGRAM)
    with subprocess.Popen(
        ["bash", "-c", FLEET.replace("warmroute up", "exec warmroute up")],
        cwd=there,
        env=environment | kept,
        stdout=subprocess.DEVNULL,
    ) as fleet:
        try:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", TWO_TURNS], cwd=here, env=environment | kept,
                capture_output=True, text=True, check=False, timeout=seconds(60),
            )  # fmt: skip
        finally:
            fleet.send_signal(signal.SIGINT)
    assert _masked(done.stdout) == _masked(PRINTED), done.stderr


def _masked(text: str) -> str:
    """Without ids and times, and in one line, since a time may need another digit."""
    text = re.sub(r"wr-[0-9a-f]{24}|\d\d:\d\d|\([0-9a-f]{6}\)", "*", text)
    return " ".join(re.sub(r"\b\d\.\d{3}\b", "*", text).split())


@pytest.mark.nightly
@pytest.mark.timeout(seconds(1300))
def test_the_tests_pass_in_a_clone(tmp_path: Path) -> None:
    assert TEST.startswith("scripts/test ")
    commit = "git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -q -m all"
    assert re.search(r"^\d,\d+ passed in \d+ s$", run(f"{commit}\n{TEST}", tmp_path, 1280.0), re.MULTILINE)
