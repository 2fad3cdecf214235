"""Which requests wait for KV memory, and in which order they go (`placement.working_set` says where there is room).

A request that takes new memory goes if there is room for it. If there is none, it waits in a line of its own, at no
worker. A request that takes none goes as ever: its conversation is resident at a worker, or few tokens are uncached. If
it was placed away from where it is resident, and would evict others there, it goes home.

The order is that of the other lines: the tenant that was served least is first. Of one tenant a small prompt passes a
large one that came at the same time, which catches up by `TOKENS_PER_S` tokens for each second that it waits. One for
which there is no room stops nobody.

Where there is room is not always where a prompt is computed soon. So it goes there only if that costs at most
`MARGIN_S` and as long as it has waited more than the best place of all.

Bounded: after `memory_wait_s` a request waits for memory no more, whatever it evicts. It is next, by age. One that
begins a session waits behind all others, and while the `door` is shut.
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
"""Requests at once that are placed to find out whether they fit: each takes a decision or two."""
MARGIN_S: Final = 4.0
"""Chosen in the replay of decision 041, on agents' traces."""
_NONE: Final[frozenset[str]] = frozenset()

T = TypeVar("T")


class MemoryVerdict(NamedTuple):
    """Where a request may go. Neither `goes` nor `waits`: as decided, if there is capacity."""

    decision: Decision
    goes: bool = False
    waits: bool = False


def passes(router: Router, queue: Queue[T], routing: RoutingRequest, decision: Decision, now_s: float) -> bool:
    """Whether a request that has just come may go where it was decided, as far as memory is concerned."""
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
    """Where a request may go that is to go as decided: there, home, where it fits, or nowhere yet."""
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
    return MemoryVerdict(decision, waits=True)  # behind those that wait; if it fits, it goes in the next round


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
    """The workers where a request may not go although the one that was decided has no capacity."""
    if not queue.memory_wait_s or now_s - waiter.since_s >= queue.max_patience_s:
        return _NONE
    return router.working_set.lacking(routing.model, routing.lineage, need_tokens(routing, decision), now_s)


def _at(router: Router, routing: RoutingRequest, home: str, excluded: frozenset[str], now_s: float) -> Decision | None:
    """The decision for one worker; None if it is not usable."""
    try:
        found = router.place(routing, now_s, excluded | router.working_set.others_than(home))
    except NoWorker:
        return None
    return found if found.cache_worker == home else None
