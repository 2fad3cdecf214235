"""Tracks which conversations hold KV on one worker, and how many tokens of its pool are kept for them.

A conversation gets a seat when its first turn is sent. While a turn is under way, the tokens of the seat are in use.
Afterwards the seat is idle. An idle seat is worth its memory for `window_s` seconds (`return_times`), because its
conversation is likely to come back within that time. During this window the seat is *fresh*. Afterwards it is *stale*:
its KV may be evicted for another prompt. The length of the window depends on how the last turn ended
(`return_times.TOOLS`, `PERSON`). The seat of a conversation that is over is stale at once.

    protected = tokens of seats in use + tokens of idle seats that are not stale
    free      = FILLED of the pool - protected

An engine evicts what was used longest ago. So if the seats exceed the pool, they are dropped in this order; the next
turn of a dropped conversation has to compute its prompt again. Seats in use are never dropped. A seat counts only
tokens that no other conversation uses.

Limit: `MAX_SEATS` idle seats for each worker, divided by tenant (`warmroute.contract.shares`): the tenant with the most
seats loses the one used longest ago first.
"""

import math
from collections import OrderedDict
from typing import Final

from warmroute.contract.shares import Division
from warmroute_proxy.core.cache.return_times import KINDS, OVER, UNKNOWN, ReturnTimes

MAX_SEATS: Final = 10_000
FILLED: Final = 0.95
"""The share of the pool that admission fills. The rest is a margin: token estimates are a few percent off."""
FIRST_WINDOW_S: Final = 30.0
"""How long an idle seat is fresh until return times are learned."""
NO_LIMIT: Final = 1 << 62


class Seat:
    """What one conversation holds. `last_s`: when its last turn ended; `kind`: how that turn ended; `turns`: how many
    turns are under way. `tenant`: the owner; empty if there is only one tenant.
    """

    __slots__ = ("is_fresh", "kind", "last_s", "tenant", "tokens", "turns")

    def __init__(self) -> None:
        self.is_fresh = False
        self.kind = UNKNOWN
        self.tenant = ""
        self.tokens = 0
        self.turns = 0
        self.last_s = -math.inf


