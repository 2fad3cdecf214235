"""Tells whether memory grows with requests, apart from steps: rises that happen once and stay.

A step happens when a process holds more at once than ever before. For example, another process takes the processor for
a second, so that more requests are under way, and the allocator keeps the memory that they needed. A step is not a
leak, since it does not repeat. A leak may also rise in steps, if an allocator takes whole arenas or a table doubles,
but then there are many steps.

The samples are divided into parts with equal numbers of requests. The level of a part is the median of its samples, so
short peaks do not count. Three figures are computed from the levels, in bytes a request. The least of them is taken as
the growth:

- the mean rise from level to level, without the two largest and the two smallest rises: it ignores one or two steps;
- the median slope of all pairs of levels (Theil-Sen): it includes falls, which the mean rise may leave out;
- the slope of a line fitted to the second half: it ignores what a slow start still adds after the warm-up.
"""

from collections.abc import Sequence
from itertools import combinations, pairwise
from statistics import linear_regression, mean, median
from typing import Final, NamedTuple

PARTS: Final = 12
STEPS: Final = 2
"""The number of rises, and of falls, that may be steps. Three equal rises count as growth."""


class Point(NamedTuple):
    """The value of a figure after a number of requests."""

    requests: float
    value: float


class Growth(NamedTuple):
    """The growth of a figure, for each request."""

    without_steps: float
    median_slope: float
    second_half: float
    steps: tuple[float, ...]  # the rises that were left out as steps, not divided by requests, the largest first
    requests: float  # the number between the middles of the first and the last part

    @property
    def each(self) -> float:
        """The growth for one request: the least of the three figures."""
        return min(self.without_steps, self.median_slope, self.second_half)

    @property
    def total(self) -> float:
        """The growth for all requests."""
        return self.each * self.requests


def growth(points: Sequence[Point]) -> Growth:
    """The growth of a figure, from samples in the order of requests. Without samples the growth is 0."""
    levels = _levels(points)
    if len(levels) < 2:
        return Growth(0.0, 0.0, 0.0, (), 0.0)
    rises = sorted(pairwise(levels), key=lambda pair: _slope(*pair))
    few = STEPS if len(rises) > 2 * STEPS else 0
    steps = [other.value - one.value for one, other in reversed(rises[len(rises) - few :])]
    return Growth(
        mean(_slope(*pair) for pair in rises[few : len(rises) - few]),
        median(_slope(*pair) for pair in combinations(levels, 2)),
        linear_regression(*zip(*levels[len(levels) // 2 - 1 :], strict=True)).slope,
        tuple(steps),
        levels[-1].requests - levels[0].requests,
    )


def _levels(points: Sequence[Point]) -> list[Point]:
    """The level of each part, at its middle."""
    if not points or points[-1].requests <= points[0].requests:
        return []
    first, last = points[0].requests, points[-1].requests
    parts: list[list[Point]] = [[] for _ in range(PARTS)]
    for point in points:
        parts[min(PARTS - 1, int((point.requests - first) / (last - first) * PARTS))].append(point)
    return [Point(median(p.requests for p in part), median(p.value for p in part)) for part in parts if part]


def _slope(one: Point, other: Point) -> float:
    return (other.value - one.value) / (other.requests - one.requests)
