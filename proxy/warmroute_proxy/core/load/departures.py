"""When the next request at a worker is expected to end, by Little's law."""

import math
from typing import Final

STAY_WEIGHT: Final = 1 / 16
"""Of the last request, in the mean stay."""


class Departures:
    """How long requests stay at one worker, and when the last one ended."""

    __slots__ = ("_busy_since_s", "_ended_s", "_stay_s")

    def __init__(self) -> None:
        self._stay_s = 0.0  # of a request, lately
        self._ended_s = -math.inf  # when the last one ended
        self._busy_since_s = 0.0  # when one was sent while none ran

    def busy_from(self, now_s: float) -> None:
        """A request was sent while none ran."""
        self._busy_since_s = now_s

    def observe(self, stay_s: float, now_s: float) -> None:
        """Learn from a request that ended `stay_s` seconds after it was sent."""
        weight = STAY_WEIGHT if self._ended_s > -math.inf else 1.0
        self._stay_s += weight * (stay_s - self._stay_s)
        self._ended_s = now_s

    def forget(self) -> None:
        """The engine restarted."""
        self._ended_s = -math.inf

    def next_s(self, running: int, now_s: float) -> float:
        """Return the expected seconds between two ends while `running` requests run.

        The result is at least the time since the last end, and infinite where no end was observed.
        """
        if self._ended_s == -math.inf:
            return math.inf
        return max(self._stay_s / max(1, running), now_s - max(self._ended_s, self._busy_since_s))
