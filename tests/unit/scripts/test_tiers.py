"""`scripts/test`: what its arguments mean, which steps its commands have, and how its processes share the files."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scripts.tiers.__main__ import split
from scripts.tiers.nightly import HEAD, MAX_ROWS, with_row
from scripts.tiers.steps import Step, full_steps, main_steps, nightly_steps
from scripts.tiers.taking import take
from scripts.tiers.workers import files_of
from tests.subjects.processes import until

ROOT = Path(__file__).parents[3]


def test_help_says_what_each_command_covers_and_sets_nothing_up() -> None:
    done = subprocess.run(("scripts/test", "--help"), cwd=ROOT, capture_output=True, text=True, check=True, env={})
    assert re.findall(r"^  scripts/test (\S+)", done.stdout, re.MULTILINE) == [
        "[PYTEST-OPTION...]", "PATH...", "full", "nightly", "stress", "setup",
    ]  # fmt: skip


def test_a_path_that_is_not_there_ends_the_command_at_once() -> None:
    command = (sys.executable, "-m", "scripts.tiers", str(time.time()), "tests/unit/nothing", "-x")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "scripts/test: no such file or folder: tests/unit/nothing\n"


@pytest.mark.full
def test_pytest_runs_a_path_without_scripts_test() -> None:
    program = Path(sys.executable).with_name("pytest")
    done = subprocess.run((program, "-q", "tests/unit/core/test_pace.py"), cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("arguments", "options", "paths"),
    [
        (["-k", "bench"], ["-k", "bench"], []),
        (["tests/unit", "-x"], ["-x"], ["tests/unit"]),
        (["--maxfail=2", "tests/a.py::test_b"], ["--maxfail=2"], ["tests/a.py::test_b"]),
    ],
)
def test_arguments_are_options_or_paths(arguments: list[str], options: list[str], paths: list[str]) -> None:
    assert split(arguments) == (options, paths)


def test_tests_of_a_path_begin_without_the_checks() -> None:
    assert [step.name for step in main_steps(paths=["tests/unit"])] == ["tests"]


@pytest.mark.parametrize("steps", [main_steps(), full_steps(), nightly_steps()])
def test_each_step_comes_after_steps_of_its_own_run(steps: tuple[Step, ...]) -> None:
    names = {step.name for step in steps}
    assert len(names) == len(steps)
    assert {name for step in steps for name in step.after} <= names


def test_a_named_step_of_the_night_brings_its_set_ups() -> None:
    assert [step.name for step in nightly_steps(["regions"])] == ["compiled wheel", "set-up of stores", "regions"]


def test_an_unknown_step_of_the_night_is_refused() -> None:
    with pytest.raises(KeyError, match="moon"):
        nightly_steps(["moon"])


def test_each_file_is_taken_once_and_preferred_ones_first(tmp_path: Path) -> None:
    listed = tmp_path / "files"
    listed.write_text("tests/a/one\ntests/b/two\ntests/a/three\n")
    assert [take(listed, ("tests/b",)) for _ in range(4)] == ["tests/b/two", "tests/a/one", "tests/a/three", None]


def test_long_files_come_first(tmp_path: Path) -> None:
    for name, size in (("test_a.py", 1), ("test_b.py", 3), ("test_c.py", 2), ("other.py", 9)):
        (tmp_path / name).write_text("#" * size)
    found = files_of([str(tmp_path)], ignored=[tmp_path / "test_c.py"])
    assert [Path(each).name for each in found] == ["test_b.py", "test_a.py"]


def test_the_newest_night_is_the_first_row_and_the_oldest_goes() -> None:
    page = HEAD
    for number in range(MAX_ROWS + 1):
        page = with_row(page, f"| {number} |\n")
    rows = page.removeprefix(HEAD).splitlines()
    assert (rows[0], rows[-1], len(rows)) == (f"| {MAX_ROWS} |", "| 1 |", MAX_ROWS)


@pytest.mark.full
@pytest.mark.parametrize("command", [[], ["stress", "--runs=1", "--loops=2", "--one-core=0", "--frozen=0"]])
def test_what_was_started_ends_with_a_terminated_run(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "conftest.py").write_text("from hypothesis import settings\n\nsettings.register_profile('stress')\n")
    (tmp_path / "test_hangs.py").write_text(
        "import os, pathlib, signal\n\ndef test_hangs():\n"
        "    pathlib.Path('being').write_text(str(os.getpid()))\n    pathlib.Path('being').rename('pid')\n"
        "    signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "scripts.tiers", str(time.time()), *command, "test_hangs.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL,
    ) as run:  # fmt: skip
        until((tmp_path / "pid").exists, "the test runs")
        run.terminate()
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not Path(f"/proc/{pid}").exists(), "the test has ended")
