"""Estimates how much KV memory a fleet lacks, from the turns that wait for memory and the tokens computed again.

Turns wait for memory if no worker has room for the tokens that they need. The mean of these tokens over `MEAN_S`
seconds is what the fleet's pools lack. A burst may be over after a minute, so only waits during most of `MINUTES_S`
count as a shortage. More memory would have saved the tokens that were computed again after an eviction (the loss class
`evicted`).

By the law that `door` states, the tokens that waiting turns of running sessions need are computed again once in each
interval of the longest wait. Turns that begin a session do not force prefill while they wait.
"""

import math
from typing import Final, NamedTuple

from warmroute_proxy.core.load.signs import Sign

MEAN_S: Final = 60.0
MINUTES_S: Final = 120.0
MOST: Final = 0.8
"""There is a shortage if turns waited during at least this share of the last minutes."""
DAY_S: Final = 86_400.0


class Fleet(NamedTuple):
    """The longest wait of a running session's turn, the tokens per second that all workers together compute, and the KV
    tokens of one worker.
    """

    bound_s: float
    prefill_per_s: float
    pool_tokens: float


class Shortage:
    __slots__ = (
        "_at_s", "_day", "_evicted_before", "_evicted_last", "beginning_tokens", "fleet", "missing_tokens",
        "waiting_share",
    )  # fmt: skip

    def __init__(self) -> None:
        self.missing_tokens = 0.0
        """The mean of the KV tokens that waiting turns need."""
        self.beginning_tokens = 0.0
        """The part of `missing_tokens` for turns that begin a session."""
        self.fleet: Fleet | None = None
        """None until a turn has waited."""
        self.waiting_share = 0.0
        """The share of the last minutes in which turns waited for memory."""
        self._at_s = -math.inf
        self._day = -1
        self._evicted_before = 0
        self._evicted_last = 0

    def observe(self, waiting_tokens: int, now_s: float, beginning_tokens: int = 0) -> None:
        """Take in how many tokens the waiting turns need. Called a few times a second, even if no turn waits."""
        elapsed_s, self._at_s = now_s - self._at_s, now_s
        if elapsed_s == math.inf:
            return
        left, left_share = math.exp(-max(0.0, elapsed_s) / MEAN_S), math.exp(-max(0.0, elapsed_s) / MINUTES_S)
        self.missing_tokens = self.missing_tokens * left + waiting_tokens * (1 - left)
        self.beginning_tokens = self.beginning_tokens * left + beginning_tokens * (1 - left)
        self.waiting_share = self.waiting_share * left_share + (waiting_tokens > 0) * (1 - left_share)

    def computed_today(self, evicted_tokens: int, unix_s: float) -> int:
        """Tokens computed again since midnight UTC, or since the first call if that is later. `evicted_tokens`: the
        total so far.
        """
        day = int(unix_s // DAY_S)
        if day != self._day:
            self._evicted_before = evicted_tokens if self._day < 0 else self._evicted_last
            self._day = day
        self._evicted_last = evicted_tokens
        return evicted_tokens - self._evicted_before

    def sign(self, evicted_tokens: int, unix_s: float) -> Sign:
        """The sign is bad if the working set has not fitted for minutes; its text says how many tokens are missing."""
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
    """Text such as `1.3 M`, `640 k` or `12`."""
    if tokens >= 1e6:
        return f"{tokens / 1e6:.1f} M" if tokens < 1e8 else f"{tokens / 1e6:.0f} M"
    return f"{tokens / 1e3:.0f} k" if tokens >= 1e3 else f"{tokens:.0f}"
