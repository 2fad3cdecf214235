"""The engine: takes requests, gives them to a rank's scheduler, and ends each of them exactly once.

A `Job` is live from `submit` to `_close`, which alone removes it from the table and releases its pages. Before that,
`_note` writes its entry in the log of ended requests (the finish log), and then the client gets the end of the answer.
If a client disconnects, its job is aborted at once (SGLang notices within about 4 s).

In PD, the two legs of a request meet as `bootstrap.py` says.

Bounds: `max_queued` waiting jobs per rank besides the running ones, and the newest `FINISHED_MAX` entries of the finish
log. PD engines do not refuse for queue depth; there, the number of connections is the bound.
"""

import asyncio
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from warmroute_lab.engine.http.errors import Refusal
from warmroute_lab.engine.http.http1 import EngineExchange
from warmroute_lab.engine.model.hicache import BACKEND_NAME, FileStore, StorageBackend
from warmroute_lab.engine.model.model import Phase, Role, Scheduler, Step, Work
from warmroute_lab.engine.model.tiers import HostTier
from warmroute_lab.engine.request.api import encode
from warmroute_lab.engine.request.job import Job
from warmroute_lab.engine.request.plan import jobs_of
from warmroute_lab.engine.request.prompt_request import PromptRequest
from warmroute_lab.engine.request.reply import reply_to
from warmroute_lab.engine.serving import legs
from warmroute_lab.engine.serving.bootstrap import BootstrapCall, BootstrapRooms, Handover, Meet
from warmroute_lab.engine.serving.kv_feed import KvFeed
from warmroute_lab.engine.settings import Settings

# Runs the modelled steps of one scheduler at the pace of the wall clock, and passes on the tokens of each step.
#
# The schedule is the model's: a step starts at the virtual time at which the last one ended, whatever the wall clock
# shows. A process that is late (too many streams for its core) sends tokens late. To catch up, it takes several steps
# in one turn of the event loop. The virtual times that it reports do not change.

MAX_STEPS_PER_TURN = 8
"""The steps that a late process applies before the event loop gets to write and read."""


class VirtualClock:
    """Virtual seconds since the start of the engine: wall seconds times `speed`."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self._zero_s = time.monotonic()

    def now_s(self) -> float:
        return (time.monotonic() - self._zero_s) * self.speed

    def wall_s(self, virtual_s: float) -> float:
        return virtual_s / self.speed


class Pacer:
    """Drives one `Scheduler`. In each step, `on_token` is called once for each work with a new token.

    `on_step` is called with each ended step after its tokens, and with None if the scheduler has nothing to do.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        clock: VirtualClock,
        on_token: Callable[[Work], None],
        on_step: Callable[[Step | None], None] = lambda _: None,
    ) -> None:
        self.scheduler = scheduler
        self._clock = clock
        self._on_token = on_token
        self._on_step = on_step
        self._step: Step | None = None
        self._handle: asyncio.Handle | None = None
        self._probes: list[Callable[[], None]] = []

    def wake(self) -> None:
        """Begin a step if none is under way. Called when work was added or released."""
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def probe(self, done: Callable[[], None]) -> None:
        """Call `done` when the scheduler next completes a step, or at once if it has nothing to do."""
        if self._step is None and self._handle is None:
            done()
        else:
            self._probes.append(done)

    def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        self._handle = None
        for _ in range(MAX_STEPS_PER_TURN):
            step = self._step
            if step is None:
                step = self._step = self.scheduler.begin()
                if step is None:
                    self._on_step(None)
                    break
                for work in step.delivered:
                    self._on_token(work)
            ahead_s = step.end_s - self._clock.now_s()
            if ahead_s > 0:
                self._handle = loop.call_later(self._clock.wall_s(ahead_s), self._turn)
                return
            self._step = None
            for work in self.scheduler.finish(step):
                self._on_token(work)
            self._on_step(step)
            self._answer_probes()
        else:
            self._handle = loop.call_soon(self._turn)
        self._answer_probes()

    def _answer_probes(self) -> None:
        probes, self._probes = self._probes, []
        for done in probes:
            done()


FINISHED_MAX = 20_000
DEFAULT_BOOTSTRAP_PORT = 8998


