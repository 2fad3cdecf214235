"""The queue of turns for which the fleet has no room: who is next, who is turned away, and when to come back.

**A line for each place.** A turn waits where placement wants it, so that those who wait for one busy worker do not hold
up those who want another. `room` says when it should want another one instead.

**Fair between tenants.** In a line each tenant has a queue of its own. The next turn is that of the tenant which has
been served the fewest tokens (start-time fair queueing: P. Goyal, H. Vin, H. Cheng, SIGCOMM 1996; the same shares as
deficit round robin, without a quantum and without knowing a request's size before it is served). A tenant that comes
anew starts where the line is, so that it has nothing saved up and nothing to make up for; one that comes back before
the line has passed what it was served starts from there. While two tenants both wait in a line, what they are served
there differs by at most one request of each.

The cost of a turn is what it has the engines do: the tokens that are predicted to be computed, and those of the answer.

**Short work first, as long as it is not at the expense of who waits long.** Of one tenant's turns the next is the one
that is due first. A turn is due when it has waited `PATIENCE` times as long as its own prompt takes to compute, and at
most half of what it may wait. So a turn that is warm passes one that is cold, which has to wait for itself much longer
anyway, and whose own wait is hardly longer by that; and no one is passed by whoever comes later than it is due.
(Shortest first alone has the shortest mean, and starves the long; first come first served lets everybody wait for the
longest.)

**Bounded.** At most `max_requests` wait, with at most `max_bytes` of bodies. Who finds the queue full pushes out the
newest turns of the tenant that holds most of it for a model, if that one is still left with more than the newcomer's
tenant has; else it is turned away itself. So a tenant that floods meets its own excess.

**When to come back.** Places come free at a rate that is measured while anybody waits. Each that is turned away is told
another moment, one place after the last one's, so that they do not all come back at once.
"""

import heapq
import math
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

PATIENCE: Final = 4.0
"""From 0 to 4 TTFT becomes a quarter shorter at p90, beyond that longer at p99
(docs/decisions/019-waiting-for-a-place.md)."""

RATE_MEMORY_S: Final = 10.0
RATE_PRIOR_PER_S: Final = 1.0
RETRY_AFTER_MAX_S: Final = 60
"""What OpenAI's clients still obey: of a longer one they take no notice."""

T = TypeVar("T")
Spot = tuple[str, str]
"""What a line waits for: a model, and the id of the place that has its prompts."""


class Waiter(Generic[T]):
    """One turn that waits, for a place, and when it is due there. `asked_s` is when it was last asked whether it wants
    another one.
    """

    __slots__ = ("asked_s", "bytes", "due_s", "item", "model", "place", "since_s", "tenant")

    def __init__(self, item: T, tenant: str, model: str, size_bytes: int, since_s: float) -> None:
        self.item = item
        self.tenant = tenant
        self.model = model
        self.bytes = size_bytes
        self.since_s = since_s
        self.asked_s = since_s
        self.place = ""
        self.due_s = since_s

    @property
    def spot(self) -> Spot:
        """The line it belongs to."""
        return self.model, self.place


def _due(waiter: Waiter[T]) -> float:
    return waiter.due_s


class _Held(Generic[T]):
    """What one tenant has in all lines of a model, in order of arrival."""

    __slots__ = ("bytes", "waiting")

    def __init__(self) -> None:
        self.waiting: OrderedDict[Waiter[T], None] = OrderedDict()
        self.bytes = 0


class _Flow(Generic[T]):
    """What one tenant has in one line, who is due first at the beginning. `served` is the tag of its next turn."""

    __slots__ = ("served", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Waiter[T]] = []
        self.served = 0


class _Line(Generic[T]):
    """All who wait for one place. `passed` is the tag of the last one served."""

    __slots__ = ("flows", "passed")

    def __init__(self) -> None:
        self.flows: dict[str, _Flow[T]] = {}
        self.passed = 0

    def forget_even(self) -> None:
        """Tenants that have nothing here, and owe nothing."""
        for tenant in [t for t, f in self.flows.items() if not f.waiting and f.served <= self.passed]:
            del self.flows[tenant]


