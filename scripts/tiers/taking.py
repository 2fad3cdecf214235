"""The pytest plugin of `scripts.tiers.workers`: each process takes one test file after another from a shared list."""

import fcntl
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

FILES_SETTING: Final = "WARMROUTE_TEST_FILES"
"""The environment variable with the path of the list. Processes lock this file while they change the list."""

PREFERS_SETTING: Final = "WARMROUTE_TEST_PREFERS"
"""The environment variable with the folders whose files this process takes first, separated by commas."""

CPU_SETTING: Final = "WARMROUTE_TEST_CPU"
"""The environment variable with the path of a file that gets a line `SECONDS FILE` for each test file."""

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def take(listed: Path, preferred: tuple[str, ...]) -> str | None:
    """Remove a file from the list and return it: the first of a preferred folder, else the first of all. None if the
    list is empty.
    """
    with listed.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        waiting = file.read().splitlines()
        if not waiting:
            return None
        taken = next((each for each in waiting if each.startswith(preferred)), waiting[0])
        waiting.remove(taken)
        file.seek(0)
        file.truncate()
        file.writelines(f"{each}\n" for each in waiting)
        return taken


class Taker:
    """The plugin's hooks. At first pytest collects only files, and does not import them yet."""

    def __init__(self) -> None:
        self._listed = Path(os.environ[FILES_SETTING])
        self._preferred = tuple(each for each in os.environ[PREFERS_SETTING].split(",") if each)
        self._nodes: dict[str, list[pytest.Item | pytest.Collector]] | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        """Collect the files, or single tests that were asked for."""
        session.perform_collect(genitems=False)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: list[pytest.Item | pytest.Collector]
    ) -> None:
        """Hide the collected files from options that select tests, since files are not tests yet."""
        if self._nodes is None:
            self._nodes = {}
            for node in items:
                self._nodes.setdefault(str(node.path.relative_to(session.config.rootpath)), []).append(node)
            items.clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Import and run one file after another, until the list is empty. Fixtures of a file end with the file."""
        collected = 0
        while (taken := take(self._listed, self._preferred)) is not None:
            before_s = cpu_s()
            collected += self._run(session, taken)
            with Path(os.environ[CPU_SETTING]).open("a") as file:
                file.write(f"{cpu_s() - before_s:.2f} {taken}\n")
        session.testscollected = collected
        return True

    def _run(self, session: pytest.Session, taken: str) -> int:
        """Run the tests of a file. Returns the number of tests."""
        assert self._nodes is not None
        hook = session.config.hook
        session.items = [item for node in self._nodes[taken] for item in session.genitems(node)]
        hook.pytest_collection_modifyitems(session=session, config=session.config, items=session.items)
        hook.pytest_collection_finish(session=session)
        for item, following in itertools.zip_longest(session.items, session.items[1:]):
            hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
        return len(session.items)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Taker())


def cpu_s() -> float:
    """The processor time of this process, and of its children that still run or were waited for."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for pid, fields in _processes():
        parents[pid] = int(fields[1])
        used[pid] = sum(map(int, fields[11:15]))
    return sum(ticks for pid, ticks in used.items() if _descends(pid, parents)) / _TICKS_PER_S


def _processes() -> Iterator[tuple[int, list[str]]]:
    """The pid of each process, and the fields after its name in /proc/PID/stat."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            yield int(path.parent.name), path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # the process has ended
            continue


def _descends(pid: int, parents: dict[int, int]) -> bool:
    own = os.getpid()
    while pid in parents and pid != own:
        pid = parents[pid]
    return pid == own