class EmbeddedEngine:
    def __init__(self, settings: Settings) -> None:
        """Raises: OSError, if a port of KV events, the storage tier or the request log cannot be opened."""
        self.settings = settings
        self.started_at = time.time()
        self.startup_s = time.process_time()
        self.draining = False
        self.emptied = asyncio.Event()
        self.clock = VirtualClock(settings.speed)
        self.feed: KvFeed | None = None
        if settings.kv_events is not None:
            self.feed = KvFeed(settings.kv_events, settings.dp_size, settings.page_size, bigram=settings.bigram)
        self.pacers = [self._pacer(rank) for rank in range(settings.dp_size)]
        self.storage: StorageBackend | None = None
        if settings.hicache is not None:
            self.storage = StorageBackend(settings.hicache, settings.models[0], settings.page_size, self._use_store)
        self.jobs: dict[str, Job] = {}
        self.finished: deque[dict[str, Any]] = deque(maxlen=FINISHED_MAX)
        self.finished_total = 0
        self.aborted_total = 0
        self.ttft_sum_s = 0.0
        self.ttft_count = 0
        self.bootstrap_rooms = BootstrapRooms(settings.bootstrap_timeout_s, self._met, self._lost)
        self._decode_bootstrap_rooms: set[int] = set()
        self._next_rank = 0
        self._log_fd: int | None = None
        if settings.request_log is not None:
            self._log_fd = os.open(settings.request_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def _pacer(self, rank: int) -> Pacer:
        settings, feed = self.settings, self.feed
        scheduler = Scheduler(
            role=settings.role,
            kv_tokens=settings.kv_tokens,
            page_size=settings.page_size,
            max_running=max(1, settings.max_running // settings.dp_size),
            costs=settings.costs,
            host=None
            if settings.hicache is None or settings.role == "decode"
            else HostTier(settings.hicache.host_tokens(settings.kv_tokens, settings.kv_bytes_per_token)),
            listener=None if feed is None else feed.recorders[rank],
        )
        scheduler.pool.lookahead_tokens = int(settings.bigram)
        if feed is None:
            return Pacer(scheduler, self.clock, self._on_token)
        return Pacer(scheduler, self.clock, self._on_token, partial(feed.after_step, rank))

    def _use_store(self, store: FileStore | None, prefetch_threshold_tokens: int) -> None:
        for scheduler in self.schedulers:
            tiers = scheduler.pool.tiers
            if tiers is not None:
                tiers.storage = store
                tiers.prefetch_threshold_tokens = prefetch_threshold_tokens

    @property
    def schedulers(self) -> list[Scheduler]:
        return [pacer.scheduler for pacer in self.pacers]

    # --- requests ------------------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[PromptRequest], exchange: EngineExchange) -> None:
        """Accept the prompts of one request, or raise `Refusal`."""
        for request in requests:
            if request.rid in self.jobs:
                raise Refusal(400, f"Duplicate request ID detected: {request.rid}")
        jobs = jobs_of(self.settings, requests, [self._rank(request) for request in requests])
        for job in jobs:
            self._check_size(job.work, self.schedulers[job.dp_rank])
            if self.storage is not None and self.storage.store is not None:
                job.storage_backend = BACKEND_NAME
        reply = reply_to(jobs, exchange)
        for job in jobs:
            job.reply = reply
        if (refusal := self._turned_away(jobs)) is not None:
            jobs[0].drop()
            reply.fail(jobs[0], refusal)
            return
        exchange.on_leave = lambda: self._leave(jobs)
        for job in jobs:
            self._start(job)

    def abort(self, rid: str, *, everything: bool) -> None:
        """Abort as SGLang does: if a live request has the id `rid`, all whose ids begin with it; otherwise none."""
        if everything or rid in self.jobs:
            hit = [job for name, job in self.jobs.items() if everything or name.startswith(rid)]
            for job in hit:
                self._abort(job, notify=True)

    def idle(self) -> bool:
        return not self.jobs and all(scheduler.idle() for scheduler in self.schedulers)

    def switch_role(self, role: Role) -> None:
        """Become a prefill or decode engine. Call only while idle: it empties the caches and makes new schedulers."""
        self.flush()
        self.settings = replace(self.settings, role=role)
        self.pacers = [self._pacer(rank) for rank in range(self.settings.dp_size)]

    def flush(self) -> bool:
        """Empty the caches if the engine is idle. Returns whether the engine was idle."""
        if not self.idle():
            return False
        for rank, scheduler in enumerate(self.schedulers):
            scheduler.flush()
            if self.feed is not None:
                self.feed.rest(rank)
        return True

    # --- acceptance ----------------------------------------------------------------------------------------------

    def _check_size(self, work: Work, scheduler: Scheduler) -> None:
        if not scheduler.fits(work.prompt_tokens, work.output_tokens, work.width):
            raise Refusal(
                400,
                f"Input length ({work.prompt_tokens} tokens) and output exceed the maximum allowed length "
                f"({self.settings.kv_tokens} tokens). Use a shorter input or fewer choices.",
            )

    def _turned_away(self, jobs: Sequence[Job]) -> Refusal | None:
        """The scheduler's refusal, or None. A refusal is sent as the job's answer, so a stream begins with 200."""
        if self._full(jobs):
            return Refusal(503, "The request queue is full.")
        role = self.settings.role
        refusals = (legs.lacking(role, job.request) or self._taken(role, job) for job in jobs)
        return next((refusal for refusal in refusals if refusal is not None), None)

    def _taken(self, role: Role, job: Job) -> Refusal | None:
        if role == "prefill":
            return self.bootstrap_rooms.taken(job.bootstrap_room)
        if role == "decode" and job.bootstrap_room in self._decode_bootstrap_rooms:
            return Refusal(500, f"Duplicate or cancelled bootstrap room {job.bootstrap_room}")
        return None

    def _full(self, jobs: Sequence[Job]) -> bool:
        """Whether a rank's queue lacks room for the request's jobs. PD engines never refuse for queue depth."""
        if self.settings.role != "aggregated":
            return False
        coming = Counter(job.dp_rank for job in jobs)
        queues = [len(scheduler.waiting) for scheduler in self.schedulers]
        return any(queues[rank] + number > self.settings.max_queued for rank, number in coming.items())

    def _start(self, job: Job) -> None:
        self.jobs[job.rid] = job
        self.emptied.clear()
        if self.settings.role == "prefill":
            self.bootstrap_rooms.offer(job.bootstrap_room, job)
            return
        pacer = self.pacers[job.dp_rank]
        now_s = self.clock.now_s()
        pacer.scheduler.add(job.work, now_s)
        if self.settings.role == "decode":
            self._decode_bootstrap_rooms.add(job.bootstrap_room)
            self._grant(pacer, now_s)
        else:
            pacer.wake()

    def _rank(self, request: PromptRequest) -> int:
        size = self.settings.dp_size
        if request.dp_rank is not None:
            if not 0 <= request.dp_rank < size:
                raise Refusal(400, f"routed_dp_rank={request.dp_rank} out of range [0, {size})")
            return request.dp_rank
        if self.settings.role == "prefill" and request.bootstrap_room is not None:
            return request.bootstrap_room % size
        rank, self._next_rank = self._next_rank, (self._next_rank + 1) % size
        return rank

    # --- progress ------------------------------------------------------------------------------------------------

    def _on_token(self, work: Work) -> None:
        job: Job = work.owner
        if work.phase is Phase.TRANSFER:
            transfer_s = self.settings.costs.transfer_s(work.prompt_tokens)
            delay_s = self.clock.wall_s(transfer_s)
            asyncio.get_running_loop().call_later(delay_s, self._transferred, job, transfer_s)
            return
        if work.generated == job.fault_at:
            self._fail(job, Refusal(500, "The script of this request asked for an error."))
            return
        job.reply.token(job)
        if work.phase is Phase.DONE and self._is_live(job):  # not if another prompt of its batch failed in this step
            self._note(job, job.answers[0].finish_reason)
            job.reply.finish(job)
            self._close(job)

    def _transferred(self, job: Job, transfer_s: float) -> None:
        """Prefill role: the decode engine has the KV, so answer its call and the client."""
        if not self._is_live(job):
            return
        ttft_s = job.ttft_s() or 0.0
        work = job.work
        handover = Handover(work.cached_tokens, ttft_s, transfer_s, work.cached_host_tokens, work.cached_storage_tokens)
        self.bootstrap_rooms.hand_over(job.bootstrap_room, handover)
        job.reply.token(job)
        self._note(job, job.answers[0].finish_reason)
        job.reply.finish(job)
        self.pacers[job.dp_rank].scheduler.release(job.work, job.work.arrival_s + ttft_s + transfer_s)
        self._close(job)

    def _met(self, job: Job, meet: Meet) -> None:
        """Prefill role: the decode engine has called; queue the prompt."""
        problem = legs.mismatch(job, meet, self.settings.dp_size)
        if problem is not None:
            self._lost(job, problem)
        else:
            pacer = self.pacers[job.dp_rank]
            pacer.scheduler.add(job.work, self.clock.now_s())
            pacer.wake()

    def _grant(self, pacer: Pacer, now_s: float) -> None:
        """Decode role: allocate pages, and call the prefill engine of each job that got them."""
        for work in pacer.scheduler.allocate(now_s):
            job: Job = work.owner
            request = job.request
            job.link = BootstrapCall(
                request.bootstrap_host or "",
                request.bootstrap_port or DEFAULT_BOOTSTRAP_PORT,
                job.bootstrap_room,
                Meet(request.rid, work.prompt_tokens, request.prefill_dp_rank),
                partial(self._got, job),
            )

    def _got(self, job: Job, handover: Handover | None, problem: str) -> None:
        """Decode role: the call to the prefill engine has ended."""
        job.link = None
        if handover is None:
            self._lost(job, problem)
            return
        job.prefill_ttft_s = handover.ttft_s + handover.transfer_s
        pacer = self.pacers[job.dp_rank]
        job.work.cached_host_tokens = handover.cached_host_tokens
        job.work.cached_storage_tokens = handover.cached_storage_tokens
        pacer.scheduler.deliver(job.work, handover.cached_tokens, self.clock.now_s())
        pacer.wake()

    # --- endings -------------------------------------------------------------------------------------------------

    def _leave(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._abort(job, notify=False)

    def _abort(self, job: Job, *, notify: bool) -> None:
        if not self._is_live(job):
            return
        role = self.settings.role
        if notify and legs.waits(role, job):
            self._lost(job, legs.ABORTED)
            return
        job.drop()
        self._note(job, "abort", aborted=True)
        if notify:
            job.reply.abort(job)
        self._close(job, problem="aborted")

    def _lost(self, job: Job, problem: str) -> None:
        self._fail(job, legs.failed(self.settings.role, job, problem), problem)

    def _fail(self, job: Job, refusal: Refusal, problem: str | None = None) -> None:
        """End a failed prompt and its whole batch. PD partners get the `problem`, or else the refusal's message."""
        if self.settings.role == "aggregated":  # a PD engine reports tokens even of a prompt that it never computed
            job.drop()
        failed = [other for other in self.jobs.values() if other.reply is job.reply]
        for other in failed:
            self._note(other, "abort", aborted=True)
        job.reply.fail(job, refusal)
        for other in failed:
            self._close(other, problem=problem or refusal.message)

    def _is_live(self, job: Job) -> bool:
        return self.jobs.get(job.rid) is job

    def _note(self, job: Job, finish_reason: str, *, aborted: bool = False) -> None:
        """Write the log entry of a job that ends.

        Call this before the end of its answer is sent. Bytes to a client go out at once, so a kill between the two
        would leave an answer that is in no log.
        """
        entry = self._entry(job, finish_reason, aborted=aborted)
        self.finished.append(entry)
        if self._log_fd is not None:
            os.write(self._log_fd, encode(entry) + b"\n")  # one write, so that kill -9 leaves whole lines
        self.finished_total += 1
        self.aborted_total += aborted
        if entry["ttft_virtual_ms"] is not None:
            self.ttft_count += 1
            self.ttft_sum_s += entry["ttft_virtual_ms"] / 1000

    def _close(self, job: Job, problem: str | None = None) -> None:
        """The one end of a job: remove it from the table, release its pages, notify its partner."""
        del self.jobs[job.rid]
        pacer = self.pacers[job.dp_rank]
        work = job.work
        if job.request.bootstrap_room is not None:
            self._decode_bootstrap_rooms.discard(job.request.bootstrap_room)
            if self.settings.role == "prefill" and problem is not None:
                self.bootstrap_rooms.fail(job.request.bootstrap_room, problem)
        if job.link is not None:
            job.link.close()
            job.link = None
        if not self.jobs:
            self.emptied.set()
        pacer.scheduler.abort(work)
        if self.settings.role == "decode":
            # The pages that a step freed were free at its virtual end, so they are granted from then on, even if the
            # wall clock is late.
            self._grant(pacer, pacer.scheduler.clock_s if problem is None else self.clock.now_s())
        pacer.wake()

    def _entry(self, job: Job, finish_reason: str, *, aborted: bool) -> dict[str, Any]:
        ttft_s = job.ttft_s()
        return {
            "rid": job.request.rid,
            "role": self.settings.role,
            "dp_rank": job.dp_rank,
            "prompt_tokens": job.work.prompt_tokens,
            "cached_tokens": job.work.cached_tokens,
            "completion_tokens": job.completion_tokens(),
            "finish_reason": finish_reason,
            "ttft_virtual_ms": None if ttft_s is None else round(ttft_s * 1000, 3),
            "aborted": aborted,
        }
