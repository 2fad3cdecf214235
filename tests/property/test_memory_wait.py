"""Turns that wait for KV memory, before a small fleet with the real router and queue: who waits, and for how long."""

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.search import searched

from warmroute_proxy.core.load.engine_loads import EngineLoads
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.router import Router, Ticket
from warmroute_proxy.core.placement.working_set import SMALL_TOKENS, need_tokens
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.queue.admission import FOR_MEMORY, Queue, Waiter
from warmroute_proxy.core.queue.dispatch_order import Placement, next_dispatches, place_queued
from warmroute_proxy.core.queue.door import begins
from warmroute_proxy.core.queue.memory_wait import passes

POOL, WAIT_S, SLOTS = 100_000, 60.0, 8
IDS = ("a", "b")
SESSIONS = st.integers(1, 9)


def turn_of(session: int, thousands: int, number: int = 1) -> RoutingRequest:
    """A turn of a session, by 4 bytes a token."""
    chain = Chain([session * 1000 + n for n in range(thousands)], [4000 * (n + 1) for n in range(thousands)])
    return RoutingRequest("m", session, session, False, None, chain, 0, number, 300, None, None, True)


class Front:
    """A router, its queue, and the turns that run."""

    def __init__(self, wait_s: float = WAIT_S, pool: int | None = POOL, slots: int = SLOTS) -> None:
        self.now = 100.0
        self.router = Router("east", [Worker(id_, id_, 0, "aggregated") for id_ in IDS])
        for id_ in IDS:
            self.router.observe_loads(id_, EngineLoads(max_running=slots, max_tokens=pool or 0), self.now)
        self.queue: Queue[RoutingRequest] = Queue(1000, 10**9, 30.0, wait_s)
        self.running: list[tuple[RoutingRequest, Ticket]] = []
        self.sent: list[tuple[int, str]] = []
        self.rounds = 0
        self.tenants: set[str] = set()

    def arrive(self, routing: RoutingRequest, tenant: str = "t") -> Waiter[RoutingRequest] | None:
        """None where it goes at once."""
        self.tenants.add(tenant)
        routing = msgspec.structs.replace(routing, tenant=tenant)
        decision = self.router.place(routing, self.now)
        free = passes(self.router, self.queue, routing, decision, self.now)
        if free and not self.queue.requests and self.router.has_capacity("m", decision, self.now):
            self.go(routing, decision)
            return None
        is_new = begins(self.router, self.queue, routing)
        waiter = Waiter(routing, tenant, "m", 0, self.now, begins=is_new)
        found = place_queued(self.router, self.queue, waiter, routing, decision, frozenset(), self.now)
        if found.goes:
            self.go(routing, found.decision)
            return None
        self.queue.join(waiter, found.waits_at, found.compute_s)
        self.round()
        return waiter if waiter in self.queue else None

    def find(self, waiter: Waiter[RoutingRequest]) -> Placement:
        decision = self.router.place(waiter.item, self.now)
        return place_queued(self.router, self.queue, waiter, waiter.item, decision, frozenset(), self.now)

    def round(self) -> None:
        self.rounds += 1
        for waiter, found in next_dispatches(self.queue, self.router, self.find, self.now, again=True):
            if found.goes:
                waited_s, need = self.now - waiter.since_s, need_tokens(waiter.item, found.decision)
                home = self.router.working_set.resident_at(waiter.item.lineage, need)
                # One that waits for its home at work may go elsewhere after half of its time, whatever is there: also
                # one that waited for memory, until another turn of its conversation brought that. One of a tenant
                # within its share goes after 15 s as well.
                one_tenant = len(self.tenants) == 1
                limit_s = WAIT_S if waiter.worker_id == FOR_MEMORY and not home and one_tenant else 15.0
                if waiter.begins and waiter.worker_id == FOR_MEMORY and one_tenant:
                    assert not self.queue.running("m") or waited_s >= WAIT_S, "a session begins at a shut door"
                self.queue.served(waiter, 1)
                self.go(waiter.item, found.decision, checked=waited_s < limit_s)

    def go(self, routing: RoutingRequest, decision: Decision, *, checked: bool = True) -> None:
        id_ = decision.cache_worker
        residents = self.router.fleet.workers[id_].load.residents
        uncached = decision.prompt_tokens_est - decision.predicted_cached_tokens
        need, lineage = need_tokens(routing, decision), routing.lineage
        cold = uncached >= max(SMALL_TOKENS, decision.prompt_tokens_est / 2)
        if checked and self.queue.memory_wait_s and cold and 2 * residents.tokens_of(lineage) < need:
            assert not residents.in_use or need <= residents.free_tokens(lineage, self.now)
        self.running.append((routing, self.router.dispatched(routing, decision, self.now)))
        self.sent.append((lineage, id_))

    def end(self, number: int = 0) -> None:
        routing, ticket = self.running.pop(number)
        tokens = routing.chain.total_bytes // 4
        self.router.first_token(ticket, self.now)
        cached = min(ticket.decision.predicted_cached_tokens, tokens)
        self.router.settled(ticket, routing, self.now, tokens, cached, 100)
        self.round()

    def books(self, id_: str) -> Any:
        return self.router.fleet.workers[id_].load.residents


