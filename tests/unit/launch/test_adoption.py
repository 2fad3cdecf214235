"""What an earlier launcher left: found by pid and start time, by a mark, or ended where only children are left."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.machine import seconds
from tests.subjects.processes import until
from tests.unit.launch.test_identity import leading

from warmroute_backend.launch.identity import Identity, boot_id, identity_of, is_alive, session_members
from warmroute_backend.launch.process import adopt, left_running
from warmroute_backend.launch.program import LaunchError, Program
from warmroute_backend.launch.state_file import Entry, Record, save
from warmroute_backend.launch.states import State

ME = Identity(os.getpid(), 0)
PROGRAM = Program("decode-0", "decode", ("python",), ports=(("http", 1),))


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with leading(f"{tmp_path.name}/decode-0") as found:
        yield found


def record(tmp_path: Path, identity: Identity | None, *, boot: str | None = None) -> Record:
    entry = Entry(
        "decode-0", "decode", State.READY, PROGRAM.digest, str(tmp_path / "log"), "", {}, identity=identity,
        has_served=True, is_drained=True,
    )  # fmt: skip
    return Record(tmp_path.name, boot or boot_id(), "/plan.toml", "embedded", 0, ME, {"decode-0": entry})


def test_what_runs_is_found_and_a_number_of_another_process_is_not(
    process: subprocess.Popen[str], tmp_path: Path
) -> None:
    identity = identity_of(process.pid)
    assert identity is not None
    assert [each.name for each in left_running(record(tmp_path, identity))] == ["decode-0"]
    save(tmp_path, record(tmp_path, identity))
    adopted = adopt([PROGRAM], tmp_path, "/plan.toml", "embedded", 0, ME)
    assert adopted.fresh == adopted.stray == []
    assert adopted.notes == [f"decode-0: runs already, pid {process.pid}"]
    assert adopted.record.launch_id == tmp_path.name
    changed = adopt([replace(PROGRAM, command=("other",))], tmp_path, "/plan.toml", "embedded", 0, ME)
    assert "by another command line than the plan's now" in changed.notes[0]
    with pytest.raises(LaunchError, match="--engine embedded still runs"):
        adopt([PROGRAM], tmp_path, "/plan.toml", "sglang-cpu", 0, ME)
    assert [each.name for each in adopt([], tmp_path, "/plan.toml", "embedded", 0, ME).stray] == ["decode-0"]


def test_a_process_whose_pid_was_not_noted_is_found_by_its_mark(process: subprocess.Popen[str], tmp_path: Path) -> None:
    (found,) = left_running(record(tmp_path, None))
    assert found.entry.identity == identity_of(process.pid)


def test_children_of_a_process_that_is_gone_are_ended_and_strangers_are_not(
    process: subprocess.Popen[str], tmp_path: Path
) -> None:
    identity = identity_of(process.pid)
    assert identity is not None
    (child,) = session_members(identity)
    gone = Identity(process.pid, identity.start_ticks - 1)  # as if the number had been given away again
    other = replace(record(tmp_path, gone), launch_id="of-nobody")
    assert left_running(other) == []
    assert is_alive(child)
    assert process.poll() is None

    process.kill()
    process.wait(seconds(10))
    assert left_running(record(tmp_path, identity)) == []
    until(lambda: not is_alive(child), "the child was ended")


def test_processes_of_another_boot_are_gone_and_their_service_is_remembered(
    process: subprocess.Popen[str], tmp_path: Path
) -> None:
    save(tmp_path, record(tmp_path, identity_of(process.pid), boot="another"))
    adopted = adopt([PROGRAM], tmp_path, "/plan.toml", "embedded", 0, ME)
    assert len(adopted.fresh) == 1
    assert process.poll() is None
    assert adopted.record.entries["decode-0"].has_served


@pytest.mark.parametrize("state", State)
def test_a_drain_outlives_any_state_of_its_engine(tmp_path: Path, state: State) -> None:
    """The proxy keeps it, even if both restart."""
    left = record(tmp_path, Identity(os.getpid(), 0))
    left.entries["decode-0"].state = state
    save(tmp_path, left)
    entry = adopt([PROGRAM], tmp_path, "/plan.toml", "embedded", 0, ME).record.entries["decode-0"]
    assert entry.is_drained
    assert entry.has_served == (state is not State.STOPPED)
