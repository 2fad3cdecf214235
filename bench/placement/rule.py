"""The rule that a policy must meet on a row, by the medians of the row's draws (runs at several seeds).

The rule: the hit ratio is at least that of the best baseline less 0.005, and the p90 of TTFT is at most 1.05 times the
best p90 among the baselines whose hit ratio is within 0.02 of the best. Other baselines are not a yardstick for p90,
because a policy that ignores caches may have a short tail at low load. Nor is a policy with a high hit ratio and a long
tail, such as one that sends too much to one worker.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from bench.placement.draws import Draw, Draws
from bench.placement.rows import OURS, ROWS, Row

HIT_SLACK: Final = 0.005
NEAR: Final = 0.02
P90_FACTOR: Final = 1.05


class Drawn(NamedTuple):
    """One figure of one policy over all draws: the median, the least and the largest value."""

    median: float
    least: float
    most: float

    def text(self, digits: int) -> str:
        """The text in a table."""
        if self.least == self.most:
            return f"{self.median:.{digits}f}"
        return f"{self.median:.{digits}f} ({self.least:.{digits}f}-{self.most:.{digits}f})"


class Reached(NamedTuple):
    """The results of a policy on a row. `p90_s` is of TTFT."""

    policy: str
    hit: Drawn
    p90_s: Drawn


class Verdict(NamedTuple):
    """The rule on one row, for one of warmroute's policies. `yardstick`: the baseline with which p90 is compared."""

    row: Row
    draws: int
    ours: Reached
    best: Reached
    yardstick: Reached
    better_hit: tuple[str, ...]
    better_p90: tuple[str, ...]
    """Baselines with a better p90, by any amount."""

    @property
    def hit_holds(self) -> bool:
        """Whether the hit ratio meets the rule."""
        return self.ours.hit.median >= self.best.hit.median - HIT_SLACK

    @property
    def p90_holds(self) -> bool:
        """Whether the p90 of TTFT meets the rule."""
        return self.ours.p90_s.median <= P90_FACTOR * self.yardstick.p90_s.median

    @property
    def holds(self) -> bool:
        """Whether hit ratio and p90 meet the rule."""
        return self.hit_holds and self.p90_holds


def drawn(values: Iterable[float]) -> Drawn:
    """Return the median and range of some draws."""
    found = sorted(values)
    return Drawn(statistics.median(found), found[0], found[-1])


def reached(policy: str, draws: Sequence[Draw]) -> Reached:
    """Return the medians and ranges of a policy."""
    return Reached(policy, drawn(draw.hit for draw in draws), drawn(draw.p90_s for draw in draws))


def verdict(row: Row, policy: str, played: Mapping[str, Sequence[Draw]]) -> Verdict:
    """Return the verdict on a row for which all policies have results."""
    ours = reached(policy, played[policy])
    others = [reached(name, played[name]) for name in row.baselines]
    best = max(others, key=lambda each: each.hit.median)
    near = [each for each in others if each.hit.median >= best.hit.median - NEAR]
    yardstick = min(near, key=lambda each: each.p90_s.median)
    return Verdict(
        row, len(played[policy]), ours, best, yardstick,
        tuple(each.policy for each in others if each.hit.median > ours.hit.median),
        tuple(each.policy for each in others if each.p90_s.median < ours.p90_s.median),
    )  # fmt: skip


def verdicts(draws: Draws, rows: Iterable[Row] = ROWS) -> dict[str, list[Verdict]]:
    """Return the verdicts on all rows with results, by warmroute's policies."""
    played = [row for row in rows if row.name in draws]
    return {policy: [verdict(row, policy, draws[row.name]) for row in played] for policy in OURS}
