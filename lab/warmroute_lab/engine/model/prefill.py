"""The prefill of a step: which prompts fill the step's chunk, with how many tokens each.

A chunk has at most `chunk_tokens` uncached prompt tokens: first the rest of a prompt that was begun earlier, then
waiting prompts in order of arrival. The prefix cache is looked up when a prompt is admitted, so a prompt that waited
finds what earlier prompts have computed.

Prompts are admitted in order of arrival, while the KV pool has room (`pool.py`): if the head of the queue does not fit,
it blocks all later work. With `pin_waiting` the cached pages of waiting work are pinned: like those of running work,
they are not evicted. If the head does not fit for this reason while nothing runs, the latest arrivals lose their pins.
SGLang does not pin pages of waiting work.

Cache tiers below the device (`tiers.py`) are looked up at admission. Their pages are loaded in the step in which the
prompt begins, and lengthen this step. The model adds the whole time of the copy from the host to the step, though
SGLang hides part of the copy behind the computation, layer by layer. The fetch from storage starts when the request
arrives, so the model adds only the time that the fetch still takes when the step begins.
"""

from collections import deque

from warmroute_backend.costs import Costs
from warmroute_lab.engine.model.pool import KvPool
from warmroute_lab.engine.model.work import Phase, Work, WorkTotals

_PREFILL = Phase.PREFILL


class Prefill:
    """The chunk that is planned or runs, and the prompt that is computed in part (`unfinished`)."""

    __slots__ = ("_costs", "_max_running", "_pool", "_running", "_totals", "_waiting", "load_s", "shares", "unfinished")

    def __init__(
        self,
        costs: Costs,
        pool: KvPool,
        totals: WorkTotals,
        waiting: deque[Work],
        running: dict[Work, None],
        max_running: int,
    ) -> None:
        """`waiting` and `running` are the scheduler's collections: admitted work moves from the first to the second."""
        self._costs = costs
        self._pool = pool
        self._totals = totals
        self._waiting = waiting
        self._running = running
        self._max_running = max_running
        self.unfinished: Work | None = None
        self.shares: list[tuple[Work, int]] = []
        """The work in the chunk, each with its number of tokens."""
        self.load_s = 0.0
        """How much the tiers below the device lengthen the step."""

    def plan(self, start_s: float) -> int:
        """Fill a chunk for a step that starts at `start_s`. Returns its tokens."""
        self.shares = []
        self.load_s = 0.0
        budget = chunk = self._costs.chunk_tokens
        if self.unfinished is not None:
            budget -= self._take(self.unfinished, budget)
        waiting = self._waiting
        while budget > 0 and waiting and len(self._running) < self._max_running:
            work = waiting[0]
            if work.arrival_s > start_s or not self._admit(work, start_s):
                break
            waiting.popleft()
            budget -= self._take(work, budget)
        return chunk - budget

    def remaining_tokens(self) -> int:
        work = self.unfinished
        return 0 if work is None else work.prompt_tokens - work.computed_tokens

    def _take(self, work: Work, budget: int) -> int:
        remaining = work.prompt_tokens - work.computed_tokens
        take = min(remaining, budget)
        self.shares.append((work, take))
        self.unfinished = None if take == remaining else work
        return take

    def _admit(self, work: Work, start_s: float) -> bool:
        while not self._pool.admit(work):
            if self._running or not self._pool.unpin_last(self._waiting):
                return False
        work.phase = _PREFILL
        self._running[work] = None
        totals = self._totals
        totals.prompt_tokens += work.prompt_tokens
        totals.cached_tokens += work.cached_tokens
        host, storage = work.cached_host_tokens, work.cached_storage_tokens
        if host or storage:
            totals.cached_host_tokens += host
            totals.cached_storage_tokens += storage
            still_fetching_s = self._costs.fetch_s(storage) - (start_s - work.arrival_s)
            self.load_s += self._costs.load_s(host + storage) + max(0.0, still_fetching_s)
        return True
