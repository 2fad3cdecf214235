"""What tenants may spend by day and month, over several proxies: leases on a budget that a store holds.

A proxy takes a slice of the budget from the store, and spends it without asking again. Of the budget is left

    limit - what settled rows have cost - what all proxies have leased and not settled

so the store never gives more than the limit, and there is no second counter beside the rows. A request reserves its
estimated price before its dispatch: all of its prompt uncached, and the answer that is expected. It is settled at its
real price. What is spent can be above the limit by what requests cost more than was reserved for them.

A slice is a hundredth of the budget. Where slices are used up quickly, the next one is twice as large, up to an eighth.
A proxy asks for the next one when it has used half. What it has not touched for a minute it gives back.

    reserve ──▶ granted                      the slice in hand has enough
            ──▶ waits ──answer──▶ granted     the store is asked, for `ASK_S` at most
            ──▶ refused                      the store has said within `DENIED_S` that there is no more, or is away

Periods are days and months of UTC. With a new period comes a new slice.
"""

from datetime import UTC, datetime
from enum import Enum
from typing import Final, Literal, NamedTuple

DENIED_S: Final = 1.0
QUICK_S: Final = 5.0
IDLE_S: Final = 60.0
SMALLEST_PART: Final = 100
LARGEST_PART: Final = 8

Period = Literal["day", "month"]


class Budget(NamedTuple):
    """What some tenants may spend together in each period. `warn_share`: from which share of it clients are warned."""

    name: str
    tenants: tuple[str, ...]
    period: Period
    limit_nanousd: int
    warn_share: float


class Span(NamedTuple):
    """One day or month, unix seconds; it ends before `ends_s`."""

    starts_s: int
    ends_s: int


class Verdict(Enum):
    """What becomes of a reservation now."""

    GRANTED = "granted"
    WAITS = "waits"
    REFUSED = "refused"


class Taken(NamedTuple):
    """The store's answer: what it has leased, and what is left in it after that."""

    leased_nanousd: int
    left_nanousd: int


def span_of(period: Period, now_s: float) -> Span:
    """The day or month of a time, in UTC."""
    now = datetime.fromtimestamp(now_s, UTC)
    starts = datetime(now.year, now.month, now.day if period == "day" else 1, tzinfo=UTC)
    start_s = int(starts.timestamp())
    if period == "day":
        return Span(start_s, start_s + 86_400)
    later = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=UTC)
    return Span(start_s, int(later.timestamp()))


