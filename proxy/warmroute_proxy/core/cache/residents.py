"""Which conversations hold KV on one worker, and how much of its pool has to be kept for them.

A conversation has a seat from when its first turn is sent. While a turn is under way its tokens are in use. Afterwards
the seat is idle, and worth its tokens for `window_s` seconds (`return_times`): a conversation is likely to come back
within them. An older seat is *stale*: its KV may be evicted for another prompt.

    protected = tokens of seats in use + tokens of idle seats that are not stale
    free      = FILLED of the pool - protected

An engine evicts what was used longest ago, so seats beyond the pool are dropped in that order: the conversation has to
be computed again. Seats in use are never dropped. Tokens are those that no other conversation uses.

Limit: `MAX_SEATS` idle seats of a worker; the one used longest ago is dropped first.
"""

import math
from collections import OrderedDict
from typing import Final

from warmroute_proxy.core.cache.return_times import ReturnTimes

MAX_SEATS: Final = 10_000
FILLED: Final = 0.95
"""The share of the pool that admission fills: estimates of tokens are some percent off."""
FIRST_WINDOW_S: Final = 30.0
"""Until return times are learned."""
NO_LIMIT: Final = 1 << 62


class Seat:
    """What one conversation holds. `last_s` is when its last turn ended, `turns` are those under way."""

    __slots__ = ("last_s", "tokens", "turns")

    def __init__(self) -> None:
        self.tokens = 0
        self.turns = 0
        self.last_s = -math.inf


