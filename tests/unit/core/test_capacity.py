"""A turn whose home is full: when it waits there, when it goes elsewhere, and who is next."""

from collections.abc import Iterable
from typing import Any

import pytest
from tests.subjects.routing import routing_of

from warmroute_proxy.core.base.role import Role
from warmroute_proxy.core.load.engine_loads import EngineLoads
from warmroute_proxy.core.placement.fleet import Peer, Worker
from warmroute_proxy.core.placement.router import Router, Ticket
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.queue.admission import Queue, Waiter
from warmroute_proxy.core.queue.dispatch_order import MAX_RECHECKED, Placement, next_dispatches, place_queued

SLOTS, STAY_S = 4, 8.0


def routing(name: int, thousands: int, **changed: Any) -> RoutingRequest:
    """A turn of session `name`, by 4 bytes a token."""
    chain = Chain([name * 1000 + n for n in range(thousands)], [4000 * (n + 1) for n in range(thousands)])
    return routing_of(chain, **{"lineage": name, "session": name, **changed})


class Scene:
    """Engines of a few slots, and who waits for them."""

    def __init__(self, *ids: str, peers: Iterable[Peer] = (), roles: dict[str, Role] | None = None) -> None:
        self.router = Router("east", [Worker(id_, id_, 0, (roles or {}).get(id_, "aggregated")) for id_ in ids], peers)
        for id_ in ids:
            self.router.observe_loads(id_, EngineLoads(max_running=SLOTS, max_tokens=10**7), 0.0)
        self.queue: Queue[RoutingRequest] = Queue(100, 10**6, 30.0)
        self.tickets: list[Ticket] = []
        self.now = 0.0

    def send(self, turn: RoutingRequest, to: str) -> Ticket:
        """Sent to one engine, and computed."""
        others = frozenset({worker.id for worker in self.router.fleet.workers.values() if worker.caches_prompts} - {to})
        ticket = self.router.dispatched(turn, self.router.place(turn, self.now, others), self.now)
        self.router.first_token(ticket, self.now)
        return ticket

    def serve(self, turn: RoutingRequest, to: str, stay_s: float = STAY_S) -> None:
        """A whole turn at one engine."""
        ticket = self.send(turn, to)
        self.now += stay_s
        self.router.settled(ticket, turn, self.now, turn.chain.total_bytes // 4, 0, 100)

    def fill(self, id_: str) -> None:
        """Answers under way in all slots of an engine."""
        self.tickets += [self.send(routing(900 + number, 1), id_) for number in range(SLOTS)]

    def end_one(self) -> None:
        """The oldest of those ends."""
        ticket = self.tickets.pop(0)
        self.router.failed(ticket, self.now, ())

    def wait(self, turn: RoutingRequest, tenant: str = "tenant") -> Waiter[RoutingRequest]:
        """A turn that comes, and has to wait."""
        waiter = Waiter(turn, tenant, "m", 0, self.now)
        found = self.find(waiter)
        assert not found.goes
        self.queue.join(waiter, found.decision.cache_worker, found.compute_s)
        return waiter

    def find(self, waiter: Waiter[RoutingRequest]) -> Placement:
        decision = self.router.place(waiter.item, self.now)
        return place_queued(self.router, self.queue, waiter, waiter.item, decision, frozenset(), self.now)

    def asked(self) -> list[Waiter[RoutingRequest]]:
        """Whom one sweep asks where they want to go. All want to stay."""
        asked: list[Waiter[RoutingRequest]] = []
        assert list(next_dispatches(self.queue, self.router, asked.append, self.now, again=True)) == []
        return asked

    def goes(self, turn: RoutingRequest, tenant: str = "tenant") -> str | None:
        """Where one that comes now goes, None if it waits."""
        found = self.find(Waiter(turn, tenant, "m", 0, self.now))
        return found.decision.cache_worker if found.goes else None

    def next(self, *, again: bool = False) -> list[tuple[RoutingRequest, str]]:
        """Who goes now, and where."""
        gone = []
        for waiter, found in next_dispatches(self.queue, self.router, self.find, self.now, again=again):
            if not found.goes:
                continue
            self.queue.served(waiter, 1)
            self.router.dispatched(waiter.item, found.decision, self.now)
            gone.append((waiter.item, found.decision.cache_worker))
        return gone


@pytest.fixture
def scene() -> Scene:
    """Session 1 has its long history at `a`, whose turns take 8 s; `b` is idle."""
    scene = Scene("a", "b")
    scene.serve(routing(1, 100), "a")
    scene.fill("a")
    return scene


def test_a_full_home_is_waited_for_where_computing_again_is_dearer(scene: Scene) -> None:
    assert scene.goes(routing(1, 101)) is None
    assert scene.goes(routing(2, 20)) == "b", "who has nothing to wait for goes where there is room"


def test_a_full_decode_engine_is_waited_for_likewise() -> None:
    scene = Scene("p", "d", "a", roles={"p": "prefill", "d": "decode"})
    scene.serve(routing(1, 100), "p")
    scene.fill("p")
    assert scene.goes(routing(1, 101)) is None
    assert scene.goes(routing(2, 20)) == "a"
    scene.now += 600.0
    assert scene.goes(routing(1, 101)) == "a"


def test_a_full_prefill_engine_is_waited_for_likewise() -> None:
    scene = Scene("p", "d", "a", roles={"p": "prefill", "d": "decode"})
    scene.serve(routing(1, 100), "p")
    for number in range(SLOTS):  # prompts that are not computed yet
        turn = routing(900 + number, 1)
        scene.router.dispatched(turn, scene.router.place(turn, scene.now, frozenset({"a"})), scene.now)
    assert scene.goes(routing(1, 101)) is None
    scene.now += 600.0
    assert scene.goes(routing(1, 101)) == "a"


def test_a_short_history_is_computed_again() -> None:
    scene = Scene("a", "b")
    scene.serve(routing(1, 2), "a")
    scene.fill("a")
    assert scene.goes(routing(1, 3)) == "b"


def test_nobody_waits_for_an_engine_that_ends_nothing(scene: Scene) -> None:
    waiter = scene.wait(routing(1, 101))
    assert scene.next(again=True) == []
    scene.now += 600.0
    assert scene.next(again=True) == [(waiter.item, "b")]


def test_nobody_waits_for_an_engine_of_which_no_end_is_known() -> None:
    scene = Scene("a", "b")
    scene.send(routing(1, 100), "a")
    for number in range(SLOTS - 1):
        scene.send(routing(900 + number, 1), "a")
    assert scene.goes(routing(1, 101)) == "b"


def test_the_more_wait_the_less_it_is_worth(scene: Scene) -> None:
    waiting = 0
    while scene.goes(routing(1, 101)) is None:
        scene.wait(routing(1, 101))
        waiting += 1
        assert waiting < 1000
    assert waiting > 1


def test_many_of_another_tenant_who_wait_are_no_reason_to_leave(scene: Scene) -> None:
    while scene.goes(routing(1, 101), "flood") is None:
        scene.wait(routing(1, 101), "flood")
    assert scene.goes(routing(1, 101), "other") is None


def test_one_that_was_idle_before_it_became_full_is_not_stuck() -> None:
    scene = Scene("a", "b")
    scene.serve(routing(1, 100), "a")
    scene.now += 600.0
    scene.fill("a")
    assert scene.goes(routing(1, 101)) is None
    scene.now += 600.0
    assert scene.goes(routing(1, 101)) == "b"


def test_of_many_who_wait_a_few_are_asked_at_once_and_all_of_them_in_turn(scene: Scene) -> None:
    scene.router.set_up("b", up=False)
    everyone = {scene.wait(routing(1, 101), f"tenant {number}") for number in range(3 * MAX_RECHECKED)}
    scene.router.set_up("b", up=True)
    for _ in range(2):
        asked = []
        for _ in range(3):
            scene.now += 0.25
            asked += scene.asked()
        assert len(asked) == len(everyone)
        assert set(asked) == everyone


def test_who_waits_goes_to_another_region_once_that_is_there() -> None:
    scene = Scene("a", peers=[Peer("west", 0.05)])
    scene.router.set_peer_up("west", up=False)
    scene.fill("a")
    waiter = scene.wait(routing(2, 20))
    assert scene.next(again=True) == []
    scene.router.set_peer_up("west", up=True)
    assert scene.next(again=True) == [(waiter.item, "region:west")]


def test_who_waits_does_not_go_to_a_region_whose_last_probe_was_lost() -> None:
    scene = Scene("a", peers=[Peer("west", 0.05)])
    scene.router.suspect_peer("west")
    scene.fill("a")
    assert scene.goes(routing(2, 20)) is None
    scene.router.set_up("a", up=False)
    assert scene.goes(routing(2, 20)) == "region:west", "no other can serve it"


def test_an_end_lets_one_go_who_waits_for_that_engine(scene: Scene) -> None:
    first, second = scene.wait(routing(1, 101)), scene.wait(routing(1, 101))
    assert scene.next() == []
    scene.end_one()
    assert scene.next() == [(first.item, "a")]
    assert scene.queue.waiting() == [second]


def test_who_comes_later_does_not_pass_by_the_line(scene: Scene) -> None:
    scene.wait(routing(1, 101))
    scene.end_one()
    assert scene.goes(routing(1, 101)) is None


def test_a_short_turn_passes_a_long_one_until_that_is_due(scene: Scene) -> None:
    scene.fill("b")
    cold = scene.wait(routing(2, 20))  # a second of prefill: due after 4
    scene.router.set_up("b", up=False)
    scene.now += 2.0
    warm = scene.wait(routing(1, 101))
    scene.now += 10.0
    late = scene.wait(routing(1, 101))
    order = []
    for _ in range(3):
        scene.end_one()
        order += [turn for turn, where in scene.next() if where == "a"]
    assert order == [warm.item, cold.item, late.item]


def test_a_place_that_is_gone_is_waited_for_no_more(scene: Scene) -> None:
    waiter = scene.wait(routing(1, 101))
    scene.router.remove_worker("a")
    assert scene.next() == [(waiter.item, "b")]