class Tight(RuleBasedStateMachine):
    """Sessions of 10 to 40 thousand tokens before two workers that hold 100 thousand each."""

    def __init__(self) -> None:
        super().__init__()
        self.front = Front()
        self.since: dict[Waiter[RoutingRequest], float] = {}

    @rule(session=SESSIONS, thousands=st.integers(10, 40), tenant=st.sampled_from(["t", "u"]))
    def arrive(self, session: int, thousands: int, tenant: str) -> None:
        front = self.front
        routing = turn_of(session, thousands)
        resident = [
            id_
            for id_ in IDS
            if session in front.books(id_)._in_use or any(session in fresh for fresh in front.books(id_)._fresh)
        ]
        held = max([front.books(id_).tokens_of(session) for id_ in resident], default=0)
        idle = not front.running and not front.queue.requests
        waiter = front.arrive(routing, tenant)
        if held >= thousands * 1000 and front.router.working_set._homes.get(session) in resident:
            assert waiter is None or waiter.worker_id != FOR_MEMORY, "a resident turn waits for memory"
        if idle:
            assert waiter is None, "an idle fleet lets a turn wait"
        if waiter is not None:
            self.since[waiter] = front.now

    @precondition(lambda self: self.front.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.front.end(data.draw(st.integers(0, len(self.front.running) - 1)))

    @rule(seconds=st.sampled_from([0.25, 5.0, 20.0]))
    def wait(self, seconds: float) -> None:
        self.front.now += seconds
        self.front.round()

    @rule(id_=st.sampled_from(IDS))
    def restart(self, id_: str) -> None:
        self.front.router.worker_restarted(id_)
        assert self.front.books(id_).seats == 0
        self.front.router.observe_loads(id_, EngineLoads(max_running=SLOTS, max_tokens=POOL), self.front.now)

    @invariant()
    def no_running_session_waits_for_memory_longer_than_the_bound(self) -> None:
        front = self.front
        for waiter in front.queue.waiting():
            if waiter.worker_id == FOR_MEMORY:
                assert front.now - waiter.since_s < WAIT_S or waiter.begins

    @invariant()
    def books_follow_what_runs(self) -> None:
        for id_ in IDS:
            books = self.front.books(id_)
            assert books.tokens <= POOL or books.tokens == books.used_tokens or not books.pool_tokens
            assert books.in_use <= sum(ticket.cache_worker.id == id_ for _, ticket in self.front.running)

    def teardown(self) -> None:
        front = self.front
        for _ in range(1000):
            if not (front.running or front.queue.requests):
                break
            front.now += 1.0
            if front.running:
                front.end()
            else:
                front.round()
        assert not front.queue.requests, "a turn waits although nothing runs"


TestTight = Tight.TestCase
TestTight.settings = searched(100, stateful_step_count=40)

TURNS = st.lists(st.tuples(SESSIONS, st.integers(10, 40), st.booleans()), max_size=30)


@given(turns=TURNS)
@searched(50)
def test_where_everything_fits_the_decisions_are_those_without_it(turns: Sequence[tuple[int, int, bool]]) -> None:
    fronts = [Front(wait_s, pool=10**8, slots=3) for wait_s in (WAIT_S, 0.0)]
    for session, thousands, ends in turns:
        for front in fronts:
            front.arrive(turn_of(session, thousands))
            front.now += 1.0
            if ends and front.running:
                front.end()
    assert fronts[0].sent == fronts[1].sent


@given(turns=TURNS)
@searched(25)
def test_engines_that_do_not_report_their_pool_have_nobody_wait(turns: Sequence[tuple[int, int, bool]]) -> None:
    front = Front(pool=None, slots=100)
    for session, thousands, _ in turns:
        assert front.arrive(turn_of(session, thousands)) is None


def test_a_tenant_that_arrives_at_a_full_fleet_gets_its_share() -> None:
    """Closed loop: a turn takes 5 s, and the next one comes 2 s later. What one tenant has fills the fleet."""
    front = Front()
    due = [(100.0, "t", session) for session in range(1, 9)] + [(200.0, "u", session) for session in range(11, 19)]
    ends: list[tuple[float, Ticket]] = []
    tenants = {session: tenant for _, tenant, session in due}
    served = {"t": 0, "u": 0}
    seen = 0
    while front.now < 1400.0:
        front.now += 0.25
        for _, tenant, session in [each for each in due if each[0] <= front.now]:
            front.arrive(turn_of(session, 30), tenant)
        due = [each for each in due if each[0] > front.now]
        front.round()
        ends += [(front.now + 5.0, ticket) for _, ticket in front.running[len(ends) :]]
        while ends and ends[0][0] <= front.now:
            ends.pop(0)
            session = front.running[0][0].lineage
            front.end()
            ends += [(front.now + 5.0, ticket) for _, ticket in front.running[len(ends) :]]
            seen += front.now > 800.0
            served[tenants[session]] += front.now > 800.0
            due.append((front.now + 2.0, tenants[session], session))
    assert min(served.values()) >= 0.3 * seen, served