class Residents:
    """The seats of one worker. `pool_tokens` is 0 where the engine does not report its pool: then all fits. `times` are
    the return times of its conversations, once they were looked up.
    """

    __slots__ = (
        "_fresh",
        "_in_use",
        "_max",
        "_stale",
        "fresh_tokens",
        "pool_tokens",
        "stale_tokens",
        "times",
        "used_tokens",
        "window_s",
    )

    def __init__(self, max_seats: int = MAX_SEATS) -> None:
        self._max = max_seats
        self._in_use: dict[int, Seat] = {}
        self._fresh: OrderedDict[int, Seat] = OrderedDict()  # the one used longest ago first, as in `_stale`
        self._stale: OrderedDict[int, Seat] = OrderedDict()
        self.used_tokens = 0
        self.fresh_tokens = 0
        self.stale_tokens = 0
        self.pool_tokens = 0
        self.window_s = FIRST_WINDOW_S
        self.times: ReturnTimes | None = None

    # What happens

    def sent(self, lineage: int, tokens: int) -> None:
        """A turn was sent. With it its conversation holds `tokens`."""
        seat = self._in_use.get(lineage)
        if seat is None:
            seat = self._take(lineage)
            if seat is None:
                seat = Seat()
            self._in_use[lineage] = seat
            self.used_tokens += tokens
            seat.tokens = tokens
        elif tokens > seat.tokens:  # another turn of it is under way, and shares its prefix
            self.used_tokens += tokens - seat.tokens
            seat.tokens = tokens
        seat.turns += 1
        self._trim()

    def ended(self, lineage: int, now_s: float, *, computed: bool) -> bool:
        """A turn has ended. `computed`: its prompt was; a new conversation whose prompt was not holds nothing.

        Return whether the conversation is idle now.
        """
        seat = self._in_use.get(lineage)
        if seat is None:  # the engine has restarted since
            return False
        seat.turns -= 1
        if computed or seat.last_s > -math.inf:
            seat.last_s = now_s
        if seat.turns:
            return False
        del self._in_use[lineage]
        self.used_tokens -= seat.tokens
        if seat.last_s == -math.inf:
            return False
        self._fresh[lineage] = seat
        self.fresh_tokens += seat.tokens
        self._trim()
        return True

    def resize(self, lineage: int, tokens: int) -> None:
        """The last turn of a conversation has ended. It now holds `tokens`."""
        seat = self._fresh.get(lineage)
        if seat is not None:
            self.fresh_tokens += tokens - seat.tokens
            seat.tokens = tokens
            self._trim()

    def touch(self, lineage: int, now_s: float) -> None:
        """The next turn of a conversation is here, and waits to be sent: what it holds stays protected."""
        seat = self._take(lineage)
        if seat is not None:
            seat.last_s = now_s
            self._fresh[lineage] = seat
            self.fresh_tokens += seat.tokens

    def drop(self, lineage: int) -> None:
        """A conversation has gone elsewhere, or has ended. A seat in use stays."""
        self._take(lineage)

    # What is there

    @property
    def in_use(self) -> int:
        """Conversations with a turn under way."""
        return len(self._in_use)

    @property
    def seats(self) -> int:
        """Conversations that hold KV here."""
        return len(self._in_use) + len(self._fresh) + len(self._stale)

    @property
    def tokens(self) -> int:
        """Tokens of all seats."""
        return self.used_tokens + self.fresh_tokens + self.stale_tokens

    def tokens_of(self, lineage: int) -> int:
        """Tokens that a conversation holds here."""
        seat = self._in_use.get(lineage) or self._fresh.get(lineage) or self._stale.get(lineage)
        return 0 if seat is None else seat.tokens

    def protected(self, now_s: float) -> int:
        """Tokens that are in use, or are likely to be used again within the window."""
        self._age(now_s)
        return self.used_tokens + self.fresh_tokens

    def free_tokens(self, lineage: int, now_s: float) -> int:
        """Tokens that a turn of this conversation may take. A worker with nothing under way takes any."""
        if not self.pool_tokens or not self._in_use:
            return NO_LIMIT
        own = self._in_use.get(lineage)
        tokens = int(FILLED * self.pool_tokens) - self.protected(now_s)
        if own is None:
            own = self._fresh.get(lineage)
        return tokens if own is None else tokens + own.tokens

    def as_dict(self, now_s: float) -> dict[str, int | float]:
        """What pages and metrics show; nothing where the pool is not known."""
        if not self.pool_tokens:
            return {}
        protected = self.protected(now_s)
        return {"kv_sessions": self.seats, "kv_protected_tokens": protected, "kv_window_s": self.window_s}

    # Inside

    def _take(self, lineage: int) -> Seat | None:
        """Remove an idle seat."""
        seat = self._fresh.pop(lineage, None)
        if seat is not None:
            self.fresh_tokens -= seat.tokens
            return seat
        seat = self._stale.pop(lineage, None)
        if seat is not None:
            self.stale_tokens -= seat.tokens
        return seat

    def _age(self, now_s: float) -> None:
        """Let seats become stale, or not be stale where the window has grown."""
        since_s = now_s - self.window_s
        fresh, stale = self._fresh, self._stale
        while fresh:
            lineage = next(iter(fresh))
            seat = fresh[lineage]
            if seat.last_s >= since_s:
                break
            del fresh[lineage]
            stale[lineage] = seat
            self.fresh_tokens -= seat.tokens
            self.stale_tokens += seat.tokens
        while stale:
            lineage = next(reversed(stale))
            seat = stale[lineage]
            if seat.last_s < since_s:
                break
            del stale[lineage]
            fresh[lineage] = seat
            fresh.move_to_end(lineage, last=False)
            self.stale_tokens -= seat.tokens
            self.fresh_tokens += seat.tokens

    def _trim(self) -> None:
        """Drop the idle seats that were used longest ago, beyond the pool."""
        limit = self.pool_tokens or NO_LIMIT
        while self.tokens > limit or len(self._fresh) + len(self._stale) > self._max:
            if self._stale:
                self.stale_tokens -= self._stale.popitem(last=False)[1].tokens
            elif self._fresh:
                self.fresh_tokens -= self._fresh.popitem(last=False)[1].tokens
            else:
                break