class Residents:
    """The seats of one worker. `pool_tokens`: 0 if the engine does not report its pool; then every turn fits. `times`:
    the return times of the worker's conversations, by how their last turns ended; None until they are looked up.
    """

    __slots__ = (
        "_alone",
        "_fresh",
        "_idle",
        "_in_use",
        "_max",
        "_shares",
        "_stale",
        "fresh_tokens",
        "of_tenants",
        "pool_tokens",
        "stale_tokens",
        "times",
        "used_tokens",
        "windows_s",
    )

    def __init__(self, max_seats: int = MAX_SEATS) -> None:
        self._max = max_seats
        self._alone = max_seats // 2  # up to this number, idle seats are not divided by tenant; -1 once they are
        self._shares: Division[int, Seat] = Division(lambda _, seat: seat.tenant)
        self._in_use: dict[int, Seat] = {}
        self._idle: dict[int, Seat] = {}  # fresh and stale seats
        self._fresh: list[OrderedDict[int, Seat]] = [OrderedDict() for _ in range(KINDS)]  # by kind, the oldest first
        self._stale: list[OrderedDict[int, Seat]] = [OrderedDict() for _ in range(KINDS + 1)]  # by kind, including OVER
        self.used_tokens = 0
        self.fresh_tokens = 0
        self.stale_tokens = 0
        self.of_tenants: dict[str, int] = {}
        """Tenant -> tokens of its seats that are in use or fresh; tenants without such tokens are left out."""
        self.pool_tokens = 0
        self.windows_s = [FIRST_WINDOW_S] * KINDS
        self.times: list[ReturnTimes] | None = None

    # What happens

    def sent(self, lineage: int, tokens: int, expects: int = UNKNOWN, tenant: str = "") -> None:
        """A turn was sent, so its conversation now holds `tokens`. `expects`: how the turn will probably end."""
        seat = self._in_use.get(lineage)
        if seat is None:
            seat = self._take(lineage)
            if seat is None:
                seat = Seat()
                seat.tenant = tenant
            self._in_use[lineage] = seat
            self.used_tokens += tokens
            if seat.tenant:
                self._count(seat.tenant, tokens)
            seat.tokens = tokens
        elif tokens > seat.tokens:  # another turn of the conversation is under way, and shares the prefix
            self.used_tokens += tokens - seat.tokens
            if seat.tenant:
                self._count(seat.tenant, tokens - seat.tokens)
            seat.tokens = tokens
        seat.turns += 1
        seat.kind = expects
        self._trim()

    def ended(self, lineage: int, now_s: float, *, computed: bool) -> bool:
        """A turn has ended. `computed`: whether its prompt was computed; if not, the seat of a new conversation is
        dropped.

        Returns whether the conversation is idle now.
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
        if seat.tenant:
            self._count(seat.tenant, -seat.tokens)
        if seat.last_s == -math.inf:
            return False
        self._put(lineage, seat)
        self._trim()
        return True

    def expect(self, lineage: int, kind: int) -> None:
        """Set how a conversation's turn under way will end. A conversation that is over stays over."""
        seat = self._in_use.get(lineage)
        if seat is not None and seat.kind != OVER:
            seat.kind = kind

    def expected(self, lineage: int) -> int:
        """How a conversation's turn under way will end, as far as is known."""
        seat = self._in_use.get(lineage)
        return UNKNOWN if seat is None else seat.kind

    def set_kind(self, lineage: int, kind: int, now_s: float) -> bool:
        """A client says that its conversation waits for a PERSON now, or is OVER. Returns whether an idle seat changed.

        After each turn, PERSON and OVER count once, and PERSON does not count after OVER. PERSON does not make a stale
        seat fresh again, so a client cannot keep KV by repeating it. While a turn is under way, only OVER counts: in
        all other cases the turn's own answer shows how it ends.
        """
        seat = self._in_use.get(lineage)
        if seat is not None:
            seat.kind = OVER if kind == OVER else seat.kind
            return False
        self._age(now_s)
        seat = self._idle.get(lineage)
        if seat is None or seat.kind >= kind or (kind != OVER and not seat.is_fresh):
            return False
        self._take(lineage)
        seat.kind = kind
        if kind != OVER:
            seat.last_s = now_s
        self._put(lineage, seat)
        return True

    def resize(self, lineage: int, tokens: int) -> None:
        """Set the `tokens` that an idle conversation holds after its last turn."""
        seat = self._idle.get(lineage)
        if seat is not None:
            if seat.is_fresh:
                self.fresh_tokens += tokens - seat.tokens
                if seat.tenant:
                    self._count(seat.tenant, tokens - seat.tokens)
            else:
                self.stale_tokens += tokens - seat.tokens
            seat.tokens = tokens
            self._trim()

    def touch(self, lineage: int, now_s: float) -> None:
        """The next turn of a conversation waits to be sent: protect what the conversation holds."""
        seat = self._take(lineage)
        if seat is not None:
            seat.last_s, seat.kind = now_s, UNKNOWN
            self._put(lineage, seat)

    def drop(self, lineage: int) -> None:
        """Drop the idle seat of a conversation that went elsewhere or ended. A seat in use stays."""
        self._take(lineage)

    # What is there

    @property
    def in_use(self) -> int:
        return len(self._in_use)

    @property
    def seats(self) -> int:
        return len(self._in_use) + len(self._idle)

    @property
    def window_s(self) -> float:
        """How long an idle seat stays fresh if it is unknown how the last turn ended."""
        return self.windows_s[UNKNOWN]

    @property
    def tokens(self) -> int:
        return self.used_tokens + self.fresh_tokens + self.stale_tokens

    def tokens_of(self, lineage: int) -> int:
        seat = self._in_use.get(lineage) or self._idle.get(lineage)
        return 0 if seat is None else seat.tokens

    def protected(self, now_s: float) -> int:
        """The tokens of seats that are in use or fresh."""
        self._age(now_s)
        return self.used_tokens + self.fresh_tokens

    def free_tokens(self, lineage: int, now_s: float) -> int:
        """The tokens that a turn of this conversation may take; unlimited if no turn is under way on the worker."""
        if not self.pool_tokens or not self._in_use:
            return NO_LIMIT
        own = self._in_use.get(lineage)
        tokens = int(FILLED * self.pool_tokens) - self.protected(now_s)
        if own is None:
            own = self._idle.get(lineage)
            if own is not None and not own.is_fresh:
                return tokens
        return tokens if own is None else tokens + own.tokens

    def as_dict(self, now_s: float) -> dict[str, int | float]:
        """The figures for the status page and metrics; empty if the pool is unknown."""
        if not self.pool_tokens:
            return {}
        protected = self.protected(now_s)
        return {"kv_sessions": self.seats, "kv_protected_tokens": protected, "kv_window_s": self.window_s}

    # Inside

    def _count(self, tenant: str, tokens: int) -> None:
        left = self.of_tenants.get(tenant, 0) + tokens
        if left:
            self.of_tenants[tenant] = left
        else:
            self.of_tenants.pop(tenant, None)

    def _take(self, lineage: int) -> Seat | None:
        seat = self._idle.pop(lineage, None)
        if seat is None:
            return None
        if self._alone < 0:
            self._shares.discard(lineage)
        if seat.is_fresh:
            del self._fresh[seat.kind][lineage]
            self.fresh_tokens -= seat.tokens
            if seat.tenant:
                self._count(seat.tenant, -seat.tokens)
        else:
            del self._stale[seat.kind][lineage]
            self.stale_tokens -= seat.tokens
        return seat

    def _put(self, lineage: int, seat: Seat) -> None:
        self._idle[lineage] = seat
        seat.is_fresh = seat.kind != OVER
        if seat.is_fresh:
            self._fresh[seat.kind][lineage] = seat
            self.fresh_tokens += seat.tokens
            if seat.tenant:
                self._count(seat.tenant, seat.tokens)
        else:
            self._stale[OVER][lineage] = seat
            self.stale_tokens += seat.tokens
        if len(self._idle) > self._alone:
            self._divide(lineage)

    def _divide(self, lineage: int) -> None:
        """Count a new idle seat by tenant. Beyond the limit, drop the oldest idle seat of the tenant that has most."""
        self._alone = -1
        self._shares.stored(lineage, self._idle)
        while len(self._idle) > self._max:
            self._take(self._shares.next_to_go())

    def _age(self, now_s: float) -> None:
        """Make seats stale if their window has passed, and make them fresh again if the window has grown."""
        for kind in range(KINDS):
            self._age_of(self._fresh[kind], self._stale[kind], now_s - self.windows_s[kind])

    def _age_of(self, fresh: OrderedDict[int, Seat], stale: OrderedDict[int, Seat], since_s: float) -> None:
        while fresh:
            lineage = next(iter(fresh))
            seat = fresh[lineage]
            if seat.last_s >= since_s:
                break
            del fresh[lineage]
            stale[lineage] = seat
            seat.is_fresh = False
            self.fresh_tokens -= seat.tokens
            self.stale_tokens += seat.tokens
            if seat.tenant:
                self._count(seat.tenant, -seat.tokens)
        while stale:
            lineage = next(reversed(stale))
            seat = stale[lineage]
            if seat.last_s < since_s:
                break
            del stale[lineage]
            fresh[lineage] = seat
            fresh.move_to_end(lineage, last=False)
            seat.is_fresh = True
            self.stale_tokens -= seat.tokens
            self.fresh_tokens += seat.tokens
            if seat.tenant:
                self._count(seat.tenant, seat.tokens)

    def _trim(self) -> None:
        """While the seats exceed the pool, drop the idle seat that was used longest ago, as an engine does."""
        limit = self.pool_tokens or NO_LIMIT
        while self.used_tokens + self.fresh_tokens + self.stale_tokens > limit:
            oldest, oldest_s = None, math.inf
            for idle in (*self._fresh, *self._stale):
                if idle:
                    last_s = idle[next(iter(idle))].last_s
                    if last_s < oldest_s:
                        oldest, oldest_s = idle, last_s
            if oldest is None:
                break
            lineage = next(iter(oldest))
            self._take(lineage)
