"""Events between proxies over a link that loses messages: what the receiver has applied, and in which order."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.search import searched

from warmroute_proxy.core.load.engine_loads import EngineLoads
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.replicas.event_stream import (
    ALIVE_EVERY_S,
    CUT_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_WAITING,
    MAX_WAITING_BYTES,
    SILENT_S,
    Events,
    Inbox,
    Outbox,
)
from warmroute_proxy.core.replicas.peer_events import Event, Lost, Sent
from warmroute_proxy.core.replicas.replica import Replica


class Applied(Replica):
    """Notes what it is given."""

    def __init__(self) -> None:
        super().__init__("east", [], send=lambda *_: None)
        self.numbers: list[int] = []
        self.forgotten = 0

    def apply(self, peer: int, event: Event, now_s: float) -> None:
        assert isinstance(event, Lost)
        self.numbers.append(event.number)

    def forget(self, peer: int, now_s: float) -> None:
        self.forgotten += 1


def taken(outbox: Outbox, now_s: float) -> Events:
    """The next message, which must be there."""
    message = outbox.take(now_s)
    assert message is not None
    return message


# What happens to a message: it arrives and is confirmed, is lost, or its confirmation is.
FATES = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["arrives", "lost", "unconfirmed"])), max_size=40)


@searched(100)
@given(FATES)
def test_each_event_is_applied_once_and_in_order(fates: list[tuple[int, str]]) -> None:
    router, inbox, outbox, count = Applied(), Inbox(), Outbox(7), 0
    for more, fate in [*fates, (1, "arrives")]:
        for _ in range(more):
            outbox.add(Lost(count, []))
            count += 1
        message = outbox.take(100.0)
        if message is None:
            continue
        if fate != "lost":
            inbox.apply(message, router, 100.0)
        if fate == "arrives":
            outbox.confirmed()
    assert router.numbers == list(range(count))
    assert router.forgotten == 0
    assert outbox.waiting == 0


def sent(cuts: int) -> Sent:
    return Sent(1, "a", None, Chain(list(range(cuts)), list(range(cuts))), True, 0, 1, 0, 1, 1, 0)


def test_an_event_that_no_peer_would_take_holds_up_nothing() -> None:
    outbox = Outbox(7)
    outbox.add(sent(MAX_MESSAGE_BYTES // CUT_BYTES))
    outbox.add(Lost(2, []))
    message = taken(outbox, 100.0)
    assert (message.first, message.events, outbox.lost) == (0, [Lost(2, [])], 1)


@pytest.mark.parametrize("cuts", [1, 500, 8_000, 40_000])
def test_what_waits_and_a_message_are_bounded_by_their_bytes(cuts: int) -> None:
    outbox = Outbox(7)
    for _ in range(min(2 * MAX_WAITING, 4 * MAX_WAITING_BYTES // (CUT_BYTES * cuts))):
        outbox.add(sent(cuts))
    assert outbox.waiting * (CUT_BYTES * cuts) <= MAX_WAITING_BYTES
    assert len(msgspec.msgpack.encode([taken(outbox, 100.0)])) <= 1 << 20


def test_a_refused_message_is_not_sent_again() -> None:
    router, inbox, outbox = Applied(), Inbox(), Outbox(7)
    outbox.add(Lost(0, []))
    assert outbox.take(100.0) is not None
    outbox.refused()
    outbox.add(Lost(1, []))
    inbox.apply(taken(outbox, 100.0), router, 100.0)
    assert (router.numbers, outbox.lost, outbox.waiting) == ([1], 1, 1)


def test_an_event_that_cannot_be_applied_is_not_applied_again() -> None:
    class Broken(Applied):
        def apply(self, peer: int, event: Event, now_s: float) -> None:
            super().apply(peer, event, now_s)
            raise IndexError

    router, inbox, message = Broken(), Inbox(), Events(7, 0, [Lost(0, [])])
    with pytest.raises(IndexError):
        inbox.apply(message, router, 100.0)
    assert inbox.apply(message, router, 100.0) == 0
    assert router.numbers == [0]


def test_a_receiver_that_missed_events_forgets_the_requests_of_that_sender() -> None:
    router, inbox, outbox = Applied(), Inbox(), Outbox(7)
    outbox.add(Lost(0, []))
    inbox.apply(taken(outbox, 0.0), router, 0.0)
    outbox.confirmed()
    for number in range(1, MAX_WAITING + 2):  # one more than is kept for a proxy that does not answer
        outbox.add(Lost(number, []))
    assert (outbox.waiting, outbox.lost) == (MAX_WAITING, 1)
    inbox.apply(taken(outbox, 1.0), router, 1.0)
    assert router.forgotten == 1
    assert router.numbers[:2] == [0, 2]


def test_a_proxy_that_is_silent_is_forgotten_and_one_that_has_nothing_to_say_is_not() -> None:
    router, inbox, outbox = Applied(), Inbox(), Outbox(7)
    for second in range(0, int(4 * SILENT_S), int(ALIVE_EVERY_S)):
        inbox.apply(taken(outbox, float(second) + 100), router, float(second) + 100)
        outbox.confirmed()
        inbox.drop_silent(router, float(second) + 100)
    assert router.forgotten == 0
    inbox.drop_silent(router, 100 + 5 * SILENT_S)
    assert router.forgotten == 1


def test_the_books_are_those_of_the_sender_after_lost_messages() -> None:
    workers = [Worker(id_, id_, 0, "aggregated") for id_ in ("a", "b")]
    outbox, inbox = Outbox(7), Inbox()
    other = Replica("east", workers, send=lambda *_: None)
    router = Replica("east", workers, send=lambda event, _now_s: outbox.add(event)).router
    for each in (router, other.router):
        for id_ in ("a", "b"):
            each.observe_loads(id_, EngineLoads(max_running=100, max_tokens=100_000), 0.0)
    running: list[Any] = []
    for session in range(8):
        chain = Chain([session * 1000 + n for n in range(20)], [4000 * (n + 1) for n in range(20)])
        routing = RoutingRequest("m", session, session, False, None, chain, 0, 1, 300, None, None, True)
        running.append((routing, router.dispatched(routing, router.place(routing, 1.0), 1.0)))
        message = taken(outbox, 1.0)
        if session % 3:
            inbox.apply(message, other, 1.0)
        if session % 3 == 1:
            outbox.confirmed()
    for routing, ticket in running[:5]:
        router.settled(ticket, routing, 2.0, 20_000, 0, 100)
    inbox.apply(taken(outbox, 2.0), other, 2.0)
    assert other.router.working_set.as_dict(3.0) == router.working_set.as_dict(3.0)
    assert router.working_set.as_dict(3.0)["a"]["resident"] > 0
