"""Whether a request is dispatched now, and where; or for which worker it waits.

The worker that placement prefers may have no capacity: its engine would queue one more request (`load.load`). Then
the request can go to the cheapest worker with capacity, or wait. A full home is not a reason to leave it at once: in a
busy fleet every worker is full, one of them has just had an end, and the next request would go there, wherever its
prefix is. So sessions would be scattered just when that costs most. On the other hand no request waits beside an idle
engine for a home that will not be free for long. What decides is the cost of both (`placement.costs`), with the time to
wait:

    waits, if  cost(home) + (before + 1) * time between two ends at home  <=  cost(best worker with capacity)

where `before` are the others that are likely to go there before; a worker that others wait for has no capacity to give,
either. The right side is what the request would cost if there were no home: to compute the prompt, to wait for that,
and what both cost others. The time between two ends is how long requests have stayed there lately, divided by how many
run, and not less than the time for which none of them has ended: so that no request waits for an engine that is stuck
(`Departures`). Where a prefill worker has capacity and its decode worker has none, the ends are those of the
latter.

Measured, with what was tried, in docs/decisions/019-waiting-for-a-place.md.
"""

import heapq
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple, TypeVar

from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.queue.admission import FOR_MEMORY, LineKey, Queue, Waiter
from warmroute_proxy.core.queue.door import Door
from warmroute_proxy.core.queue.memory_wait import MAX_LOOKED_AT, in_memory, lacking_elsewhere

MAX_BEGIN: Final = 4
"""How many of a tenant's turns that begin a session are considered: few, so few small ones pass a large one."""
MAX_RECHECKED: Final = 32
"""Requests at once whose worker has no capacity: each takes a decision or two, of 0.1 ms or more."""

T = TypeVar("T")


class Placement(NamedTuple):
    """Where a request goes now, or, if it does not, for which worker it waits. `for_memory`: for memory, at whatever
    worker (`memory_wait`).
    """

    decision: Decision
    goes: bool
    for_memory: bool = False

    @property
    def waits_at(self) -> str:
        return FOR_MEMORY if self.for_memory else self.decision.cache_worker

    @property
    def compute_s(self) -> float:
        """Seconds of prefill there."""
        return self.decision.reasons.chosen().compute_s


def place_queued(
    router: Router,
    queue: Queue[T],
    waiter: Waiter[T],
    routing: RoutingRequest,
    decision: Decision,
    excluded: frozenset[str],
    now_s: float,
) -> Placement:
    """Place the next queued request: on its preferred worker if free, else on the cheapest with capacity, if that costs
    less than to wait. It waits for memory where it would evict what is needed again soon.
    """
    model = routing.model
    if queue.memory_wait_s:
        verdict = in_memory(router, queue, waiter, routing, decision, excluded, now_s)
        if verdict.waits or verdict.goes:
            return Placement(verdict.decision, verdict.goes, verdict.waits)
        decision = verdict.decision
    full = router.full(model)
    taken = full | (queue.awaited_workers(model) - {waiter.worker_id})
    if decision.cache_worker not in taken and router.has_capacity(model, decision, now_s):
        return Placement(decision, goes=True)
    taken |= lacking_elsewhere(router, queue, waiter, routing, decision, now_s)
    try:
        other = router.place(routing, now_s, excluded | taken)
    except NoWorker:
        return Placement(decision, goes=False)
    if not router.has_capacity(model, other, now_s):
        return Placement(decision, goes=False)
    if decision.cache_worker != other.cache_worker:
        home, decode = decision.reasons.chosen(), decision.decode
        busy = home.id if decode is None or home.id in full else decode.id
        ends = 1 + queue.before(waiter, home.id, home.compute_s)
        if home.cost_s + ends * router.next_end_s(busy, now_s) <= other.reasons.chosen().cost_s:
            return Placement(decision, goes=False)
    return Placement(other, goes=True)


def next_dispatches(
    queue: Queue[T],
    router: Router,
    find: Callable[[Waiter[T]], Placement | None],
    now_s: float,
    *,
    again: bool,
) -> Iterator[tuple[Waiter[T], Placement]]:
    """The queued requests that can go, in fair order; each is to be dispatched before the next is taken. Those that
    wait for another worker from now on are yielded between them, so that a caller can stop after many of either.

    `find` is `place_queued` of a waiter, or None if it cannot go wherever there is capacity. `again`: some of the
    requests whose worker has no capacity are placed again, too, since another one may be preferable by now.
    """
    lines = queue.lines()
    for key in lines:
        if key[1] == FOR_MEMORY:
            yield from _for_memory(queue, router, find, key[0], now_s)
        elif _may_have_capacity(router, key, now_s):
            for waiter in queue.fair_order(key, now_s):
                found = find(waiter)
                if found is None:
                    continue
                if not _goes_or_moves(queue, waiter, found, now_s):
                    break
                yield waiter, found
                if router.is_full(key[0], now_s):
                    break
    if again:
        yield from _rechecked(queue, router, find, {model for model, _ in lines}, now_s)


