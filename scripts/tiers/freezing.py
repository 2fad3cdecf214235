"""A group of processes that all stop for some seconds now and then, as those of a machine that is moved elsewhere.

Their clocks go on, so each deadline that is shorter than the stop passes. Made of a control group, which takes root.
"""

import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

GROUPS: Final = Path("/sys/fs/cgroup")
RUNS_S: Final = (2.0, 9.0)
STOPS_S: Final = (0.3, 3.5)


class Freezer:
    """A control group."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._state = folder / "freezer.state"  # of the first version of control groups
        if not self._state.exists():
            self._state = folder / "cgroup.freeze"

    def enter(self) -> None:
        """Make the calling process a member; its children will be."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def stop(self, stops: bool) -> None:
        """Stop all members, or let them go on."""
        of_first = self._state.name == "freezer.state"
        self._state.write_text(("FROZEN" if stops else "THAWED") if of_first else str(int(stops)))

    def watch(self, running: "subprocess.Popen[bytes]", seed: int) -> int:
        """Stop its members now and then, until a process has ended; how it did."""
        times = random.Random(seed)
        while True:
            with suppress(subprocess.TimeoutExpired):
                return running.wait(timeout=times.uniform(*RUNS_S))
            self.stop(True)
            time.sleep(times.uniform(*STOPS_S))
            self.stop(False)


@contextmanager
def freezer() -> Iterator[Freezer]:
    """A group of its own. Raises: OSError where this user may make none."""
    first = GROUPS / "freezer"
    folder = (first if first.is_dir() else GROUPS) / f"warmroute-stress-{os.getpid()}"
    folder.mkdir()
    made = Freezer(folder)
    try:
        yield made
    finally:
        made.stop(False)
        with suppress(OSError):  # a process that the tests left is still in it
            folder.rmdir()
