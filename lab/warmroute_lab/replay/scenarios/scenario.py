"""The values of a scenario: the trace, the runs on it, and the notes below its table."""

from typing import NamedTuple

from warmroute_lab.replay.setup import Setup
from warmroute_lab.replay.trace import Trace


class Run(NamedTuple):
    """One line of a scenario's table."""

    label: str
    policy: str
    setup: Setup
    speed_up: float = 1.0


class Scenario(NamedTuple):
    """A trace, its runs, and the notes to print."""

    trace: Trace
    runs: tuple[Run, ...]
    notes: tuple[str, ...]
