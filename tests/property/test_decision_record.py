"""Whatever a router is told, its record plays back; whatever happens to the bytes of a record, it is noticed."""

from functools import partial
from io import BytesIO
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st
from tests.search import searched
from tests.subjects.recorded import recorded_router

from warmroute_lab.replay.record import judge
from warmroute_proxy.core.load.engine_loads import EngineLoads
from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.decision import Policy
from warmroute_proxy.core.placement.fleet import Peer, Worker
from warmroute_proxy.core.placement.router import Router, Ticket
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.replicas.peer_events import Event
from warmroute_proxy.core.replicas.record import MAGIC, Closed, Frames, RecordedCall, RecordError, frame
from warmroute_proxy.core.replicas.recorder import Recorder
from warmroute_proxy.core.replicas.replica import Replica

WORKERS = [
    Worker("a0", "a", 0, "aggregated"),
    Worker("a1", "a", 1, "aggregated", frozenset({"m"})),
    Worker("p0", "p0", 0, "prefill"),
    Worker("d0", "d0", 0, "decode"),
    Worker("d1", "d1", 0, "decode"),
]
IDS = [worker.id for worker in WORKERS]
REGIONS = ["west", "north"]

OPS = (
    ["turn"] * 6
    + ["end"] * 4
    + ["token", "progress", "fail", "up", "peer", "suspect", "drain", "restart", "remove", "add"]
)
OPS += ["loads", "stored", "removed", "cleared"]
operation = st.tuples(st.sampled_from(OPS), st.integers(0, 11), st.integers(0, 3))
ops = st.lists(operation, max_size=60)
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(list[Event]).decode


def routing(number: int, variant: int) -> RoutingRequest:
    cuts = 1 + number % 4
    hashes = [(number % 3 << 50) + cut for cut in range(cuts)]
    return RoutingRequest(
        model="m" if variant else "n",
        lineage=number % 5,
        session=None if variant == 3 else number % 6,
        derived=number % 4 == 0,
        parent=number % 2 or None,
        chain=Chain(hashes, [3000 * (cut + 1) for cut in range(cuts)]),
        structural_bytes=1500 * variant,
        turn=1 + variant,
        expected_output_tokens=200 * variant,
        home_hint=[None, "west", "nowhere", "east"][variant],
        allowed_regions=None if number % 3 else frozenset({"east", "north"}),
        may_forward=number % 4 != 1,
        thread=number % 2 or None,
    )


