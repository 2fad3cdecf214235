"""Routers that tell each other what they do decide like one that was given everything, whatever happens in between."""

from functools import partial
from typing import Any, Final

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st
from tests.subjects.routing import routing_of

from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.fleet import Peer, Worker
from warmroute_proxy.core.placement.router import Router, Ticket
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.replicas.peer_events import Event
from warmroute_proxy.core.replicas.replica import Replica

WORKERS: Final = [
    Worker("a0", "a", 0, "aggregated"),
    Worker("a1", "a", 1, "aggregated"),
    Worker("p0", "p0", 0, "prefill"),
    Worker("d0", "d0", 0, "decode"),
    Worker("d1", "d1", 0, "decode"),
]
IDS: Final = [worker.id for worker in WORKERS]
PEERS: Final = [Peer("west", 0.05)]
COUNT: Final = 3

OPS: Final = ["turn"] * 6 + ["end"] * 4 + ["token"] * 3 + ["fail"] * 2 + ["restart", "remove", "add", "down"]
operations = st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, COUNT - 1), st.integers(0, 11)), max_size=60)

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(list[Event]).decode


def routing(number: int) -> RoutingRequest:
    cuts = 1 + number % 4
    chain = Chain([(number % 3 << 62) + cut for cut in range(cuts)], [3000 * (cut + 1) for cut in range(cuts)])
    return routing_of(
        chain, lineage=number % 5, session=number % 6, derived=number % 4 == 0, turn=1 + number % 3,
        expected_output_tokens=200, may_forward=number % 2 == 0, thread=number % 2 or None,
    )  # fmt: skip


class Processes:
    """Some peer processes, and one router that gets all calls of any of them."""

    def __init__(self) -> None:
        self.one = Router("east", WORKERS, PEERS)
        self.sent: list[list[Event]] = [[] for _ in range(COUNT)]
        self.replicas = [Replica("east", WORKERS, PEERS, send=partial(self._send, number)) for number in range(COUNT)]
        self.many = [replica.router for replica in self.replicas]
        self.now_s = 0.0
        self.open: list[tuple[int, Ticket, Ticket, RoutingRequest]] = []

    def _send(self, number: int, event: Event, _now_s: float) -> None:
        self.sent[number].append(event)

    def do(self, operation: str, who: int, number: int) -> None:
        self.now_s += 0.07 * number
        if operation == "turn":
            self._turn(who, routing(number))
        elif operation in {"end", "token", "fail"}:
            self._of_a_turn(operation, number)
        else:
            for router in (self.one, *self.many):
                self._change(router, operation, number)
        self.share()

    def share(self) -> None:
        for number, sent in enumerate(self.sent):
            events = decode(encode(sent))
            sent.clear()
            for event in events:
                for peer in range(COUNT):
                    if peer != number:
                        self.replicas[peer].apply(number, event, self.now_s)

    def answers(self, number: int) -> list[Decision | None]:
        """What each would decide now, the one first."""
        return [self._place(router, routing(number)) for router in (self.one, *self.many)]

    def _place(self, router: Router, asked: RoutingRequest) -> Decision | None:
        try:
            return router.place(asked, self.now_s)
        except NoWorker:
            return None

    def _turn(self, who: int, asked: RoutingRequest) -> None:
        decision = self._place(self.many[who], asked)
        assert self._place(self.one, asked) == decision
        self.share()
        if decision is not None:
            ticket = self.many[who].dispatched(asked, decision, self.now_s)
            self.open.append((who, ticket, self.one.dispatched(asked, decision, self.now_s), asked))

    def _of_a_turn(self, operation: str, number: int) -> None:
        if not self.open:
            return
        at = number % len(self.open)
        who, ticket, same, asked = self.open[at]
        for router, mine in ((self.many[who], ticket), (self.one, same)):
            if operation == "token":
                router.first_token(mine, self.now_s)
            elif operation == "end":
                prompt_tokens = None if number == 5 else 700 + 50 * number
                router.settled(mine, asked, self.now_s, prompt_tokens, 60 * number, 7, 20 + 5 * number * number)
            else:
                router.failed(mine, self.now_s, [mine.cache_worker.id] if number % 2 else [])
        if operation != "token":
            del self.open[at]

    def _change(self, router: Router, operation: str, number: int) -> None:
        worker = WORKERS[number % len(WORKERS)]
        if operation == "restart":
            router.worker_restarted(worker.id)
        elif operation == "remove":
            router.remove_worker(worker.id)
        elif operation == "add":
            router.add_worker(worker)
        else:
            router.set_up(worker.id, number % 2 == 0)


def comparable(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Without the score of predictions, which each keeps of its own turns."""
    return {key: value for key, value in snapshot.items() if key != "prediction"}


@given(operations)
@example([("turn", 0, 1), ("turn", 0, 1), ("end", 0, 0), ("end", 0, 1)])  # a history was missed
@example([("turn", 1, 3), ("end", 0, 11), ("turn", 0, 3), ("end", 0, 7), ("turn", 1, 3)])  # and its next turn came
def test_siblings_decide_like_one(done: list[tuple[str, int, int]]) -> None:
    processes = Processes()
    for operation, who, number in done:
        processes.do(operation, who, number)
    for number in range(12):
        first, *others = processes.answers(number)
        assert all(other == first for other in others)
    expected = comparable(processes.one.snapshot(processes.now_s))
    assert all(comparable(router.snapshot(processes.now_s)) == expected for router in processes.many)


@given(operations, st.integers(0, COUNT - 1))
def test_what_a_sibling_that_died_had_under_way_is_load_no_more(done: list[tuple[str, int, int]], dead: int) -> None:
    processes = Processes()
    for operation, who, number in done:
        processes.do(operation, who, number)
    for replica in processes.replicas:
        replica.forget(dead, processes.now_s)
    for who, ticket, _, _ in processes.open:
        if who != dead:
            processes.many[who].failed(ticket, processes.now_s, [])
    processes.share()
    for who, router in enumerate(processes.many):
        if who != dead:
            workers = router.snapshot(processes.now_s)["workers"].values()
            assert all(row["running"] == row["prefill_tokens"] == row["resident_tokens"] == 0 for row in workers)
