"""How much KV memory a fleet is short of, by what waits for it and what was computed again.

Turns that wait for memory need tokens that no worker has room for. Their mean over `MEAN_S` seconds is what the fleet's
pools lack. It is a shortage once turns have waited for most of `MINUTES_S`, since a burst may be gone after a minute.
What more memory would have saved is what was computed again because a cache had evicted it (the loss class `evicted`).

By the law of the `door`, turns of running sessions that wait force as much prefill as they need, once per bound. Those
that begin a session force none while they wait.
"""

import math
from typing import Final, NamedTuple

from warmroute_proxy.core.load.signs import Sign

MEAN_S: Final = 60.0
MINUTES_S: Final = 120.0
MOST: Final = 0.8
"""The share of the last minutes in which turns have to wait."""
DAY_S: Final = 86_400.0


class Fleet(NamedTuple):
    """What the law is compared with: the longest wait of a running session, the tokens that all workers compute in a
    second, and the KV tokens of one worker.
    """

    bound_s: float
    prefill_per_s: float
    pool_tokens: float


class Shortage:
    """What one proxy process has seen."""

    __slots__ = (
        "_at_s", "_day", "_evicted_before", "_evicted_last", "beginning_tokens", "fleet", "missing_tokens",
        "waiting_share",
    )  # fmt: skip

    def __init__(self) -> None:
        self.missing_tokens = 0.0
        """Tokens of KV that waiting turns need, in the mean."""
        self.beginning_tokens = 0.0
        """Of these tokens, those of turns that begin a session."""
        self.fleet: Fleet | None = None
        """None: nothing has waited yet."""
        self.waiting_share = 0.0
        """Of the last minutes, the share in which turns waited for memory."""
        self._at_s = -math.inf
        self._day = -1
        self._evicted_before = 0
        self._evicted_last = 0

    def observe(self, waiting_tokens: int, now_s: float, beginning_tokens: int = 0) -> None:
        """Take in what the turns that wait need. Called a few times a second, even if none waits."""
        elapsed_s, self._at_s = now_s - self._at_s, now_s
        if elapsed_s == math.inf:
            return
        left, left_share = math.exp(-max(0.0, elapsed_s) / MEAN_S), math.exp(-max(0.0, elapsed_s) / MINUTES_S)
        self.missing_tokens = self.missing_tokens * left + waiting_tokens * (1 - left)
        self.beginning_tokens = self.beginning_tokens * left + beginning_tokens * (1 - left)
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
        text = f"{missing} tokens of KV more would have saved up to {in_words(today)} computed tokens today"
        return Sign(True, f"{text}{self._law()}")

    def _law(self) -> str:
        fleet = self.fleet
        if fleet is None or not (fleet.bound_s and fleet.prefill_per_s and fleet.pool_tokens):
            return ""
        running = in_words(max(0.0, self.missing_tokens - self.beginning_tokens) / fleet.bound_s)
        all_of_them = in_words(self.missing_tokens / fleet.bound_s)
        workers = math.ceil(self.missing_tokens / fleet.pool_tokens)
        return (
            f" (that of {workers} more worker{'s' if workers > 1 else ''}). Waits of running sessions force {running} "
            f"tokens of prefill per second, of {in_words(fleet.prefill_per_s)} that all workers compute; "
            f"{all_of_them} if new sessions did not wait"
        )


def in_words(tokens: float) -> str:
    """`1.3 M`, `640 k` or `12`."""
    if tokens >= 1e6:
        return f"{tokens / 1e6:.1f} M" if tokens < 1e8 else f"{tokens / 1e6:.0f} M"
    return f"{tokens / 1e3:.0f} k" if tokens >= 1e3 else f"{tokens:.0f}"
