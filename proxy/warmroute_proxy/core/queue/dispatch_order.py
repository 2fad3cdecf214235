"""Decides whether and where a request is dispatched now, or for which worker it waits.

The home is the worker that placement prefers for a request. If the home has no capacity, its engine would only queue
the request (`load.load`). Then the request either goes to the cheapest worker with capacity, or waits for its home. In
a busy fleet every worker is full, and a worker gets a free slot only when one of its requests ends. If requests did not
wait for a full home, each free slot would be taken by the next request, wherever that request's prefix is cached.
Sessions would be scattered when this costs most. But a request should not wait long for its home while another engine
is idle. So the costs at the home and at the other worker are compared (`placement.costs`), including the time to wait:

    waits, if  cost(home) + (before + 1) * time between two ends at home  <=  cost(best worker with capacity)

`before` is how many other requests are likely to go to the home first. A worker for which other requests wait does not
count as having capacity. The cost on the right side includes the computation of the prompt, the wait for it, and what
these cost other requests. The time between two ends is how long requests lately stayed at the home, divided by the
number that run there. It is at least the time since the last end, so that requests do not wait for a stuck engine
(`Departures`). If a prefill worker has capacity and its decode worker is full, the ends of requests at the decode
worker count.

Measurements and rejected variants: docs/decisions/019-waiting-for-a-place.md.
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
"""How many turns that begin a session are tried for each tenant in one round: few, so that few pass a larger one."""
MAX_RECHECKED: Final = 32
"""How many requests are placed again in one round: each takes one or two decisions of 0.1 ms or more."""

T = TypeVar("T")


class Placement(NamedTuple):
    """Where a request goes now (`goes`), or for which worker it waits. `for_memory`: it waits for memory at any worker
    (`memory_wait`).
    """

    decision: Decision
    goes: bool
    for_memory: bool = False

    @property
    def waits_at(self) -> str:
        return FOR_MEMORY if self.for_memory else self.decision.cache_worker

    @property
    def compute_s(self) -> float:
        """Seconds of prefill at the worker."""
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
    """Place a queued request: at its preferred worker if this has capacity; else at the cheapest worker with capacity,
    if that costs less than waiting. The request waits for memory if it would evict what is needed again soon.
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
    """Yield the queued requests that can go, in fair order. The caller dispatches each request before it takes the
    next. Requests that move to the line of another worker are yielded, too, so that the caller can bound the work.

    `find`: calls `place_queued` for a waiter; returns None if the request cannot go whatever the capacity. `again`:
    whether to also place some requests again whose worker has no capacity, because another worker may be preferable by
    now.
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
    """As `next_dispatches`, for the requests that wait for memory: first the overdue requests, then the first
    `MAX_LOOKED_AT` for which there may be room. A request that finds no room, or the door shut, does not stop others.
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
    """The requests that wait for memory: first of running sessions, then of new sessions if the door lets some in."""
    yield from queue.for_memory(model)
    if not door.keeps_out_all():
        yield from queue.for_memory(model, begins=True)


def _most_free(queue: Queue[T], router: Router, model: str, now_s: float) -> int:
    """The maximum number of tokens that a new conversation may take at a worker that would run it now."""
    awaited = queue.awaited_workers(model)
    return router.working_set.most_free(model, now_s, [each for each in awaited if each != FOR_MEMORY])


def _rechecked(
    queue: Queue[T],
    router: Router,
    find: Callable[[Waiter[T]], Placement | None],
    models: Collection[str],
    now_s: float,
) -> Iterator[tuple[Waiter[T], Placement]]:
    """As `next_dispatches`, for the first request of each tenant and key in each line: place those `MAX_RECHECKED`
    again that were checked longest ago. If a request goes or moves, the next request of its key is checked, too. A
    request that waits for memory is checked only if it could be forwarded, because another region may cost less by now.
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
