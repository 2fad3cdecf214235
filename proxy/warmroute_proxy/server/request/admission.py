"""Admission: which requests go now, which wait in the queue, and which are refused with a 429.

Every request passes `enter`. If the queue is empty, a worker has capacity and the tenant has no limits, that costs a
few comparisons. A request waits if its tenant's limits hold it up, if other requests wait already, or if the worker
that the router chose has no capacity. A queued request holds its body, but no worker and no ledger entry. The router
chooses the worker anew when the request leaves the queue. A client that disconnects while its request is queued is
counted in the metrics, and leaves no other trace.

Queued requests look for capacity when a request ends or has its first token, and also a few times a second, since the
load that engines report changes. To keep the event loop free, one such round dispatches at most `PER_ROUND` requests,
including those that it only moves to the line of another worker.

`stores.limits` has the limits. A request that another region forwarded is not counted here: that region counted it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.homes import home_key
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.queue.admission import FOR_MEMORY, Queue, Waiter
from warmroute_proxy.core.queue.dispatch_order import Placement, next_dispatches, place_queued
from warmroute_proxy.core.queue.dispatch_rate import DispatchRate
from warmroute_proxy.core.queue.door import Announcing, begins, waits_to_begin
from warmroute_proxy.core.queue.memory_wait import passes
from warmroute_proxy.core.queue.programs import Roots
from warmroute_proxy.core.queue.quota import UsedTokens
from warmroute_proxy.core.queue.refused_sessions import KEPT_S, RefusedSessions, in_words
from warmroute_proxy.core.queue.retry_budget import RetryBudget
from warmroute_proxy.core.queue.shortage import Fleet, Shortage
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.errors import Refusal, shutting_down
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.intake.body import AnyBody
from warmroute_proxy.server.stores.limits.request_limits import (
    CODE,
    Limited,
    LimitedRequest,
    LimitStores,
    RequestLimits,
    ReservingRequest,
    go_duration,
)

log = logging.getLogger(__name__)

PER_ROUND: Final = 32
_NOWHERE: Final = ("", 0.0)
"""The place of a request that waits for its tenant's limits: no worker, and 0 s of computing."""


class RequestToAdmit(LimitedRequest, Protocol):
    """The part of a request that admission uses."""

    waiter: "Waiter[RequestToAdmit] | None"
    asked_s: float | None
    """Since when its place in line counts; set by admission when it first waits, and kept if a forward fails."""

    @property
    def body(self) -> AnyBody: ...
    @property
    def excluded(self) -> frozenset[str]: ...
    def admitted(self, decision: Decision) -> None: ...
    def sweep(self, now_s: float) -> None: ...
    def refused(self, refusal: Refusal) -> None: ...
    def crashed(self) -> None: ...


