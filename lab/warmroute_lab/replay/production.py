"""The policy that production runs: the same `core.Router`, with the inputs that a proxy would have.

A router knows a prompt by its chain: hashes of the prompt up to certain positions (cuts). Here block ids stand for the
hashes, and the cuts are the ends of the blocks, of the prompt, and of the previous turn's prompt. A token counts as 4
bytes, so the learned bytes per token are exact; a real proxy is a few percent off. Like a real proxy, the simulated
proxy observes the first token and the end of a turn, and the cached tokens that the engine reports at the end. Once a
second it reads each worker's `/v1/loads`, with the size of its KV pool. Tokens between the first token and the end of a
turn are not observed (`Router.progress` is not called): until a turn ends, only its prompt counts. With `event_lag_s`
the proxy also gets each worker's KV events, delayed by that time.

Each region has `routers` proxies, and requests go to them in rotation. Without `share_lag_s` they know of each other
only what engines report. With it they send each other their events, delayed by that time, as processes of one proxy do,
or proxies that name each other in their configuration. The regions are peers, which forward turns to each other. A
client that names its session sends the region that served it last (the home hint), and its turns may be forwarded
there; other turns stay in the region of their arrival. The second proxy of a forwarded turn decides at the same moment
as the first one; in reality, it would decide half a round trip later.

If a trace names no sessions, prompts that continue each other are one session. A key that the proxy derives from
prompts would group them in the same way.
"""

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any, Final

import msgspec

from warmroute_lab.engine.model.model import Scheduler
from warmroute_lab.engine.model.work import Work
from warmroute_lab.replay.fleet import ReplayFleet, ReplayTurn, Worker
from warmroute_lab.replay.policy import Policy
from warmroute_lab.replay.tenants import tenants_of
from warmroute_lab.replay.trace import Request, Trace, mixed
from warmroute_lab.replay.waiting import ProxyQueue
from warmroute_proxy.core.cache.return_times import OVER, PERSON, TOOLS, UNKNOWN
from warmroute_proxy.core.cache.tiers import Tier
from warmroute_proxy.core.load.engine_loads import EngineLoads
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.fleet import Peer
from warmroute_proxy.core.placement.fleet import Worker as CoreWorker
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.replicas.event_stream import Inbox, Outbox
from warmroute_proxy.core.replicas.peer_events import Event
from warmroute_proxy.core.replicas.replica import Replica

# Hints of clients about what a proxy cannot know: a turn says how soon the session's next turn comes; after the last
# turn, the client says that the session is over.

SOON_S: Final = 20.0
"""If the next turn comes within this time, it counts as one that waited for tools; if later, for a person."""


class Hints:
    """The hints of a trace, by request number, drawn for a share of its turns and sessions."""

    __slots__ = ("by_turn", "last_turns")

    def __init__(self, trace: Trace, hinting_share: float, ending_share: float) -> None:
        """`hinting_share`: the share of turns that say when the next one comes; `ending_share`: the share of sessions
        whose client says that they are over."""
        self.by_turn = _by_turn(trace, hinting_share)
        self.last_turns = _last_turns(trace, ending_share)


def _by_turn(trace: Trace, share: float) -> dict[int, int]:
    if not share:
        return {}
    found = {}
    for request in trace.requests:
        found[request.number] = OVER
        if request.after is not None:
            found[request.after] = TOOLS if request.at_s <= SOON_S else PERSON
    limit = share * 2.0**64
    return {number: kind for number, kind in found.items() if mixed([number], 4)[0] < limit}


def _last_turns(trace: Trace, share: float) -> frozenset[int]:
    if not share:
        return frozenset()
    limit = share * 2.0**64
    last_turns = {request.session: request.number for request in trace.requests}
    return frozenset(number for session, number in last_turns.items() if mixed([session], 5)[0] < limit)


BYTES_PER_TOKEN: Final = 4
EXPECTED_OUTPUT_TOKENS: Final = 256
"""The real proxy's default for requests without a maximum."""
REPORT_EVERY_S: Final = 1.0
RETRY_S: Final = 1.0
"""As in the real proxy."""
_UNDER_WAY: Final = -1


@dataclass(frozen=True, slots=True)
class Proxies:
    """The configuration of the proxies. `naming_share`: share of named sessions, which matters with several regions."""

    routers: int = 1
    share_lag_s: float | None = None
    share_loss: float = 0.0
    event_lag_s: float | None = None
    naming_share: float = 1.0
    rtt_s: float = 0.0
    host_cache: bool = False
    store: bool = False
    queue: bool = False
    """Whether requests beyond the engines' capacity wait at the router, as in production, or in the engines."""
    hinting_share: float = 0.0
    """The share of turns that say whether the next one comes within `SOON_S`, later, or never."""
    ending_share: float = 0.0
    """The share of sessions whose client says, once the last turn has ended, that it was the last one."""
    memory_wait_s: float = 0.0
    """How long a turn waits for KV memory at most, with `queue`; 0: it does not wait."""
    tenant_shares: tuple[float, ...] = ()
    """The share of sessions of each tenant, if there are several."""


