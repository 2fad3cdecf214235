"""Tells processes apart by pid and start time, since the system gives the pid of an ended process to another one.

Signals go through a descriptor of the process (`pidfd_open(2)`). The descriptor is opened, then the start time is
compared, and then the signal is sent to the descriptor. If the process has ended meanwhile, no process gets a signal.

A launched process leads a session (`setsid(2)`), and its children stay in that session. Leader and children also have
the environment variable `MARK`. Until the leader has ended and is reaped, no other process gets its session number.
Afterwards, a process counts as the leader's only if it was noted before as a member of the session, or has the mark.
"""

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MARK: Final = "WARMROUTE_LAUNCH"
"""The environment variable of a launched process. Its value is launch id, slash, name of the process."""

PROC: Final = Path("/proc")
_AFTER_NAME_STATE: Final = 0
_AFTER_NAME_SESSION: Final = 3
_AFTER_NAME_START: Final = 19


@dataclass(frozen=True, slots=True, order=True)
class Identity:
    """A process of this boot. `start_ticks` is field 22 of `/proc/PID/stat` (proc_pid_stat(5))."""

    pid: int
    start_ticks: int


def identity_of(pid: int) -> Identity | None:
    """The process that has this pid now, or None. A process that has ended and is not reaped yet counts, too."""
    found = _stat(pid)
    return None if found is None else Identity(pid, int(found[_AFTER_NAME_START]))


def is_alive(identity: Identity) -> bool:
    """Whether this very process runs, and is not a zombie."""
    found = _stat(identity.pid)
    if found is None or int(found[_AFTER_NAME_START]) != identity.start_ticks:
        return False
    return found[_AFTER_NAME_STATE] not in {"Z", "X"}


def signal_process(identity: Identity, number: signal.Signals) -> bool:
    """Send a signal to this very process; False if the process is gone. Raises: PermissionError."""
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
    """The other processes of a leader's session; empty if the leader is neither alive nor a zombie."""
    if identity_of(leader.pid) != leader:
        return set()
    found = set()
    for pid in _pids():
        stat = _stat(pid)
        if stat is not None and int(stat[_AFTER_NAME_SESSION]) == leader.pid and pid != leader.pid:
            found.add(Identity(pid, int(stat[_AFTER_NAME_START])))
    return found


def marked(mark: str) -> set[Identity]:
    """The live processes with this value of `MARK`: a launched process, and its children, which inherit the value."""
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
    """The name of this boot of the system. Processes of another boot are gone, even if their pids are in use."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def _pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()]


def _stat(pid: int) -> list[str] | None:
    """The fields of `/proc/PID/stat` after the program's name, which may contain spaces and brackets."""
    try:
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[-1].split()
    except OSError:
        return None
