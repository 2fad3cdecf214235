"""Limits what tenants or keys use over several proxies, by minute, day or month, with leases on a budget in a store.

A proxy leases a slice of the budget from the store, and spends the slice without asking again. The amount left is

    limit - price of all settled ledger rows - what all proxies have leased and not settled

So the store never gives more than the limit, and needs no second counter beside the ledger rows. Before its dispatch, a
request reserves its estimated price, for a whole uncached prompt and an answer of the expected length. At its end it is
settled (billed) at its real price. Spending exceeds the limit only by what requests cost beyond their reservations.

A reload of the configuration can lower the limit below what is leased. Then the amount left is below 0, and processes
make no new reservations. Each process gives back what it has not reserved, and also what remains when a request ends
that cost less than its reservation. This also holds from the reload until the store has answered. If a reload removes a
budget, each process gives back all that is not reserved.

A slice is a hundredth of the budget. If slices are used up quickly, each next slice is twice as large, up to an eighth
of the budget. A proxy asks for the next slice when half of its slice is used, and gives back a slice that it has not
used for a minute.

    reserve ──▶ granted                      the slice in hand has enough
            ──▶ waits ──answer──▶ granted     the store is asked, for `ASK_S` at most
            ──▶ refused                      the store said within `DENIED_S` that there is no more, or does not answer

Periods are minutes, days and months of UTC. A new period begins with a new slice.

Limits on requests and tokens per minute are leased in slices by the same rules, but requests do not wait for the store.
A request is granted if the store has not answered yet in this minute, or had enough left at its last answer. An amount
beyond the slice is a debt that the next slice pays. So several processes together can exceed the limit by what they
admit during one round trip to the store. While the store does not answer, only the limits of each process hold
(`quota`).
"""

from datetime import UTC, datetime
from enum import Enum
from typing import Final, Literal, NamedTuple

from warmroute_proxy.core.base.compiled import Frozen
from warmroute_proxy.core.queue.quota import NO_TOKENS, UsedTokens
from warmroute_proxy.core.queue.scope import Scope

DENIED_S: Final = 1.0
QUICK_S: Final = 5.0
IDLE_S: Final = 60.0
SMALLEST_PART: Final = 100
LARGEST_PART: Final = 8

Period = Literal["minute", "day", "month"]
Unit = Literal["nanousd", "requests", "tokens"]


class Budget(NamedTuple):
    """What a scope (tenants or keys) may use in each period, in `unit`. `warn_share`: the used share at which warnings
    to clients begin; above 1: never. `cached_weight`: how much a cached token counts, if the unit is tokens.
    """

    scope: Scope
    period: Period
    limit: int
    warn_share: float
    unit: Unit = "nanousd"
    cached_weight: float = 1.0

    @property
    def name(self) -> str:
        return self.scope.name

    @property
    def key(self) -> tuple[str, str, Period, Unit]:
        """What identifies the budget: its limit may change, its key does not."""
        return self.scope.kind, self.scope.name, self.period, self.unit

    @property
    def is_money(self) -> bool:
        """Whether the unit is money. While the store does not answer, money is not spent; for other units, limits per
        process hold.
        """
        return self.unit == "nanousd"

    @property
    def reason(self) -> str:
        return "budget" if self.is_money else f"{self.unit}_per_{self.period}"


class Amounts(Frozen, frozen=True):
    """What a request uses, by unit. Tokens that are only reserved are not weighed by `cached_weight`."""

    nanousd: int = 0
    requests: int = 0
    tokens: UsedTokens = NO_TOKENS

    def of(self, budget: Budget) -> int:
        if budget.unit == "nanousd":
            return self.nanousd
        return self.requests if budget.unit == "requests" else self.tokens.weighed(budget.cached_weight)


class Span(NamedTuple):
    """One period in unix seconds, not including `ends_s`."""

    starts_s: int
    ends_s: int


class BudgetVerdict(Enum):
    """The result of trying to reserve."""

    GRANTED = "granted"
    WAITS = "waits"
    REFUSED = "refused"


class Taken(NamedTuple):
    """The store's answer: what it has leased now, and what it has left. If `left` is below 0, leases and spending
    exceed the limit.
    """

    leased: int
    left: int


