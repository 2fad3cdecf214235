"""The queue of a proxy in a replay: the proxy's `core.queue.dispatch_order`, on the virtual clock.

`server.request.admission` uses that module on the wall clock. Here tenants have no limits, and no turn is refused,
however long it waits.
"""

import sys
from collections.abc import Callable
from typing import Final, NamedTuple

from warmroute_lab.replay.fleet import ReplayTurn
from warmroute_lab.replay.policy import Policy
from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.queue.admission import Queue, Waiter
from warmroute_proxy.core.queue.dispatch_order import Placement, next_dispatches, place_queued
from warmroute_proxy.core.queue.door import Announcing, begins
from warmroute_proxy.core.queue.memory_wait import passes

SWEEP_EVERY_S: Final = 0.25
"""As in the server."""
TIMEOUT_S: Final = 30.0
"""The server's default `queue_timeout_s`."""


class Waiting(NamedTuple):
    turn: ReplayTurn
    routing: RoutingRequest


class ProxyQueue:
    def __init__(
        self,
        policy: Policy,
        router: Router,
        go: Callable[[ReplayTurn, RoutingRequest, Decision, float], None],
        memory_wait_s: float,
    ) -> None:
        """`go` is called to dispatch a turn that has waited."""
        self._policy = policy
        self._router = router
        self._go = go
        self._queue: Queue[Waiting] = Queue(sys.maxsize, sys.maxsize, TIMEOUT_S, memory_wait_s)
        self._due = False  # whether a round of dispatches is scheduled for this instant
        self._sweeps = False
        self._announcing = Announcing(router, self._queue)

    @property
    def waiting(self) -> int:
        return self._queue.requests

    def enter(self, turn: ReplayTurn, routing: RoutingRequest, decision: Decision, now_s: float) -> Decision | None:
        """The decision with which a turn goes now; None if it waits."""
        router, queue = self._router, self._queue
        passes_memory = passes(router, queue, routing, decision, now_s)
        if passes_memory and not queue.requests and router.has_capacity(routing.model, decision, now_s):
            return decision
        is_new = begins(router, queue, routing)
        waiter = Waiter(Waiting(turn, routing), routing.tenant, routing.model, 0, now_s, begins=is_new)
        found = self._find(waiter, decision, now_s)
        if found.goes:
            return found.decision
        self._queue.join(waiter, found.waits_at, found.compute_s)
        self.freed(now_s)
        if not self._sweeps:
            self._sweeps = True
            self._policy.later(now_s + SWEEP_EVERY_S, self._sweep)
        return None

    def freed(self, now_s: float) -> None:
        if self._queue.requests and not self._due:
            self._due = True
            self._policy.later(now_s, self._look)

    def _look(self, now_s: float) -> None:
        self._due = False
        self._round(now_s, again=False)

    def _sweep(self, now_s: float) -> None:
        self._round(now_s, again=True)
        self._announcing.sweep(now_s)
        self._sweeps = self._queue.requests > 0
        if self._sweeps:
            self._policy.later(now_s + SWEEP_EVERY_S, self._sweep)

    def _round(self, now_s: float, *, again: bool) -> None:
        router = self._router

        def find(waiter: Waiter[Waiting]) -> Placement | None:
            routing = waiter.item.routing
            try:
                return self._find(waiter, router.place(routing, now_s), now_s)
            except NoWorker:
                return None

        for waiter, found in next_dispatches(self._queue, self._router, find, now_s, again=again):
            if not found.goes:
                continue
            decision = found.decision
            turn, routing = waiter.item
            uncached = decision.prompt_tokens_est - decision.predicted_cached_tokens
            self._queue.served(waiter, uncached + routing.expected_output_tokens)
            self._go(turn, routing, decision, now_s)

    def _find(self, waiter: Waiter[Waiting], decision: Decision, now_s: float) -> Placement:
        return place_queued(self._router, self._queue, waiter, waiter.item.routing, decision, frozenset(), now_s)
