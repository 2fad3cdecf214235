"""Which process is meant: a number that was given away again is nobody's."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.machine import seconds
from tests.subjects.processes import until

from warmroute_backend.launch.identity import (
    MARK,
    Identity,
    identity_of,
    is_alive,
    marked,
    session_members,
    signal_process,
)

WITH_CHILD = "import subprocess, sys; subprocess.Popen(['sleep', '100']); print('up', flush=True); sys.stdin.read()"


@contextlib.contextmanager
def leading(mark: str) -> Iterator[subprocess.Popen[str]]:
    """A leader with a child, neither of which outlives the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", WITH_CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, MARK: mark},
    )
    assert process.stdout is not None
    process.stdout.readline()
    with process:
        yield process
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def leader() -> Iterator[subprocess.Popen[str]]:
    with leading(f"test-{os.getpid()}/leader") as process:
        yield process


def known(process: subprocess.Popen[str]) -> Identity:
    identity = identity_of(process.pid)
    assert identity is not None
    return identity


def test_a_signal_reaches_the_process_that_is_meant(leader: subprocess.Popen[str]) -> None:
    identity = known(leader)
    assert is_alive(identity)
    (child,) = session_members(identity)
    assert signal_process(identity, signal.SIGKILL)
    leader.wait(seconds(10))
    assert not is_alive(identity)
    assert signal_process(child, signal.SIGKILL)


def test_a_number_that_was_given_away_again_gets_no_signal(leader: subprocess.Popen[str]) -> None:
    other = replace(known(leader), start_ticks=known(leader).start_ticks - 1)
    assert not is_alive(other)
    assert not signal_process(other, signal.SIGKILL)
    assert session_members(other) == set()
    assert leader.poll() is None


def test_marked_processes_are_found_without_their_leader(leader: subprocess.Popen[str]) -> None:
    mark = f"test-{os.getpid()}/leader"
    # In the middle of `exec`, which is when Popen returns, the system shows an empty environment.
    until(lambda: {known(leader), *session_members(known(leader))} == marked(mark), "both are found")
    assert len(marked(mark)) == 2
    leader.kill()
    leader.wait(seconds(10))
    (child,) = marked(mark)
    assert signal_process(child, signal.SIGKILL)
    assert marked("test-other/leader") == set()


def test_a_zombie_is_not_alive(leader: subprocess.Popen[str]) -> None:
    identity = known(leader)
    (child,) = session_members(identity)
    signal_process(child, signal.SIGKILL)
    leader.kill()
    os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
    assert identity_of(leader.pid) == identity
    assert not is_alive(identity)


def test_a_name_with_brackets_and_spaces_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmroute_backend.launch.identity.PROC", tmp_path)
    (tmp_path / "7").mkdir()
    rest = " ".join(["S", "1", "7", "7", *["0"] * 15, "4242"])
    (tmp_path / "7" / "stat").write_text(f"7 (a (b) c) {rest}")
    assert identity_of(7) == Identity(7, 4242)
    assert identity_of(8) is None
