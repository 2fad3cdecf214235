"""Starts and ends a process on a given core, and measures what its tree of processes uses."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_POLL_S: Final = 0.02


@dataclass(frozen=True)
class Cpu:
    """Seconds of processor time."""

    user_s: float
    system_s: float

    @property
    def total_s(self) -> float:
        """User and system time. The kernel counts the sum exactly, and estimates the two by samples."""
        return self.user_s + self.system_s

    def __sub__(self, other: "Cpu") -> "Cpu":
        return Cpu(self.user_s - other.user_s, self.system_s - other.system_s)


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    found, todo = [], [pid]
    while todo:
        each = todo.pop()
        try:
            for task in Path(f"/proc/{each}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
        except OSError:  # the process has ended meanwhile
            continue
        found.append(each)
    return found


def cpu(pid: int) -> Cpu:
    """The processor time of a tree until now. Ended processes count if their parents have waited for them."""
    ticks = [0, 0]
    for each in tree(pid):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        user, system, children_user, children_system = map(int, fields[11:15])
        ticks[0] += user + children_user
        ticks[1] += system + children_system
    return Cpu(ticks[0] / TICKS_PER_S, ticks[1] / TICKS_PER_S)


def memory_kb(pid: int) -> int:
    """Proportional set size of a tree."""
    total = 0
    for each in tree(pid):
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


def resident_kb(pid: int) -> int:
    """Resident set size of a tree."""
    total = 0
    for each in tree(pid):
        lines = Path(f"/proc/{each}/status").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return total


def open_files(pid: int) -> int:
    """Open file descriptors of a tree."""
    return sum(len(list(Path(f"/proc/{each}/fd").iterdir())) for each in tree(pid))


class Process:
    """A started process, pinned to `core` from the start, in a new process group and with its output in a file."""

    def __init__(self, command: Sequence[str], log: Path, environment: dict[str, str], core: int | None) -> None:
        mine = os.sched_getaffinity(0)
        if core is not None:
            os.sched_setaffinity(0, {core})  # threads that it starts at once inherit the core
        try:
            with log.open("wb") as out:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment},
                    cwd=log.parent,
                    start_new_session=True,
                )
        finally:
            os.sched_setaffinity(0, mine)
        self._log = log
        self.pid = self._process.pid

    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def output(self) -> str:
        """All output of the process."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def last_words(self) -> str:
        """The last line of output that is not blank."""
        lines = [line.strip() for line in self.output().splitlines() if line.strip()]
        return lines[-1][:160] if lines else "it wrote nothing"

    def stop(self, grace_s: float = 5.0) -> None:
        """End the process and all that it has started: SIGTERM, then SIGKILL after `grace_s`."""
        pids = tree(self.pid)
        self._signal(signal.SIGTERM)
        end_s = time.monotonic() + grace_s
        while self.running() and time.monotonic() < end_s:
            time.sleep(_POLL_S)
        self._signal(signal.SIGKILL)
        for pid in pids[1:]:  # processes that made their own groups
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._process.wait()

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass
