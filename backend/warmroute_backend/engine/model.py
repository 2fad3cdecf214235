"""The scheduler as a pure model on a virtual clock: what one rank computes in each step, and how long that takes.

No sockets, no wall clock, no asyncio: a caller adds work with its arrival time, asks for the next step (`begin`),
lets its modelled duration pass, and applies it (`finish`). The engine paces those calls against the wall; a replay
may call them back to back. All times are virtual seconds.

A step starts when the one before has ended and there is something to do, and runs
- *prefill*: at most `chunk_tokens` uncached prompt tokens, first the rest of a prompt begun earlier, then waiting
  prompts in order of arrival. The prefix cache is looked up when a prompt is first scheduled, so a prompt that
  waited profits from those before it. What a chunk computed is cached when its step ends.
- *decode*: one token for every sequence whose prompt is complete.
Its duration is prefill / rate + overhead, plus, when it decodes, a base and a share for each sequence: decoding
gets slower as the batch grows, and a long prompt holds up the tokens of everybody, as in a real engine.

KV room is counted in pages and reserved whole at admission (uncached prompt and the answer, whose length the model
knows): pages reserved + pages cached never exceed the capacity, and idle cached pages are evicted to make room.
Admission is first come, first served: a head of the queue that does not fit blocks those behind it.

Roles. *Prefill* ends work with its first token, and holds its pages until `release` (the transfer has ended).
*Decode* keeps no cache: work gets its pages first (`allocate`), then its KV from a prefill engine (`deliver`), and
joins the batch at the next step with the token that came with it.

Bounds: `max_running` sequences run; the caller bounds what waits.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from warmroute_backend.engine.radix import RadixCache

Role = Literal["aggregated", "prefill", "decode"]


class Phase(Enum):
    """Where a piece of work is."""

    NEW = "new"
    WAITING = "waiting"
    ALLOCATED = "allocated"
    DELIVERED = "delivered"
    PREFILL = "prefill"
    DECODE = "decode"
    TRANSFER = "transfer"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Costs:
    """What a step and a hand-off cost, in virtual seconds."""

    prefill_tokens_per_s: float = 20_000.0
    chunk_tokens: int = 8192
    step_overhead_s: float = 0.005
    decode_base_s: float = 0.015
    decode_per_sequence_s: float = 0.0001
    transfer_tokens_per_s: float = 400_000.0
    transfer_base_s: float = 0.002

    def prefill_s(self, tokens: int) -> float:
        return tokens / self.prefill_tokens_per_s + self.step_overhead_s

    def decode_s(self, sequences: int) -> float:
        return self.decode_base_s + self.decode_per_sequence_s * sequences

    def transfer_s(self, tokens: int) -> float:
        return tokens / self.transfer_tokens_per_s + self.transfer_base_s


@dataclass(eq=False, slots=True)
class Work:
    """One request as the scheduler sees it: sizes and page keys, no text.

    `keys` are the page keys of the prompt and, where the answer is kept, of prompt + answer. `width` is the number
    of sequences that share the prompt (`n`); `output_tokens` the length of the longest.
    """

    prompt_tokens: int
    output_tokens: int
    keys: list[int]
    width: int = 1
    arrival_s: float = 0.0
    owner: Any = None
    phase: Phase = Phase.NEW
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated: int = 0
    first_token_s: float | None = None
    allocated_s: float | None = None
    delivered_s: float = 0.0
    reserved_pages: int = 0
    pinned_pages: int = 0


@dataclass(slots=True)
class Step:
    """One step under way. `joined` (decode role) got their handed-over token at `start_s`."""

    start_s: float
    end_s: float
    prefill: list[tuple[Work, int]] = field(default_factory=list)
    decode: list[Work] = field(default_factory=list)
    joined: list[Work] = field(default_factory=list)


@dataclass(slots=True)
class Totals:
    """Counts since the start, for load and metrics."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    prefill_uncached_tokens: int = 0
    prefill_busy_s: float = 0.0
    steps: int = 0
    decode_tokens: int = 0


