"""The scheduler as a pure model on a virtual clock: what one rank computes in each step, and how long that takes.

No sockets, no wall clock, no asyncio. A caller adds work with its arrival time and then drives the model in one of
two ways, which have bit-equal results. The engine goes step by step on the wall clock: `begin` the next step, let its
modelled duration pass, `finish` it. A replay goes from event to event (`advance`, `next_event_s`). All times are
virtual seconds.

A step starts when the step before has ended and work is there. A step runs
- *prefill*: a chunk of uncached prompt tokens (`prefill.py`), whose pages are cached when the step ends;
- *decode*: one token for every sequence whose prompt is complete (`DecodeBatch`).
The duration of a step is prefill tokens / rate + overhead. A step that decodes takes a base time and a time for each
sequence more. So decoding gets slower as the batch grows, and a long prompt delays the tokens of all sequences, as in a
real engine.

Every step with prefill is simulated. Steps that only decode are not: until a sequence ends or another joins, only the
token counts change. So a run of such steps is one multiplication, in both ways of driving the model.

Roles, apart from *aggregated*: *prefill* ends work with its first token, and holds the work's pages until `release`
(the transfer has ended). *Decode* keeps no cache: work gets its pages first (`allocate`), then its KV and first token
from a prefill engine (`deliver`), and joins the batch at the next step.

Bounds: `max_running` sequences run; the caller bounds the waiting work.
"""

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

from warmroute_backend.costs import Costs, Role
from warmroute_lab.engine.model.pool import KvPool
from warmroute_lab.engine.model.prefill import Prefill
from warmroute_lab.engine.model.radix import RadixCache
from warmroute_lab.engine.model.tiers import HostTier, LowerTiers, TierListener
from warmroute_lab.engine.model.work import Event, Phase, Step, Work, WorkTotals

# The sequences that decode together: each step brings every sequence a token.
#
# Between two changes of the batch all steps are equal, so a run of steps needs no simulation: step n of a run ends at
# origin + n * length. A caller that takes the steps one by one gets bit-equal times from this formula, without the
# drift of repeated addition.
#
# Tokens are not counted for each sequence either. The batch numbers its steps. A sequence that joins notes the number
# of the step that brings its last token; a heap has the sequence that ends next on top.


class _Ending(NamedTuple):
    """The step with the last token of a sequence. `order`: the sequence's number, in order of joining; of sequences
    that end in one step, the lowest comes first."""

    last_step: int
    order: int
    work: Work


class DecodeBatch:
    """The sequences that decode. `planned`: how many steps are planned. `plan_run` and `cut` return their end."""

    __slots__ = (
        "_costs",
        "_done",
        "_ending",
        "_joins",
        "_origin_s",
        "_step_s",
        "_step_s_of",
        "_steps",
        "planned",
        "width",
    )

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._step_s_of: dict[int, float] = {}
        """Width -> the length of a step; filled as needed."""
        self.width = 0
        """The number of sequences; one `Work` may have several."""
        self.planned = 0
        self._steps = 0  # applied since the start
        self._ending: list[_Ending] = []
        self._joins = 0
        self._origin_s = 0.0
        self._step_s = 0.0
        self._done = 0  # applied steps of this run

    def join(self, work: Work) -> None:
        """Add `work`, which has its first token."""
        work.last_step = self._steps + work.output_tokens - 1
        self.width += work.width
        self._joins += 1
        heappush(self._ending, _Ending(work.last_step, self._joins, work))

    def leave(self, work: Work) -> None:
        """Remove `work` before its end."""
        work.generated = self.generated(work)
        self.width -= work.width
        self._ending = [entry for entry in self._ending if entry.work is not work]
        heapify(self._ending)

    def generated(self, work: Work) -> int:
        return work.output_tokens - (work.last_step - self._steps)

    def plan_mixed(self) -> None:
        """Plan one step that also prefills; the caller computes its length."""
        self.planned = 1 if self.width else 0
        self._step_s = 0.0

    def plan_run(self, start_s: float, *, one_step: bool) -> float:
        """Plan steps until a sequence ends, or one step. If a run of steps of this length ends at `start_s`, the steps
        continue it. Returns when the last step ends.
        """
        width = self.width
        step_s = self._step_s_of.get(width)
        if step_s is None:
            step_s = self._step_s_of[width] = self._costs.prefill_s(0) + self._costs.decode_s(width)
        if step_s != self._step_s or self._origin_s + self._done * step_s != start_s:
            self._origin_s, self._step_s, self._done = start_s, step_s, 0
        self.planned = 1 if one_step else self._ending[0].last_step - self._steps
        return self._origin_s + (self._done + self.planned) * step_s

    def cut(self, at_s: float) -> float:
        """Shorten a run that lasts beyond `at_s`, so that its last step runs or ends at `at_s`. Returns its new end."""
        origin_s, step_s, done = self._origin_s, self._step_s, self._done
        steps = max(1, int((at_s - origin_s) / step_s) - done)
        while steps > 1 and origin_s + (done + steps - 1) * step_s >= at_s:
            steps -= 1
        while origin_s + (done + steps) * step_s < at_s:
            steps += 1
        self.planned = steps
        return origin_s + (done + steps) * step_s

    def reached_s(self) -> float:
        """When the last applied step of the run ended."""
        return self._origin_s + self._done * self._step_s

    def apply(self, steps: int) -> Sequence[Work]:
        """Apply `steps` of the planned steps. Removes and returns the work that has ended, in order of joining."""
        self.planned -= steps
        self._done += steps
        self._steps = steps = self._steps + steps
        ending = self._ending
        if not ending or ending[0].last_step != steps:  # most runs end because work joins, not at an end
            return ()
        ended = []
        while ending and ending[0].last_step == steps:
            work = heappop(ending).work
            work.generated = work.output_tokens
            self.width -= work.width
            ended.append(work)
        return ended


