"""Whether a turn goes now, and where; or for which place it waits.

Where placement wants a turn there may be no room: an engine that had one more would let it wait (`capacity`). Then it
can go to the cheapest place that has room, or wait. A home that is full is no reason to leave it at once: in a busy
fleet every place is full, one of them has just had an end, and whoever is next would go there, wherever its prefix is.
So sessions would be scattered just when that costs most. On the other hand nobody waits beside an idle engine for a
home that will not be free for long. What decides is the cost of both (`placement`), with the time to wait:

    waits, if  cost(home) + (before + 1) * time between two ends at home  <=  cost(best place with room)

where `before` are the others who are likely to go there before; a place that others wait for has none to give, either.
The right side is what the turn would cost if there were no home: to compute the prompt, to wait for that, and what both
cost others. The time between two ends is what turns have taken there lately, divided by how many run, and not less than
the time for which none of them has ended: so that nobody waits for an engine that is stuck (`WorkerLoad.next_end_s`).
Where a prefill worker has room and its decode worker has none, the ends are those of the latter.

Measured, with what was tried, in docs/decisions/019-waiting-for-a-place.md.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.prompt.facts import Facts
from warmroute_proxy.core.queue.admission import Queue, Spot, Waiter

ASKED_AGAIN: Final = 32
"""Of those for whose place there is no room, at once: each is a decision or two, of 0.1 ms or more."""

T = TypeVar("T")


class Found(NamedTuple):
    """Where a turn goes now, or, if it does not, for whose place it waits."""

    decision: Decision
    goes: bool

    @property
    def compute_s(self) -> float:
        """Seconds of prefill there."""
        return self.decision.reasons.chosen().compute_s


def place_queued(
    router: Router,
    queue: Queue[T],
    waiter: Waiter[T],
    facts: Facts,
    decision: Decision,
    excluded: frozenset[str],
    now_s: float,
) -> Found:
    """For a turn whose turn it is, and that placement wants there, whoever has room."""
    model = facts.model
    full = router.full(model)
    taken = full | (queue.waited_for(model) - {waiter.place})
    if decision.cache_worker not in taken and router.has_capacity(model, decision, now_s):
        return Found(decision, goes=True)
    try:
        other = router.place(facts, now_s, excluded | taken)
    except NoWorker:
        return Found(decision, goes=False)
    if not router.has_capacity(model, other, now_s):
        return Found(decision, goes=False)
    if decision.cache_worker != other.cache_worker:
        home, decode = decision.reasons.chosen(), decision.decode
        busy = home.id if decode is None or home.id in full else decode.id
        ends = 1 + queue.before(waiter, home.id, home.compute_s)
        if home.cost_s + ends * router.next_end_s(busy, now_s) <= other.reasons.chosen().cost_s:
            return Found(decision, goes=False)
    return Found(other, goes=True)


def next_dispatches(
    queue: Queue[T],
    router: Router,
    find: Callable[[Waiter[T]], Found | None],
    now_s: float,
    *,
    again: bool,
) -> Iterator[tuple[Waiter[T], Found]]:
    """Those who wait and can go, in fair order; each is to be dispatched before the next is asked for. Those who wait
    for another place from now on come between them, so that whoever asks for many of either can stop.

    `find` is `find_room` of a waiter, or None where it cannot go whatever has room. `again`: some of those are asked,
    too, for whose place there is no room, since they may want another one by now.
    """
    lines = queue.lines()
    for spot in lines:
        if _may_have_capacity(router, spot, now_s):
            for waiter in queue.in_turn(spot):
                found = find(waiter)
                if found is None:
                    continue
                if not _goes_or_moves(queue, waiter, found):
                    break
                yield waiter, found
                if router.is_full(spot[0], now_s):
                    break
    if again:
        models = {model for model, _ in lines}
        yield from _asked_again(queue, find, [model for model in models if not router.is_full(model, now_s)], now_s)


def _asked_again(
    queue: Queue[T], find: Callable[[Waiter[T]], Found | None], models: Sequence[str], now_s: float
) -> Iterator[tuple[Waiter[T], Found]]:
    """As `next_to_go`, for the first of each tenant in each line, `ASKED_AGAIN` of those who were asked longest ago.
    Who comes after one that goes or moves is asked as well.
    """
    firsts = [waiter for waiter in queue.firsts() if waiter.model in models]
    for first in heapq.nsmallest(ASKED_AGAIN, firsts, key=_asked_s):
        waiter: Waiter[T] | None = first
        while waiter is not None and waiter in queue:
            spot, tenant = waiter.spot, waiter.tenant
            waiter.asked_s = now_s
            found = find(waiter)
            if found is None or not _goes_or_moves(queue, waiter, found):
                break
            yield waiter, found
            waiter = queue.first(spot, tenant)


def _asked_s(waiter: Waiter[T]) -> float:
    return waiter.asked_s


def _may_have_capacity(router: Router, spot: Spot, now_s: float) -> bool:
    return router.has_capacity_at(*spot, now_s) and not router.is_full(spot[0], now_s)


def _goes_or_moves(queue: Queue[T], waiter: Waiter[T], found: Found) -> bool:
    if found.goes:
        return True
    if found.decision.cache_worker == waiter.place:
        return False
    queue.move(waiter, found.decision.cache_worker, found.compute_s)
    return True
