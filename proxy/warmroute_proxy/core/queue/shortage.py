"""How much KV memory a fleet is short of, by what waits for it and what was computed again.

Turns that wait for memory need tokens that no worker has room for. Their mean over `MEAN_S` seconds is what the fleet's
pools lack. It is a shortage once turns have waited for most of `MINUTES_S`, since a burst may be gone after a minute.
What more memory would have saved is what was computed again because a cache had evicted it (the loss class `evicted`).
"""

import math
from typing import Final

from warmroute_proxy.core.load.signs import Sign

MEAN_S: Final = 60.0
MINUTES_S: Final = 120.0
MOST: Final = 0.8
"""The share of the last minutes in which turns have to wait."""
DAY_S: Final = 86_400.0


class Shortage:
    """What one proxy process has seen."""

    __slots__ = ("_at_s", "_day", "_evicted_before", "_evicted_last", "missing_tokens", "waiting_share")

    def __init__(self) -> None:
        self.missing_tokens = 0.0
        """Tokens of KV that waiting turns need, in the mean."""
        self.waiting_share = 0.0
        """Of the last minutes, the share in which turns waited for memory."""
        self._at_s = -math.inf
        self._day = -1
        self._evicted_before = 0
        self._evicted_last = 0

    def observe(self, waiting_tokens: int, now_s: float) -> None:
        """Take in what the turns that wait need. Called a few times a second, also where none waits."""
        elapsed_s, self._at_s = now_s - self._at_s, now_s
        if elapsed_s == math.inf:
            return
        left, left_share = math.exp(-max(0.0, elapsed_s) / MEAN_S), math.exp(-max(0.0, elapsed_s) / MINUTES_S)
        self.missing_tokens = self.missing_tokens * left + waiting_tokens * (1 - left)
        self.waiting_share = self.waiting_share * left_share + (waiting_tokens > 0) * (1 - left_share)

    def computed_today(self, evicted_tokens: int, unix_s: float) -> int:
        """Tokens computed again since midnight UTC, or since the first call. `evicted_tokens`: all of them so far."""
        day = int(unix_s // DAY_S)
        if day != self._day:
            self._evicted_before = evicted_tokens if self._day < 0 else self._evicted_last
            self._day = day
        self._evicted_last = evicted_tokens
        return evicted_tokens - self._evicted_before

    def sign(self, evicted_tokens: int, unix_s: float) -> Sign:
        """Whether the working set has not fitted for minutes, and what is missing."""
        today = self.computed_today(evicted_tokens, unix_s)
        if self.waiting_share < MOST or self.missing_tokens < 1.0:
            return Sign(bad=False)
        missing = in_words(self.missing_tokens)
        return Sign(True, f"{missing} tokens of KV more would have saved up to {in_words(today)} computed tokens today")


def in_words(tokens: float) -> str:
    """`1.3 M`, `640 k` or `12`."""
    if tokens >= 1e6:
        return f"{tokens / 1e6:.1f} M" if tokens < 1e8 else f"{tokens / 1e6:.0f} M"
    return f"{tokens / 1e3:.0f} k" if tokens >= 1e3 else f"{tokens:.0f}"
