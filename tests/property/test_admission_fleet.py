"""Admission before a fleet, with the real router: engines get no more than they run, and nobody waits beside room."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from warmroute_proxy.core.chain import Chain
from warmroute_proxy.core.decision import Decision
from warmroute_proxy.core.engine_loads import EngineLoads
from warmroute_proxy.core.facts import Facts
from warmroute_proxy.core.fleet import Worker
from warmroute_proxy.core.quota import TenantLimits
from warmroute_proxy.core.router import Router, Ticket
from warmroute_proxy.server.admission import Admission, Hold
from warmroute_proxy.server.config import Config, Limits
from warmroute_proxy.server.errors import Refusal
from warmroute_proxy.server.metrics import Metrics

SLOTS, POOL, MAX_TOKENS = 3, 20_000, 30_000
FLEETS = [
    [Worker("a", "a", 0, "aggregated")],
    [Worker("a", "a", 0, "aggregated"), Worker("b", "b", 0, "aggregated")],
    [Worker("p", "p", 0, "prefill"), Worker("d", "d", 0, "decode")],
    [Worker("p", "p", 0, "prefill"), Worker("d", "d", 0, "decode"), Worker("a", "a", 0, "aggregated")],
]
TENANTS = {"free": None, "other": None, "held": TenantLimits(requests_at_once=1, tokens_per_minute=100_000)}


class Turn:
    """A turn as far as admission and the router see one."""

    def __init__(self, fleet: "Fleet", tenant: str, number: int, tokens: int, session: int) -> None:
        blocks = max(1, tokens // 1000)
        chain = Chain([session * 1000 + n for n in range(blocks)], [4000 * (n + 1) for n in range(blocks)])
        facts = Facts("m", session, session, False, None, chain, 0, 1, 100, None, None, True)
        intake: Any = SimpleNamespace(
            tenant=SimpleNamespace(name=tenant), facts=facts, forwarded_from=None, body=SimpleNamespace(raw=b"x" * 10)
        )
        self.intake = intake
        self.tenant = tenant
        self.number = number
        self.hold: Hold | None = None
        self.waiter: Any = None
        self.excluded: frozenset[str] = frozenset()
        self.ticket: Ticket | None = None
        self.refusal: Refusal | None = None
        self._fleet = fleet

    def admitted(self, decision: Decision) -> None:
        fleet = self._fleet
        self.ticket = fleet.router.dispatched(self.intake.facts, decision, fleet.now)
        fleet.running.append(self)

    def refused(self, refusal: Refusal) -> None:
        self.refusal = refusal
        if self.hold is not None:
            self._fleet.admission.cancel(self)

    def crashed(self) -> None:
        raise AssertionError("a turn crashed")


class Fleet:
    """A router, an admission, and the turns that run."""

    def __init__(self, workers: list[Worker]) -> None:
        self.now = 0.0
        self.workers = workers
        self.router = Router("east", workers)
        tenants = [SimpleNamespace(name=name, limits=limits) for name, limits in TENANTS.items()]
        config = SimpleNamespace(limits=Limits(queue_requests=8, queue_bytes=1000), tenants=tenants)
        self.admission = Admission(cast("Config", config), self.router, Metrics(), lambda: self.now)
        self.running: list[Turn] = []
        self.turns: list[Turn] = []
        self.report()

    def report(self) -> None:
        for worker in self.workers:
            self.router.observe_loads(worker.id, EngineLoads(max_running=SLOTS, max_tokens=POOL), self.now)

    def arrive(self, tenant: str, tokens: int, session: int) -> None:
        turn = Turn(self, tenant, len(self.turns), tokens, session)
        self.turns.append(turn)
        facts = turn.intake.facts
        decision: Decision | None = self.router.place(facts, self.now)
        assert decision is not None
        if (
            self.admission.queue.requests
            or TENANTS[tenant] is not None
            or not self.router.has_room("m", decision, self.now)
        ):
            decision = self.admission.enter(turn, decision)
        if decision is not None:
            turn.admitted(decision)

    def end(self, pick: int, well: bool) -> None:
        if self.running:
            turn = self.running.pop(pick % len(self.running))
            assert turn.ticket is not None
            if well:
                self.router.settled(turn.ticket, turn.intake.facts, self.now, None, None, None)
            else:
                self.router.failed(turn.ticket, self.now, ())
            self.admission.ended(turn, 100)

    def leave(self, pick: int) -> None:
        waiting = [turn for turn in self.turns if turn.waiter is not None]
        if waiting:
            self.admission.leave(waiting[pick % len(waiting)])

    async def rest(self) -> None:
        """Until all that was to be done soon is done."""
        for _ in range(4):
            await asyncio.sleep(0)

    def check(self) -> None:
        rows = self.router.snapshot(self.now)["workers"]
        for row in rows.values():
            assert row["running"] <= SLOTS
            assert row["resident_tokens"] < POOL + MAX_TOKENS  # one request beyond the pool at most
        held = [turn for turn in self.running if turn.tenant == "held"]
        assert len(held) <= 1
        queue = self.admission.queue
        waiting = queue.waiting()
        for spot in queue.lines():  # nobody waits for a place that has room, unless the other half of a pair has none
            if self.router.is_full("m", self.now) or not self.router.has_room_at(*spot, self.now):
                continue
            for waiter in queue.in_turn(spot):
                found = self.admission._ask(waiter)
                assert found is None or not found.goes
                assert found is not None or held
        assert {each.item for each in waiting} == {turn for turn in self.turns if turn.waiter is not None}


ARRIVE = st.tuples(
    st.just("arrive"), st.sampled_from(sorted(TENANTS)), st.sampled_from([1, 2, 5, 30]), st.integers(1, 4)
)
OPERATIONS = st.one_of(
    *[ARRIVE] * 4,
    st.tuples(st.just("end"), st.integers(0, 100), st.booleans()),
    st.tuples(st.just("leave"), st.integers(0, 100)),
    st.tuples(st.just("later"), st.floats(0.1, 40.0)),
    st.tuples(st.just("report")),
)


@given(st.sampled_from(FLEETS), st.lists(OPERATIONS, min_size=20, max_size=80))
@settings(max_examples=60, deadline=None)
def test_engines_get_what_they_can_run_and_nobody_waits_beside_one_with_room(
    workers: list[Worker], operations: list[tuple[Any, ...]]
) -> None:
    asyncio.run(play(Fleet(workers), operations))


async def play(fleet: Fleet, operations: list[tuple[Any, ...]]) -> None:
    for name, *details in operations:
        match name, *details:
            case "arrive", tenant, thousands, session:
                fleet.arrive(tenant, thousands * 1000, session)
            case "end", pick, well:
                fleet.end(pick, well)
            case "leave", pick:
                fleet.leave(pick)
            case "later", seconds:
                fleet.now += seconds
                fleet.admission.sweep(fleet.now)
            case _:
                fleet.report()
        await fleet.rest()
        fleet.check()
    while fleet.running:
        fleet.end(0, True)
        await fleet.rest()
        fleet.check()
    assert fleet.admission.queue.requests == fleet.admission.queue.bytes == 0  # all were served in the end
    for turn in fleet.turns:
        assert turn.hold is None
        assert turn.refusal is None or (turn.refusal.status, turn.ticket) == (429, None)
    quota = fleet.admission.quotas["held"]
    assert (quota.running, quota.tokens_running) == (0, 0)
    assert all(row["running"] == row["resident_tokens"] == 0 for row in fleet.router.snapshot(0.0)["workers"].values())