def span_of(period: Period, now_s: float) -> Span:
    """The UTC minute, day or month that contains a time."""
    if period == "minute":
        minute_s = int(now_s) // 60 * 60
        return Span(minute_s, minute_s + 60)
    now = datetime.fromtimestamp(now_s, UTC)
    starts = datetime(now.year, now.month, now.day if period == "day" else 1, tzinfo=UTC)
    start_s = int(starts.timestamp())
    if period == "day":
        return Span(start_s, start_s + 86_400)
    later = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=UTC)
    return Span(start_s, int(later.timestamp()))


class Lease:
    """The part of one budget that one process has leased. Times are unix seconds."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.span = Span(0, 0)
        self.in_hand = 0
        """What is leased and not spent."""

        self.reserved = 0
        self.left: int | None = None
        """What the store had left at its last answer in this period; None before the first answer."""

        self.asking = False
        self.away = False
        """Whether the store did not answer the last request."""

        self.needed = 0
        """The largest amount for which a request waits."""

        self.denied_until_s = 0.0
        self._held_back = False
        """Whether leases may exceed the limit. Then the unreserved part is given back, and nothing more is reserved."""

        self._leaving = False
        """Whether a reload has removed the budget, so that nothing more is leased."""

        self._asked_for = budget
        self._returning = 0
        """What is being given back to the store."""

        self._slice = 0
        self._asked_s = 0.0
        self._used_s = 0.0

    @property
    def free(self) -> int:
        """What can be reserved; a negative number is a debt."""
        unreserved = self.in_hand - self.reserved
        return min(0, unreserved) if self._held_back else unreserved

    def change(self, budget: Budget) -> None:
        """Apply a change of the limit, the tenants or the keys. Reservations stay."""
        if budget == self.budget and not self._leaving:
            return
        if budget.limit < self.budget.limit or budget.scope != self.budget.scope:
            self._held_back = True
        self._leaving = False
        self.budget = budget
        self.left = None
        self.denied_until_s = 0.0
        self._slice = self._smallest_slice()

    def leave(self) -> None:
        """The budget is removed: give back the unreserved part, and the rest when the requests with reservations
        end.
        """
        self._leaving = self._held_back = True
        self.left = None

    def begin(self, now_s: float) -> None:
        """Begin the period that contains `now_s`, if it has not begun. Nothing carries over from the period before."""
        if self.span.starts_s <= now_s < self.span.ends_s:
            return
        self.span = span_of(self.budget.period, now_s)
        self.in_hand = self.reserved = self.needed = self._returning = 0
        self.left = None
        self._held_back = False
        self.denied_until_s = 0.0
        self._slice = self._smallest_slice()
        self._used_s = now_s

    def wanted(self, now_s: float) -> int:
        """How much to ask the store for now; if negative, how much to give back; if 0, do not ask."""
        self.begin(now_s)
        if self.asking or (self.denied_until_s and self.denied(now_s)):
            return 0
        if self._held_back and self.in_hand > self.reserved:
            return self.reserved - self.in_hand
        if self._leaving:
            return 0
        free = self.in_hand - self.reserved
        if self.needed > free:
            return max(self._next_slice(now_s), self.needed - free)
        if now_s - self._used_s > IDLE_S:
            return -free if free > 0 and not self.reserved else 0
        if self.left is not None and self.left > 0 and free < self._slice // 2:
            return self._next_slice(now_s)
        return 0

    @property
    def least(self) -> int:
        """The smallest useful lease: the waiting request needs this much. If the store has less, it leases nothing."""
        return max(0, self.needed - self.free) if self.budget.is_money else 0

    @property
    def rests(self) -> bool:
        """Whether the lease needs nothing from the store until a request comes."""
        return self.left is None and not (self.asking or self.in_hand or self.reserved or self.needed)

    def asked(self, amount: int, now_s: float) -> None:
        """The store is being asked. An amount that is given back can be used again only if the store does not answer
        (`not_answered`).
        """
        self.asking = True
        self._asked_s = now_s
        self._asked_for = self.budget
        if amount < 0:
            self.in_hand += amount
            self._returning = -amount

    def answered(self, span: Span, taken: Taken, now_s: float) -> None:
        self.asking = self.away = False
        self._returning = 0
        if span != self.span:
            return
        self.in_hand += max(0, taken.leased)
        if self._leaving or self._asked_for != self.budget:
            return  # the configuration changed meanwhile: waiting requests ask again
        self._held_back = taken.left < 0
        self.left = max(0, taken.left)
        if self.needed - self.free > self.left:
            self.denied_until_s = now_s + DENIED_S
        self.needed = 0

    def not_answered(self, now_s: float) -> None:
        """The store does not answer: take back what would have been given back."""
        self.asking, self.away = False, True
        self.in_hand += self._returning
        self._returning = 0
        self.needed = 0
        self.denied_until_s = now_s + DENIED_S

    def stands_open(self, amount: int) -> bool:
        """Whether an amount is granted although it is not leased. This is so for a removed budget. For requests and
        tokens it is also so if the store failed to answer, has not answered yet, or had enough left.
        """
        if self._leaving:
            return True
        return not self.budget.is_money and (self.away or self.left is None or self.free + self.left >= amount)

    def denied(self, now_s: float) -> bool:
        """Whether the store had too little left, or did not answer, in the last `DENIED_S`. False if a clock was set
        back."""
        return self.denied_until_s - DENIED_S <= now_s < self.denied_until_s

    def reserve(self, amount: int, now_s: float) -> None:
        """Reserve `amount` in the current period."""
        self.reserved += amount
        self._used_s = now_s

    def spend(self, amount: int, now_s: float) -> None:
        """Spend `amount` in the period that contains `now_s`."""
        self.begin(now_s)
        self.in_hand -= amount
        self._used_s = now_s

    def spent_share(self) -> float:
        """The share of the budget that is spent or leased elsewhere, as far as this process knows."""
        if self.left is None:
            return 0.0
        return 1 - (self.left + max(0, self.in_hand)) / self.budget.limit

    def _smallest_slice(self) -> int:
        return max(1, self.budget.limit // SMALLEST_PART)

    def _next_slice(self, now_s: float) -> int:
        if self.left is not None and now_s - self._asked_s < QUICK_S:
            most = max(1, self.budget.limit // LARGEST_PART)
            self._slice = min(2 * self._slice, most)
        return self._slice


class SpendReservation:
    """What one request reserves from all budgets that apply to it."""

    __slots__ = ("_amounts", "_reserved", "lacking", "leases")

    def __init__(self, leases: tuple[Lease, ...], amounts: Amounts) -> None:
        self.leases = leases
        self._amounts = amounts
        self._reserved: list[tuple[Lease, Span, int]] = []
        """Each lease, its period, and the amount; empty until the reservation is granted."""

        self.lacking: Lease | None = None
        """If the reservation was refused: the lease that has too little."""

    def reserve(self, now_s: float) -> BudgetVerdict:
        """Reserve from all leases, or from none of them."""
        if self._reserved:
            return BudgetVerdict.GRANTED
        self.lacking, waits = None, False
        parts: list[tuple[Lease, Span, int]] = []
        for lease in self.leases:
            amount = self._amount(lease.budget)
            lease.begin(now_s)
            parts.append((lease, lease.span, amount))
            if lease.free >= amount or lease.stands_open(amount):
                continue
            denied = lease.denied(now_s)
            if not denied:
                lease.needed = max(lease.needed, amount)
            if denied or not lease.budget.is_money:
                self.lacking = lease
                return BudgetVerdict.REFUSED
            waits = True
        if waits:
            return BudgetVerdict.WAITS
        for lease, _, amount in parts:
            lease.reserve(amount, now_s)
        self._reserved = parts
        return BudgetVerdict.GRANTED

    def release(self) -> None:
        """Give back what is reserved, when the request has ended."""
        reserved, self._reserved = self._reserved, []
        for lease, span, amount in reserved:
            if lease.span == span:
                lease.reserved -= amount

    def keep(self, amounts: Amounts) -> None:
        """Count what the request has used, in the periods of its reservation. Call it before `release`."""
        for lease, span, _ in self._reserved:
            if lease.span == span:
                lease.in_hand -= amounts.of(lease.budget)

    def spend(self, amounts: Amounts, now_s: float) -> None:
        """Count what the request has used, in the periods that contain `now_s`."""
        for lease in self.leases:
            lease.spend(amounts.of(lease.budget), now_s)

    def _amount(self, budget: Budget) -> int:
        """How much to reserve of a budget. A request that exceeds a whole limit of requests or tokens reserves the
        limit.
        """
        if budget.unit == "nanousd":
            return self._amounts.nanousd
        return min(self._amounts.of(budget), budget.limit)
