"""The queue of turns for which the fleet has no room: who is next, who is turned away, and when to come back.

**Fair between tenants.** Each model has a line, each tenant in it a queue of its own, first come first served. The next
turn is that of the tenant which has been served the fewest tokens (start-time fair queueing: P. Goyal, H. Vin,
H. Cheng, SIGCOMM 1996; the same shares as deficit round robin, without a quantum and without knowing a request's size
before it is served). A tenant that comes anew starts where the line is, so that it has nothing saved up and nothing to
make up for; one that comes back before the line has passed what it was served starts from there. While two tenants
both wait, what they are served differs by at most one request of each.

The cost of a turn is what it has the engines do: the tokens that are predicted to be computed, and those of the answer.

**Bounded.** At most `max_requests` wait, with at most `max_bytes` of bodies. Who finds the queue full pushes out the
newest turns of the tenant that holds most of it, if that one is still left with more than the newcomer's tenant has;
else it is turned away itself. So a tenant that floods meets its own excess.

**When to come back.** Places come free at a rate that is measured while anybody waits. Each that is turned away is told
another moment, one place after the last one's, so that they do not all come back at once.
"""

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

RATE_MEMORY_S: Final = 10.0
RATE_PRIOR_PER_S: Final = 1.0
RETRY_AFTER_MAX_S: Final = 60
"""What OpenAI's clients still obey: of a longer one they take no notice."""

T = TypeVar("T")


class Waiter(Generic[T]):
    """One turn that waits."""

    __slots__ = ("bytes", "item", "model", "since_s", "tenant")

    def __init__(self, item: T, tenant: str, model: str, size_bytes: int, since_s: float) -> None:
        self.item = item
        self.tenant = tenant
        self.model = model
        self.bytes = size_bytes
        self.since_s = since_s


class _Flow(Generic[T]):
    """What one tenant has in one line. `served` is the tag of its next turn."""

    __slots__ = ("bytes", "served", "waiting")

    def __init__(self) -> None:
        self.waiting: OrderedDict[Waiter[T], None] = OrderedDict()
        self.bytes = 0
        self.served = 0


class _Line(Generic[T]):
    """All who wait for one model. `passed` is the tag of the last one served."""

    __slots__ = ("flows", "passed", "requests")

    def __init__(self) -> None:
        self.flows: dict[str, _Flow[T]] = {}
        self.passed = 0
        self.requests = 0


class Queue(Generic[T]):
    """All lines. Empty ones are forgotten, and tenants in a line that owe nothing to it."""

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.requests = 0
        self.bytes = 0
        self._lines: dict[str, _Line[T]] = {}

    def models(self) -> list[str]:
        """The models that are waited for, the one that was served last at the end."""
        return list(self._lines)

    def waits_for(self, model: str) -> bool:
        """Whether anybody does."""
        return model in self._lines

    def join(self, waiter: Waiter[T]) -> list[Waiter[T]] | None:
        """Wait. Returns who was pushed out for that, or None where there is no place."""
        pushed_out = self._make_room(waiter)
        if pushed_out is None:
            return None
        for other in pushed_out:
            self.leave(other)
        line = self._lines.setdefault(waiter.model, _Line())
        flow = line.flows.setdefault(waiter.tenant, _Flow())
        if not flow.waiting:
            flow.served = max(flow.served, line.passed)
        flow.waiting[waiter] = None
        flow.bytes += waiter.bytes
        line.requests += 1
        self.requests += 1
        self.bytes += waiter.bytes
        return pushed_out

    def leave(self, waiter: Waiter[T]) -> bool:
        """Stop waiting, for whatever reason. Whether it was waiting."""
        line = self._lines.get(waiter.model)
        flow = line.flows.get(waiter.tenant) if line is not None else None
        if line is None or flow is None or waiter not in flow.waiting:
            return False
        del flow.waiting[waiter]
        flow.bytes -= waiter.bytes
        line.requests -= 1
        self.requests -= 1
        self.bytes -= waiter.bytes
        if not line.requests:
            del self._lines[waiter.model]
        elif not flow.waiting and flow.served <= line.passed:
            del line.flows[waiter.tenant]
        return True

    def in_turn(self, model: str) -> Iterator[Waiter[T]]:
        """Those in a line whose turn it is, one after the other. One that has not been `served` by the time that the
        next is asked for cannot go now: nor can the rest of its tenant's.
        """
        line = self._lines.get(model)
        if line is None:
            return
        order = [(flow.served, next(iter(flow.waiting)).since_s, t) for t, flow in line.flows.items() if flow.waiting]
        heapq.heapify(order)
        while order:
            tenant = heapq.heappop(order)[2]
            flow = line.flows.get(tenant)
            if flow is None or not flow.waiting:
                continue
            waiter = next(iter(flow.waiting))
            yield waiter
            if flow.waiting and waiter not in flow.waiting:
                heapq.heappush(order, (flow.served, next(iter(flow.waiting)).since_s, tenant))

    def served(self, waiter: Waiter[T], tokens: int) -> None:
        """A turn that waits is dispatched, and costs so many tokens."""
        line = self._lines[waiter.model]
        flow = line.flows[waiter.tenant]
        line.passed = max(line.passed, flow.served)
        flow.served += max(1, tokens)
        for tenant in [t for t, f in line.flows.items() if not f.waiting and f.served <= line.passed]:
            del line.flows[tenant]
        self.leave(waiter)
        if waiter.model in self._lines:
            self._lines[waiter.model] = self._lines.pop(waiter.model)

    def expired(self, before_s: float) -> list[Waiter[T]]:
        """Who has waited since before then."""
        found = []
        for line in self._lines.values():
            for flow in line.flows.values():
                for waiter in flow.waiting:
                    if waiter.since_s >= before_s:
                        break
                    found.append(waiter)
        return found

    def waiting(self) -> list[Waiter[T]]:
        """All who wait, in no order."""
        return self.expired(math.inf)

    def _make_room(self, waiter: Waiter[T]) -> list[Waiter[T]] | None:
        """Whom the newcomer pushes out: the newest of the largest flow. None where that may not be."""
        requests = self.requests + 1 - self.max_requests
        size = self.bytes + waiter.bytes - self.max_bytes
        if requests <= 0 and size <= 0:
            return []
        line = self._lines.get(waiter.model)
        own = line.flows.get(waiter.tenant) if line is not None else None
        least = self._share(1 + (len(own.waiting) if own else 0), waiter.bytes + (own.bytes if own else 0))
        flows = [flow for each in self._lines.values() for flow in each.flows.values()]
        largest = max(flows, key=lambda flow: self._share(len(flow.waiting), flow.bytes), default=None)
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
