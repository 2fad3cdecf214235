"""A group of processes that are all stopped for some seconds now and then, like a virtual machine that is migrated.

The clocks do not stop, so each deadline that is shorter than the stop expires. The group is a control group (cgroup),
which only root can make.
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
    """A control group whose processes can be stopped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._state = folder / "freezer.state"  # cgroup version 1
        if not self._state.exists():
            self._state = folder / "cgroup.freeze"

    def enter(self) -> None:
        """Make the calling process a member of the group, and so its later children."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def stop(self, stops: bool) -> None:
        """Stop all members, or let them continue."""
        of_first = self._state.name == "freezer.state"
        self._state.write_text(("FROZEN" if stops else "THAWED") if of_first else str(int(stops)))

    def watch(self, running: "subprocess.Popen[bytes]", seed: int) -> int:
        """Stop the members now and then until `running` has ended. Returns the exit status of `running`."""
        times = random.Random(seed)
        while True:
            with suppress(subprocess.TimeoutExpired):
                return running.wait(timeout=times.uniform(*RUNS_S))
            self.stop(True)
            time.sleep(times.uniform(*STOPS_S))
            self.stop(False)


@contextmanager
def freezer() -> Iterator[Freezer]:
    """A new control group. Raises: OSError if this user may not make one."""
    first = GROUPS / "freezer"
    folder = (first if first.is_dir() else GROUPS) / f"warmroute-stress-{os.getpid()}"
    folder.mkdir()
    made = Freezer(folder)
    try:
        yield made
    finally:
        made.stop(False)
        with suppress(OSError):  # the group still has a process that the tests left
            folder.rmdir()
