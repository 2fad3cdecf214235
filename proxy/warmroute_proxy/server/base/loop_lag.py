"""Measures how late the event loop is, and what held it, for `warmroute_loop_lag_seconds`.

A timer fires every `EVERY_S`. Its lateness is the lag: how long any other callback would have waited at that moment.
Steps that may take long report how long they ran. A lag is counted for the longest step since the previous timer.
"""

import asyncio
import gc
import logging
from collections.abc import Callable
from typing import Final

from warmroute_proxy.server.base.metrics import HeldBy, Metrics
from warmroute_proxy.server.base.turns import Turns

log = logging.getLogger(__name__)

EVERY_S: Final = 0.05
LOGGED_S: Final = 0.25
"""The shortest lag that is logged, as a warning."""

_REQUEST: Final = HeldBy.REQUEST  # looked up once, since each look-up in an enum costs 900 instructions in Python 3.11
_NAMED_SHARE: Final = 0.5  # a step that ran for at least this share of a lag is named as its cause


class LoopLag:
    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._lags = metrics.loop_lag
        self._clock = clock
        self._longest_s = 0.0
        self._held_by = HeldBy.OTHER
        self._collection_began_s = 0.0
        self.turns = Turns(clock, self._step_ran)
        """The steps of this event loop that wait for their turn."""

    def _step_ran(self, seconds: float) -> None:
        if seconds > self._longest_s:  # does what `ran` does, without a call
            self._longest_s, self._held_by = seconds, _REQUEST

    def ran(self, held_by: HeldBy, seconds: float) -> None:
        if seconds > self._longest_s:
            self._longest_s, self._held_by = seconds, held_by

    async def watch(self) -> None:
        gc.callbacks.append(self._collected)
        try:
            while True:
                due_s = self._clock() + EVERY_S
                await asyncio.sleep(EVERY_S)
                self.observe(max(0.0, self._clock() - due_s))
        finally:
            gc.callbacks.remove(self._collected)

    def observe(self, lag_s: float) -> None:
        """Count a lag for the step that ran longest since the last lag, or for `OTHER` if the step was too short to
        explain the lag.
        """
        held_by = self._held_by if self._longest_s >= _NAMED_SHARE * lag_s else HeldBy.OTHER
        self._lags[held_by].observe(lag_s)
        if lag_s >= LOGGED_S:
            log.warning("the event loop was %.0f ms late, held by: %s", lag_s * 1000, held_by.value)
        self._longest_s, self._held_by = 0.0, HeldBy.OTHER

    def _collected(self, phase: str, _: dict[str, int]) -> None:
        now_s = self._clock()
        if phase == "start":
            self._collection_began_s = now_s
        else:
            self.ran(HeldBy.COLLECTION, now_s - self._collection_began_s)
