"""A unix time that a forward jump of the wall clock does not move: data that is too old by this time may be deleted.

A wall clock that is 41 days ahead for one reading must not delete 41 days of data. So each reading is compared with the
monotonic clock since the last reading, and the first reading with the times of the stored data. A wall clock that goes
back is followed at once, since that deletes less. A wall clock that leaps ahead is followed after it has stayed ahead
for `STAY_S` of the monotonic clock without another jump.
"""

from collections.abc import Iterable
from typing import Final

STAY_S: Final = 86_400.0
GAP_S: Final = 2 * 86_400.0
"""The largest believed step: from the newest stored time to the first reading, or between two stored times."""

_DRIFT: Final = 0.01
_LEAST_S: Final = 2.0


class SteadyTime:
    """The believed time. `known_s`: the newest time of the stored data; None if nothing is stored."""

    def __init__(self, known_s: float | None) -> None:
        self._known_s = known_s
        self._wall_s = self._monotonic_s = 0.0
        self._is_read = False
        self._ahead_s = 0.0

    def read(self, wall_s: float, monotonic_s: float) -> float:
        """Take in a reading of both clocks. Returns the believed time."""
        elapsed_s = max(0.0, monotonic_s - self._monotonic_s) if self._is_read else 0.0
        leapt_s = wall_s - self._wall_s - elapsed_s if self._is_read else 0.0
        margin_s = _LEAST_S + _DRIFT * elapsed_s
        known_s = wall_s if self._known_s is None else self._known_s
        reach_s = known_s + elapsed_s + margin_s if self._is_read else known_s + GAP_S
        self._wall_s, self._monotonic_s, self._is_read = wall_s, monotonic_s, True
        if wall_s <= reach_s:
            self._known_s, self._ahead_s = wall_s, 0.0
            return wall_s
        self._ahead_s = self._ahead_s + elapsed_s if abs(leapt_s) <= margin_s else 0.0
        self._known_s = wall_s if self._ahead_s >= STAY_S else known_s + elapsed_s
        return self._known_s


def newest_steady(times: Iterable[float]) -> float | None:
    """The newest of `times` (in the order in which they were written) that is not due to a jump of the clock.

    Times after a leap forward count once they have continued for `STAY_S`.
    """
    known_s: float | None = None
    ahead_s: float | None = None
    before_s = 0.0
    for time_s in times:
        if known_s is None or time_s <= known_s + GAP_S:
            known_s = time_s if known_s is None else max(known_s, time_s)
            ahead_s = None
        elif ahead_s is None or not 0.0 <= time_s - before_s <= GAP_S:
            ahead_s = time_s
        elif time_s - ahead_s >= STAY_S:
            known_s, ahead_s = time_s, None
        before_s = time_s
    return known_s
