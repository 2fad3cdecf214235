"""Whether memory grows with requests, told apart from steps, which come once and stay.

A step is what a heap does when more than ever before is held at once: a neighbour takes the processor for a second,
more requests are under way, and the allocator keeps what they needed. It is no leak, since it does not go on. A leak
goes on: in steps too, where an allocator takes whole arenas or a table doubles, but then in many.

The samples are divided into parts of as many requests each. The level of a part is the median of its samples, so short
peaks are out of it. Three figures are made of the levels, in bytes a request, and memory grows by the least of them:

- the mean rise from level to level without the two largest and the two smallest. One step or two are not in it;
- the median slope of all pairs of levels (Theil-Sen). Falls, which the first would leave out, are in it;
- the line fitted to the second half. What a slow start still adds after the warm-up is not in it.
"""

from collections.abc import Sequence
from itertools import combinations, pairwise
from statistics import linear_regression, mean, median
from typing import Final, NamedTuple

PARTS: Final = 12
STEPS: Final = 2
"""So many rises, and falls, may be steps. Three of a size are a stair."""


class Point(NamedTuple):
    """A figure after so many requests."""

    requests: float
    value: float


class Growth(NamedTuple):
    """The growth of a figure, for each request."""

    without_steps: float
    median_slope: float
    second_half: float
    steps: tuple[float, ...]  # the rises that were left out, in all, the largest first
    requests: float  # between the middles of the first and the last part

    @property
    def each(self) -> float:
        """What a request adds."""
        return min(self.without_steps, self.median_slope, self.second_half)

    @property
    def total(self) -> float:
        """What all requests added."""
        return self.each * self.requests


def growth(points: Sequence[Point]) -> Growth:
    """Judge samples, which are in the order of their requests. Where there are none, nothing has grown."""
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
    """The middle of each part."""
    if not points or points[-1].requests <= points[0].requests:
        return []
    first, last = points[0].requests, points[-1].requests
    parts: list[list[Point]] = [[] for _ in range(PARTS)]
    for point in points:
        parts[min(PARTS - 1, int((point.requests - first) / (last - first) * PARTS))].append(point)
    return [Point(median(p.requests for p in part), median(p.value for p in part)) for part in parts if part]


def _slope(one: Point, other: Point) -> float:
    return (other.value - one.value) / (other.requests - one.requests)
