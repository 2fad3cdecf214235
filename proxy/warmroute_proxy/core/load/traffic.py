"""How busy the fleet has been lately, as this proxy has sent it work: decaying sums.

Each forgets with time constant `MEMORY_S`, and starts from nothing. So a young proxy has seen only a part of what it is
to remember, and its utilisation is the sum divided by that part, 1 - exp(-age / MEMORY_S): without that it would take
the fleet to be nearly idle for its first minutes. Its age counts `BEFORE_S` of idleness more, or its first long prompt
would look like a busy fleet. Who returns is not put right so: to a cache that is still empty nobody does.

A sum that forgets, of values x sent at times t, is now

    sum of x * exp((t - now) / MEMORY_S)  =  exp((since - now) / MEMORY_S) * sum of x * exp((t - since) / MEMORY_S)

for any `since`. What is kept is the right sum: nothing but a new value changes it, and the factor before it, the same
for all, is left out where sums are only compared (`WorkerLoad.inserted`). After `RENEW_S` all are scaled to a later
`since`, before weights grow too large.
"""

import math
from typing import Final

MEMORY_S: Final = 300.0
"""A few times what a turn of an agent or a chat takes to come back (median about 120 s in public traces)."""
RENEW_S: Final = 100 * MEMORY_S
BEFORE_S: Final = 30.0
"""A tenth of the memory."""


class Traffic:
    """What was sent to all places that keep prefixes."""

    __slots__ = ("_began_s", "_busy", "_returning_per_s", "_since_s", "renew_at_s")

    def __init__(self) -> None:
        self._began_s = -math.inf
        self._since_s = -math.inf
        self._busy = 0.0
        self._returning_per_s = 0.0
        self.renew_at_s = -math.inf
        """From when on `renew` is due before anything is sent."""

    def renew(self, now_s: float) -> float:
        """Weights begin anew with 1. Returns what sums that were made with the old ones are to be multiplied with."""
        left = math.exp((self._since_s - now_s) / MEMORY_S)
        self._busy *= left
        self._returning_per_s *= left
        if self._began_s == -math.inf:
            self._began_s = now_s - BEFORE_S
        self._since_s = now_s
        self.renew_at_s = now_s + RENEW_S
        return left

    def sent(self, cached_share: float, prefill_s: float, now_s: float) -> float:
        """A request was sent: the share of its prompt that is cached there, and the seconds of prefill it needs.

        Returns the weight of what is sent now.
        """
        weight = math.exp((now_s - self._since_s) / MEMORY_S)
        self._busy += prefill_s / MEMORY_S * weight
        self._returning_per_s += cached_share / MEMORY_S * weight
        return weight

    def of_each(self, places: int, now_s: float) -> tuple[float, float]:
        """For one of so many places: its utilisation by prefill, and requests a second that come for its cache."""
        left = math.exp((self._since_s - now_s) / MEMORY_S) / places
        seen = 1.0 - math.exp((self._began_s - now_s) / MEMORY_S)
        return self._busy * left / seen, self._returning_per_s * left
