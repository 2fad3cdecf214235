"""Whether one set of times is lower than another: the one-sided test of Mann and Whitney (1947).

U counts the pairs in which the first set's value is the lower one, ties as a half. Where both sets are drawn from the
same distribution, U has the mean n*m/2 and, with ties of t values each, the variance

    n*m/12 * (n + m + 1 - sum(t^3 - t) / ((n + m) * (n + m - 1)))

and is close to normal from eight values each. No distribution of times is assumed, so a few slow requests do no harm.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class Comparison(NamedTuple):
    """`effect`: the share of pairs in which the first value is lower, 0.5 where the sets do not differ. `p_value`: how
    probable at least this effect is if they do not."""

    effect: float
    p_value: float


def compare(first: Sequence[float], second: Sequence[float]) -> Comparison:
    """Whether the values of `first` are lower than those of `second`. Without values: no effect."""
    n, m = len(first), len(second)
    if not n or not m:
        return Comparison(0.5, 1.0)
    u = sum((a < b) + 0.5 * (a == b) for a in first for b in second)
    ties = sum(t**3 - t for t in Counter([*first, *second]).values())
    variance = n * m / 12 * (n + m + 1 - ties / ((n + m) * max(1, n + m - 1)))
    if variance <= 0:
        return Comparison(0.5, 1.0)
    z = (u - n * m / 2 - 0.5) / math.sqrt(variance)  # 0.5: U is a whole number, the normal curve is not
    return Comparison(u / (n * m), math.erfc(z / math.sqrt(2)) / 2)
