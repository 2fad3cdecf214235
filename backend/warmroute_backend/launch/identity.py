"""Which process is meant: a pid and its start time, so that a number that the system has given away again is not taken
for the process that had it before.

Signals go through a descriptor of the process (`pidfd_open(2)`): it is opened, the start time is compared, and then the
signal is sent to what was compared. A process that has ended meanwhile gets nothing, and nobody else does.

A launched process leads a session, and its children stay in it. Besides, all of them inherit `MARK`. While the leader
lives or has not been reaped, its session number cannot be another's; once it is gone, only members that were noted
before, or that carry the mark, are its own.
"""

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MARK: Final = "WARMROUTE_LAUNCH"
"""The variable of a launched process: launch id, slash, name."""

PROC: Final = Path("/proc")
_AFTER_NAME_STATE: Final = 0
_AFTER_NAME_SESSION: Final = 3
_AFTER_NAME_START: Final = 19


@dataclass(frozen=True, slots=True, order=True)
class Identity:
    """A process since the system's start: `start_ticks` is field 22 of `/proc/PID/stat` (proc_pid_stat(5))."""

    pid: int
    start_ticks: int


def identity_of(pid: int) -> Identity | None:
    """The process that has this number now; None if none has. One that has ended and waits to be reaped counts."""
    found = _stat(pid)
    return None if found is None else Identity(pid, int(found[_AFTER_NAME_START]))


def is_alive(identity: Identity) -> bool:
    """Whether this very process runs, and is not a zombie."""
    found = _stat(identity.pid)
    if found is None or int(found[_AFTER_NAME_START]) != identity.start_ticks:
        return False
    return found[_AFTER_NAME_STATE] not in {"Z", "X"}


def signal_process(identity: Identity, number: signal.Signals) -> bool:
    """Send a signal to this very process; False if it is gone. Raises: PermissionError."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    try:
        if identity_of(identity.pid) != identity:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def session_members(leader: Identity) -> set[Identity]:
    """The other processes of a leader's session. Only while the leader is alive or a zombie: empty otherwise."""
    if identity_of(leader.pid) != leader:
        return set()
    found = set()
    for pid in _pids():
        stat = _stat(pid)
        if stat is not None and int(stat[_AFTER_NAME_SESSION]) == leader.pid and pid != leader.pid:
            found.add(Identity(pid, int(stat[_AFTER_NAME_START])))
    return found


def marked(mark: str) -> set[Identity]:
    """The processes that were started with this value of `MARK`, by them and their children."""
    wanted = f"{MARK}={mark}".encode()
    found = set()
    for pid in _pids():
        with contextlib.suppress(OSError):
            if wanted in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                identity = identity_of(pid)
                if identity is not None and is_alive(identity):
                    found.add(identity)
    return found


def boot_id() -> str:
    """The name of this run of the system: processes of another one are gone, whatever their numbers."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def _pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()]


def _stat(pid: int) -> list[str] | None:
    """The fields behind the name, which may itself have spaces and brackets."""
    try:
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[-1].split()
    except OSError:
        return None