class Queue(Generic[T]):
    """All lines. Empty ones are forgotten, and tenants in a line that owe nothing to it."""

    def __init__(self, max_requests: int, max_bytes: int, timeout_s: float) -> None:
        """`timeout_s`: how long a turn may wait; whoever calls sees to it, by `expired`."""
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.max_patience_s = timeout_s / 2
        self.requests = 0
        self.bytes = 0
        self._lines: dict[Spot, _Line[T]] = {}
        self._held: dict[tuple[str, str], _Held[T]] = {}  # by model and tenant

    def __contains__(self, waiter: Waiter[T]) -> bool:
        held = self._held.get((waiter.model, waiter.tenant))
        return held is not None and waiter in held.waiting

    def lines(self) -> list[Spot]:
        """The lines, the one that was served last at the end."""
        return list(self._lines)

    def waited_for(self, model: str) -> set[str]:
        """The places for which anybody waits."""
        return {place for each, place in self._lines if each == model}

    def before(self, waiter: Waiter[T], place: str, compute_s: float) -> int:
        """How many others who wait for a place are likely to go before a turn that takes so long to compute there.

        Those of its own tenant that are due before it; and since tenants take turns, as many of each other one at most,
        and one more.
        """
        line = self._lines.get((waiter.model, place))
        if line is None:
            return 0
        own = line.flows.get(waiter.tenant)
        before = 0
        if own is not None:
            due_s = self._due_s(waiter, compute_s)
            before = bisect_right(own.waiting, due_s, key=_due) - (waiter.place == place and waiter.due_s <= due_s)
        most = before + 1
        for flow in line.flows.values():
            if flow is not own:
                waiting = len(flow.waiting)
                before += waiting if waiting < most else most  # noqa: FURB136 - min() takes three times as long
        return before

    def join(self, waiter: Waiter[T], place: str, compute_s: float) -> list[Waiter[T]] | None:
        """Wait for a place, where the prompt takes so long to compute.

        Returns who was pushed out for that, or None where there is no room to wait.
        """
        pushed_out = self._make_space(waiter)
        if pushed_out is None:
            return None
        for other in pushed_out:
            self.leave(other)
        held = self._held.setdefault((waiter.model, waiter.tenant), _Held())
        held.waiting[waiter] = None
        held.bytes += waiter.bytes
        self.requests += 1
        self.bytes += waiter.bytes
        self._line_up(waiter, place, compute_s)
        return pushed_out

    def leave(self, waiter: Waiter[T]) -> bool:
        """Stop waiting, for whatever reason. Whether it was waiting."""
        if waiter not in self:
            return False
        held = self._held[waiter.model, waiter.tenant]
        del held.waiting[waiter]
        held.bytes -= waiter.bytes
        self.requests -= 1
        self.bytes -= waiter.bytes
        if not held.waiting:
            del self._held[waiter.model, waiter.tenant]
        self._step_out(waiter)
        return True

    def move(self, waiter: Waiter[T], place: str, compute_s: float) -> None:
        """Wait for another place, or be due there at another time. When it came counts there as well."""
        self._step_out(waiter)
        self._line_up(waiter, place, compute_s)

    def firsts(self) -> list[Waiter[T]]:
        """The first of each tenant in each line."""
        return [flow.waiting[0] for line in self._lines.values() for flow in line.flows.values() if flow.waiting]

    def first(self, spot: Spot, tenant: str) -> Waiter[T] | None:
        """The first of a tenant in a line."""
        line = self._lines.get(spot)
        flow = line.flows.get(tenant) if line is not None else None
        return flow.waiting[0] if flow is not None and flow.waiting else None

    def in_turn(self, spot: Spot) -> Iterator[Waiter[T]]:
        """Those in a line whose turn it is, one after the other. One that is still the first of its tenant by the time
        that the next is asked for cannot go now: nor can the rest of its tenant's.
        """
        line = self._lines.get(spot)
        if line is None:
            return
        order = [(flow.served, flow.waiting[0].due_s, t) for t, flow in line.flows.items() if flow.waiting]
        heapq.heapify(order)
        while order:
            _, _, tenant = heapq.heappop(order)
            flow = line.flows.get(tenant)
            if flow is None or not flow.waiting:
                continue
            waiter = flow.waiting[0]
            yield waiter
            if flow.waiting and flow.waiting[0] is not waiter:
                heapq.heappush(order, (flow.served, flow.waiting[0].due_s, tenant))

    def served(self, waiter: Waiter[T], tokens: int) -> None:
        """A turn that waits is dispatched, and costs so many tokens."""
        line = self._lines[waiter.spot]
        flow = line.flows[waiter.tenant]
        line.passed = max(line.passed, flow.served)
        flow.served += max(1, tokens)
        self.leave(waiter)
        line.forget_even()
        if waiter.spot in self._lines:
            self._lines[waiter.spot] = self._lines.pop(waiter.spot)

    def expired(self, before_s: float) -> list[Waiter[T]]:
        """Who has waited since before then."""
        found = []
        for held in self._held.values():
            for waiter in held.waiting:
                if waiter.since_s >= before_s:
                    break
                found.append(waiter)
        return found

    def waiting(self) -> list[Waiter[T]]:
        """All who wait, in no order."""
        return self.expired(math.inf)

    def _due_s(self, waiter: Waiter[T], compute_s: float) -> float:
        return waiter.since_s + min(PATIENCE * compute_s, self.max_patience_s)

    def _line_up(self, waiter: Waiter[T], place: str, compute_s: float) -> None:
        waiter.place = place
        waiter.due_s = self._due_s(waiter, compute_s)
        line = self._lines.setdefault(waiter.spot, _Line())
        flow = line.flows.setdefault(waiter.tenant, _Flow())
        if not flow.waiting:
            flow.served = max(flow.served, line.passed)
        insort(flow.waiting, waiter, key=_due)

    def _step_out(self, waiter: Waiter[T]) -> None:
        line = self._lines[waiter.spot]
        flow = line.flows[waiter.tenant]
        flow.waiting.remove(waiter)
        if flow.waiting:
            return
        if not any(flow.waiting for flow in line.flows.values()):
            del self._lines[waiter.spot]
        elif flow.served <= line.passed:
            del line.flows[waiter.tenant]

    def _make_space(self, waiter: Waiter[T]) -> list[Waiter[T]] | None:
        """Whom the newcomer pushes out: the newest of who holds most. None where that may not be."""
        requests = self.requests + 1 - self.max_requests
        size = self.bytes + waiter.bytes - self.max_bytes
        if requests <= 0 and size <= 0:
            return []
        own = self._held.get((waiter.model, waiter.tenant))
        least = self._share(1 + (len(own.waiting) if own else 0), waiter.bytes + (own.bytes if own else 0))
        largest = max(self._held.values(), key=lambda held: self._share(len(held.waiting), held.bytes), default=None)
        if largest is None or largest is own:
            return None
        out: list[Waiter[T]] = []
        left, left_bytes = len(largest.waiting), largest.bytes
        for newest in reversed(largest.waiting):
            if self._share(left, left_bytes) <= least:
                return None
            out.append(newest)
            left -= 1
            left_bytes -= newest.bytes
            if len(out) >= requests and largest.bytes - left_bytes >= size:
                return out
        return None

    def _share(self, requests: int, size_bytes: int) -> float:
        return max(requests / max(1, self.max_requests), size_bytes / max(1, self.max_bytes))