__all__ = ["Costs", "Event", "Phase", "Role", "Scheduler", "Step", "Work"]

_WAITING, _PREFILL, _DECODE, _DONE = Phase.WAITING, Phase.PREFILL, Phase.DECODE, Phase.DONE
"""Looked up once, since each look-up of an enum member is slow."""


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
        pin_waiting: bool = False,
        host: HostTier | None = None,
        listener: TierListener | None = None,
    ) -> None:
        """`kv_tokens` is the capacity of the device."""
        self.role = role
        self.page_size = page_size
        self.max_running = max_running
        self.costs = costs = costs or Costs()
        self.pin_waiting = pin_waiting and role != "decode"  # a decode rank keeps no cache
        tiers = LowerTiers(host, page_size, listener) if host is not None and host.tokens else None
        self.pool = KvPool(kv_tokens // page_size, page_size, tiers, listener)
        self.clock_s = 0.0
        """The end of the last step that was applied."""
        self.totals = WorkTotals()
        self.waiting: deque[Work] = deque()
        self.delivered: deque[Work] = deque()
        self.allocated: set[Work] = set()
        self.transferring: set[Work] = set()
        self._running: dict[Work, None] = {}  # in order of joining: prompts under way, then decoding sequences
        self._prefill = Prefill(costs, self.pool, self.totals, self.waiting, self._running, max_running)
        self._batch = DecodeBatch(costs)
        self._now_s = 0.0  # how far the caller has advanced
        self._events: list[Event] = []
        self._planned = False
        """Whether a chunk of `_prefill` or steps of `_batch` are planned and not yet applied."""
        self._start_s = 0.0
        self._end_s = 0.0

    # --- what callers put in -------------------------------------------------------------------------------------

    def fits(self, prompt_tokens: int, output_tokens: int, width: int) -> bool:
        return self.pool.pages_needed(Work(prompt_tokens, output_tokens, (), width)) <= self.capacity_pages

    def add(self, work: Work, now_s: float) -> None:
        """Queue work that arrived at `now_s`. Call it in order of arrival."""
        work.arrival_s = now_s
        work.phase = _WAITING
        if self.pin_waiting:
            self.pool.hold(work)
        if not self.waiting and self.role != "decode":
            self._cut(now_s)
        self.waiting.append(work)

    def allocate(self, now_s: float) -> list[Work]:
        """Decode role: give pages to waiting work, in order, while pages are free. Returns the work that got pages."""
        granted = []
        while self.waiting:
            work = self.waiting[0]
            need = self.pool.pages_needed(work)
            if need > self.pool.free_pages:
                break
            self.waiting.popleft()
            self.pool.reserve(work, need)
            work.phase = Phase.ALLOCATED
            work.allocated_s = max(now_s, work.arrival_s)
            self.allocated.add(work)
            granted.append(work)
        return granted

    def deliver(self, work: Work, cached_tokens: int, now_s: float) -> None:
        """Decode role: the KV of `work` and its first token have come; prefill has reported `cached_tokens`."""
        self.allocated.discard(work)
        work.phase = Phase.DELIVERED
        work.cached_tokens = cached_tokens
        work.delivered_s = now_s
        if not self.delivered:
            self._cut(now_s)
        self.delivered.append(work)

    def release(self, work: Work, at_s: float) -> None:
        """Prefill role: the transfer of `work` has ended, so its pages may be reused."""
        self.transferring.discard(work)
        self._finish_work(work)
        if self.waiting and not self._running:  # the head of the queue waited for these pages
            self.clock_s = max(self.clock_s, at_s)

    def abort(self, work: Work) -> None:
        """Remove work in any phase. The pages that it has computed stay cached; a step under way is not shortened.

        If the caller uses `advance`, the abort happens at the last `until_s`.
        """
        if work.phase is _DONE:
            return
        self._settle()
        if work.phase is _WAITING:
            self.waiting.remove(work)
        elif work.phase is Phase.DELIVERED:
            self.delivered.remove(work)
        elif work.phase is _DECODE:
            self._batch.leave(work)
        self.allocated.discard(work)
        self.transferring.discard(work)
        self._finish_work(work)

    # --- step by step --------------------------------------------------------------------------------------------

    def begin(self) -> Step | None:
        """Begin the next step; None if nothing can run. Call `finish` with the step before you begin another."""
        if not self._plan(inf, one_step=True):
            return None
        delivered = [work for _, work, ended in self._events if not ended]
        self._events.clear()
        decode = [work for work in self._running if work.phase is _DECODE]
        return Step(self._start_s, self._end_s, self._prefill.shares, decode, delivered)

    def finish(self, step: Step) -> list[Work]:
        """Apply a step at its end. Returns the work with a new token; its phase is `DONE` or `TRANSFER` if it ended."""
        emitted = [work for work in step.decode if work.phase is _DECODE]  # others were aborted
        self._apply()
        for work in emitted:
            if work.phase is _DECODE:
                work.generated = self._batch.generated(work)
        emitted += [work for _, work, ended in self._events if not ended]
        self._events.clear()
        return emitted

    # --- from event to event -------------------------------------------------------------------------------------

    def advance(self, until_s: float) -> list[Event]:
        """Apply every step that ends at or before `until_s`. Returns the events, in order of time.

        A step that would start at `until_s` is not begun, since work that arrives then may still join it.
        """
        while self._planned or (self.clock_s < until_s and self._plan(until_s)):
            if self._end_s > until_s:
                break
            self._apply()
        self._now_s = until_s
        events = self._events
        if not events:
            return []
        self._events = []
        return events

    def next_event_s(self) -> float:
        """A time before which no event comes if no work is added; infinite if nothing can run.

        Begins the step that can start now, so call it after all work that arrives at this instant was added.
        """
        if self._events:
            return self._events[0][0]
        if not self._planned and not self._plan(inf):
            return inf
        return self._events[0][0] if self._events else self._end_s

    # --- what callers may look at --------------------------------------------------------------------------------

    @property
    def cache(self) -> RadixCache:
        return self.pool.cache

    @property
    def capacity_pages(self) -> int:
        return self.pool.capacity_pages

    @property
    def reserved_pages(self) -> int:
        return self.pool.reserved_pages

    @property
    def free_pages(self) -> int:
        return self.pool.free_pages

    @property
    def running(self) -> list[Work]:
        return list(self._running)

    def waiting_uncached_tokens(self) -> int:
        """Prompt tokens that are still to compute, given what the device has cached now."""
        uncached = self._prefill.remaining_tokens()
        for work in self.waiting:
            uncached += work.prompt_tokens - self.pool.match(work) * self.page_size
        return uncached

    def flush(self) -> None:
        """Remove all pages from the cache that no work holds."""
        self.pool.flush()

    def idle(self) -> bool:
        return not (self._running or self.waiting or self.delivered or self.allocated or self.transferring)

    # --- planning ------------------------------------------------------------------------------------------------

    def _plan(self, before_s: float, *, one_step: bool = False) -> bool:
        """Plan the next step, or the next run of decode steps, if it starts before `before_s`."""
        start_s = self.clock_s
        if not self._running:
            arrival_s = self._next_arrival_s()
            start_s = max(start_s, arrival_s)
            if start_s >= before_s:
                return False
        batch = self._batch
        width = batch.width
        self._start_s = start_s
        tokens, started = 0, False
        if self.role == "decode":
            started = self._start_delivered(start_s)
        elif self.waiting or self._prefill.unfinished is not None:
            tokens = self._prefill.plan(start_s)
        if tokens:
            duration_s = self.costs.prefill_s(tokens) + self._prefill.load_s
            self.totals.prefill_busy_s += duration_s
            if width:
                duration_s += self.costs.decode_s(width)
            batch.plan_mixed()
            self._end_s = start_s + duration_s
        elif batch.width:  # including delivered work
            self._end_s = batch.plan_run(start_s, one_step=one_step)
            if (self.waiting or self.delivered) and (arrival_s := self._next_arrival_s()) > start_s:
                self._cut(arrival_s)
        elif started:  # only answers of one token, which end at once
            self._end_s = start_s
        else:
            return False
        self._planned = True
        return True

    def _cut(self, at_s: float) -> None:
        """End a run of decode steps with the step that is under way at `at_s`, since work may join then."""
        if self._batch.planned > 1 and at_s < self._end_s:
            self._end_s = self._batch.cut(at_s)

    def _settle(self) -> None:
        """Apply the steps of a run that have ended by now, and end the run with the step under way."""
        if self._batch.planned > 1:
            self._cut(self._now_s)
            if self._end_s <= self._now_s:
                self._apply()
            else:
                self._apply_decode(self._batch.planned - 1)
                self.clock_s = self._batch.reached_s()

    def _next_arrival_s(self) -> float:
        if self.role == "decode":
            return self.delivered[0].delivered_s if self.delivered else inf
        return self.waiting[0].arrival_s if self.waiting else inf

    def _start_delivered(self, start_s: float) -> bool:
        started = False
        while self.delivered and self.delivered[0].delivered_s <= start_s and len(self._running) < self.max_running:
            work = self.delivered.popleft()
            self.totals.prompt_tokens += work.prompt_tokens
            self.totals.cached_tokens += work.cached_tokens
            self._running[work] = None
            self._first_token(work, start_s)
            started = True
        return started

    # --- applying ------------------------------------------------------------------------------------------------

    def _apply(self) -> None:
        self._planned = False
        self.clock_s = end_s = self._end_s
        batch, shares = self._batch, self._prefill.shares
        if batch.planned:
            for work in self._apply_decode(batch.planned):
                self._finish_work(work)
                self._events.append((end_s, work, True))
        elif shares:
            self.totals.steps += 1
        if shares:
            self._prefill.shares = []
            for work, take in shares:
                if work.phase is _PREFILL:  # otherwise it was aborted
                    self._computed(work, take, end_s)

    def _apply_decode(self, steps: int) -> Sequence[Work]:
        """Apply `steps` of the batch. Returns the work that has ended."""
        batch, totals = self._batch, self.totals
        totals.steps += steps
        totals.generated_tokens += steps * batch.width
        return batch.apply(steps)

    def _computed(self, work: Work, take: int, end_s: float) -> None:
        """Cache the pages of a chunk of `work` that is done. The last chunk brings the first token."""
        work.computed_tokens += take
        self.totals.prefill_uncached_tokens += take
        self.pool.keep(work, work.computed_tokens)
        if work.computed_tokens == work.prompt_tokens:
            self._first_token(work, end_s)

    def _first_token(self, work: Work, at_s: float) -> None:
        work.generated = 1
        work.first_token_s = at_s
        self.totals.generated_tokens += work.width
        self._events.append((at_s, work, False))
        if self.role == "prefill":
            work.phase = Phase.TRANSFER
            del self._running[work]
            self.transferring.add(work)
        elif work.output_tokens <= 1:
            self._finish_work(work)
            self._events.append((at_s, work, True))
        else:
            work.phase = _DECODE
            self._batch.join(work)

    def _finish_work(self, work: Work) -> None:
        if self.role == "aggregated" and work.width == 1 and 0 < work.computed_tokens == work.prompt_tokens:
            # The last token was sampled but not computed, so it has no KV.
            self.pool.keep(work, work.prompt_tokens + work.generated - 1)
        self.pool.release(work)
        self._running.pop(work, None)
        if self._prefill.unfinished is work:
            self._prefill.unfinished = None
        work.phase = _DONE
