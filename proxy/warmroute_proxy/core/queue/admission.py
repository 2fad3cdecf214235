"""Queues the requests for which the fleet has no capacity: decides which request is next, and which is refused.

**A line for each worker.** A request waits for the worker that placement prefers, so that requests for one busy worker
do not delay those for another. `dispatch_order` decides when a request should wait for another worker instead.

**Fair between tenants.** In a line each tenant has its own queue, and a position: the tokens that it was served. The
next request comes from the tenant with the lowest position (start-time fair queueing: P. Goyal, H. Vin, H. Cheng,
SIGCOMM 1996). The tenants' shares are those of deficit round robin, but the method needs neither a quantum nor the size
of a request before it is served. A new tenant starts at the line's position (that of the last tenant served), so that
it has neither credit nor debt. A tenant that comes back with a higher position keeps that position. While two tenants
both wait in a line, what they are served there differs by at most one request of each.

The cost of a request is the tokens that engines are predicted to compute for it: uncached prompt tokens and the answer.

**Short work first, but not at the expense of long waits.** Of one tenant's requests, the one that is due first is next.
A request is due when it has waited `PATIENCE` times the compute time of its own prompt, or half of the time that it may
wait, whichever is shorter. So a warm request (with a cached prefix) passes a cold one: what it adds to the wait is much
less than the cold request's own compute time. A request that comes when another request is already due does not pass
it. (Serving the shortest request first gives the shortest mean wait, but starves long requests. In order of arrival,
all requests wait behind the longest one.)

**Fair between programs, and by priority**, within a tenant. A program is a session and its sub-agents (`programs`). The
order by due time holds only among the requests of one program and one priority.

**API keys with their own limits.** Requests of such a key are ordered in the same way. If the key's limits hold up a
request, only other requests of that key wait behind it.

**Bounded.** At most `max_requests` wait, with at most `max_bytes` of bodies. If the queue is full, a newcomer pushes
out the newest requests of the tenant that holds most of the queue (for one model). If this tenant does not hold more
than the newcomer's tenant would, the newcomer is refused. So a tenant that floods the queue is refused first.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from warmroute_proxy.core.placement.waits import Waits
from warmroute_proxy.core.queue.programs import LATE_SHARE, NORMAL, ProgramQueue, Rank, by_turns

PATIENCE: Final = 4.0
"""With 4 instead of 0, TTFT is a quarter shorter at p90; higher values lengthen it at p99
(docs/decisions/019-waiting-for-a-place.md).
"""

T = TypeVar("T")
LineKey = tuple[str, str]
"""Identifies a line: a model, and the id of the worker for which requests wait."""

FOR_MEMORY: Final = "\nmemory"
"""In place of a worker's id: the line of requests that wait for KV memory at any worker. Worker ids have no newline."""
TOKENS_PER_S: Final = 500.0
"""For each second that a request came before another, it may need this many more tokens of memory and still go
first."""


class Waiter(Generic[T]):
    """One request that waits for a worker or for memory, and when it is due there.

    `checked_s`: when it was last placed again, to find out whether it should wait for another worker. `key_id`: the id
    of its API key if the key has its own limits, else empty. `need_tokens`: the KV memory that it takes. `memory_s`:
    how long it waited for memory before it began to wait for a worker. `memory_from_s`: since when it has been waiting
    for memory, if it waits for memory now. `timed_from_s`: since when its wait for a worker counts. `begins`: whether
    it is the first turn of a session. `asked_s`: when it came, or when its session first asked and was refused; this
    time decides its place in the line for memory. `program`, `priority`: as in `programs`.
    """

    __slots__ = (
        "asked_s",
        "begins",
        "bytes",
        "checked_s",
        "due_s",
        "item",
        "key_id",
        "memory_from_s",
        "memory_s",
        "model",
        "need_tokens",
        "priority",
        "program",
        "since_s",
        "tenant",
        "timed_from_s",
        "worker_id",
    )

    def __init__(
        self,
        item: T,
        tenant: str,
        model: str,
        size_bytes: int,
        since_s: float,
        key_id: str = "",
        *,
        begins: bool = False,
        asked_s: float | None = None,
    ) -> None:
        self.item = item
        self.program = 0
        self.priority = NORMAL
        self.begins = begins
        self.asked_s = since_s if asked_s is None else asked_s
        self.key_id = key_id
        self.tenant = tenant
        self.model = model
        self.bytes = size_bytes
        self.since_s = since_s
        self.checked_s = since_s
        self.worker_id = ""
        self.due_s = since_s
        self.need_tokens = 0
        self.memory_from_s = since_s
        self.memory_s = 0.0
        self.timed_from_s = since_s

    @property
    def line_key(self) -> LineKey:
        return self.model, self.worker_id

    def memory_wait_s(self, now_s: float) -> float:
        return self.memory_s + (now_s - self.memory_from_s if self.worker_id == FOR_MEMORY else 0.0)


