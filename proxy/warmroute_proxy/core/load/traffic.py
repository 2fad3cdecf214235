"""Measures with decaying sums how busy the work sent by this proxy has lately kept the fleet.

Each sum decays with time constant `MEMORY_S` and starts at 0. A proxy that has just started has observed only a part of
that time. So the utilisation is the sum divided by that part, 1 - exp(-age / MEMORY_S). Without this division the fleet
would seem nearly idle in the proxy's first minutes. The age includes `BEFORE_S` of idleness before the start, or the
first long prompt would make the fleet look busy. The rate of returning requests (whose prompt is partly cached) is not
corrected: no request returns to a cache that is still empty.

A decaying sum of values x sent at times t is now

    sum of x * exp((t - now) / MEMORY_S)  =  exp((since - now) / MEMORY_S) * sum of x * exp((t - since) / MEMORY_S)

for any `since`. Only the sum on the right is stored, and only a new value changes it. The factor before that sum is
equal for all sums, so it is left out when sums are only compared (`WorkerLoad.inserted`). After `RENEW_S` all sums are
scaled to a later `since`, before weights grow too large.
"""

import math
from typing import Final

MEMORY_S: Final = 300.0
"""A few times the pause before an agent or a chat sends its next turn (median about 120 s in public traces)."""
RENEW_S: Final = 100 * MEMORY_S
BEFORE_S: Final = 30.0
"""A tenth of `MEMORY_S`."""


class Traffic:
    """The traffic to all workers that cache prompts."""

    __slots__ = ("_began_s", "_busy", "_returning_per_s", "_since_s", "renew_at_s")

    def __init__(self) -> None:
        self._began_s = -math.inf
        self._since_s = -math.inf
        self._busy = 0.0
        self._returning_per_s = 0.0
        self.renew_at_s = -math.inf
        """From this time on, `renew` must be called before anything is sent."""

    def renew(self, now_s: float) -> float:
        """Let weights begin at 1 again. Returns the factor that converts sums with old weights to new weights."""
        decay = math.exp((self._since_s - now_s) / MEMORY_S)
        self._busy *= decay
        self._returning_per_s *= decay
        if self._began_s == -math.inf:
            self._began_s = now_s - BEFORE_S
        self._since_s = now_s
        self.renew_at_s = now_s + RENEW_S
        return decay

    def sent(self, cached_share: float, prefill_s: float, now_s: float) -> float:
        """A request was sent: `cached_share` of its prompt is cached there, and it needs `prefill_s` of prefill.

        Returns the weight of values sent now.
        """
        weight = math.exp((now_s - self._since_s) / MEMORY_S)
        self._busy += prefill_s / MEMORY_S * weight
        self._returning_per_s += cached_share / MEMORY_S * weight
        return weight

    def of_each(self, workers: int, now_s: float) -> tuple[float, float]:
        """Means over `workers`: the utilisation by prefill, and the requests per second that return to a worker's
        cache.
        """
        decay = math.exp((self._since_s - now_s) / MEMORY_S) / workers
        observed = 1.0 - math.exp((self._began_s - now_s) / MEMORY_S)
        return self._busy * decay / observed, self._returning_per_s * decay