class _Leg(msgspec.Struct, frozen=True, gc=False):
    """A turn at one proxy. A forwarded turn has two legs, one at each proxy."""

    router: Router
    routing: RoutingRequest
    ticket: Any


class Feed:
    """The `listener` of a worker's scheduler. Passes the worker's KV events to `on_event`, once that is set."""

    def __init__(self) -> None:
        self.on_event: Callable[[str, list[int], Tier], None] | None = None

    def stored(self, work: Work, start: int, stop: int, tier: Tier, *, computed: bool) -> None:  # noqa: ARG002 - as asked
        if self.on_event is not None:
            self.on_event("stored", list(work.keys[start:stop]), tier)

    def removed(self, keys: Sequence[int], tier: Tier) -> None:
        if self.on_event is not None:
            self.on_event("removed", list(keys), tier)

    def cleared(self) -> None:
        """Do nothing: a replay flushes no cache, and `Production.restarted` handles a restart."""


class _SharedBooks:
    """Routers of a region that send each other their events, like processes of one proxy or proxies that name each
    other (`event_stream`). A message takes `lag_s`. A share `loss` of messages or their confirmations is lost, and sent
    again after `RETRY_S`.
    """

    def __init__(self, policy: Policy, lag_s: float, loss: float) -> None:
        self.replicas: list[Replica] = []
        self._policy = policy
        self._lag_s = lag_s
        self._loss = loss
        self._outboxes: dict[tuple[int, int], Outbox] = {}
        self._inboxes: list[Inbox] = []
        self._under_way: set[tuple[int, int]] = set()
        self._messages = 0

    def add(self, replica: Replica) -> None:
        number = len(self.replicas)
        self.replicas.append(replica)
        self._inboxes.append(Inbox())
        for other in range(number):
            self._outboxes[number, other] = Outbox(number)
            self._outboxes[other, number] = Outbox(other)

    def send(self, number: int, event: Event, now_s: float) -> None:
        for link, outbox in self._outboxes.items():
            if link[0] == number:
                outbox.add(event)
                if link not in self._under_way:
                    self._under_way.add(link)
                    self._policy.later(now_s + self._lag_s, partial(self._arrive, link))

    def _arrive(self, link: tuple[int, int], now_s: float) -> None:
        """Deliver a message to its receiver, with all events that were added since it was sent, unless it is lost."""
        outbox, (_, receiver) = self._outboxes[link], link
        message = outbox.take(now_s, sys.maxsize)
        assert message is not None
        self._messages += 1
        drawn = mixed([self._messages], 3)[0] / 2.0**64
        if drawn >= self._loss / 2:
            self._inboxes[receiver].apply(message, self.replicas[receiver], now_s)
        if drawn < self._loss:
            self._policy.later(now_s + RETRY_S, partial(self._arrive, link))
            return
        outbox.confirmed()
        self._under_way.discard(link)


