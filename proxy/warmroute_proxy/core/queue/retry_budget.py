"""Limits retries to a share of the requests that the fleet has served lately.

A retry is a second request for one answer. While few requests fail, retries hide failures from clients. When many fail,
each retry adds load to a fleet that has too much already. So the proxy counts the successes of the present time window
and of the window before. Together these windows are between `WINDOW_S` and twice `WINDOW_S` long. Retries in that time
are at most `SHARE` of the successes, plus `FLOOR` for a proxy with little traffic (the budget of Finagle and Envoy;
Google SRE, "Addressing Cascading Failures").
"""

from typing import Final

SHARE: Final = 0.2
FLOOR: Final = 10
WINDOW_S: Final = 10.0


class RetryBudget:
    __slots__ = ("_ends_s", "_retries", "_retries_before", "_successes", "_successes_before")

    def __init__(self) -> None:
        self._ends_s = 0.0
        self._successes = 0
        self._successes_before = 0
        self._retries = 0
        self._retries_before = 0

    def succeeded(self, now_s: float) -> None:
        if now_s >= self._ends_s:
            self._begin_window(now_s)
        self._successes += 1

    def spend(self, now_s: float) -> bool:
        """Whether one more retry may be made. If so, it is counted."""
        if now_s >= self._ends_s:
            self._begin_window(now_s)
        if self._retries + self._retries_before >= self.allowed():
            return False
        self._retries += 1
        return True

    def allowed(self) -> float:
        """How many retries both windows together may have."""
        return FLOOR + SHARE * (self._successes + self._successes_before)

    def _begin_window(self, now_s: float) -> None:
        """Begin a window. The previous window still counts only if it ended less than `WINDOW_S` ago."""
        recent = now_s < self._ends_s + WINDOW_S
        self._successes_before = self._successes if recent else 0
        self._retries_before = self._retries if recent else 0
        self._successes = self._retries = 0
        self._ends_s = now_s + WINDOW_S