class _TenantShare(Generic[T]):
    """The requests of one tenant in all lines of a model, in order of arrival, and their number by program."""

    __slots__ = ("bytes", "programs", "waiting")

    def __init__(self) -> None:
        self.waiting: OrderedDict[Waiter[T], None] = OrderedDict()
        self.programs: dict[int, int] = {}
        self.bytes = 0


class _Flow(Generic[T]):
    """The requests of one tenant in one line. `served`: the tenant's position, in tokens served. `running`: how many of
    the requests do not begin a session. `tokens`: the memory that all these requests need.
    """

    __slots__ = ("queue", "running", "served", "tokens", "waiting")

    def __init__(self) -> None:
        self.queue: ProgramQueue[Waiter[T]] = ProgramQueue()
        self.running = 0
        self.waiting = 0
        self.served = 0
        self.tokens = 0

    def add(self, waiter: Waiter[T]) -> None:
        self.queue.add(waiter.key_id, waiter)
        self.waiting += 1
        self.running += not waiter.begins
        self.tokens += waiter.need_tokens

    def remove(self, waiter: Waiter[T]) -> None:
        self.queue.remove(waiter.key_id, waiter)
        self.waiting -= 1
        self.running -= not waiter.begins
        self.tokens -= waiter.need_tokens


class _Line(Generic[T]):
    """All requests that wait for one worker, or for memory. `passed`: the line's position, which is that of the last
    tenant served. `running`: how many of the requests do not begin a session. `opened_s`: when a request that begins a
    session last went; or when turns of running sessions began to wait here, if that was later.
    """

    __slots__ = ("flows", "opened_s", "passed", "running")

    def __init__(self, opened_s: float) -> None:
        self.flows: dict[str, _Flow[T]] = {}
        self.opened_s = opened_s
        self.passed = 0
        self.running = 0

    def drop_idle_tenants(self) -> None:
        """Drop the tenants without a request here whose position is not beyond the line's: they would begin there
        anyway."""
        for tenant in [t for t, f in self.flows.items() if not f.waiting and f.served <= self.passed]:
            del self.flows[tenant]


