"""What the trials show, in a row for each relation of two tenants."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from warmroute_lab.audit.comparison import Comparison, compare
from warmroute_lab.audit.isolation import Relation, Seen

ALPHA: Final = 0.001
"""A p-value below it is a difference. One audit in a thousand of a sound fleet fails by chance."""

LEAST_EFFECT: Final = 0.6
"""A share of pairs below it is not a difference that a tenant could use."""

LEAST_HITS: Final = 0.5
"""Of the control: the share of its prompts that must be found in the cache, in the tier that was asked for."""


@dataclass(frozen=True, slots=True)
class IsolationVerdict:
    """Of one relation. `hits`: prompts of the first tenant that were found, of `samples`; times in seconds."""

    relation: str
    samples: int
    hits: int
    median_cached: float
    median_ttft_s: float
    median_new_ttft_s: float
    effect: float
    p_value: float
    ok: bool
    finding: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def verdicts(seen: Mapping[Relation, Seen], trials: int, tier: str) -> list[IsolationVerdict]:
    """Judge all relations; `tier`: where the control must find its prompts, else nothing is shown about it."""
    return [_verdict(relation, found, trials, tier) for relation, found in seen.items()]


def _verdict(relation: Relation, seen: Seen, trials: int, tier: str) -> IsolationVerdict:
    baseline = max((probe.cached for probe in seen.new), default=0)  # what all prompts share, such as a template
    hits = [probe for probe in seen.again if probe.cached > baseline]
    times = compare([probe.ttft_s for probe in seen.again], [probe.ttft_s for probe in seen.new])
    ok, finding = _judged(relation, seen, hits=len(hits), times=times, trials=trials, tier=tier)
    return IsolationVerdict(
        relation=relation.value,
        samples=len(seen.again),
        hits=len(hits),
        median_cached=_median([probe.cached for probe in seen.again]),
        median_ttft_s=_median([probe.ttft_s for probe in seen.again]),
        median_new_ttft_s=_median([probe.ttft_s for probe in seen.new]),
        effect=times.effect,
        p_value=times.p_value,
        ok=ok,
        finding=finding,
    )


def _judged(
    relation: Relation, seen: Seen, *, hits: int, times: Comparison, trials: int, tier: str
) -> tuple[bool, str]:
    shorter = times.p_value < ALPHA and times.effect >= LEAST_EFFECT
    if len(seen.again) < trials:
        return False, "shows nothing: too few of its prompts met the tenant's on a worker"
    if relation is Relation.OUTSIDER:
        if hits:
            return False, "LEAK: cached tokens reveal prompts of another tenant"
        if shorter:
            return False, "LEAK: the time to the first token reveals prompts of another tenant"
        return True, "sees nothing"
    in_tier = sum(probe.tiers.get(tier, 0) > 0 for probe in seen.again)
    if hits < LEAST_HITS * len(seen.again):
        return False, "shows nothing: the prompts were not found again"
    if in_tier < LEAST_HITS * len(seen.again):
        return False, f"shows nothing: the prompts were not found in the {tier} tier"
    if not shorter:
        return False, "shows nothing of times: they do not differ even here; send longer prompts, or more"
    return True, "finds its own prompts" if relation is Relation.ITSELF else "shares, as configured"


def _median(values: list[int] | list[float]) -> float:
    return median(values) if values else 0.0
