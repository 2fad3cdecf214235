"""Takes leases on budgets from their store, and reports what is left of each budget.

A lease is a part of a budget that this process may use without asking the store again. If a request needs more than the
lease has left, it waits in the queue while the store is asked. It is refused if the store does not answer by a
deadline, or has nothing left.
"""

import logging
import math
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from warmroute.contract.money import usd
from warmroute_proxy.core.queue.budget import Budget, BudgetVerdict, Lease, Span, SpendReservation, Taken
from warmroute_proxy.core.queue.scope import Scope
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.metrics import GaugeRow, Labels, Metrics
from warmroute_proxy.server.stores.leases import Leases

ASK_S: float = 2.0
LONGEST_RETRY_S: Final = 3_600
MOST_LOOKED_AT: Final = 300
MOST_ASKED: Final = 50
"""The maximum number of leases for which one pass over all leases asks. So a pass takes at most 1 ms for any number of
budgets."""

_LOG: Final = logging.getLogger(__name__)


class BudgetStore(Protocol):
    async def take(self, budget: Budget, span: Span, amount: int, least: int = 0) -> Taken:
        """Lease `amount` of a budget. If the budget has less, lease the rest; if the rest is below `least`, lease
        nothing. A negative amount is given back.

        Raises any error if the outcome is unknown.
        """
        ...


class Budgets(Leases[Lease]):
    def __init__(
        self, budgets: Sequence[Budget], store: BudgetStore | None, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        """`clock`: unix seconds."""
        super().__init__(clock, MOST_LOOKED_AT, MOST_ASKED)
        self._leaving: list[Lease] = []  # leases on budgets that a reload has removed
        self._store = store
        self._metrics = metrics
        self._use([Lease(budget) for budget in budgets])

    def replace(self, budgets: Sequence[Budget]) -> None:
        """Use these budgets from now on. If a budget changes, reservations that were taken from its lease are still
        settled with that lease. Leases above a lowered limit, or on a removed budget, are given back.
        """
        known = {lease.budget.key: lease for lease in (*self._leaving, *self.leases)}
        leases = [known.pop(each.key) if each.key in known else Lease(each) for each in budgets]
        for lease, budget in zip(leases, budgets, strict=True):
            lease.change(budget)
        for lease in known.values():
            lease.leave()
        self._leaving = [lease for lease in known.values() if not lease.rests]
        self._use(leases, self._leaving)

    def of(self, tenant: str, key_id: str) -> tuple[Lease, ...]:
        """The leases on all budgets that apply to this tenant's requests with this key."""
        return self._by_scope.of(tenant, key_id)

    def has_key(self, key_id: str) -> bool:
        return self._by_scope.has_key(key_id)

    def granted(self, made: SpendReservation) -> bool:
        """Reserve for a request, and ask the store for more if its leases need it. Returns whether all is reserved."""
        now_s = self._clock()
        verdict = made.reserve(now_s)
        for lease in made.leases:
            self._in_use.add(lease)
            self._ask_for(lease, now_s)
        return verdict is BudgetVerdict.GRANTED

    def refusal(self, lease: Lease) -> Refusal:
        """The 429 for a reservation that is larger than what a lease has left."""
        budget, now_s = lease.budget, self._clock()
        if not budget.is_money:
            after_s = max(1, math.ceil(lease.span.ends_s - now_s))
            what = f"the limit of {budget.limit} {budget.unit} a minute over all proxies{budget.scope.words} is reached"
            left = max(0, lease.free) + (lease.left or 0)
            text = f"{what}: {left} are left; it renews, try again in {after_s} s"
            return Refusal(429, text, code="rate_limit_exceeded", retry_after_s=after_s)
        self._metrics.add(declared.BUDGET_REFUSED_TOTAL, labels=(("budget", budget.name),))
        left = max(0, lease.free) + (lease.left or 0)
        renews = datetime.fromtimestamp(lease.span.ends_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if lease.away:
            text = f"the budget {budget.name} cannot be asked, and this proxy has used up its share; try again"
            after_s = 1
        else:
            text = f"the budget {budget.name} of the {budget.period} is used up"
            after_s = min(LONGEST_RETRY_S, max(1, int(lease.span.ends_s - now_s)))
        whole = f"{usd(left)} of {usd(budget.limit)} USD are left, and it renews at {renews}"
        return Refusal(429, f"{text}: {whole}", code="insufficient_quota", retry_after_s=after_s)

    def gauges(self) -> list[GaugeRow]:
        """The gauges of money budgets for `/metrics`."""
        rows: list[GaugeRow] = []
        now_s = self._clock()
        for lease in self.leases:
            if not lease.budget.is_money:
                continue
            lease.begin(now_s)
            label: Labels = (("budget", lease.budget.name), ("period", lease.budget.period))
            rows.append((declared.BUDGET_LEASE_NANOUSD, label, float(lease.in_hand)))
            if lease.left is not None:
                rows.append((declared.BUDGET_LEFT_NANOUSD, label, float(lease.left)))
        return rows

    def as_dict(self, leases: Iterable[Lease]) -> list[dict[str, Any]]:
        now_s, leases = self._clock(), tuple(leases)
        for lease in leases:
            lease.begin(now_s)
        return [
            {
                "name": lease.budget.name,
                "period": lease.budget.period,
                "tenants": list(lease.budget.scope.tenants),
                "keys": list(lease.budget.scope.keys),
                "unit": lease.budget.unit,
                "limit": lease.budget.limit,
                "left": lease.left,
                "lease": lease.in_hand,
                "reserved": lease.reserved,
                "renews_at": lease.span.ends_s,
                "away": lease.away,
            }
            for lease in leases
        ]

    def _scope(self, lease: Lease) -> Scope:
        return lease.budget.scope

    def _rests(self, lease: Lease, now_s: float) -> bool:  # noqa: ARG002
        return lease.rests

    def _question(self, lease: Lease, now_s: float) -> Coroutine[Any, Any, None] | None:
        amount = lease.wanted(now_s)
        if not amount or self._store is None:
            return None
        least = lease.least
        lease.asked(amount, now_s)
        return self._take(self._store, lease, (lease.budget, lease.span, amount, least))

    async def _take(self, store: BudgetStore, lease: Lease, question: tuple[Budget, Span, int, int]) -> None:
        try:
            taken = await store.take(*question)
        except Exception as error:
            if not lease.away:
                _LOG.error("the %s of %s cannot be asked for: %s", lease.budget.unit, lease.budget.name, error)
            lease.not_answered(self._clock())
        else:
            lease.answered(question[1], taken, self._clock())
