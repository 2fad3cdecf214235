"""Scenarios by the names of `warmroute replay --scenario`."""

from collections.abc import Callable, Mapping
from typing import Final

from warmroute_proxy.replay.scenarios import pd, regions
from warmroute_proxy.replay.scenarios.scenario import Scenario

_MAKERS: Final[Mapping[str, Callable[[], Scenario]]] = {"regions": regions.scenario, "pd": pd.scenario}


def scenario(name: str) -> Scenario:
    """The scenario of that name."""
    return _MAKERS[name]()
