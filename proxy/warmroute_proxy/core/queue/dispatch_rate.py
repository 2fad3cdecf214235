"""Computes when a refused request should retry, from the rate at which queued requests are dispatched.

The rate is measured while requests wait. Each refused request is told to retry one dispatch later than the request
refused before it, so that refused requests do not all come back at once.
"""

import math
from typing import Final

RATE_MEMORY_S: Final = 10.0
RATE_PRIOR_PER_S: Final = 1.0
RETRY_AFTER_MAX_S: Final = 60
"""OpenAI's client libraries ignore longer times."""


class DispatchRate:
    __slots__ = ("_at_s", "_began_s", "_count", "_memory_s", "_prior_per_s", "_promised_s")

    def __init__(self, memory_s: float = RATE_MEMORY_S, prior_per_s: float = RATE_PRIOR_PER_S) -> None:
        """`memory_s`: the time constant of the rate. `prior_per_s`: the rate before the first dispatch."""
        self._memory_s = memory_s
        self._prior_per_s = prior_per_s
        self._count = 0.0
        self._at_s = -math.inf
        self._began_s = 0.0
        self._promised_s = -math.inf

    def observe(self, now_s: float) -> None:
        left = math.exp(min(0.0, self._at_s - now_s) / self._memory_s)
        if self._count * left < 0.5:  # the last dispatch was long ago: measure the rate anew
            self._count, left, self._began_s = 0.0, 0.0, now_s
        self._count = self._count * left + 1.0
        self._at_s = max(now_s, self._at_s)

    def per_s(self, now_s: float) -> float:
        """Dispatches per second; the prior if nothing was measured lately."""
        age_s = now_s - self._began_s
        left = math.exp(min(0.0, self._at_s - now_s) / self._memory_s)
        if self._count * left < 0.5 or age_s <= 0:
            return self._prior_per_s
        return self._count * left / (self._memory_s * (1 - math.exp(-max(age_s, self._memory_s / 10) / self._memory_s)))

    def retry_after_s(self, waiting: int, now_s: float) -> int:
        """Whole seconds until a retry is useful while `waiting` requests wait: from 1 to `RETRY_AFTER_MAX_S`."""
        rate = self.per_s(now_s)
        retry_s = max(now_s + waiting / rate, self._promised_s + 1 / rate)
        self._promised_s = min(retry_s, now_s + RETRY_AFTER_MAX_S)
        left_s = min(self._promised_s - now_s, RETRY_AFTER_MAX_S)  # rounding of floats may exceed the maximum
        return max(1, math.ceil(left_s))
