"""The event loop: a trace, a fleet and a policy on one virtual clock.

Events are arrivals, and what a router can observe of a worker: first tokens and ends of answers. Between these events
only the steps that compute prompts are simulated (see `warmroute_lab.engine.model.model`). A worker is observed at the
end of a step or of a run of steps. This observation precedes all other events of that instant, so the worker's state is
current when a policy reads it.

Open-loop requests come at their time divided by `speed_up`. A turn that follows another waits for the end of that turn,
and then for its own think time, at any speed-up. So in closed loop `speed_up` only compresses the starts of sessions.

If a turn is placed outside its client's region, it arrives half a round trip late, and its tokens reach the client half
a round trip late. This holds, too, if a load balancer in front of the proxies sends a turn to another region.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from heapq import heappop, heappush
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple

from warmroute_lab.engine.model.model import Role, Scheduler, Work
from warmroute_lab.replay.fleet import ReplayFleet, ReplayTurn, Worker
from warmroute_lab.replay.policy import Policy
from warmroute_lab.replay.results import SAMPLES, LoadSamples, Result, summary
from warmroute_lab.replay.trace import Request, Trace, mixed

PROGRESS_STEPS = 200
MAX_RUNNING = 512
FIRST = 1 << 48
"""Observations of workers come before all other events of an instant, so a router knows of them."""

_tokens = attrgetter("tokens")

Progress = Callable[[int, int], None]
"""Called with the number of ended turns and the number of all turns."""


def make_scheduler(
    role: Role, kv_tokens: int, block_tokens: int, *, max_running: int = MAX_RUNNING, **options: Any
) -> Scheduler:
    """A scheduler that computes 20,000 uncached tokens/s and pins blocks of waiting work; `options`: of `Scheduler`."""
    return Scheduler(
        role=role, kv_tokens=kv_tokens, page_size=block_tokens, max_running=max_running, pin_waiting=True, **options
    )


class WorkerChange(NamedTuple):
    """Something that happens to a worker: it is lost with all its work (`remove`), it is lost and comes back empty at
    once (`restart`), or it takes work from now on (`add`)."""

    at_s: float
    kind: str
    worker: int


class Changes(NamedTuple):
    """What happens to workers during a run. `renew` makes a new scheduler for a worker that restarts."""

    changes: Iterable[WorkerChange]
    renew: Callable[[Worker], Scheduler]


class Ingress(NamedTuple):
    """The regions at which turns come in. If `each_turn`, every turn comes in at a random region; otherwise all turns
    of a session come in at one random region.

    For a share of the sessions, `home_share`, all turns come in at one region even if `each_turn`: a load balancer in
    front of the proxies knows these sessions. Their clients are in random regions like those of other sessions.
    """

    regions: Sequence[str] = ("",)
    each_turn: bool = False
    rtt_s: float = 0.0
    """The round trip between any two regions."""
    home_share: float = 0.0


class Simulation:
    """One run. Make it, `run` it, read the `Result`."""

    def __init__(
        self,
        trace: Trace,
        fleet: ReplayFleet,
        policy: Policy,
        speed_up: float = 1.0,
        progress: Progress | None = None,
        *,
        ingress: Ingress | None = None,
        changes: Changes | None = None,
        skip_share: float = 0.0,
    ) -> None:
        """The first `skip_share` of the arrivals warm the caches up and are left out of the figures."""
        self.trace = trace
        self.fleet = fleet
        self.policy = policy
        policy.later = self.at
        policy.send = self._send
        policy.is_last = self._is_last
        self.speed_up = speed_up
        self.turns: list[ReplayTurn] = []
        self._ingress = ingress or Ingress()
        self._changes = changes
        self._skip_share = skip_share
        self.watch_caches = False
        """Whether to note, when a turn is sent, how many of its tokens are in caches."""
        self._progress = progress
        self._progress_step = max(1, len(trace.requests) // PROGRESS_STEPS)
        self._done = 0
        self._ahead = 0  # turns that follow no other turn and have not come yet
        self._followers: dict[int, list[Request]] = {}
        self._heap: list[tuple[float, int, Worker | ReplayTurn | Callable[[float], None]]] = []
        self._count = 0
        self._samples = LoadSamples()

    def _is_last(self, turn: ReplayTurn) -> bool:
        return turn.request.number in self._last_turns

    @cached_property
    def _last_turns(self) -> frozenset[int]:
        return frozenset({request.session: request.number for request in self.trace.requests}.values())

    def run(self) -> Result:
        cpu_s = time.process_time()
        starts = self._starts()
        if starts:
            self._samples.interval_s = starts[-1].arrived_s / SAMPLES
            if self.policy.report_every_s:
                self.at(starts[0].arrived_s, self._report)
        if self._changes is not None:
            for change in sorted(self._changes.changes):
                self.at(change.at_s, partial(self._change, change, self._changes.renew))
        self._ahead = len(starts)
        for turn in starts:
            self._ahead -= 1
            self._play(turn.arrived_s)
            self._arrive(turn)
        self._play(inf)
        assert self._done == len(self.trace.requests), "a turn was never served"
        counted = self.turns[int(len(self.turns) * self._skip_share) :]
        return Result(
            self.trace.name,
            self.speed_up,
            **summary(counted),
            imbalance=self._samples.imbalance(),
            simulated_s=max((turn.ended_s for turn in self.turns), default=0.0),
            cpu_s=time.process_time() - cpu_s,
            load_times_s=self._samples.times_s,
            load_tokens=self._samples.tokens,
        )

    def at(self, when_s: float, what: ReplayTurn | Callable[[float], None]) -> None:
        """At `when_s`, let a turn arrive or call a function."""
        self._count += 1
        heappush(self._heap, (when_s, self._count, what))

    # --- arrivals ------------------------------------------------------------------------------------------------

    def _starts(self) -> list[ReplayTurn]:
        """The turns that follow no other turn, in order of time. Registers the others as followers."""
        starts = []
        for request in self.trace.requests:
            if request.after is None:
                starts.append(ReplayTurn(request, request.at_s / self.speed_up, self._origin(request)))
            else:
                self._followers.setdefault(request.after, []).append(request)
        starts.sort(key=lambda turn: turn.arrived_s)
        return starts

    def _origin(self, request: Request) -> str:
        regions, _, _, home_share = self._ingress
        if home_share and mixed([request.session], 1)[0] < home_share * 2.0**64:
            return regions[mixed([request.session], 2)[0] % len(regions)]
        return self._client_region(request)

    def _client_region(self, request: Request) -> str:
        regions, each_turn, _, _ = self._ingress
        if len(regions) == 1:
            return regions[0]
        drawn_by = request.number if each_turn else request.session
        return regions[mixed([drawn_by], 2)[0] % len(regions)]

    def _play(self, until_s: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            now_s, _, what = heappop(heap)
            if isinstance(what, Worker):
                if what.next_s == now_s:  # otherwise it was observed since, or will be later
                    self._observe(what, now_s)
            elif isinstance(what, ReplayTurn):
                self._arrive(what)
            else:
                what(now_s)

    def _arrive(self, turn: ReplayTurn) -> None:
        self.turns.append(turn)
        self._place(turn, turn.arrived_s)
        self._samples.add(list(map(_tokens, self.fleet.workers)), turn.arrived_s)

    def _place(self, turn: ReplayTurn, now_s: float) -> None:
        """Place a turn and send it, unless the policy lets it wait."""
        chosen = self.policy.choose(turn, now_s)
        if chosen is not None:
            self._send(turn, chosen, now_s)

    def _send(self, turn: ReplayTurn, chosen: Worker, now_s: float) -> None:
        turn.worker = chosen
        request = turn.request
        if self.watch_caches:
            turn.held_tokens = max((worker.held_tokens(request) for worker in self.fleet.prefills), default=0)
            turn.here_tokens = chosen.held_tokens(request)
            turn.after_evictions = any(worker.scheduler.cache.evicted_pages for worker in self.fleet.prefills)
        chosen.requests += 1
        chosen.tokens += request.input_tokens
        turn.work = Work(request.input_tokens, request.output_tokens, request.blocks, owner=turn)
        turn.network_s = 0.0 if chosen.region == self._client_region(request) else self._ingress.rtt_s / 2
        if turn.network_s:
            self.at(now_s + turn.network_s, partial(self._land, turn, turn.work))
        else:
            self._land(turn, turn.work, now_s)

    def _land(self, turn: ReplayTurn, work: Work, now_s: float) -> None:
        """Let a turn arrive at its worker, unless the worker was lost since the turn was sent."""
        if turn.work is work:
            assert turn.worker is not None
            self._add(turn.worker, work, now_s)

    def _add(self, worker: Worker, work: Work, now_s: float) -> None:
        if self.policy.exact:
            worker.expect(work.prompt_tokens - worker.cached_tokens(work.owner.request))
        worker.scheduler.add(work, now_s)
        self._schedule(worker)

    # --- what workers do -----------------------------------------------------------------------------------------

    def _schedule(self, worker: Worker) -> None:
        next_s = worker.scheduler.next_event_s()
        if next_s != worker.next_s:
            worker.next_s = next_s
            if next_s != inf:
                self._count += 1
                heappush(self._heap, (next_s, self._count - FIRST, worker))

    def _observe(self, worker: Worker, now_s: float) -> None:
        """Apply the events of a worker up to this time."""
        worker.next_s = inf
        for at_s, work, ended in worker.scheduler.advance(now_s):
            if ended:
                self._ended(work.owner, at_s)
            else:
                self._started(work.owner, at_s)
        self._schedule(worker)

    def _started(self, turn: ReplayTurn, now_s: float) -> None:
        turn.first_token_s = now_s + turn.network_s
        self.policy.started(turn, now_s)

    def _ended(self, turn: ReplayTurn, now_s: float) -> None:
        work = turn.work
        assert work is not None
        turn.ended_s = ended_s = now_s + turn.network_s
        turn.cached_tokens = work.cached_tokens
        self._release(turn)
        self.policy.ended(turn, now_s)
        turn.work = turn.decode_work = turn.state = None
        self._done += 1
        if self._progress is not None and self._done % self._progress_step == 0:
            self._progress(self._done, len(self.trace.requests))
        for request in self._followers.get(turn.request.number, ()):
            self.at(ended_s + request.at_s, ReplayTurn(request, ended_s + request.at_s, self._origin(request)))

    def _release(self, turn: ReplayTurn) -> None:
        worker = turn.worker
        assert worker is not None
        worker.requests -= 1
        worker.tokens -= turn.request.input_tokens

    # --- what happens to workers ---------------------------------------------------------------------------------

    def _report(self, now_s: float) -> None:
        """Let the policy read the engines' reports, and schedule the next report if events remain."""
        self.policy.report(now_s)
        if self._heap or self._ahead:
            self.at(now_s + self.policy.report_every_s, self._report)

    def _change(self, change: WorkerChange, renew: Callable[[Worker], Scheduler], now_s: float) -> None:
        worker = self.fleet.workers[change.worker]
        stays = change.kind == "restart" and worker.index in self.fleet.up
        up = self.fleet.up - {worker.index} if change.kind == "remove" else self.fleet.up | {worker.index}
        lost: list[ReplayTurn] = []
        if change.kind != "add":
            lost = [turn for turn in self.turns if turn.worker is worker and turn.work is not None]
            worker.restart(renew(worker))
        self.fleet.set_up(up)
        if stays:
            self.policy.restarted(worker, now_s)
        else:
            self.policy.changed(now_s)
        for turn in lost:
            self.policy.lost(turn, now_s)
            turn.work = turn.state = None
            turn.retries += 1
            turn.first_token_s = 0.0
        for turn in lost:
            self._place(turn, now_s)