class Drain:
    """How fast places come free, by the turns that got one, lately; and when to come back, by that."""

    __slots__ = ("_at_s", "_began_s", "_count", "_promised_s")

    def __init__(self) -> None:
        self._count = 0.0
        self._at_s = -math.inf
        self._began_s = 0.0
        self._promised_s = -math.inf

    def served(self, now_s: float) -> None:
        """A turn that waited has got its place."""
        left = math.exp(min(0.0, self._at_s - now_s) / RATE_MEMORY_S)
        if self._count * left < 0.5:  # of long ago: measured anew
            self._count, left, self._began_s = 0.0, 0.0, now_s
        self._count = self._count * left + 1.0
        self._at_s = max(now_s, self._at_s)

    def per_s(self, now_s: float) -> float:
        """Places a second; a guess before any were measured."""
        age_s = now_s - self._began_s
        left = math.exp(min(0.0, self._at_s - now_s) / RATE_MEMORY_S)
        if self._count * left < 0.5 or age_s <= 0:
            return RATE_PRIOR_PER_S
        return self._count * left / (RATE_MEMORY_S * (1 - math.exp(-max(age_s, 1.0) / RATE_MEMORY_S)))

    def retry_after_s(self, waiting: int, now_s: float) -> int:
        """Whole seconds until it is worth asking again, with so many who wait: from 1 to `RETRY_AFTER_MAX_S`."""
        rate = self.per_s(now_s)
        come_s = max(now_s + waiting / rate, self._promised_s + 1 / rate)
        self._promised_s = min(come_s, now_s + RETRY_AFTER_MAX_S)
        left_s = min(self._promised_s - now_s, RETRY_AFTER_MAX_S)  # a sum and a difference of floats may be beyond
        return max(1, math.ceil(left_s))