def _for_memory(
    queue: Queue[T], router: Router, find: Callable[[Waiter[T]], Placement | None], model: str, now_s: float
) -> Iterator[tuple[Waiter[T], Placement]]:
    """As `next_dispatches`, for those that wait for memory: first those that have waited as long as they may, then
    the first `MAX_LOOKED_AT` for which there may be room. One for which there is none, or for which the door is shut,
    stops nobody.
    """
    door = Door(router, queue, model, now_s)
    overdue = sorted([each for each in _in_order(queue, door, model) if door.is_overdue(each)], key=_asked_s)
    for waiter in overdue:
        found = find(waiter)
        if found is not None and _goes_or_moves(queue, waiter, found, now_s):
            yield waiter, found
    left, most, begun = MAX_LOOKED_AT, _most_free(queue, router, model, now_s), dict[str, int]()
    for waiter in _in_order(queue, door, model):
        if waiter not in queue:
            continue
        if waiter.begins:
            if door.is_shut(waiter) or begun.get(waiter.tenant, 0) >= MAX_BEGIN:
                continue
            begun[waiter.tenant] = begun.get(waiter.tenant, 0) + 1
        if waiter.need_tokens > most:
            continue
        if not left or router.is_full(model, now_s):
            break
        left -= 1
        found = find(waiter)
        if found is not None and _goes_or_moves(queue, waiter, found, now_s):
            yield waiter, found
            most = _most_free(queue, router, model, now_s)


def _in_order(queue: Queue[T], door: Door[T], model: str) -> Iterator[Waiter[T]]:
    """Those that wait for memory: of sessions that have begun, then of new ones, unless none of these begins now."""
    yield from queue.for_memory(model)
    if not door.keeps_out_all():
        yield from queue.for_memory(model, begins=True)


def _most_free(queue: Queue[T], router: Router, model: str, now_s: float) -> int:
    """Tokens that a new conversation may have at most, at any worker that would run it now."""
    awaited = queue.awaited_workers(model)
    return router.working_set.most_free(model, now_s, [each for each in awaited if each != FOR_MEMORY])


def _rechecked(
    queue: Queue[T],
    router: Router,
    find: Callable[[Waiter[T]], Placement | None],
    models: Collection[str],
    now_s: float,
) -> Iterator[tuple[Waiter[T], Placement]]:
    """As `next_dispatches`, for the first of each tenant and key in each line: the `MAX_RECHECKED` that were checked
    longest ago. The request after one that goes or moves is checked as well. One that waits for memory is checked where
    it could be forwarded: another region may cost less by now, whatever memory is free here.
    """
    open_models = {model for model in models if not router.is_full(model, now_s)}
    forwarded = {model for model in open_models if router.may_forward(model, now_s)}
    heads = [
        waiter
        for waiter in queue.heads(now_s)
        if waiter.model in (forwarded if waiter.worker_id == FOR_MEMORY else open_models)
    ]
    for head in heapq.nsmallest(MAX_RECHECKED, heads, key=_checked_s):
        waiter: Waiter[T] | None = head
        while waiter is not None and waiter in queue:
            key = waiter.line_key
            waiter.checked_s = now_s
            found = find(waiter)
            if found is None or not _goes_or_moves(queue, waiter, found, now_s):
                break
            yield waiter, found
            waiter = queue.head(key, head.tenant, head.key_id, now_s)


def _checked_s(waiter: Waiter[T]) -> float:
    return waiter.checked_s


def _asked_s(waiter: Waiter[T]) -> float:
    return waiter.asked_s


def _may_have_capacity(router: Router, key: LineKey, now_s: float) -> bool:
    return router.has_capacity_at(*key, now_s) and not router.is_full(key[0], now_s)


def _goes_or_moves(queue: Queue[T], waiter: Waiter[T], found: Placement, now_s: float) -> bool:
    if found.goes:
        if waiter.begins and waiter.worker_id == FOR_MEMORY:
            queue.opened(waiter.model, now_s)
        return True
    if found.waits_at == waiter.worker_id:
        return False
    queue.move(waiter, found.waits_at, found.compute_s, now_s)
    return True
