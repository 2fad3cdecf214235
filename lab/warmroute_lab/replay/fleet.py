"""The fleet in a replay: workers with the scheduler model of the embedded engine, and the turns under way.

Policies see exact values of this moment: the blocks that a worker has cached, its uncached tokens still to compute, and
its outstanding requests and their tokens. No real router knows all of these values, so a replay compares policies at
their best.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any

import msgspec

from warmroute_lab.engine.model.model import Role, Scheduler, Work
from warmroute_lab.replay.trace import Request


class Store:
    """The storage that a region's workers share: at most `max_blocks` keys, of which the most recently used stay."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._keys: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        if key not in self._keys:
            return False
        self._keys.move_to_end(key)  # type: ignore[arg-type]
        return True

    def add(self, key: int) -> None:
        self._keys[key] = None
        self._keys.move_to_end(key)
        if len(self._keys) > self._max_blocks:
            self._keys.popitem(last=False)


class ReplayTurn(msgspec.Struct, eq=False):
    """One request in the simulation: where and when it was sent, and its outcome. Times are virtual seconds."""

    request: Request
    arrived_s: float
    origin: str
    """The region that the client sent the request to."""
    worker: "Worker | None" = None
    work: Work | None = None
    """What `worker` has to do for the request; None when it is done or was lost."""
    decode: "Worker | None" = None
    decode_work: Work | None = None
    network_s: float = 0.0
    """Half a round trip between the client's region and that of `worker`; 0 if both are one region."""
    first_token_s: float = 0.0
    ended_s: float = 0.0
    cached_tokens: int = 0
    predicted_tokens: int | None = None
    """The cached tokens that the policy expected; None if it predicts none."""
    retries: int = 0
    held_tokens: int = 0
    """How many tokens of the prompt the cache tiers of one worker held, or were about to, when the turn was sent: the
    largest number of any worker. Set only if caches are watched."""
    here_tokens: int = 0
    """As `held_tokens`, but for `worker`."""
    after_evictions: bool = False
    """Whether any worker had evicted pages before the turn was sent."""
    state: Any = None
    """The policy's own state of this turn."""


class Worker:
    """A worker: one rank of an engine, its region, and its requests."""

    __slots__ = (
        "_estimates",
        "_waiting_estimate",
        "index",
        "name",
        "next_s",
        "region",
        "requests",
        "role",
        "scheduler",
        "tokens",
    )

    def __init__(self, index: int, region: str, role: Role, scheduler: Scheduler) -> None:
        self.index = index
        self.name = f"{region}-{role[0]}{index}" if region else f"w{index}"
        self.region = region
        self.role: Role = role
        self.scheduler = scheduler
        self.requests = 0
        """Requests sent here that have not ended."""
        self.tokens = 0
        """Prompt tokens of the requests that have not ended."""
        self.next_s = float("inf")
        self._estimates: deque[int] = deque()
        self._waiting_estimate = 0

    def restart(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.requests = self.tokens = self._waiting_estimate = 0
        self._estimates.clear()
        self.next_s = float("inf")

    def cached_tokens(self, request: Request, *, in_flight: bool = False) -> int:
        """Tokens of the prompt cached here now; with `in_flight`, also those that routed requests will compute.

        Never the whole prompt: an engine computes at least its last token.
        """
        scheduler = self.scheduler
        limit = (request.input_tokens - 1) // scheduler.page_size
        cache = scheduler.cache
        pages = cache.known(request.blocks, limit) if in_flight else cache.match(request.blocks, limit)[0]
        return pages * scheduler.page_size

    def held_tokens(self, request: Request) -> int:
        """Tokens of the prompt in any cache tier of this worker, now or once routed requests are computed."""
        scheduler = self.scheduler
        limit = (request.input_tokens - 1) // scheduler.page_size
        pages = scheduler.cache.known(request.blocks, limit)
        tiers = scheduler.pool.tiers
        if tiers is not None:
            pages = tiers.known(request.blocks, pages, limit)
        return pages * scheduler.page_size

    def pending_tokens(self) -> int:
        """Uncached prompt tokens still to compute.

        An admitted prompt counts with what is left of it, a waiting one with the estimate made when it was routed.
        """
        estimates = self._estimates
        while len(estimates) > len(self.scheduler.waiting):
            self._waiting_estimate -= estimates.popleft()
        totals = self.scheduler.totals
        admitted = totals.prompt_tokens - totals.cached_tokens - totals.prefill_uncached_tokens
        return self._waiting_estimate + admitted

    def expect(self, uncached_tokens: int) -> None:
        """Note the estimate for a turn that is about to be added to the scheduler."""
        self.pending_tokens()
        self._estimates.append(uncached_tokens)
        self._waiting_estimate += uncached_tokens


class ReplayFleet:
    """All workers, and those that may get work now. Policies read it; the simulation changes it."""

    def __init__(self, workers: list[Worker]) -> None:
        self.workers = workers
        self.up: set[int] = set()
        self.prefills: list[Worker] = []
        """Usable workers that compute prompts: aggregated ones, or the prefill side of a split fleet."""
        self.decodes: list[Worker] = []
        """Usable workers of the decode side of a split fleet."""
        self.set_up(worker.index for worker in workers)

    def set_up(self, indexes: Iterable[int]) -> None:
        self.up = set(indexes)
        usable = [worker for worker in self.workers if worker.index in self.up]
        self.prefills = [worker for worker in usable if worker.role != "decode"]
        self.decodes = [worker for worker in usable if worker.role == "decode"]