class Driver:
    """Does what a proxy does with a router, in any order."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.now_s = 0.0
        self.open: list[tuple[Ticket, RoutingRequest]] = []

    def do(self, op: str, number: int, variant: int) -> None:
        router, worker = self.router, IDS[number % len(IDS)]
        self.now_s += 0.05 * number
        if op == "turn":
            asked = routing(number, variant)
            try:
                decision = router.place(asked, self.now_s, frozenset(IDS[:variant]))
            except NoWorker:
                return
            self.open.append((router.dispatched(asked, decision, self.now_s), asked))
        elif op in {"end", "token", "progress", "fail"}:
            self._of_a_turn(op, number, variant)
        else:
            told: dict[str, Any] = {
                "up": lambda: router.set_up(worker, variant > 0),
                "peer": lambda: router.set_peer_up(REGIONS[number % 2], up=variant > 0),
                "suspect": lambda: router.suspect_peer(REGIONS[number % 2]),
                "drain": lambda: router.set_draining(worker, variant == 0),
                "restart": lambda: router.worker_restarted(worker),
                "remove": lambda: router.remove_worker(worker),
                "add": lambda: router.add_worker(WORKERS[number % len(WORKERS)]),
                "loads": lambda: router.observe_loads(
                    worker, EngineLoads(variant, 500 * number, 9000, 3000 * number, 10**6 * number), self.now_s
                ),
                "stored": lambda: router.cache_stored(worker, routing(number, 0).chain.hashes, "device"),
                "removed": lambda: router.cache_removed(worker, routing(number, 0).chain.hashes, tier="device"),
                "cleared": lambda: router.cache_cleared(worker),
            }
            told[op]()

    def _of_a_turn(self, op: str, number: int, variant: int) -> None:
        if not self.open:
            return
        at = number % len(self.open)
        ticket, asked = self.open[at]
        if op == "token":
            self.router.first_token(ticket, self.now_s)
        elif op == "progress":
            self.router.progress(ticket, 32 * variant)
        elif op == "fail":
            self.open.pop(at)
            self.router.failed(ticket, self.now_s, [ticket.decision.cache_worker] * (variant > 1))
        else:
            self.open.pop(at)
            streamed = variant and 17 + 5 * number * number
            self.router.settled(ticket, asked, self.now_s, variant and 700 * number, 300 * variant, None, streamed)


def recorded(done: list[tuple[str, int, int]], policy: Policy = "cost") -> bytes:
    calls: list[RecordedCall] = []
    driver = Driver(
        recorded_router(calls.append, "1", "east", WORKERS, [Peer("west", 0.03), Peer("north", 0.01)], policy)
    )
    for op in done:
        driver.do(*op)
    return MAGIC + b"".join(map(frame, [*calls, Closed("done")]))


@given(ops, st.sampled_from(["cost", "round_robin"]))
@example([("turn", 0, 0), ("restart", 0, 0), ("turn", 0, 0)], "round_robin")
def test_every_decision_comes_out_the_same(done: list[tuple[str, int, int]], policy: Policy) -> None:
    verdict = judge(Frames(BytesIO(recorded(done, policy)).read))
    assert (verdict.differing, verdict.first_difference, verdict.cut_off) == (0, None, None)
    assert verdict.decisions == sum(op == "turn" for op, _, _ in done)


@searched(60)
@given(st.lists(st.tuples(st.integers(0, 1), operation), max_size=40))
def test_each_of_two_routers_that_share_what_they_know_plays_back_its_own_decisions(
    done: list[tuple[int, tuple[str, int, int]]],
) -> None:
    calls: list[list[RecordedCall]] = [[], []]
    replicas: list[Replica] = []

    def send(sender: int, event: Event, now_s: float) -> None:
        (again,) = decode(encode([event]))
        replicas[1 - sender].apply(sender, again, now_s)

    for number, written in enumerate(calls):
        recorder = Recorder(written.append, "1", "east", WORKERS)
        replicas.append(Replica("east", WORKERS, send=partial(send, number), listeners=[recorder]))
    drivers = [Driver(replica.router) for replica in replicas]
    for who, op in done:
        drivers[who].do(*op)
    replicas[0].forget(1, drivers[0].now_s)
    for written in calls:
        data = MAGIC + b"".join(map(frame, [*written, Closed("done")]))
        verdict = judge(Frames(BytesIO(data).read))
        assert (verdict.differing, verdict.first_difference, verdict.cut_off) == (0, None, None)


SOME = recorded([("turn", 3, 1), ("token", 0, 1), ("loads", 2, 1), ("end", 0, 2), ("turn", 4, 2), ("up", 1, 0)])


@searched(300)
@given(st.integers(0, len(SOME) - 1), st.integers(1, 255))
def test_a_changed_byte_is_noticed(at: int, change: int) -> None:
    changed = bytearray(SOME)
    changed[at] ^= change
    try:
        verdict = judge(Frames(BytesIO(bytes(changed)).read))
    except RecordError:
        return
    assert verdict.cut_off is not None


@given(st.integers(0, len(SOME) - 1))
def test_a_record_that_is_cut_anywhere_is_played_that_far_or_refused(size: int) -> None:
    try:
        verdict = judge(Frames(BytesIO(SOME[:size]).read))
    except RecordError as error:
        assert "is not a record" in str(error) or "is empty" in str(error)
        return
    assert verdict.cut_off is not None
    assert verdict.differing == 0
    assert verdict.decisions <= 2