class Admission:
    """The queue of one proxy process, its tenants' quotas, and its budget of retries."""

    def __init__(
        self,
        config: Config,
        router: Router,
        metrics: Metrics,
        clock: Callable[[], float],
        stores: LimitStores,
        shortage: Shortage,
    ) -> None:
        """`shortage`: the shortage of KV memory, which `sweep` updates."""
        bounds = config.limits
        self.queue: Queue[RequestToAdmit] = Queue(
            bounds.queue_requests, bounds.queue_bytes, bounds.queue_timeout_s, bounds.working_set_wait_s,
            new_sessions_wait=bounds.new_sessions_wait,
        )  # fmt: skip
        self.retries = RetryBudget()
        self._timeout_s = bounds.queue_timeout_s
        self._router = router
        self._metrics = metrics
        self._clock = clock
        self._dispatch_rate = DispatchRate()
        self._refused_sessions: dict[str, RefusedSessions] = {}  # by model
        self._announcing = Announcing(router, self.queue)
        self._roots = Roots()
        self._pumping = False
        self._again = False  # whether the next round also tries some requests whose worker has no capacity
        self.prices = stores.prices
        self.shortage = shortage
        self.limits = RequestLimits(config, metrics, clock, stores)
        self.limits.on_answer(self.freed)

    def replace(self, config: Config) -> None:
        """Use the limits of another config. A running request still returns its reservation to the old limit."""
        bounds = config.limits
        self.queue.resize(
            bounds.queue_requests, bounds.queue_bytes, bounds.queue_timeout_s, bounds.working_set_wait_s,
            new_sessions_wait=bounds.new_sessions_wait,
        )  # fmt: skip
        self._timeout_s = bounds.queue_timeout_s
        self.limits.replace(config)
        self.freed()

    def enter(self, request: RequestToAdmit, decision: Decision, now_s: float) -> Decision | None:
        """Return where a new request goes now, or None if it is queued or refused."""
        parent = request.parsed.standing.parent
        if parent is not None and (session := request.routing.session) is not None:
            self._roots.started(session, parent, request.parsed.tenant.name)
        if request.parsed.tenant.limits is not None and not self._let_in(request, decision):
            return None
        router, queue, routing = self._router, self.queue, request.routing
        if decision.kind != "forward" and (
            queue.requests
            or not router.has_capacity(routing.model, decision, now_s)
            or not passes(router, queue, routing, decision, now_s)
        ):
            waiter = self._waiter(request)
            found = self._place_queued(waiter, decision)
            if not found.goes:
                self._wait(waiter, found.waits_at, found.compute_s)
                return None
            decision = found.decision
        if request.quota is not None:
            self.limits.begin(request)
        return decision

    def count(self, caller: Limited) -> None:
        """Count a request that needs no engine. Raises: Refusal, if the caller's limit per minute is used up."""
        exceeded = self.limits.count(caller)
        if exceeded is not None:
            self._metrics.add(declared.REFUSED_TOTAL, labels=(("reason", exceeded.reason),))
            raise self.limits.beyond(caller, exceeded)

    def leave(self, request: RequestToAdmit) -> None:
        waiter, request.waiter = request.waiter, None
        if waiter is not None and self.queue.leave(waiter):
            self._remember(waiter)
            self._metrics.add(declared.QUEUE_LEFT_TOTAL)
            self.cancel(request)

    def cancel(self, request: ReservingRequest) -> None:
        """Release what a request has reserved: it has ended and used nothing."""
        self.limits.end(request, None)
        self.freed()

    def ended(self, request: ReservingRequest, used: UsedTokens) -> None:
        """Settle the reservation of a dispatched request that has ended. `used`: the tokens that it used."""
        self.limits.end(request, used)
        self.freed()

    def freed(self) -> None:
        """Dispatch queued requests as soon as the caller has returned, because capacity has become free."""
        if self.queue.requests and not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def sweep(self, now_s: float) -> None:
        """Refuse requests that have waited too long, and look for capacity. Called a few times a second."""
        for_memory = self.queue.all_for_memory() if self.queue.requests else []
        beginning = sum(waiter.need_tokens for waiter in for_memory if waiter.begins)
        self.shortage.observe(sum(waiter.need_tokens for waiter in for_memory), now_s, beginning)
        if for_memory:
            self.shortage.fleet = Fleet(self.queue.memory_wait_s, *self._router.working_set.speed_and_pool())
        self._announcing.sweep(now_s)
        if not self.queue.requests:
            return
        for waiter in self.queue.expired(now_s - self._timeout_s):
            if waiter.item.waiter is not waiter:
                continue  # an earlier refusal of this loop has let a new request in, which pushed this one out
            held_up = self.limits.held_up_by(waiter.item)
            if not held_up and waits_to_begin(waiter):
                self.queue.leave(waiter)
                self._refuse_to_begin(waiter, "session_wait")
                continue
            held_up = held_up or f"no engine for {waiter.model} had room"
            self._refuse_waiter(waiter, "queue_timeout", f"{held_up} within {self._timeout_s:g} s")
        for waiter in for_memory:
            if waiter.item.waiter is waiter and waiter.item.parsed.stream:
                waiter.item.sweep(now_s)
        self._again = True
        self.freed()

    def shut_down(self) -> None:
        """Refuse all queued requests, because the proxy shuts down."""
        for waiter in self.queue.waiting():
            if waiter.item.waiter is not waiter:
                continue
            self.queue.leave(waiter)
            self._refuse(waiter.item, "draining", shutting_down())

    def as_dict(self, now_s: float) -> dict[str, Any]:
        waiting = self.queue.waiting()
        by_tenant = Counter(waiter.tenant for waiter in waiting)
        by_worker = Counter(waiter.worker_id.strip() for waiter in waiting)
        return {
            "queue": {
                "requests": self.queue.requests,
                "requests_limit": self.queue.max_requests,
                "bytes": self.queue.bytes,
                "bytes_limit": self.queue.max_bytes,
                "timeout_s": self._timeout_s,
                "memory_wait_s": self.queue.memory_wait_s,
                "for_memory": len(self.queue.all_for_memory()),
                "to_begin": sum(map(waits_to_begin, waiting)),
                "waits_elsewhere": self._router.waits_elsewhere.all_running(),
                "memory_missing_tokens": round(self.shortage.missing_tokens),
                "oldest_s": now_s - min((waiter.since_s for waiter in waiting), default=now_s),
                "drain_per_s": self._dispatch_rate.per_s(now_s),
                "by_tenant": dict(by_tenant),
                "by_place": dict(by_worker),
            },
            "working_set": self._router.working_set.as_dict(now_s),
            **self.limits.as_dict(now_s),
        }

    # -- inside

    def _refused_by_limit(self, request: RequestToAdmit) -> bool:
        """Refuse a request if a budget or a shared limit has too little left for it. Returns whether it was refused."""
        lacking = self.limits.lacking(request)
        if lacking is not None:
            self._refuse(request, *lacking)
        return lacking is not None

    def _let_in(self, request: RequestToAdmit, decision: Decision) -> bool:
        """Check whether the tenant's limits let a request begin now. If not, refuse or queue the request."""
        exceeded = self.limits.reserve(request, decision)
        if exceeded is not None:
            self._refuse(request, exceeded.reason, self.limits.beyond(request.parsed, exceeded))
            return False
        if self.limits.may_begin(request):
            return True
        if not self._refused_by_limit(request):
            self._wait(self._waiter(request), *_NOWHERE)
        return False

    def _waiter(self, request: RequestToAdmit) -> "Waiter[RequestToAdmit]":
        parsed = request.parsed
        key_id = parsed.key_id if self.limits.has_key(parsed.key_id) else ""
        size_bytes = len(request.body.raw)
        routing, now_s = request.routing, self._clock()
        is_new = begins(self._router, self.queue, routing)
        if request.asked_s is None:
            refused = self._refused_of(routing.model)
            request.asked_s = refused.take(_session_key(routing), now_s) if is_new else now_s
        waiter = Waiter(
            request, parsed.tenant.name, routing.model, size_bytes, now_s, key_id, begins=is_new,
            asked_s=request.asked_s,
        )  # fmt: skip
        session, program = routing.session, parsed.standing.program_key
        if program is None:
            program = self._roots.of(_session_key(routing) if session is None else session)
        waiter.program, waiter.priority = program, parsed.standing.priority
        return waiter

    def _place_queued(self, waiter: "Waiter[RequestToAdmit]", decision: Decision) -> Placement:
        request, now = waiter.item, self._clock()
        return place_queued(self._router, self.queue, waiter, request.routing, decision, request.excluded, now)

    def _refused_of(self, model: str) -> RefusedSessions:
        found = self._refused_sessions.get(model)
        if found is None:
            found = self._refused_sessions[model] = RefusedSessions()
        return found

    def _remember(self, waiter: "Waiter[RequestToAdmit]") -> None:
        """Keep the place in line of a new session for a while, if its first request waited and was not served."""
        if waiter.begins:
            routing = waiter.item.routing
            self._refused_of(waiter.model).keep(_session_key(routing), waiter.asked_s, self._clock(), routing.tenant)

    def _wait(self, waiter: "Waiter[RequestToAdmit]", worker_id: str, compute_s: float) -> None:
        if worker_id == FOR_MEMORY and waiter.begins and not waiter.item.parsed.may_wait:
            self._refuse_to_begin(waiter, "wait_declined")
            return
        pushed_out = self.queue.join(waiter, worker_id, compute_s)
        if pushed_out is not None:
            waiter.item.waiter = waiter
            self.freed()
        for other in [waiter] if pushed_out is None else pushed_out:
            self._refuse_waiter(other, "queue_full", f"every engine for {other.model} is busy, and the queue is full")

    def _pump(self) -> None:
        """Dispatch the queued requests that can go, in fair order."""
        self._pumping, again, self._again = False, self._again, False
        left = PER_ROUND
        for waiter, found in next_dispatches(self.queue, self._router, self._find, self._clock(), again=again):
            if found.goes:
                self._go(waiter, found.decision)
            left -= 1
            if not left:
                self._again |= again
                self.freed()
                return

    def _find(self, waiter: "Waiter[RequestToAdmit]") -> Placement | None:
        """The placement of a queued request as of now; None if it cannot go anywhere."""
        request = waiter.item
        if not self._may_begin(waiter):
            return None
        try:
            decision = self._router.place(request.routing, self._clock(), request.excluded)
            found = self._place_queued(waiter, decision)
            # If the first decision was to forward the request, its spend is not reserved yet.
            self.limits.reserve_spend(request, found.decision)
        except NoWorker:
            return None
        except Exception as error:  # left in the queue, the request would fail again and block those behind it
            log.error("placing a queued request failed: %s", type(error).__name__)
            request.crashed()
            return None
        return found if self._may_begin(waiter) else None

    def _may_begin(self, waiter: "Waiter[RequestToAdmit]") -> bool:
        """Check whether the limits let a queued request run now. If not, refuse it, or let it wait for its limits."""
        if self.limits.may_begin(waiter.item):
            return True
        if self._refused_by_limit(waiter.item):
            self.queue.leave(waiter)
            self._remember(waiter)
        elif waiter.line_key != (waiter.model, _NOWHERE[0]):
            self.queue.move(waiter, *_NOWHERE, self._clock())
        return False

    def _go(self, waiter: "Waiter[RequestToAdmit]", decision: Decision) -> None:
        request, now = waiter.item, self._clock()
        tokens = decision.prompt_tokens_est - decision.predicted_cached_tokens
        self.queue.served(waiter, tokens + request.routing.expected_output_tokens * request.routing.sequences)
        self._dispatch_rate.observe(now)
        self._metrics.queue_wait.observe(now - waiter.since_s)
        memory_s = waiter.memory_wait_s(now)
        if memory_s > 0:
            self._metrics.memory_wait.observe(memory_s)
            decision = msgspec.structs.replace(decision, memory_wait_s=memory_s, waited_to_begin=waiter.begins)
            if waiter.begins:
                self._metrics.add(declared.BEGUN_TOTAL)
                self._refused_of(waiter.model).openings.observe(now)
        request.waiter = None
        self.limits.begin(request)
        request.admitted(decision)

    def _refuse_waiter(self, waiter: "Waiter[RequestToAdmit]", reason: str, message: str) -> None:
        self.queue.leave(waiter)
        self._remember(waiter)
        self._refuse(waiter.item, reason, self._full(message))

    def _refuse_to_begin(self, waiter: "Waiter[RequestToAdmit]", reason: str) -> None:
        """Refuse a request that would begin a session. The session keeps its place in line, and the message says how
        long its wait may be.
        """
        now_s, refused = self._clock(), self._refused_of(waiter.model)
        line = self.queue.for_memory(waiter.model, begins=True)
        before = refused.before(waiter.asked_s, now_s) + sum(each.asked_s < waiter.asked_s for each in line)
        wait_s = (before + 1) / refused.openings.per_s(now_s)
        self._remember(waiter)
        are = "session is" if before == 1 else "sessions are"
        message = (
            f"the KV memory for {waiter.model} is full of running sessions, and no new one can begin yet: "
            f"{in_words(wait_s)}: {before} {are} before this one, which keeps its place for {KEPT_S / 60:.0f} minutes"
        )
        refusal = self._full(message, refused.openings.retry_after_s(before + 1, now_s))
        self._refuse(waiter.item, reason, refusal)

    def _refuse(self, request: RequestToAdmit, reason: str, refusal: Refusal) -> None:
        request.waiter = None
        self._metrics.add(declared.REFUSED_TOTAL, labels=(("reason", reason),))
        request.refused(refusal)

    def _full(self, message: str, after_s: int | None = None) -> Refusal:
        """A 429 because the fleet is busy; its rate-limit headers show the queue."""
        if after_s is None:
            after_s = self._dispatch_rate.retry_after_s(self.queue.requests, self._clock())
        headers = (
            ("x-ratelimit-limit-requests", str(self.queue.max_requests)),
            ("x-ratelimit-remaining-requests", str(max(0, self.queue.max_requests - self.queue.requests))),
            ("x-ratelimit-reset-requests", go_duration(after_s)),
        )
        return Refusal(429, f"{message}; try again in {after_s} s", code=CODE, retry_after_s=after_s, headers=headers)


def _session_key(routing: RoutingRequest) -> int:
    """The number that identifies a session that asks again: its `home_key`, or else the hash of its whole prompt."""
    session = home_key(routing)
    return routing.chain.hashes[-1] if session is None else session
