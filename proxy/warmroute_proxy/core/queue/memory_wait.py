"""Decides which requests wait for KV memory, and in which order they go (`placement.working_set` measures memory).

A request that takes new memory goes if a worker has room for it. Otherwise it waits in the line for memory, which
belongs to no worker. A request takes no new memory if its conversation is resident at a worker, or if few of its tokens
are uncached. Such a request does not wait for memory. If such a request was placed away from its home and would evict
others there, it goes home instead.

As in the other lines, the tenant that was served least is first. Among the prompts of one tenant, a small prompt passes
a large one that came at the same time. For each second that it came earlier, a prompt may be `TOKENS_PER_S` tokens
larger and still go first. A request for which no worker has room does not stop others.

A worker with room may not compute the prompt soon. So a request goes there only if its cost there exceeds the cost at
the best worker by at most `MARGIN_S` plus the time that the request has waited.

The wait is bounded: after `memory_wait_s` a request no longer waits for memory, whatever it evicts. Such overdue
requests go next, the oldest first. A request that begins a session waits behind all others, and while the `door` is
shut.
"""

from typing import Final, NamedTuple, TypeVar

from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.placement.working_set import FREE, LACKS, need_tokens
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.queue.admission import FOR_MEMORY, Queue, Waiter
from warmroute_proxy.core.queue.door import Door

MAX_LOOKED_AT: Final = 16
"""How many requests are placed in one round to find out whether they fit: each takes one or two decisions."""
MARGIN_S: Final = 4.0
"""Chosen by replaying traces of agents (decision 041)."""
_NONE: Final[frozenset[str]] = frozenset()

T = TypeVar("T")


class MemoryVerdict(NamedTuple):
    """Where a request may go. `goes`: it goes now. `waits`: it waits for memory. If both are false, it goes as decided
    if that worker has capacity.
    """

    decision: Decision
    goes: bool = False
    waits: bool = False


def passes(router: Router, queue: Queue[T], routing: RoutingRequest, decision: Decision, now_s: float) -> bool:
    """Whether a new request may go to the worker of its decision, as far as KV memory is concerned."""
    if not queue.memory_wait_s:
        return True
    working_set = router.working_set
    working_set.arrived(routing.lineage, now_s)
    memory = working_set.memory_for(routing, decision, now_s)
    if memory == FREE:
        return True
    model = routing.model
    return memory != LACKS and not queue.waits_for_memory(model) and not router.waits_elsewhere.running(model)


def in_memory(
    router: Router,
    queue: Queue[T],
    waiter: Waiter[T],
    routing: RoutingRequest,
    decision: Decision,
    excluded: frozenset[str],
    now_s: float,
) -> MemoryVerdict:
    """Where a queued request may go, by KV memory alone: as decided, home, to a worker where it fits, or nowhere
    yet.
    """
    if decision.kind == "forward":
        return MemoryVerdict(decision)
    working_set, model, lineage = router.working_set, routing.model, routing.lineage
    working_set.arrived(lineage, now_s)
    memory = working_set.memory_for(routing, decision, now_s)
    door = Door(router, queue, model, now_s)
    if door.is_overdue(waiter):
        if memory == LACKS:
            decision = _at(router, routing, working_set.emptiest(model, excluded, now_s), excluded, now_s) or decision
        return MemoryVerdict(decision)
    need = need_tokens(routing, decision)
    home = working_set.resident_at(lineage, need)
    if home:
        working_set.touch(lineage, now_s)
    if memory == FREE:
        return MemoryVerdict(decision)
    others_wait = queue.waits_for_memory(model)
    if home and home not in excluded:
        if memory == LACKS or others_wait:
            decision = _at(router, routing, home, excluded, now_s) or decision
        return MemoryVerdict(decision)
    queue.need(waiter, need - working_set.held_by(lineage))
    if door.is_shut(waiter):
        return MemoryVerdict(decision, waits=True)
    if waiter.worker_id == FOR_MEMORY or not others_wait:
        if memory != LACKS and waiter.worker_id != FOR_MEMORY:
            return MemoryVerdict(decision)
        return _where_it_fits(router, queue, waiter, routing, decision, excluded, now_s)
    return MemoryVerdict(decision, waits=True)  # behind those that already wait; if it fits, it goes in the next round


def _where_it_fits(
    router: Router,
    queue: Queue[T],
    waiter: Waiter[T],
    routing: RoutingRequest,
    decision: Decision,
    excluded: frozenset[str],
    now_s: float,
) -> MemoryVerdict:
    model, need = routing.model, need_tokens(routing, decision)
    taken = router.working_set.lacking(model, routing.lineage, need, now_s) | router.full(model)
    try:
        other = router.place(routing, now_s, excluded | taken | queue.awaited_workers(model))
    except NoWorker:
        return MemoryVerdict(decision, waits=True)
    most_s = decision.reasons.chosen().cost_s + MARGIN_S + now_s - waiter.since_s
    if other.kind == "forward" or not router.has_capacity(model, other, now_s):
        return MemoryVerdict(decision, waits=True)
    if other.reasons.chosen().cost_s > most_s:
        return MemoryVerdict(decision, waits=True)
    return MemoryVerdict(other, goes=True)


def lacking_elsewhere(
    router: Router, queue: Queue[T], waiter: Waiter[T], routing: RoutingRequest, decision: Decision, now_s: float
) -> frozenset[str]:
    """The workers without room for a request: it may not go there instead of the full worker of its decision."""
    if not queue.memory_wait_s or now_s - waiter.since_s >= queue.max_patience_s:
        return _NONE
    return router.working_set.lacking(routing.model, routing.lineage, need_tokens(routing, decision), now_s)


def _at(router: Router, routing: RoutingRequest, home: str, excluded: frozenset[str], now_s: float) -> Decision | None:
    """The decision that places a request at the worker `home`; None if this worker is not usable."""
    try:
        found = router.place(routing, now_s, excluded | router.working_set.others_than(home))
    except NoWorker:
        return None
    return found if found.cache_worker == home else None