class Lease:
    """What one process may spend of one budget now. Times are unix seconds."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.span = Span(0, 0)
        self.in_hand_nanousd = 0
        """Leased and not spent."""

        self.reserved_nanousd = 0
        self.left_nanousd: int | None = None
        """What the store had left when it answered last in this period; None: it has not answered."""

        self.asking = False
        self.away = False
        """Whether the last question had no answer."""

        self.needed_nanousd = 0
        """The largest reservation that waits."""

        self.denied_until_s = 0.0
        self._slice_nanousd = 0
        self._asked_s = 0.0
        self._used_s = 0.0

    @property
    def free_nanousd(self) -> int:
        """What can be reserved."""
        return self.in_hand_nanousd - self.reserved_nanousd

    def begin(self, now_s: float) -> None:
        """Go to the period of a time, if that is another one: nothing of the one before counts there."""
        if self.span.starts_s <= now_s < self.span.ends_s:
            return
        self.span = span_of(self.budget.period, now_s)
        self.in_hand_nanousd = self.reserved_nanousd = self.needed_nanousd = 0
        self.left_nanousd = None
        self.denied_until_s = 0.0
        self._slice_nanousd = max(1, self.budget.limit_nanousd // SMALLEST_PART)
        self._used_s = now_s

    def wanted_nanousd(self, now_s: float) -> int:
        """How much to ask the store for now; below 0: to give back; 0: nothing."""
        self.begin(now_s)
        if self.asking:
            return 0
        if self.needed_nanousd > self.free_nanousd:
            return max(self._next_slice(now_s), self.needed_nanousd - self.free_nanousd)
        if self.left_nanousd is None or now_s < self.denied_until_s:
            return 0
        if now_s - self._used_s > IDLE_S:
            return -self.free_nanousd if self.free_nanousd > 0 and not self.reserved_nanousd else 0
        if self.left_nanousd > 0 and self.free_nanousd < self._slice_nanousd // 2:
            return self._next_slice(now_s)
        return 0

    def asked(self, amount_nanousd: int, now_s: float) -> None:
        """The store is asked; what is given back is gone from now on."""
        self.asking = True
        self._asked_s = now_s
        if amount_nanousd < 0:
            self.in_hand_nanousd += amount_nanousd

    def answered(self, span: Span, taken: Taken, now_s: float) -> None:
        """The store has answered a question for a period."""
        self.asking = self.away = False
        if span != self.span:
            return
        self.in_hand_nanousd += max(0, taken.leased_nanousd)
        self.left_nanousd = max(0, taken.left_nanousd)
        if self.needed_nanousd > self.free_nanousd and not self.left_nanousd:
            self.denied_until_s = now_s + DENIED_S
        self.needed_nanousd = 0

    def not_answered(self, now_s: float) -> None:
        """The store is away."""
        self.asking, self.away = False, True
        self.needed_nanousd = 0
        self.denied_until_s = now_s + DENIED_S

    def used(self, now_s: float) -> None:
        """Something is reserved or spent."""
        self._used_s = now_s

    def spent_share(self) -> float:
        """Which share of the budget is spent or leased elsewhere, as far as this process knows."""
        if self.left_nanousd is None:
            return 0.0
        return 1 - (self.left_nanousd + max(0, self.in_hand_nanousd)) / self.budget.limit_nanousd

    def _next_slice(self, now_s: float) -> int:
        if self.left_nanousd is not None and now_s - self._asked_s < QUICK_S:
            most = max(1, self.budget.limit_nanousd // LARGEST_PART)
            self._slice_nanousd = min(2 * self._slice_nanousd, most)
        return self._slice_nanousd


class SpendReservation:
    """What one request has reserved of all budgets of its tenant, once it is granted."""

    __slots__ = ("_amount_nanousd", "_granted", "_leases", "_spans", "lacking")

    def __init__(self, leases: tuple[Lease, ...], amount_nanousd: int) -> None:
        self._leases = leases
        self._amount_nanousd = amount_nanousd
        self._granted = False
        self._spans: tuple[Span, ...] = ()
        self.lacking: Lease | None = None
        """Where it is refused: the lease that has not enough."""

    def reserve(self, now_s: float) -> Verdict:
        """Reserve of all, or of none."""
        if self._granted:
            return Verdict.GRANTED
        waits = False
        for lease in self._leases:
            lease.begin(now_s)
            lease.used(now_s)
            if lease.free_nanousd < self._amount_nanousd:
                if now_s < lease.denied_until_s:
                    self.lacking = lease
                    return Verdict.REFUSED
                lease.needed_nanousd = max(lease.needed_nanousd, self._amount_nanousd)
                waits = True
        if waits:
            return Verdict.WAITS
        for lease in self._leases:
            lease.reserved_nanousd += self._amount_nanousd
        self._granted = True
        self._spans = tuple([lease.span for lease in self._leases])
        return Verdict.GRANTED

    def release(self) -> None:
        """Give back what is reserved: the request has ended."""
        if self._granted:
            self._granted = False
            for lease, span in zip(self._leases, self._spans, strict=True):
                if lease.span == span:
                    lease.reserved_nanousd -= self._amount_nanousd

    def spend(self, price_nanousd: int, now_s: float) -> None:
        """The row of the request has a price."""
        for lease in self._leases:
            lease.begin(now_s)
            lease.used(now_s)
            lease.in_hand_nanousd -= price_nanousd
