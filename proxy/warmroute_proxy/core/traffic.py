"""How busy the fleet has been lately, as this proxy has sent it work: three decaying averages.

Each forgets with time constant `MEMORY_S`. They start from nothing, so that a young proxy takes the fleet to be idle.
"""

import math
from collections.abc import Iterable
from typing import Final

MEMORY_S: Final = 300.0
"""A few times what a turn of an agent or a chat takes to come back (median about 120 s in public traces)."""


class Traffic:
    """What was sent to all places that keep prefixes."""

    __slots__ = ("_at_s", "_busy", "_returning_per_s")

    def __init__(self) -> None:
        self._at_s = 0.0
        self._busy = 0.0
        self._returning_per_s = 0.0

    def sent(self, cached_share: float, prefill_s: float, now_s: float) -> None:
        """A request was sent: the share of its prompt that is cached there, and the seconds of prefill it needs."""
        left = self._left(now_s)
        self._at_s = max(self._at_s, now_s)
        self._busy = self._busy * left + prefill_s / MEMORY_S
        self._returning_per_s = self._returning_per_s * left + cached_share / MEMORY_S

    def of_each(self, places: int, now_s: float) -> tuple[float, float]:
        """For one of so many places: its utilisation by prefill, and requests a second that come for its cache."""
        left = self._left(now_s) / places
        return self._busy * left, self._returning_per_s * left

    def _left(self, now_s: float) -> float:
        return math.exp((self._at_s - now_s) / MEMORY_S) if now_s > self._at_s else 1.0


class Inserted:
    """Tokens computed by one place and so written to its cache, lately."""

    __slots__ = ("_at_s", "_tokens")

    def __init__(self) -> None:
        self._at_s = 0.0
        self._tokens = 0.0

    def add(self, tokens: int, now_s: float) -> None:
        """So many tokens are about to be written."""
        if now_s > self._at_s:
            self._tokens *= math.exp((self._at_s - now_s) / MEMORY_S)
            self._at_s = now_s
        self._tokens += tokens


def inserted_tokens(places: Iterable[Inserted], now_s: float) -> list[float]:
    """What counts of each now."""
    return [
        each._tokens * math.exp((each._at_s - now_s) / MEMORY_S) if each._at_s < now_s else each._tokens
        for each in places
    ]
