"""Ready-made comparisons: each has a trace of its own, and runs with a name."""

from collections.abc import Callable
from typing import NamedTuple

from warmroute_proxy.replay.setup import Setup
from warmroute_proxy.replay.trace import Trace


class Run(NamedTuple):
    """One line of a scenario's table."""

    label: str
    policy: str
    setup: Setup
    speed_up: float = 1.0


class Scenario(NamedTuple):
    """What is compared on one trace, and what to say of it."""

    trace: Trace
    runs: tuple[Run, ...]
    notes: tuple[str, ...]


def scenario(name: str) -> Scenario:
    """The scenario of that name."""
    from warmroute_proxy.replay.scenarios import pd, regions

    makers: dict[str, Callable[[], Scenario]] = {"regions": regions.scenario, "pd": pd.scenario}
    return makers[name]()