class Production(Policy):
    exact = False
    report_every_s = REPORT_EVERY_S

    def __init__(self, fleet: ReplayFleet, trace: Trace, proxies: Proxies, feeds: Sequence[Feed] = ()) -> None:
        """`feeds`: the feed of each worker; empty without KV events."""
        super().__init__(fleet)
        self._proxies = proxies
        self._by_name = {worker.name: worker for worker in fleet.workers}
        self._core = {worker: self._core_worker(worker) for worker in fleet.workers}
        self._regions = list(dict.fromkeys(worker.region for worker in fleet.workers))
        self._routers = {region: self._make_routers(region) for region in self._regions}
        self._block_tokens = trace.block_tokens
        self._derived = not trace.named_sessions
        self._keys = mixed(range(trace.sessions), 1)
        shares = self._proxies.tenant_shares
        self._tenants = [f"t{number}" for number in tenants_of(trace.sessions, shares)] if len(shares) > 1 else []
        self._named_below = ceil(self._proxies.naming_share * 2.0**64)
        self._homes: dict[int, str] = {}
        self._sent: dict[int, Request] = {}  # the last request of each session
        longest = max((request.input_tokens for request in trace.requests), default=0)
        block_bytes = trace.block_tokens * BYTES_PER_TOKEN
        self._ends = list(range(block_bytes, longest * BYTES_PER_TOKEN + block_bytes + 1, block_bytes))
        self._queues: dict[Router, ProxyQueue] = {}
        if self._proxies.queue:
            routers = [router for each in self._routers.values() for router in each]
            wait_s = self._proxies.memory_wait_s
            self._queues = {
                router: ProxyQueue(self, router, partial(self._waited, router), wait_s) for router in routers
            }
        self._hints = Hints(trace, self._proxies.hinting_share, self._proxies.ending_share)
        self._reported_steps: dict[Worker, int] = {}  # steps at the last report, or _UNDER_WAY
        for worker, feed in zip(fleet.workers, feeds, strict=False):
            feed.on_event = lambda kind, keys, tier, worker=worker: self._event_later(worker, kind, keys, tier)

    @property
    def waiting(self) -> int:
        return sum(queue.waiting for queue in self._queues.values())

    # --- decisions -----------------------------------------------------------------------------------------------

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker | None:
        origin = turn.origin if turn.origin in self._routers else self._regions[0]
        turn.state = []
        return self._arrived(turn, self._router(origin, turn.request), self._routing(turn.request), now_s)

    def _arrived(self, turn: ReplayTurn, router: Router, routing: RoutingRequest, now_s: float) -> Worker | None:
        """Place a turn that comes to a proxy from a client or another region's proxy. None if the turn waits there."""
        decision = router.place(routing, now_s)
        if self._queues:
            found = self._queues[router].enter(turn, routing, decision, now_s)
            if found is None:
                return None
            decision = found
        return self._dispatch(turn, router, routing, decision, now_s)

    def _dispatch(
        self, turn: ReplayTurn, router: Router, routing: RoutingRequest, decision: Decision, now_s: float
    ) -> Worker | None:
        turn.state.append(_Leg(router, routing, router.dispatched(routing, decision, now_s)))
        if decision.kind == "forward":
            return self._arrived(turn, self._router(decision.region, turn.request), routing.stay(), now_s)
        return self._by_name[decision.cache_worker]

    def _waited(
        self, router: Router, turn: ReplayTurn, routing: RoutingRequest, decision: Decision, now_s: float
    ) -> None:
        worker = self._dispatch(turn, router, routing, decision, now_s)
        if worker is not None:
            self.send(turn, worker, now_s)

    def choose_decode(self, turn: ReplayTurn, prefill: Worker, now_s: float) -> Worker:  # noqa: ARG002 - decided with it
        return self._by_name[turn.state[-1].ticket.decision.decode.id]

    def _router(self, region: str, request: Request) -> Router:
        routers = self._routers[region]
        return routers[request.number % len(routers)]

    def _routing(self, request: Request) -> RoutingRequest:
        full = request.input_tokens // self._block_tokens
        hashes, ends, tail = request.blocks, self._ends[:full], request.tail
        if tail is None:
            hashes = hashes[:full]
        else:
            if len(hashes) != full + 1 or hashes[full] != tail:  # otherwise `blocks` are exactly the prompt's
                hashes = [*hashes[:full], tail]
            ends.append(request.input_tokens * BYTES_PER_TOKEN)
        sent = self._sent.get(request.session)
        if sent is not None and sent.tail is not None and sent.input_tokens == request.continued_tokens:
            # The previous prompt ended with a message, so a real proxy has a cut there.
            at = bisect_left(ends, sent.input_tokens * BYTES_PER_TOKEN)
            hashes, ends = [*hashes[:at], sent.tail, *hashes[at:]], [*ends, 0]
            ends[at:] = [sent.input_tokens * BYTES_PER_TOKEN, *ends[at:-1]]
        self._sent[request.session] = request
        key = self._keys[request.session]
        named = key < self._named_below
        return RoutingRequest(
            model="model", lineage=key, session=key, derived=self._derived or not named, parent=None,
            chain=Chain(hashes, ends), structural_bytes=request.continued_tokens * BYTES_PER_TOKEN, turn=request.turn,
            expected_output_tokens=EXPECTED_OUTPUT_TOKENS, home_hint=self._homes.get(request.session),
            allowed_regions=None, may_forward=named and len(self._regions) > 1,
            tenant=self._tenants[request.session] if self._tenants else "",
        )  # fmt: skip

    # --- their results -------------------------------------------------------------------------------------------

    def started(self, turn: ReplayTurn, now_s: float) -> None:
        for leg in turn.state:
            leg.router.first_token(leg.ticket, now_s)
        self._freed(now_s)

    def ended(self, turn: ReplayTurn, now_s: float) -> None:
        request, work = turn.request, turn.work
        assert work is not None
        assert turn.worker is not None
        for leg in turn.state:
            if self._hints.by_turn:
                leg.router.working_set.expect(leg.ticket, self._hints.by_turn.get(request.number, UNKNOWN))
            leg.router.settled(
                leg.ticket,
                leg.routing,
                now_s,
                request.input_tokens,
                work.cached_tokens,
                request.output_tokens,
                request.output_tokens,
            )
            if request.number in self._hints.last_turns and not leg.routing.derived:
                leg.router.observe_session(leg.routing.session or 0, OVER, now_s)
        turn.predicted_tokens = turn.state[-1].ticket.decision.predicted_cached_tokens
        self._freed(now_s)
        if turn.state[0].routing.may_forward:
            self._homes[request.session] = turn.worker.region

    def lost(self, turn: ReplayTurn, now_s: float) -> None:
        for leg in turn.state:
            leg.router.failed(leg.ticket, now_s, ())
        self._freed(now_s)

    def _freed(self, now_s: float) -> None:
        """Look at the waiting turns, which may have capacity now."""
        for queue in self._queues.values():
            queue.freed(now_s)

    # --- what engines say ----------------------------------------------------------------------------------------

    def report(self, now_s: float) -> None:
        """Report each worker's `/v1/loads`, unless the worker is idle and has not run since the last report."""
        reported = self._reported_steps
        for worker in self.fleet.workers:
            scheduler, requests = worker.scheduler, worker.requests
            totals = scheduler.totals
            if requests:
                reported[worker] = _UNDER_WAY
            elif reported.get(worker) == totals.steps:
                continue
            else:
                reported[worker] = totals.steps
            loads = EngineLoads(
                requests,
                scheduler.waiting_uncached_tokens(),
                worker.tokens,
                totals.prefill_uncached_tokens,
                round(totals.prefill_busy_s * 1e6),
                *_sizes(scheduler),
            )
            for router in self._routers[worker.region]:
                router.observe_loads(worker.name, loads, now_s)

    def changed(self, now_s: float) -> None:  # noqa: ARG002 - as the base says
        for worker, core in self._core.items():
            for router in self._routers[worker.region]:
                if worker.index in self.fleet.up:
                    router.add_worker(core)
                else:
                    router.remove_worker(core.id)

    def restarted(self, worker: Worker, now_s: float) -> None:  # noqa: ARG002 - as the base says
        for router in self._routers[worker.region]:
            router.worker_restarted(worker.name)

    def _event_later(self, worker: Worker, kind: str, keys: list[int], tier: Tier) -> None:
        """Apply a KV event `event_lag_s` after it happened."""
        lag_s = self._proxies.event_lag_s
        if lag_s is None:
            return
        self.later(worker.scheduler.clock_s + lag_s, lambda _now_s: self._learn(worker, kind, keys, tier))

    def _learn(self, worker: Worker, kind: str, keys: list[int], tier: Tier) -> None:
        for router in self._routers[worker.region]:
            if kind == "stored":
                router.cache_stored(worker.name, keys, tier)
            else:
                router.cache_removed(worker.name, keys, tier)

    # --- set-up --------------------------------------------------------------------------------------------------

    def _core_worker(self, worker: Worker) -> CoreWorker:
        store = f"store-{worker.region}" if self._proxies.store else None
        return CoreWorker(
            worker.name, worker.name, 0, worker.role, host_cache=self._proxies.host_cache, store=store,
            page_tokens=worker.scheduler.page_size,
        )  # fmt: skip

    def _make_routers(self, region: str) -> list[Router]:
        own: Iterable[CoreWorker] = [
            core for worker, core in self._core.items() if worker.region == region and worker.index in self.fleet.up
        ]
        peers = [Peer(other, self._proxies.rtt_s) for other in self._regions if other != region]
        count, lag_s = self._proxies.routers, self._proxies.share_lag_s
        if lag_s is None or count == 1:
            return [Router(region, own, peers) for _ in range(count)]
        books = _SharedBooks(self, lag_s, self._proxies.share_loss)
        for number in range(count):
            books.add(Replica(region, own, peers, send=partial(books.send, number)))
        return [replica.router for replica in books.replicas]


def _sizes(scheduler: Scheduler) -> tuple[int, int, int, int]:
    """Figures of an engine's report: waiting requests (0, since the report counts them as running), tokens in use or in
    waiting prompts, and the maximum numbers of requests that the engine runs and of tokens that it holds.
    """
    idle = scheduler.cache.idle_pages + scheduler.free_pages
    tokens = (scheduler.capacity_pages - idle) * scheduler.page_size
    for work in scheduler.waiting:  # without their cached tokens, which count as in use
        tokens += work.prompt_tokens - scheduler.pool.match(work) * scheduler.page_size
    return 0, tokens, scheduler.max_running, scheduler.capacity_pages * scheduler.page_size
