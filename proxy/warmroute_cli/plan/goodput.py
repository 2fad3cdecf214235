"""The most requests a second that a plan serves within its targets (goodput, DistServe, arXiv:2401.09670).

The traffic is played faster and slower until two rates are `CLOSE` to each other, of which one reaches the targets and
the other does not. Averages are played at another rate. Of a trace, sessions begin sooner or later, and what is between
two turns of a session stays as it is.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from msgspec.structs import replace as sooner

from warmroute_backend.plan.deployment import Traffic
from warmroute_backend.plan.errors import PlanError
from warmroute_cli.plan.inputs import AVERAGE, average_trace
from warmroute_cli.plan.search import PlayedPlan, Search
from warmroute_cli.plan.sized_page import front
from warmroute_cli.plan.sizing import simulate
from warmroute_cli.plan.targets import Targets
from warmroute_lab.replay.trace import Trace

CLOSE: Final = 1.05
"""One rate over another that is not told apart from it."""
MOST_PLAYS: Final = 14
MOST_PLANS: Final = 3


@dataclass(frozen=True, slots=True)
class Goodput:
    """Of one plan. `beyond`: what it misses at the next higher rate that was played."""

    division: str
    requests_per_s: float
    tokens_per_s_gpu: float
    """Tokens of answers that each GPU gives at that rate."""
    beyond: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def by_goodput(search: Search, traffic: Traffic, trace: Trace, targets: Targets) -> list[Goodput]:
    """Put the plan with the highest goodput first. Returns those of the best plans of the search, the highest first."""
    best = search.best
    asked = [best, *(each for each in front(search) if each is not best)][:MOST_PLANS]
    found = [(goodput(each, traffic, trace, targets), each) for each in asked]
    found.sort(key=lambda pair: -pair[0].requests_per_s)
    best = found[0][1]
    search.played.remove(best)
    search.played.insert(0, best)
    return [each for each, _ in found]


def goodput(found: PlayedPlan, traffic: Traffic, trace: Trace, targets: Targets) -> Goodput:
    """The goodput of a plan that was played with the traffic itself."""
    good, bad, beyond = (0.0, 1.0, found.missed) if found.missed else (1.0, 0.0, ())
    for _ in range(MOST_PLAYS):
        if good and bad and bad <= CLOSE * good:
            break
        times = 2 * good if not bad else bad / 2 if not good else (good * bad) ** 0.5
        missed = _missed(found, traffic, trace, targets, times)
        if missed:
            bad, beyond = times, missed
        else:
            good = times
    rate = good * traffic.requests_per_s
    tokens = rate * traffic.output_tokens / found.plan.cluster.gpus
    return Goodput(found.sizing.division, rate, tokens, ", ".join(beyond))


def _missed(found: PlayedPlan, traffic: Traffic, trace: Trace, targets: Targets, times: float) -> tuple[str, ...]:
    """The targets that a plan misses with `times` the traffic."""
    try:
        return tuple(targets.missed(simulate(found.plan, found.request, faster(trace, traffic, times))))
    except PlanError as error:
        return (str(error),)


def faster(trace: Trace, traffic: Traffic, times: float) -> Trace:
    """The traffic with `times` the requests a second."""
    if trace.name == AVERAGE:
        return average_trace(replace(traffic, requests_per_s=traffic.requests_per_s * times))
    begun = [each if each.after is not None else sooner(each, at_s=each.at_s / times) for each in trace.requests]
    return replace(trace, requests=begun)


def section(found: Sequence[Goodput], targets: Targets) -> str:
    of_what = "within its targets" if targets else "before a queue grows"
    lines = [f"Goodput: the most requests/s {of_what}"]
    for each in found:
        rate, tokens = f"{each.requests_per_s:.3g} requests/s", f"{each.tokens_per_s_gpu:.3g} tokens/s/GPU"
        lines.append(f"  {each.division}: {rate}, {tokens}" + (f"; beyond: {each.beyond}" if each.beyond else ""))
    return "\n".join(lines)
