"""Admission before a fleet, with the real router: engines get no more than they run, and nobody waits beside room."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st
from tests.search import searched
from tests.subjects.recorded import recorded_router

from warmroute.contract.money import Rates
from warmroute_proxy.core.accounting.price_books import PriceBook
from warmroute_proxy.core.load.engine_loads import EngineLoads
from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.fleet import Peer, Worker
from warmroute_proxy.core.placement.router import Ticket
from warmroute_proxy.core.placement.waits import Waits
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.queue.admission import Waiter
from warmroute_proxy.core.queue.budget import Budget, Span, Taken
from warmroute_proxy.core.queue.quota import ScopeLimits, TenantLimits, UsedTokens
from warmroute_proxy.core.queue.reservation import Reservation
from warmroute_proxy.core.queue.scope import Scope
from warmroute_proxy.core.queue.shortage import Shortage
from warmroute_proxy.core.replicas.record import Opened, Placed, RecordedCall
from warmroute_proxy.core.replicas.recorder import Playback
from warmroute_proxy.server.base.config import Config, Limits, ModelConfig
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.intake.standing import NO_STANDING
from warmroute_proxy.server.request.admission import Admission, RequestToAdmit
from warmroute_proxy.server.stores.budgets import Budgets
from warmroute_proxy.server.stores.prices import Prices
from warmroute_proxy.server.stores.stores import Stores

SLOTS, POOL, MAX_TOKENS = 3, 20_000, 30_000
FLEETS = [
    [Worker("a", "a", 0, "aggregated")],
    [Worker("a", "a", 0, "aggregated"), Worker("b", "b", 0, "aggregated")],
    [Worker("p", "p", 0, "prefill"), Worker("d", "d", 0, "decode")],
    [Worker("p", "p", 0, "prefill"), Worker("d", "d", 0, "decode"), Worker("a", "a", 0, "aggregated")],
    [Worker("a", "a", 0, "aggregated"), Worker("b", "b", 0, "aggregated", frozenset({"m"}))],
    [
        Worker("a", "a", 0, "aggregated", frozenset({"m"})),
        Worker("b", "b", 0, "aggregated"),
        Worker("c", "c", 0, "aggregated", frozenset({"n"})),
    ],
]
MODELS = ("m", "n")
PEERS: list[list[Peer]] = [[], [], [Peer("west", 0.05)]]
KEYS = ("k0", "k1")
OF_KEYS = [ScopeLimits(Scope(key_id, keys=(key_id,)), TenantLimits(requests_at_once=1)) for key_id in KEYS]
TENANTS = {"free": None, "other": None, "held": TenantLimits(requests_at_once=1, tokens_per_minute=100_000)}


class InferenceRequest:
    """A turn as far as admission and the router see one."""

    def __init__(
        self, fleet: "Fleet", tenant: str, model: str, number: int, tokens: int, session: int, key_id: str = ""
    ) -> None:
        blocks = max(1, tokens // 1000)
        chain = Chain([session * 1000 + n for n in range(blocks)], [4000 * (n + 1) for n in range(blocks)])
        routing = RoutingRequest(model, session, session, False, None, chain, 0, 1, 100, None, None, True)
        parsed: Any = SimpleNamespace(
            tenant=SimpleNamespace(name=tenant, limits=None if tenant == "other" and not key_id else TenantLimits()),
            may_wait=True,
            standing=NO_STANDING,
            key_id=key_id,
            model=SimpleNamespace(name=model),
            forwarded_from=None,
            stream=False,
        )
        self.parsed = parsed
        self.routing = routing
        self.body: Any = SimpleNamespace(raw=b"x" * 10)
        self.tenant = tenant
        self.number = number
        self.quota: Reservation | None = None
        self.waiter: Any = None
        self.asked_s: float | None = None
        self.excluded: frozenset[str] = frozenset()
        self.ticket: Ticket | None = None
        self.refusal: Refusal | None = None
        self._fleet = fleet

    def admitted(self, decision: Decision) -> None:
        fleet = self._fleet
        self.ticket = fleet.router.dispatched(self.routing, decision, fleet.now)
        fleet.running.append(self)

    def sweep(self, now_s: float) -> None:
        """Its client is told nothing."""

    def refused(self, refusal: Refusal) -> None:
        self.refusal = refusal
        if self.quota is not None:
            self._fleet.admission.cancel(self)

    def crashed(self) -> None:
        raise AssertionError("a turn crashed")


NO_STORES = Stores(None, Budgets((), None, Metrics(), lambda: 0.0), Prices((), lambda: 0.0))


class Fleet:
    """A router, an admission, and the turns that run."""

    def __init__(
        self, workers: list[Worker], peers: list[Peer], stores: Stores = NO_STORES, limits: Sequence[ScopeLimits] = ()
    ) -> None:
        """`limits`: beside those of `TENANTS`."""
        self.now = 0.0
        self.workers = workers
        self.peers = peers
        self.record: list[RecordedCall] = []
        self.router = recorded_router(self.record.append, "test", "east", workers, peers)
        of_tenants = [
            ScopeLimits(Scope(name, (name,), kind="tenant"), limits) for name, limits in TENANTS.items() if limits
        ] + list(limits)
        config = SimpleNamespace(limits=Limits(queue_requests=8, queue_bytes=1000), scope_limits=lambda: of_tenants)
        self.admission = Admission(cast("Config", config), self.router, Metrics(), lambda: self.now, stores, Shortage())
        self.running: list[InferenceRequest] = []
        self.turns: list[InferenceRequest] = []
        self.report()

    def report(self) -> None:
        for worker in self.workers:
            self.router.observe_loads(worker.id, EngineLoads(max_running=SLOTS, max_tokens=POOL), self.now)

    def arrive(self, tenant: str, model: str, tokens: int, session: int, key_id: str = "") -> None:
        turn = InferenceRequest(self, tenant, model, len(self.turns), tokens, session, key_id)
        routing = turn.routing
        try:
            decision: Decision | None = self.router.place(routing, self.now)
        except NoWorker:
            return
        assert decision is not None
        self.turns.append(turn)
        decision = self.admission.enter(turn, decision, self.now)
        if decision is not None:
            turn.admitted(decision)

    def end(self, pick: int, well: bool) -> None:
        if self.running:
            turn = self.running.pop(pick % len(self.running))
            assert turn.ticket is not None
            if well:
                self.router.settled(turn.ticket, turn.routing, self.now, None, None, None)
            else:
                self.router.failed(turn.ticket, self.now, ())
            self.admission.ended(turn, UsedTokens(100))

    def is_down(self, model: str) -> bool:
        """Whether nothing can serve a model now."""
        routing = InferenceRequest(self, "free", model, 0, 1000, 99).routing
        try:
            self.router.place(routing, self.now)
        except NoWorker:
            return True
        return False

    def leave(self, pick: int) -> None:
        waiting = [turn for turn in self.turns if turn.waiter is not None]
        if waiting:
            self.admission.leave(waiting[pick % len(waiting)])

    def change(self, pick: int, how: str) -> None:
        """Something happens to an engine."""
        worker, router = self.workers[pick % len(self.workers)], self.router
        match how:
            case "down" | "up":
                router.set_up(worker.id, how == "up")
            case "drains" | "works":
                router.set_draining(worker.id, how == "drains")
            case "restarts":
                router.worker_restarted(worker.id)
            case "goes":
                if not router.running(worker.id):  # tickets of one that is gone are load of none
                    router.remove_worker(worker.id)
            case _:
                router.add_worker(worker)
                self.report()

    def recover(self) -> None:
        """All engines are there, and work."""
        for pick in range(len(self.workers)):
            for how in ("comes", "up", "works"):
                self.change(pick, how)

    async def sweep(self) -> None:
        """Twice, as within half a second."""
        for _ in range(2):
            self.admission.sweep(self.now)
            await self.rest()

    def verify(self) -> None:
        """All that was decided is decided again by what was written down."""
        opened, *calls = self.record
        assert isinstance(opened, Opened)
        playback = Playback(opened)
        for call in calls:
            if isinstance(call, Placed):
                assert playback.place(call) == call
            else:
                playback.apply(call)

    async def rest(self) -> None:
        """Until all that was to be done soon is done."""
        for _ in range(4):
            await asyncio.sleep(0)

    def firsts(self) -> list[Waiter[RequestToAdmit]]:
        """The first of each key of each tenant in each line."""
        found: dict[tuple[str, str, str, str], Waiter[RequestToAdmit]] = {}
        for each in sorted(self.admission.queue.waiting(), key=lambda waiter: waiter.due_s):
            found.setdefault((*each.line_key, each.tenant, each.item.parsed.key_id), each)
        return list(found.values())

    def check(self) -> None:
        rows = self.router.snapshot(self.now)["workers"]
        for row in rows.values():
            assert row["running"] <= SLOTS  # of all models together
            assert row["resident_tokens"] < POOL + MAX_TOKENS  # one request beyond the pool at most
        held = [turn for turn in self.running if turn.tenant == "held"]
        assert len(held) <= 1
        of_keys = [turn.parsed.key_id for turn in self.running if turn.parsed.key_id]
        assert len(of_keys) == len(set(of_keys))
        waiting = self.admission.queue.waiting()
        held_up = {
            each.item for each in waiting if (each.tenant == "held" and held) or each.item.parsed.key_id in of_keys
        }
        for waiter in self.firsts():  # nobody waits who could go
            found = self.admission._find(waiter)
            assert found is None or not found.goes
            assert found is not None or waiter.item in held_up or self.is_down(waiter.model)
        assert {each.item for each in waiting} == {turn for turn in self.turns if turn.waiter is not None}


ARRIVE = st.tuples(
    st.just("arrive"),
    st.sampled_from(sorted(TENANTS)),
    st.sampled_from(MODELS),
    st.sampled_from([1, 2, 5, 30]),
    st.integers(1, 4),
    st.sampled_from(["", *KEYS]),
)
CHANGES = ["down", "up", "drains", "works", "restarts", "goes", "comes"]
OPERATIONS = st.one_of(
    *[ARRIVE] * 4,
    st.tuples(st.just("end"), st.integers(0, 100), st.booleans()),
    st.tuples(st.just("leave"), st.integers(0, 100)),
    st.tuples(st.just("later"), st.floats(0.1, 40.0)),
    st.tuples(st.just("report")),
    st.tuples(st.just("change"), st.integers(0, 2), st.sampled_from(CHANGES)),
)


def _arrivals(*of_sessions: tuple[int, int]) -> list[tuple[Any, ...]]:
    return [("arrive", "free", "m", thousands, session, "") for thousands, session in of_sessions]


WAITS_FOR_MEMORY_BESIDE_A_REGION: list[tuple[Any, ...]] = [
    *_arrivals((1, 1), (1, 2), (1, 1)),
    *[("end", 0, False)] * 2,
    *_arrivals(*[(1, 1)] * 7, (1, 2), (2, 1), (30, 1)),
    ("leave", 0),
    *[("report",)] * 3,
    ("leave", 0),
]
"""The other region becomes the cheaper one while the first waits for memory here."""

FINDS_NO_WORKER_BEFORE_A_DISPATCH: list[tuple[Any, ...]] = [
    *_arrivals((1, 1)),
    ("leave", 0),
    ("end", 0, False),
    ("arrive", "free", "m", 1, 1, "k1"),
    ("arrive", "free", "m", 30, 3, "k1"),
    *_arrivals((1, 1)),
    ("end", 1, False),
    *_arrivals((1, 1)),
    ("report",),
    ("end", 0, False),
    *_arrivals((1, 1)),
    *[("leave", 0)] * 2,
    *_arrivals((1, 1)),
    ("end", 2, False),
    ("change", 0, "down"),
    *_arrivals((1, 1)),
    ("report",),
    ("end", 0, False),
    *_arrivals((30, 3)),
]
"""A request is placed, another finds no worker, and then the first is dispatched: the record still says how."""


@given(st.sampled_from(FLEETS), st.sampled_from(PEERS), st.lists(OPERATIONS, min_size=20, max_size=80))
@example(FLEETS[1], PEERS[-1], WAITS_FOR_MEMORY_BESIDE_A_REGION)
@example(FLEETS[1], PEERS[0], FINDS_NO_WORKER_BEFORE_A_DISPATCH)
@searched(150)
def test_engines_get_what_they_can_run_and_nobody_waits_beside_one_with_room(
    workers: list[Worker], peers: list[Peer], operations: list[tuple[Any, ...]]
) -> None:
    asyncio.run(play(Fleet(workers, peers, limits=OF_KEYS), operations))


async def play(fleet: Fleet, operations: list[tuple[Any, ...]]) -> None:
    for name, *details in operations:
        match name, *details:
            case "arrive", tenant, model, thousands, session, key_id:
                fleet.arrive(tenant, model, thousands * 1000, session, key_id)
            case "end", pick, well:
                fleet.end(pick, well)
            case "leave", pick:
                fleet.leave(pick)
            case "later", seconds:
                fleet.now += seconds
            case "change", pick, how:
                fleet.change(pick, how)
            case _:
                fleet.report()
        await fleet.sweep()
        fleet.check()
    fleet.recover()
    await fleet.sweep()
    while fleet.running:
        fleet.end(0, True)
        await fleet.sweep()
        fleet.check()
    assert fleet.admission.queue.requests == fleet.admission.queue.bytes == 0  # all were served in the end
    for turn in fleet.turns:
        assert turn.quota is None
        assert turn.refusal is None or (turn.refusal.status, turn.ticket) == (429, None)
    fleet.verify()
    quota = fleet.admission.limits.quotas.of("held", "")[0]
    assert (quota.running, quota.tokens_running) == (0, 0)
    assert all(row["running"] == row["resident_tokens"] == 0 for row in fleet.router.snapshot(0.0)["workers"].values())


async def test_a_key_at_its_limit_holds_up_no_other_key_of_its_tenant() -> None:
    fleet = Fleet(FLEETS[0], PEERS[0], limits=OF_KEYS)
    for key_id in ("k0", "k1", "k0", "k0", "k1"):
        fleet.arrive("free", "m", 1000, 1, key_id)
    await fleet.sweep()
    running = [[turn.number for turn in fleet.running]]
    for pick in (1, 0, 0, 0, 0):
        fleet.end(pick, True)
        await fleet.sweep()
        running.append([turn.number for turn in fleet.running])
    assert running == [[0, 1], [0, 4], [4, 2], [2], [3], []]


class RichStore:
    """Leases whatever it is asked for."""

    async def take(self, budget: Budget, span: Span, amount: int, least: int = 0) -> Taken:
        return Taken(max(0, amount), budget.limit)


async def test_a_request_that_no_longer_waits_for_another_region_reserves_its_price() -> None:
    book = PriceBook(Rates(1, 1, 1), None, "config")
    day = Budget(Scope("usd", ("held",)), "day", 10_000_000, 2.0)
    budgets = Budgets([day], RichStore(), Metrics(), lambda: 1.0)
    prices = Prices([cast("ModelConfig", SimpleNamespace(name="m", books=(book,)))], lambda: 1.0)
    fleet = Fleet([Worker("a", "a", 0, "aggregated")], PEERS[-1], Stores(None, budgets, prices))
    fleet.change(0, "down")
    for session in (1, 2):
        fleet.arrive("held", "m", 1000, session)
    lease = budgets.leases[0]
    assert lease.reserved == 0  # the first one went to the other region
    fleet.change(0, "up")
    fleet.router.set_peer_up("west", False)
    fleet.end(0, True)
    await fleet.sweep()
    assert [turn.number for turn in fleet.running] == [1]
    assert lease.reserved > 0


async def test_a_session_keeps_its_place_when_it_asks_again_while_the_queue_is_full() -> None:
    fleet = Fleet([Worker("a", "a", 0, "aggregated")], PEERS[0])
    fleet.router.waits_elsewhere.observe(1, Waits("m", "other", 1, 50_000), fleet.now)
    fleet.arrive("free", "m", 12_000, 2)
    fleet.leave(0)
    fleet.admission.queue.max_requests = 0
    fleet.now = 200.0
    fleet.router.waits_elsewhere.observe(1, Waits("m", "other", 1, 50_000), fleet.now)
    fleet.arrive("free", "m", 12_000, 2)
    refusal = fleet.turns[-1].refusal
    assert refusal is not None
    assert "the queue is full" in refusal.message
    again = InferenceRequest(fleet, "free", "m", 8, 12_000, 2)
    fleet.now = 400.0
    assert fleet.admission._waiter(cast("RequestToAdmit", again)).asked_s == 0.0


async def test_a_turn_that_another_region_refuses_waits_on_in_its_place() -> None:
    fleet = Fleet([Worker("a", "a", 0, "aggregated")], PEERS[2])
    turn = InferenceRequest(fleet, "free", "m", 7, 12_000, 2)
    for at_s in (0.0, 100.0):
        fleet.now = at_s
        fleet.router.waits_elsewhere.observe(1, Waits("m", "other", 1, 50_000), fleet.now)
        decision = fleet.router.place(turn.routing, fleet.now, frozenset({"region:west"}))
        assert fleet.admission.enter(turn, decision, fleet.now) is None
        assert turn.waiter.asked_s == 0.0
        forward: Any = {"kind": "forward", "region": "west", "worker": None, "cache_worker": "region:west"}
        fleet.admission._go(turn.waiter, msgspec.structs.replace(decision, **forward))


async def test_a_session_that_waits_for_too_long_to_begin_is_refused_and_keeps_its_place() -> None:
    fleet = Fleet([Worker("a", "a", 0, "aggregated")], PEERS[0])
    limits, elsewhere = Limits(), fleet.router.waits_elsewhere
    fleet.arrive("free", "m", 12_000, 1)
    elsewhere.observe(1, Waits("m", "other", 1, 50_000), fleet.now)
    fleet.now = 10.0
    new = InferenceRequest(fleet, "free", "m", 7, 12_000, 2)
    fleet.turns.append(new)
    assert fleet.admission.enter(new, fleet.router.place(new.routing, fleet.now), fleet.now) is None
    fleet.now += limits.working_set_wait_s + limits.queue_timeout_s - 1
    elsewhere.observe(1, Waits("m", "other", 1, 50_000), fleet.now)
    await fleet.sweep()
    assert [turn.refusal for turn in fleet.turns if turn.refusal is not None] == []
    fleet.now += 2
    await fleet.sweep()
    (refusal,) = [turn.refusal for turn in fleet.turns if turn.refusal is not None]
    assert (refusal.status, refusal.retry_after_s) == (429, 30)
    assert "about 30 s: 0 sessions are before this one, which keeps its place for 5 minutes" in refusal.message
    asked_s = []
    for later_s in (200.0, 400.0):
        again = InferenceRequest(fleet, "free", "m", 8, 12_000, 2)
        fleet.now += later_s
        asked_s.append(fleet.now - fleet.admission._waiter(cast("RequestToAdmit", again)).asked_s)
    assert asked_s == [351.0, 0.0]
