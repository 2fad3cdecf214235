"""A unix time that does not follow a wall clock that jumps ahead, so that old data can be deleted by it safely.

A wall clock that is 41 days ahead for one reading must not delete 41 days of data. So the wall clock's advance since
the last reading is compared with that of the monotonic clock. The first reading is compared with the times of the
stored data. If the wall clock goes back, the steady time follows at once, because an earlier time deletes less. If the
wall clock leaps ahead, the steady time follows only after the wall clock has stayed ahead for `STAY_S` of the monotonic
clock without another jump.
"""

from collections.abc import Iterable
from typing import Final

STAY_S: Final = 86_400.0
GAP_S: Final = 2 * 86_400.0
"""The largest step that is believed, from the newest stored time to the first reading, or between two stored times."""

_DRIFT: Final = 0.01
_LEAST_S: Final = 2.0


class SteadyTime:
    """The steady time. `known_s`: the newest time of the stored data; None if nothing is stored."""

    def __init__(self, known_s: float | None) -> None:
        self._known_s = known_s
        self._wall_s = self._monotonic_s = 0.0
        self._is_read = False
        self._ahead_s = 0.0

    def read(self, wall_s: float, monotonic_s: float) -> float:
        """Take in a reading of both clocks. Returns the steady time."""
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
    """The newest of `times` that is not due to a jump of the clock. `times`: in the order of writing.

    Times after a leap forward count only after they have continued for `STAY_S`.
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
