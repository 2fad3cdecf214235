"""Whether a turn goes now, and where; or for which place it waits.

Where placement wants a turn there may be no room: an engine that had one more would let it wait (`capacity`). Then it
can go to the cheapest place that has room, or wait. A home that is full is no reason to leave it at once: in a busy
fleet every place is full, one of them has just had an end, and whoever is next would go there, wherever its prefix is.
So sessions would be scattered just when that costs most. On the other hand nobody waits beside an idle engine for a
home that will not be free for long. What decides is the cost of both (`placement`), with the time to wait:

    waits, if  cost(home) + (before + 1) * time between two ends at home  <=  cost(best place with room)

where `before` are the others who are due there before; a place that others wait for has none to give, either. The right
side is what the turn would cost if there were no home: to compute the prompt, to wait for that, and what both cost
others. The time between two ends is what turns have taken there lately, divided by how many run, and not less than the
time since the last end: so that nobody waits for an engine that is stuck (`WorkerLoad.next_end_s`).

Measured, with what was tried, in docs/decisions/019-waiting-for-a-place.md.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from warmroute_proxy.core.admission import Queue, Spot, Waiter
from warmroute_proxy.core.choices import NoWorker
from warmroute_proxy.core.decision import Decision
from warmroute_proxy.core.facts import Facts
from warmroute_proxy.core.router import Router

T = TypeVar("T")


class Found(NamedTuple):
    """Where a turn goes now, or, if it does not, for whose place it waits."""

    decision: Decision
    goes: bool

    @property
    def compute_s(self) -> float:
        """Seconds of prefill there."""
        return self.decision.reasons[0].compute_s


def find_room(
    router: Router, queue: Queue[T], waiter: Waiter[T], facts: Facts, excluded: frozenset[str], now_s: float
) -> Found:
    """For a turn whose turn it is. `NoWorker` where nothing can serve it."""
    model = facts.model
    decision = router.place(facts, now_s, excluded)
    taken = router.full(model) | (queue.waited_for(model) - {waiter.place})
    if decision.holder not in taken and router.has_room(model, decision, now_s):
        return Found(decision, goes=True)
    try:
        other = router.place(facts, now_s, excluded | taken)
    except NoWorker:
        return Found(decision, goes=False)
    if not router.has_room(model, other, now_s):
        return Found(decision, goes=False)
    home = decision.reasons[0]
    if home.id in taken:
        ends = 1 + queue.before(waiter, home.id, home.compute_s)
        if home.cost_s + ends * router.next_end_s(home.id, now_s) <= other.reasons[0].cost_s:
            return Found(decision, goes=False)
    return Found(other, goes=True)


def next_to_go(
    queue: Queue[T],
    router: Router,
    find: Callable[[Waiter[T]], Found | None],
    now_s: float,
    *,
    everyone: bool,
) -> Iterator[tuple[Waiter[T], Decision]]:
    """Those who wait and can go, in fair order; each is to be dispatched before the next is asked for.

    `find` is `find_room` of a waiter, or None where it cannot go whatever has room. `everyone`: those are asked, too,
    for whose place there is no room, since they may want another one by now.
    """
    for spot in queue.lines():
        model, place = spot
        if router.is_full(model, now_s) or not (everyone or router.has_room_at(model, place, now_s)):
            continue
        yield from _of_line(queue, spot, find, everyone=everyone)


def _of_line(
    queue: Queue[T], spot: Spot, find: Callable[[Waiter[T]], Found | None], *, everyone: bool
) -> Iterator[tuple[Waiter[T], Decision]]:
    for waiter in queue.in_turn(spot):
        found = find(waiter)
        if found is None:
            continue
        decision = found.decision
        if found.goes:
            yield waiter, decision
        elif decision.holder != waiter.place:
            queue.move(waiter, decision.holder, found.compute_s)
        elif not everyone:
            return
