"""Makes the scenario that `warmroute replay --scenario` names, with a seed, other loads, or only some policies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from warmroute_lab.replay.scenarios import pd, regions
from warmroute_lab.replay.scenarios.scenario import Scenario
from warmroute_lab.replay.trace import TraceError

_MAKERS: Final[Mapping[str, Callable[[int], Scenario]]] = {
    "regions": lambda seed: regions.scenario(replace(regions.AGENTS, seed=seed)),
    "pd": lambda seed: pd.scenario(replace(pd.CALLS, seed=seed)),
}


def scenario(
    name: str, seed: int = 1, policies: Sequence[str] | None = None, speed_ups: Sequence[float] | None = None
) -> Scenario:
    """Return the scenario of that name. Its trace is made from `seed`.

    `policies`: only their runs are kept. `speed_ups`: each run is repeated at all of them.

    Raises: TraceError, if the scenario has no run of one of the `policies`.
    """
    made = _MAKERS[name](seed)
    runs = list(made.runs)
    if policies is not None:
        there = dict.fromkeys(run.policy for run in runs)
        if unknown := [policy for policy in policies if policy not in there]:
            raise TraceError(f"--scenario {name} has no run of {', '.join(unknown)}: it plays {', '.join(there)}")
        runs = [run for run in runs if run.policy in policies]
    if speed_ups is not None:
        once = dict.fromkeys(run._replace(speed_up=1.0) for run in runs)
        runs = [run._replace(speed_up=speed_up) for run in once for speed_up in speed_ups]
    return made._replace(runs=tuple(runs))