class Queue(Generic[T]):
    """All lines. Empty lines, and tenants without requests in a line, are dropped."""

    def __init__(
        self,
        max_requests: int,
        max_bytes: int,
        timeout_s: float,
        memory_wait_s: float = 0.0,
        *,
        new_sessions_wait: bool = True,
    ) -> None:
        """`timeout_s`: how long a request may wait for a worker; the caller enforces this by `expired`.
        `memory_wait_s`: how long a request may wait for memory before that; with 0, requests do not wait for memory.
        `new_sessions_wait`: whether new sessions wait while turns of running sessions wait for memory (`door`).
        """
        self.resize(max_requests, max_bytes, timeout_s, memory_wait_s, new_sessions_wait=new_sessions_wait)
        self.requests = 0
        self.bytes = 0
        self._lines: dict[LineKey, _Line[T]] = {}
        self._shares: dict[tuple[str, str], _TenantShare[T]] = {}  # by model and tenant

    def resize(
        self,
        max_requests: int,
        max_bytes: int,
        timeout_s: float,
        memory_wait_s: float = 0.0,
        *,
        new_sessions_wait: bool = True,
    ) -> None:
        """Change the bounds. Requests that already wait stay, even if they exceed the new bounds."""
        self.new_sessions_wait = new_sessions_wait
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.max_patience_s = timeout_s / 2
        self.late_after_s = LATE_SHARE * timeout_s
        self.memory_wait_s = memory_wait_s

    def __contains__(self, waiter: Waiter[T]) -> bool:
        share = self._shares.get((waiter.model, waiter.tenant))
        return share is not None and waiter in share.waiting

    def lines(self) -> list[LineKey]:
        """The lines. The line that was served last is at the end."""
        return list(self._lines)

    def awaited_workers(self, model: str) -> set[str]:
        """The ids of the workers for which requests wait; with `FOR_MEMORY` if some request waits for memory."""
        return {worker_id for each, worker_id in self._lines if each == model}

    def all_for_memory(self) -> list[Waiter[T]]:
        """The requests that wait for memory, in no particular order."""
        flows = [flow for key, line in self._lines.items() if key[1] == FOR_MEMORY for flow in line.flows.values()]
        return [waiter for flow in flows for waiter in flow.queue]

    def waits_for_memory(self, model: str) -> bool:
        return (model, FOR_MEMORY) in self._lines

    def running(self, model: str, tenant: str | None = None) -> int:
        """How many turns of running sessions wait for memory. `tenant`: None for all tenants."""
        line = self._lines.get((model, FOR_MEMORY))
        if line is None or tenant is None:
            return 0 if line is None else line.running
        flow = line.flows.get(tenant)
        return 0 if flow is None else flow.running

    def memory_waits(self) -> list[Waits]:
        lines = [(model, line) for (model, worker_id), line in self._lines.items() if worker_id == FOR_MEMORY]
        return [
            Waits(model, tenant, flow.running, flow.tokens)
            for model, line in lines
            for tenant, flow in line.flows.items()
            if flow.waiting
        ]

    def needed(self, model: str, tenant: str) -> int:
        """The tokens that a tenant's requests in the line for memory need."""
        line = self._lines.get((model, FOR_MEMORY))
        flow = line.flows.get(tenant) if line is not None else None
        return 0 if flow is None else flow.tokens

    def need(self, waiter: Waiter[T], tokens: int) -> None:
        line = self._lines.get(waiter.line_key) if waiter in self else None
        if line is not None:
            line.flows[waiter.tenant].tokens += tokens - waiter.need_tokens
        waiter.need_tokens = tokens

    def tenants_for_memory(self, model: str) -> set[str]:
        line = self._lines.get((model, FOR_MEMORY))
        return set() if line is None else {tenant for tenant, flow in line.flows.items() if flow.waiting}

    def opened_s(self, model: str) -> float | None:
        """When the last session began whose first turn had waited for memory; or when turns of running sessions began
        to wait, if that was later. None if no request waits for memory.
        """
        line = self._lines.get((model, FOR_MEMORY))
        return None if line is None else line.opened_s

    def opened(self, model: str, now_s: float) -> None:
        """Record that a turn that begins a session leaves the line for memory, to be dispatched."""
        line = self._lines.get((model, FOR_MEMORY))
        if line is not None:
            line.opened_s = now_s

    def for_memory(self, model: str, *, begins: bool = False) -> list[Waiter[T]]:
        """The requests for a model that wait for memory: the first request of each tenant, then the second of each
        tenant, and so on, beginning with the tenant that was served least. `begins`: whether to return those that begin
        a session, or the others.
        """
        line = self._lines.get((model, FOR_MEMORY))
        if line is None:
            return []
        order: list[tuple[int, int, float, int, Waiter[T]]] = []
        for flow in line.flows.values():
            for number, waiter in enumerate(by_turns([each for each in flow.queue if each.begins is begins])):
                order.append((number, flow.served, waiter.due_s, len(order), waiter))
        order.sort()
        return [waiter for *_, waiter in order]

    def before(self, waiter: Waiter[T], worker_id: str, compute_s: float) -> int:
        """How many other requests are likely to go to a worker before `waiter`. `compute_s`: the waiter's prefill time
        there.

        Requests of the waiter's own tenant count as in `ProgramQueue.before`. Because tenants alternate, every other
        tenant counts with at most one request more than the waiter's tenant.
        """
        line = self._lines.get((waiter.model, worker_id))
        if line is None:
            return 0
        own = line.flows.get(waiter.tenant)
        before = 0
        if own is not None:
            due_s = self._due_s(waiter, worker_id, compute_s)
            before = own.queue.before(waiter, due_s)
            before -= waiter.worker_id == worker_id and waiter.due_s <= due_s
        most = before + 1
        for flow in line.flows.values():
            if flow is not own:
                waiting = flow.waiting
                before += waiting if waiting < most else most  # noqa: FURB136 - min() takes three times as long
        return before

    def join(self, waiter: Waiter[T], worker_id: str, compute_s: float) -> list[Waiter[T]] | None:
        """Let a request wait for a worker. `compute_s`: how long the prompt takes to compute there.

        Returns the requests that the newcomer pushed out, or None if the queue is full.
        """
        pushed_out = self._pushed_out_by(waiter)
        if pushed_out is None:
            return None
        for other in pushed_out:
            self.leave(other)
        share = self._shares.setdefault((waiter.model, waiter.tenant), _TenantShare())
        share.waiting[waiter] = None
        share.programs[waiter.program] = share.programs.get(waiter.program, 0) + 1
        share.bytes += waiter.bytes
        self.requests += 1
        self.bytes += waiter.bytes
        self._line_up(waiter, worker_id, compute_s)
        return pushed_out

    def leave(self, waiter: Waiter[T]) -> bool:
        """Take a request out of the queue. Returns False if it was not waiting."""
        if waiter not in self:
            return False
        share = self._shares[waiter.model, waiter.tenant]
        del share.waiting[waiter]
        share.programs[waiter.program] -= 1
        if not share.programs[waiter.program]:
            del share.programs[waiter.program]
        share.bytes -= waiter.bytes
        self.requests -= 1
        self.bytes -= waiter.bytes
        if not share.waiting:
            del self._shares[waiter.model, waiter.tenant]
        self._step_out(waiter)
        return True

    def move(self, waiter: Waiter[T], worker_id: str, compute_s: float, now_s: float | None = None) -> None:
        """Let a request wait for another worker or for memory, or be due at another time. Its time of arrival stays."""
        if now_s is not None and worker_id != waiter.worker_id:
            if worker_id == FOR_MEMORY:
                waiter.memory_from_s = now_s
            elif waiter.worker_id == FOR_MEMORY:
                waiter.memory_s = waiter.memory_wait_s(now_s)
                waiter.timed_from_s = now_s
        self._step_out(waiter)
        self._line_up(waiter, worker_id, compute_s)

    def heads(self, now_s: float) -> list[Waiter[T]]:
        """The first request of each API key of each tenant in each line."""
        late_s = now_s - self.late_after_s
        flows = [flow for line in self._lines.values() for flow in line.flows.values()]
        found = [flow.queue.next(key_id, late_s) for flow in flows for key_id in flow.queue.key_ids()]
        return [each[1] for each in found if each is not None]

    def head(self, key: LineKey, tenant: str, key_id: str, now_s: float) -> Waiter[T] | None:
        line = self._lines.get(key)
        flow = line.flows.get(tenant) if line is not None else None
        found = None if flow is None else flow.queue.next(key_id, now_s - self.late_after_s)
        return None if found is None else found[1]

    def fair_order(self, key: LineKey, now_s: float) -> Iterator[Waiter[T]]:
        """The requests of a line in fair order. If a yielded request still waits when the caller takes the next one, it
        could not go; then the other requests of its key are skipped.
        """
        line = self._lines.get(key)
        if line is None:
            return
        flows = line.flows
        late_s = now_s - self.late_after_s
        order: list[tuple[int, Rank, str, str]] = []
        for tenant, flow in flows.items():
            for key_id in flow.queue.key_ids():
                found = flow.queue.next(key_id, late_s)
                if found is not None:
                    order.append((flow.served, found[0], tenant, key_id))
        heapq.heapify(order)
        while order:
            served, _, tenant, key_id = heapq.heappop(order)
            of_tenant = flows.get(tenant)
            found = None if of_tenant is None else of_tenant.queue.next(key_id, late_s)
            if of_tenant is None or found is None:
                continue
            if served == of_tenant.served:  # if not, a request of another key of this tenant has gone
                waiter = found[1]
                yield waiter
                found = of_tenant.queue.next(key_id, late_s)
                if found is None or found[1] is waiter:
                    continue
            heapq.heappush(order, (of_tenant.served, found[0], tenant, key_id))

    def served(self, waiter: Waiter[T], tokens: int) -> None:
        """Dispatch a waiting request, at a cost of `tokens`."""
        line = self._lines[waiter.line_key]
        flow = line.flows[waiter.tenant]
        line.passed = max(line.passed, flow.served)
        flow.served += max(1, tokens)
        flow.queue.charge(waiter.program, max(1, tokens))
        self.leave(waiter)
        line.drop_idle_tenants()
        if waiter.line_key in self._lines:
            self._lines[waiter.line_key] = self._lines.pop(waiter.line_key)

    def expired(self, before_s: float) -> list[Waiter[T]]:
        """The requests that have waited for a worker since before `before_s`. They include requests that still wait for
        memory although their `memory_wait_s` was over before `before_s`: such a request finds no usable worker.
        """
        found = []
        for share in self._shares.values():
            for waiter in share.waiting:
                if waiter.since_s >= before_s:
                    break
                for_memory = waiter.worker_id == FOR_MEMORY
                if (waiter.since_s + self.memory_wait_s if for_memory else waiter.timed_from_s) < before_s:
                    found.append(waiter)
        return found

    def waiting(self) -> list[Waiter[T]]:
        """All requests that wait, in no particular order."""
        return [waiter for share in self._shares.values() for waiter in share.waiting]

    def _due_s(self, waiter: Waiter[T], worker_id: str, compute_s: float) -> float:
        if worker_id == FOR_MEMORY:
            return waiter.asked_s + min(waiter.need_tokens / TOKENS_PER_S, self.memory_wait_s)
        return waiter.since_s + min(PATIENCE * compute_s, self.max_patience_s)

    def _line_up(self, waiter: Waiter[T], worker_id: str, compute_s: float) -> None:
        waiter.worker_id = worker_id
        waiter.due_s = self._due_s(waiter, worker_id, compute_s)
        line = self._lines.get(waiter.line_key)
        if line is None:
            line = self._lines[waiter.line_key] = _Line(waiter.memory_from_s)
        if not waiter.begins:
            if not line.running:
                line.opened_s = waiter.memory_from_s  # the door was not shut before
            line.running += 1
        flow = line.flows.setdefault(waiter.tenant, _Flow())
        if not flow.waiting:
            flow.served = max(flow.served, line.passed)
        flow.add(waiter)

    def _step_out(self, waiter: Waiter[T]) -> None:
        line = self._lines[waiter.line_key]
        flow = line.flows[waiter.tenant]
        line.running -= not waiter.begins
        flow.remove(waiter)
        if flow.waiting:
            return
        if not any(flow.waiting for flow in line.flows.values()):
            del self._lines[waiter.line_key]
        elif flow.served <= line.passed:
            del line.flows[waiter.tenant]

    def _pushed_out_by(self, waiter: Waiter[T]) -> list[Waiter[T]] | None:
        """The requests that a newcomer pushes out: the newest of the tenant that holds most. None: the newcomer is
        refused.
        """
        requests = self.requests + 1 - self.max_requests
        size = self.bytes + waiter.bytes - self.max_bytes
        if requests <= 0 and size <= 0:
            return []
        own = self._shares.get((waiter.model, waiter.tenant))
        least = self._fraction(1 + (len(own.waiting) if own else 0), waiter.bytes + (own.bytes if own else 0))
        largest = max(
            self._shares.values(), key=lambda share: self._fraction(len(share.waiting), share.bytes), default=None
        )
        if largest is None:
            return None
        if largest is own:
            return _of_own_tenant(largest, waiter, requests, size)
        out: list[Waiter[T]] = []
        left, left_bytes = len(largest.waiting), largest.bytes
        for newest in reversed(largest.waiting):
            if self._fraction(left, left_bytes) <= least:
                return None
            out.append(newest)
            left -= 1
            left_bytes -= newest.bytes
            if len(out) >= requests and largest.bytes - left_bytes >= size:
                return out
        return None

    def _fraction(self, requests: int, size_bytes: int) -> float:
        return max(requests / max(1, self.max_requests), size_bytes / max(1, self.max_bytes))


def _order_out(waiter: Waiter[T]) -> int:
    return -waiter.priority


def _of_own_tenant(
    share: _TenantShare[T], newcomer: Waiter[T], requests: int, size_bytes: int
) -> list[Waiter[T]] | None:
    """The requests of its own tenant that a newcomer pushes out: lowest priority first, then newest. None if it is
    refused.

    A request is pushed out if its priority is lower than the newcomer's. A request of equal priority is pushed out if
    its program has most requests, and afterwards still has at least as many as the newcomer's program.
    """
    counts = share.programs
    program = max(counts, key=counts.__getitem__)
    spare = counts[program] - counts.get(newcomer.program, 0) - 1
    out: list[Waiter[T]] = []
    newest_first = list(reversed(share.waiting))
    newest_first.sort(key=_order_out)
    for each in newest_first:
        if each.priority <= newcomer.priority:
            if each.program != program or each.priority < newcomer.priority or spare <= 0:
                continue
            spare -= 1
        out.append(each)
        size_bytes -= each.bytes
        if len(out) >= requests and size_bytes <= 0:
            return out
    return None
