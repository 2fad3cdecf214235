"""When a process that ended by itself is started again, and when no more. Pure.

The pause doubles with each restart within the window, so a process that dies at once is not started in a circle. One
that has run for the whole window begins again with the first pause.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """At most `limit` restarts within `window_s`; pauses from `first_s`, doubled, up to `longest_s`."""

    first_s: float = 1.0
    longest_s: float = 60.0
    limit: int = 5
    window_s: float = 1_800.0

    def recent(self, restarts_s: Sequence[float], now_s: float) -> list[float]:
        """The restarts that count at `now_s`, on the same clock."""
        return [at_s for at_s in restarts_s if now_s - at_s < self.window_s]

    def pause_s(self, restarts_s: Sequence[float], now_s: float) -> float | None:
        """The pause before the next restart; None: there were too many."""
        count = len(self.recent(restarts_s, now_s))
        if count >= self.limit:
            return None
        return min(self.longest_s, self.first_s * 2.0**count)