class Scheduler:
    """One data-parallel rank: its queue, batch, cache and clock."""

    def __init__(
        self,
        *,
        role: Role,
        kv_tokens: int,
        page_size: int,
        max_running: int,
        costs: Costs | None = None,
    ) -> None:
        self.role = role
        self.page_size = page_size
        self.capacity_pages = kv_tokens // page_size
        self.max_running = max_running
        self.costs = costs or Costs()
        self.cache = RadixCache()
        self.clock_s = 0.0
        self.totals = Totals()
        self.reserved_pages = 0
        self.waiting: deque[Work] = deque()
        self.delivered: deque[Work] = deque()
        self.allocated: set[Work] = set()
        self.transferring: set[Work] = set()
        self._running: dict[Work, None] = {}  # in order of joining: prompts under way, then decoding sequences
        self._chunked: Work | None = None

    # --- what callers put in -------------------------------------------------------------------------------------

    def pages_needed(self, prompt_tokens: int, output_tokens: int, width: int) -> int:
        """The KV pages that a request takes when nothing of it is cached."""
        return -(-(prompt_tokens + output_tokens * width) // self.page_size)

    def fits(self, prompt_tokens: int, output_tokens: int, width: int) -> bool:
        """Whether a request could ever be admitted."""
        return self.pages_needed(prompt_tokens, output_tokens, width) <= self.capacity_pages

    def add(self, work: Work, now_s: float) -> None:
        """Queue work that arrived at `now_s`."""
        work.arrival_s = now_s
        work.phase = Phase.WAITING
        self.waiting.append(work)

    def allocate(self, now_s: float) -> list[Work]:
        """Decode role: give pages to waiting work, in order, while they last. Returns who got theirs."""
        granted = []
        while self.waiting:
            work = self.waiting[0]
            need = self.pages_needed(work.prompt_tokens, work.output_tokens, work.width)
            if need > self.free_pages:
                break
            self.waiting.popleft()
            self._reserve(work, need)
            work.phase = Phase.ALLOCATED
            work.allocated_s = max(now_s, work.arrival_s)
            self.allocated.add(work)
            granted.append(work)
        return granted

    def deliver(self, work: Work, cached_tokens: int, now_s: float) -> None:
        """Decode role: the KV of `work` and its first token have come; `cached_tokens` is what prefill reports."""
        self.allocated.discard(work)
        work.phase = Phase.DELIVERED
        work.cached_tokens = cached_tokens
        work.delivered_s = now_s
        self.delivered.append(work)

    def release(self, work: Work, at_s: float) -> None:
        """Prefill role: the transfer has ended, the pages may be reused."""
        self.transferring.discard(work)
        self._finish_work(work)
        if self.waiting and not self._running:  # the head of the queue was waiting for these pages
            self.clock_s = max(self.clock_s, at_s)

    def abort(self, work: Work) -> None:
        """Take work out, wherever it is. What it had computed stays cached; a step under way is not shortened."""
        if work.phase is Phase.DONE:
            return
        if work.phase is Phase.WAITING:
            self.waiting.remove(work)
        elif work.phase is Phase.DELIVERED:
            self.delivered.remove(work)
        self.allocated.discard(work)
        self.transferring.discard(work)
        self._finish_work(work)

    # --- steps ---------------------------------------------------------------------------------------------------

    def begin(self) -> Step | None:
        """The next step, or None when nothing can run. Call `finish` with it before beginning another."""
        start_s = self.clock_s
        if not self._running:
            arrival_s = self._next_arrival_s()
            if arrival_s is None:
                return None
            start_s = max(start_s, arrival_s)
        step = Step(start_s=start_s, end_s=start_s)
        self._join_delivered(step)
        step.decode = [work for work in self._running if work.phase is Phase.DECODE]
        if self.role != "decode":
            self._plan_prefill(step)
        if not step.prefill and not step.decode:
            return step if step.joined else None
        prefill_tokens = sum(take for _, take in step.prefill)
        duration_s = self.costs.prefill_s(prefill_tokens)
        if step.prefill:
            self.totals.prefill_busy_s += duration_s
        if step.decode:
            duration_s += self.costs.decode_s(sum(work.width for work in step.decode))
        step.end_s = start_s + duration_s
        self.totals.steps += 1
        return step

    def finish(self, step: Step) -> list[Work]:
        """Apply a step at its end. Returns the work that has a new token; work that ended is `DONE` or `TRANSFER`."""
        self.clock_s = step.end_s
        emitted = []
        for work in step.decode:
            if work.phase is Phase.DECODE:  # else aborted meanwhile
                work.generated += 1
                self.totals.generated_tokens += work.width
                self.totals.decode_tokens += work.width
                if work.generated >= work.output_tokens:
                    self._finish_work(work)
                emitted.append(work)
        for work, take in step.prefill:
            if work.phase is Phase.PREFILL and self._computed(work, take, step.end_s):
                emitted.append(work)
        return emitted

    # --- what callers may look at --------------------------------------------------------------------------------

    @property
    def free_pages(self) -> int:
        return self.capacity_pages - len(self.cache) - self.reserved_pages

    @property
    def running(self) -> list[Work]:
        return list(self._running)

    def waiting_uncached_tokens(self) -> int:
        """Prompt tokens that still have to be computed, as far as the cache can tell now."""
        rest = 0 if self._chunked is None else self._chunked.prompt_tokens - self._chunked.computed_tokens
        for work in self.waiting:
            matched, _ = self.cache.match(work.keys, (work.prompt_tokens - 1) // self.page_size)
            rest += work.prompt_tokens - matched * self.page_size
        return rest

    def idle(self) -> bool:
        return not (self._running or self.waiting or self.delivered or self.allocated or self.transferring)

    # --- inside --------------------------------------------------------------------------------------------------

    def _next_arrival_s(self) -> float | None:
        if self.role == "decode":
            return self.delivered[0].delivered_s if self.delivered else None
        return self.waiting[0].arrival_s if self.waiting else None

    def _join_delivered(self, step: Step) -> None:
        while self.delivered and self.delivered[0].delivered_s <= step.start_s:
            if len(self._running) >= self.max_running:
                return
            work = self.delivered.popleft()
            work.phase = Phase.DECODE
            work.first_token_s = step.start_s
            work.generated = 1
            self.totals.prompt_tokens += work.prompt_tokens
            self.totals.cached_tokens += work.cached_tokens
            self.totals.generated_tokens += work.width
            self._running[work] = None
            step.joined.append(work)
            if work.output_tokens <= 1:
                self._finish_work(work)

    def _plan_prefill(self, step: Step) -> None:
        budget = self.costs.chunk_tokens
        if self._chunked is not None:
            budget -= self._take(step, self._chunked, budget)
        while budget > 0 and self.waiting and len(self._running) < self.max_running:
            work = self.waiting[0]
            if work.arrival_s > step.start_s or not self._admit(work):
                return
            self.waiting.popleft()
            budget -= self._take(step, work, budget)

    def _take(self, step: Step, work: Work, budget: int) -> int:
        take = min(budget, work.prompt_tokens - work.computed_tokens)
        step.prefill.append((work, take))
        complete = work.computed_tokens + take == work.prompt_tokens
        self._chunked = None if complete else work
        return take

    def _admit(self, work: Work) -> bool:
        limit = (work.prompt_tokens - 1) // self.page_size  # the last token is always computed
        matched, from_idle = self.cache.match(work.keys, limit)
        need = self.pages_needed(work.prompt_tokens, work.output_tokens, work.width) - matched
        missing = need - self.free_pages
        if missing > self.cache.idle_pages - from_idle:
            return False
        self.cache.pin(work.keys[:matched])
        self.cache.evict(max(0, missing))
        self._reserve(work, need)
        work.pinned_pages = matched
        work.cached_tokens = work.computed_tokens = matched * self.page_size
        work.phase = Phase.PREFILL
        self._running[work] = None
        self.totals.prompt_tokens += work.prompt_tokens
        self.totals.cached_tokens += work.cached_tokens
        return True

    def _computed(self, work: Work, take: int, end_s: float) -> bool:
        """A chunk of `work` is done: cache its pages. True when that was the last chunk, which brings a token."""
        work.computed_tokens += take
        self.totals.prefill_uncached_tokens += take
        self._keep(work, work.computed_tokens)
        if work.computed_tokens < work.prompt_tokens:
            return False
        work.generated = 1
        work.first_token_s = end_s
        self.totals.generated_tokens += work.width
        if self.role == "prefill":
            work.phase = Phase.TRANSFER
            del self._running[work]
            self.transferring.add(work)
        elif work.output_tokens <= 1:
            self._finish_work(work)
        else:
            work.phase = Phase.DECODE
        return True

    def _keep(self, work: Work, known_tokens: int) -> None:
        """Move the complete pages of the first `known_tokens` from the reservation into the cache."""
        page = slice(work.pinned_pages, max(work.pinned_pages, min(known_tokens // self.page_size, len(work.keys))))
        count = page.stop - page.start
        self.cache.insert(work.keys[page])
        work.pinned_pages += count
        work.reserved_pages -= count
        self.reserved_pages -= count

    def _reserve(self, work: Work, pages: int) -> None:
        work.reserved_pages = pages
        self.reserved_pages += pages

    def _finish_work(self, work: Work) -> None:
        if self.role == "aggregated" and work.width == 1 and work.computed_tokens == work.prompt_tokens:
            # The last token was sampled, never computed: it has no KV yet.
            self._keep(work, work.prompt_tokens + max(0, work.generated - 1))
        self.cache.unpin(work.keys[: work.pinned_pages])
        work.pinned_pages = 0
        self.reserved_pages -= work.reserved_pages
        work.reserved_pages = 0
        self._running.pop(work, None)
        if self._chunked is work:
            self._chunked = None
        work.phase = Phase.DONE
