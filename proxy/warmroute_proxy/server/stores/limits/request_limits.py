"""Applies all limits to a request: quotas of this process, budgets, and limits that all proxies share.

A request's estimated use is reserved before its dispatch, and replaced by its real use when it ends. A refusal names
the limit, what is left of it, and when it renews. A header warns clients that have used most of a budget.
"""

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, NamedTuple, Protocol

from warmroute.contract.money import list_nanousd
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.queue.budget import Amounts, Lease, SpendReservation
from warmroute_proxy.core.queue.quota import NEVER, Bucket, Exceeded, Kind, Quota, UsedTokens, reserve
from warmroute_proxy.core.queue.reservation import Reservation
from warmroute_proxy.core.queue.scope import ByScope, Scope
from warmroute_proxy.core.queue.slots import SlotLease
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.config import Config, TenantConfig
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.intake.parsed_request import ParsedRequest
from warmroute_proxy.server.stores.budgets import Budgets
from warmroute_proxy.server.stores.leases import SharedSlots
from warmroute_proxy.server.stores.prices import Prices

CODE: Final = "rate_limit_exceeded"
_HEADERS: Final[tuple[tuple[Kind, str, str, str], ...]] = (
    ("requests", "x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("tokens", "x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
)


class LimitHeaders(NamedTuple):
    """The headers of an answer about limits. `warned`: the names and kinds of the limits that the headers warn of."""

    headers: tuple[tuple[str, str], ...]
    warned: tuple[tuple[str, str], ...]


class ReservingRequest(Protocol):
    quota: Reservation | None


class LimitedRequest(ReservingRequest, Protocol):
    """A request that has not reserved yet, with the fields by which its use is estimated."""

    routing: RoutingRequest

    @property
    def parsed(self) -> ParsedRequest: ...


class Limited(Protocol):
    """A request, or whoever sent it: a tenant and the id of the API key."""

    @property
    def tenant(self) -> TenantConfig: ...

    @property
    def key_id(self) -> str: ...


class LimitsOverProxies(Protocol):
    """The limits that all proxies share: per minute (`windows`), and of concurrent requests (`slots`)."""

    windows: Budgets
    slots: SharedSlots

    @property
    def hold(self) -> bool:
        """Whether proxies can share limits, which needs Redis."""


class LimitStores(Protocol):
    @property
    def prices(self) -> Prices: ...

    @property
    def budgets(self) -> Budgets: ...

    @property
    def limits(self) -> LimitsOverProxies: ...


class RequestLimits:
    """The limits of one proxy process. `clock`: monotonic seconds."""

    def __init__(self, config: Config, metrics: Metrics, clock: Callable[[], float], stores: LimitStores) -> None:
        now = clock()
        self.quotas = ByScope([(of.scope, Quota(of, now)) for of in config.scope_limits()])
        self._budgets, self._windows, self._slots = stores.budgets, stores.limits.windows, stores.limits.slots
        self._over_proxies = stores.limits.hold
        self._prices = stores.prices
        self._metrics = metrics
        self._clock = clock

    def replace(self, config: Config) -> None:
        """Use the limits of another config. A request returns its reservation to the quota that it took it from."""
        now_s = self._clock()
        known = {(scope.kind, scope.name): quota for scope, quota in self.quotas.all}
        found: list[tuple[Scope, Quota]] = []
        for of in config.scope_limits():
            quota = known.get((of.scope.kind, of.scope.name))
            if quota is None:
                quota = Quota(of, now_s)
            elif quota.of != of:
                quota.change(of, now_s)
            found.append((of.scope, quota))
        self.quotas = ByScope(found)

    def on_answer(self, call: Callable[[], None]) -> None:
        """Call `call` whenever a store has answered, since waiting requests may then begin."""
        for shared in (self._budgets, self._windows, self._slots):
            shared.on_answer.append(call)

    def has_key(self, key_id: str) -> bool:
        """Whether a key has its own limits besides those of its tenant."""
        return self.quotas.has_key(key_id) or self._budgets.has_key(key_id)

    def reserve(self, request: LimitedRequest, decision: Decision) -> Exceeded | None:
        """Reserve the estimated use of a request. Returns the limit that it exceeds, or None.

        If another region has forwarded the request, that region has counted it, and only its price is reserved here.
        """
        parsed, routing = request.parsed, request.routing
        tenant, key_id = parsed.tenant.name, parsed.key_id
        if parsed.forwarded_from is None and request.quota is None and (quotas := self.quotas.of(tenant, key_id)):
            sequences = routing.sequences
            tokens = decision.prompt_tokens_est + routing.expected_output_tokens * sequences
            exceeded = reserve(quotas, tokens, self._clock(), sequences)
            if exceeded is not None:
                return exceeded
            made = request.quota = Reservation(quotas, tokens, sequences)
            if self._over_proxies:
                made.slots = self._slots.of(tenant, key_id)
                if windows := self._windows.of(tenant, key_id):
                    made.window = SpendReservation(windows, Amounts(requests=sequences, tokens=UsedTokens(tokens)))
        self.reserve_spend(request, decision)
        return None

    def count(self, caller: Limited) -> Exceeded | None:
        """Count a request that needs no engine by this process's limits. Returns the limit that it exceeds, or None."""
        return reserve(self.quotas.of(caller.tenant.name, caller.key_id), 0, self._clock())

    def reserve_spend(self, request: LimitedRequest, decision: Decision) -> None:
        """Reserve the price of a request, unless that was done. If it goes to another region, that region does this."""
        parsed, reservation = request.parsed, request.quota
        leases = self._budgets.of(parsed.tenant.name, parsed.key_id)
        if not leases or decision.kind == "forward" or (reservation is not None and reservation.spend is not None):
            return
        rates, routing = self._prices.now(parsed.model.name).rates, request.routing
        amount = list_nanousd(rates, decision.prompt_tokens_est, routing.expected_output_tokens * routing.sequences)
        if reservation is None:
            reservation = request.quota = Reservation((), 0, 0)
        reservation.spend = SpendReservation(leases, Amounts(nanousd=amount))

    def may_begin(self, request: ReservingRequest) -> bool:
        """Whether the limits let a request run now."""
        reservation = request.quota
        if reservation is None:
            return True
        if reservation.at_once_reached() is not None:
            return False
        window, spend = reservation.window, reservation.spend
        return (window is None or self._windows.granted(window)) and (spend is None or self._budgets.granted(spend))

    def begin(self, request: ReservingRequest) -> None:
        reservation = request.quota
        if reservation is not None:
            reservation.begin()
            if reservation.slots:
                self._slots.began(reservation.slots)

    def end(self, request: ReservingRequest, used: UsedTokens | None) -> None:
        """Release the reservation of a request that has ended. `used`: None if the request did not run."""
        reservation, request.quota = request.quota, None
        if reservation is not None:
            reservation.end(used, self._clock())

    def lacking(self, request: ReservingRequest) -> tuple[str, Refusal] | None:
        """The refusal of a request for which a budget, or a limit that proxies share, has too little left.

        Returns the reason for the metrics, and the refusal; None if the request may wait.
        """
        reservation = request.quota
        if reservation is not None:
            for shared, made in ((self._windows, reservation.window), (self._budgets, reservation.spend)):
                if made is not None and made.lacking is not None:
                    return made.lacking.budget.reason, shared.refusal(made.lacking)
        return None

    def beyond(self, parsed: Limited, exceeded: Exceeded) -> Refusal:
        """The 429 for a request that exceeds a limit per minute. The warnings in its headers are counted."""
        after_s = max(1, math.ceil(exceeded.wait_s))
        what = f"the limit of {exceeded.limit} {exceeded.kind} a minute{exceeded.scope.words} is reached"
        text = f"{what}: {exceeded.left} are left; try again in {after_s} s"
        return Refusal(429, text, code=CODE, retry_after_s=after_s, headers=self.sent_headers(parsed))

    def held_up_by(self, request: ReservingRequest) -> str:
        """The limit on concurrent requests that a request waits for, in words; empty if it waits for other reasons."""
        reached = None if request.quota is None else request.quota.at_once_reached()
        return (
            "" if reached is None else f"the limit of {reached[1]}{reached[0].words} is reached, and no request ended"
        )

    def sent_headers(self, parsed: Limited) -> tuple[tuple[str, str], ...]:
        """The `headers` for an answer that is about to be sent. Counts their warnings."""
        headers, warned = self.headers(parsed)
        for name, limit in warned:
            self._metrics.add(declared.BUDGET_WARNINGS_TOTAL, labels=(("budget", name), ("limit", limit)))
        return headers

    def headers(self, parsed: Limited) -> LimitHeaders:
        """The headers of an answer: OpenAI's rate-limit headers, and a warning of budgets that are mostly used up.

        OpenAI's headers show one limit per minute for requests and one for tokens: the one that has the least left.
        """
        now, tenant, key_id = self._clock(), parsed.tenant.name, parsed.key_id
        quotas = self.quotas.of(tenant, key_id)
        found: list[tuple[str, str]] = []
        for kind, of_limit, of_remaining, of_reset in _HEADERS:
            least: Bucket | None = None
            for quota in quotas:
                bucket = quota.bucket(kind)
                if bucket is not None and (least is None or bucket.remaining(now) < least.remaining(now)):
                    least = bucket
            if least is not None:
                remaining, reset_s = least.remaining_and_reset_s(now)
                found += (
                    (of_limit, str(least.limit)),
                    (of_remaining, str(remaining)),
                    (of_reset, go_duration(reset_s)),
                )
        warned = self._warned(tenant, key_id, quotas, now)
        if warned:
            warnings = [f"{name}; {limit}; {share:.0%}" for (name, limit, _), share in warned.items()]
            found.append(("x-warmroute-budget", ", ".join(warnings)))
        return LimitHeaders(tuple(found), tuple((name, limit) for name, limit, _ in warned))

    def as_dict(self, now_s: float) -> dict[str, Any]:
        """All limits, as operators see them."""
        quotas = (quota for _, quota in self.quotas.all)
        return self._shown(quotas, self._budgets.leases, self._slots.leases, now_s)

    def first(self, most: int, now_s: float) -> dict[str, Any]:
        """The limits that `as_dict` shows, but at most `most` of each kind. `left_out`: how many more there are."""
        found = [quota for _, quota in self.quotas.all], self._budgets.leases, self._slots.leases
        quotas, budgets, slots = found
        left_out = sum(max(0, len(each) - most) for each in found)
        return {**self._shown(quotas[:most], budgets[:most], slots[:most], now_s), "left_out": left_out}

    def of_tenant(
        self, tenant: str, key_ids: Collection[str], visible: Callable[[Scope], bool], now_s: float
    ) -> dict[str, Any]:
        """The limits of a tenant and its keys for which `visible` is true. Does not get slower with more tenants."""
        quotas = self.quotas.of_any(tenant, key_ids)
        budgets, slots = self._budgets.of_any(tenant, key_ids), self._slots.of_any(tenant, key_ids)
        return self._shown(
            (quota for quota in quotas if visible(quota.of.scope)),
            (lease for lease in budgets if visible(lease.budget.scope)),
            (lease for lease in slots if visible(lease.slots.scope)),
            now_s,
        )

    def _shown(
        self, quotas: Iterable[Quota], budgets: Iterable[Lease], slots: Iterable[SlotLease], now_s: float
    ) -> dict[str, Any]:
        by_kind: dict[str, dict[str, Any]] = {"tenant": {}, "budget": {}}
        for quota in quotas:
            by_kind[quota.of.scope.kind][quota.of.scope.name] = _quota_dict(quota, now_s)
        return {
            "tenants": by_kind["tenant"],
            "limits": by_kind["budget"],
            "budgets": self._budgets.as_dict(budgets),
            "at_once": self._slots.as_dict(slots),
        }

    def _warned(
        self, tenant: str, key_id: str, quotas: Iterable[Quota], now_s: float
    ) -> dict[tuple[str, str, float], float]:
        """For each limit that clients are warned of: the share that is used, by name, limit and `warn_share`."""
        warned: dict[tuple[str, str, float], float] = {}
        leases = self._budgets.of(tenant, key_id)
        for lease in (*leases, *self._windows.of(tenant, key_id)) if self._over_proxies else leases:
            budget, share = lease.budget, lease.spent_share()
            if share >= budget.warn_share:
                limit = budget.period if budget.is_money else budget.reason
                _note(warned, (budget.name, limit, budget.warn_share), share)
        for quota in quotas:
            warn_share = quota.of.warn_share
            if warn_share < NEVER:
                for limit, share in quota.used_shares(now_s):
                    if share >= warn_share:
                        _note(warned, (quota.of.scope.name, limit, warn_share), share)
        for slots in self._slots.of(tenant, key_id) if self._over_proxies else ():
            of, share = slots.slots, slots.used_share()
            if share >= of.warn_share:
                _note(warned, (of.scope.name, "requests_at_once", of.warn_share), share)
        return warned


def _note(warned: dict[tuple[str, str, float], float], key: tuple[str, str, float], share: float) -> None:
    """Keep the largest share of each key. A limit of this process and one that proxies share may have the same key."""
    warned[key] = max(share, warned.get(key, 0.0))


def go_duration(seconds: float) -> str:
    """Format seconds as Go and OpenAI's headers do: `12ms`, `1.5s`, `6m0s`."""
    millis = math.ceil(seconds * 1000)
    if millis < 1000:
        return f"{millis}ms"
    minutes, rest = divmod(millis, 60_000)
    hours, minutes = divmod(minutes, 60)
    head = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{head}{rest / 1000:g}s"


def _quota_dict(quota: Quota, now_s: float) -> dict[str, Any]:
    limits = {name: value for name, value in quota.limits._asdict().items() if value is not None}
    return {
        **limits,
        "running": quota.running,
        "tokens_running": quota.tokens_running,
        "requests_remaining": None if quota.requests is None else quota.requests.remaining(now_s),
        "tokens_remaining": None if quota.tokens is None else quota.tokens.remaining(now_s),
    }
