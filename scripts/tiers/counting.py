"""Counts tests while pytest runs: a plugin of pytest writes a line for each result, and a reader sums them up.

The plugin is loaded by `-p scripts.tiers.counting`. It does nothing unless the environment variable
`WARMROUTE_TEST_COUNTS` names a file.
"""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final, TextIO

import pytest

FILE_SETTING: Final = "WARMROUTE_TEST_COUNTS"


@dataclass
class Count:
    """The number of tests in one folder so far. `time_s`: the sum of their durations."""

    planned: int = 0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    time_s: float = 0.0

    @property
    def ended(self) -> int:
        return self.passed + self.failed + self.skipped


def summed(counts: Iterable[Count]) -> Count:
    return Count(*(sum(column) for column in zip(*map(astuple, counts), strict=True)))


class Counter:
    """Reads the file that the plugin writes, as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.by_folder: dict[str, Count] = {}
        self._read = 0
        path.touch()

    def read(self) -> None:
        """Count the lines that were written since the last call. A line that is incomplete is read by the next call."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            *lines, rest = file.read().split(b"\n")
            self._read = file.tell() - len(rest)
        for line in lines:
            folder, what, value = json.loads(line)
            count = self.by_folder.setdefault(folder, Count())
            if what == "time_s":
                count.time_s += value
            else:
                setattr(count, what, getattr(count, what) + value)

    def total(self) -> Count:
        return summed(self.by_folder.values())


class _Writer:
    """The hooks of the plugin, in the process that reports results and not in xdist's workers."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._planned = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._plan([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        if not self._planned:  # the first worker's list is enough: all lists are equal
            self._planned = True
            self._plan(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        folder = folder_of(report.nodeid)
        self._write(folder, "time_s", report.duration)
        if report.failed:
            self._write(folder, "failed", 1)
        elif report.skipped:
            self._write(folder, "skipped", 1)
        elif report.when == "call":
            self._write(folder, "passed", 1)

    def _plan(self, ids: Sequence[str]) -> None:
        folders = [folder_of(each) for each in ids]
        for folder in dict.fromkeys(folders):
            self._write(folder, "planned", folders.count(folder))

    def _write(self, folder: str, what: str, value: float) -> None:
        self._file.write(json.dumps([folder, what, value]) + "\n")
        self._file.flush()


def folder_of(nodeid: str) -> str:
    """The folder of a test: `unit` for `tests/unit/core/test_x.py::test_y`, `chaos` for
    `tests/field/chaos/test_x.py::test_y`.
    """
    return nodeid.removeprefix("tests/").removeprefix("field/").partition("/")[0]


def pytest_configure(config: pytest.Config) -> None:
    """Install the plugin's hooks if a file is named. The variables are removed, so that a pytest that a test starts
    does not write to the file.
    """
    path = os.environ.pop(FILE_SETTING, None)
    os.environ.pop("PYTEST_ADDOPTS", None)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Writer(Path(path).open("a")))  # noqa: SIM115 (as long as the process)
