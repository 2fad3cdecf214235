"""KV events over ZeroMQ: what the proxy makes of an engine's publisher, and of the faults of one.

The publisher is the test's own: batches that are lost, a replay that lacks some or never answers, and numbers that
begin anew cannot be provoked from an engine. What engines publish is tested against the engines.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import zmq

from tests.machine import seconds
from tests.subjects.processes import DEADLINE_S
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.base.turns import Turns
from warmroute_proxy.server.engines import kv_events
from warmroute_proxy.server.engines.kv_events import KvEvents, KvSource, kv_source

CHAIN = Chain([11, 12, 13, 14], [64, 128, 192, 256])  # a cut ends with each block of 16 tokens
ROUTING = RoutingRequest("m", 1, 1, False, None, CHAIN, 0, 1, 300, None, None, False)
BLOCKS = [900, 901, 902, 903]
STORED = {
    "type": "BlockStored",
    "block_hashes": BLOCKS,
    "parent_block_hash": None,
    "token_ids": list(range(64)),
    "block_size": 16,
    "medium": "GPU",
    "session_id": "t",
}


def removed(*blocks: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(blocks), "medium": "GPU"}


def batch(*events: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode([100.0, list(events), 0])


class Publisher:
    """An engine's two sockets. `kept` is what it replays; `answers` is false for one whose replay hangs."""

    def __init__(self, context: "zmq.Context[Any]", ports: tuple[int, int] | None = None) -> None:
        # An XPUB says when somebody has subscribed; it publishes as a PUB does.
        self.pub, self.router = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
        found = []
        for socket, port in zip((self.pub, self.router), ports or ("*", "*"), strict=True):
            socket.setsockopt(zmq.SNDHWM, 100_000)  # SGLang's `hwm`: beyond it a publisher drops
            _bind(socket, f"tcp://127.0.0.1:{port}")
            found.append(int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2]))
        self.ports = found[0], found[1]
        self.next = 0
        self.kept: dict[int, bytes] = {}
        self.answers = True
        self.asked: list[tuple[bytes, int]] = []  # who asked, and from which number on

    def publish(self, *events: dict[str, Any], lost: bool = False, kept: bool = True) -> None:
        payload, number = batch(*events), self.next
        self.next += 1
        if kept:
            self.kept[number] = payload
        if not lost:
            self.pub.send_multipart([b"kv", number.to_bytes(8, "big"), payload])

    def serve(self) -> int:
        """Answer what was asked so far; how often that was."""
        asked = 0
        while self.router.poll(0):
            asked += 1
            client, _, start = self.router.recv_multipart()
            self.asked.append((client, int.from_bytes(start, "big")))
            if self.answers:
                self.answer(-1)
        return asked

    def answer(self, request: int) -> None:
        client, first = self.asked[request]
        for number, payload in self.kept.items():
            if number >= first:
                self.router.send_multipart([client, b"", b"kv", number.to_bytes(8, "big"), payload])
        self.end(request)

    def end(self, request: int) -> None:
        self.router.send_multipart([self.asked[request][0], b"", b"", (-1).to_bytes(8, "big", signed=True), b""])

    def has_subscriber(self) -> bool:
        return bool(self.pub.poll(0)) and self.pub.recv()[:1] == b"\x01"

    def close(self) -> None:
        self.pub.close(linger=0)
        self.router.close(linger=0)


def _bind(socket: Any, address: str) -> None:
    """Bind, once the socket that had the address before is closed: ZeroMQ does that in a thread of its own."""
    deadline_s = time.monotonic() + seconds(DEADLINE_S)
    while True:
        try:
            socket.bind(address)
        except zmq.ZMQError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.005)
        else:
            return


class Scene:
    """A publisher, a router that sent one prompt there, and the subscription between them."""

    def __init__(self, *, replays: bool = True) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.publisher = Publisher(self.context)
        self.worker = Worker("w", "w", 0, "aggregated")
        self.router = Router("east", [self.worker])
        self.metrics = Metrics()
        self.events = KvEvents(self.metrics, lambda: 100.0)
        port, replay_port = self.publisher.ports
        self.source = KvSource("127.0.0.1", port, replay_port if replays else None, "kv", 16)

    async def start(self) -> None:
        self.events.follow(self.worker, self.source, self.router)
        await self.subscribed(self.publisher)

    async def subscribed(self, publisher: Publisher) -> None:
        """Wait until a publisher is followed, and send the prompt."""
        await until(publisher.has_subscriber, "a subscription")
        feed = self.events.feed("w")
        assert feed is not None
        feed.blocks.expect("t", CHAIN)
        feed.blocks.settled("t", 64)

    def close(self) -> None:
        self.events.close()
        self.publisher.close()
        self.context.destroy(linger=0)

    def cached(self) -> int:
        """Blocks that are predicted to be cached."""
        return -(-self.router.place(ROUTING, 0.0).predicted_cached_tokens // 16)

    def count(self, name: str) -> int:
        return self.metrics.value(declared.BY_NAME[f"warmroute_kv_{name}_total"], (("worker", "w"),))

    async def sees(self, blocks: int) -> None:
        def seen() -> bool:
            self.publisher.serve()
            return self.cached() == blocks

        await until(seen, f"{blocks} cached blocks")


async def until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(seconds(DEADLINE_S)):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        pytest.fail(f"{what}: not within {seconds(DEADLINE_S):.0f} s")


@pytest.fixture
async def scene() -> Any:
    made: list[Scene] = []

    async def make(**options: bool) -> Scene:
        made.append(Scene(**options))
        await made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.close()


Make = Callable[..., Awaitable[Scene]]


async def test_events_are_read_in_the_turn_of_their_engine(scene: Make) -> None:
    one = await scene()
    turns = one.events.turns = Turns(time.monotonic, lambda _: None)
    held = asyncio.Event()
    turns.task_begun()  # of a tenant: until it ran, no other step runs
    turns.line_up("tenant", held.set)
    one.publisher.publish(STORED)
    await until(lambda: "@w" in turns.lines, "the engine waits in its line")
    assert not one.cached()
    turns.task_ran("tenant", 0.0, first=True)
    await one.sees(4)
    assert held.is_set()


async def test_lost_batches_are_replayed(scene: Make) -> None:
    one = await scene()
    one.publisher.publish(STORED)
    await one.sees(4)
    for block in (903, 902):
        one.publisher.publish(removed(block), lost=True)
    one.publisher.publish(removed(901))
    await one.sees(1)
    assert (one.count("event_gaps"), one.count("event_batches_replayed"), one.count("index_drops")) == (1, 3, 0)
    one.publisher.publish(removed(900))
    await one.sees(0)
    assert one.count("event_batches") == 5


async def test_a_replay_that_hangs_is_given_up_and_its_late_end_does_not_end_the_next_one(
    scene: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_events, "REPLAY_TIMEOUT_S", 0.05)
    one = await scene()
    one.publisher.answers = False
    one.publisher.publish(STORED)
    await one.sees(4)
    one.publisher.publish(lost=True, kept=False)
    one.publisher.publish()
    await one.sees(0)
    monkeypatch.setattr(kv_events, "REPLAY_TIMEOUT_S", 900.0)
    one.publisher.publish(STORED)
    await one.sees(4)
    one.publisher.publish(removed(903), lost=True)
    one.publisher.publish(removed(902))
    await until(lambda: one.publisher.serve() > 0, "the second replay is requested")
    one.publisher.end(0)
    one.publisher.answer(1)
    await one.sees(2)
    assert one.count("index_drops") == 1, "only the batch that no replay had is lost"


async def test_an_engine_that_began_anew_has_an_empty_cache(scene: Make) -> None:
    one = await scene()
    one.publisher.publish(STORED)
    one.publisher.publish(removed(903))
    await one.sees(3)
    ports = one.publisher.ports
    one.publisher.close()
    one.publisher = Publisher(one.context, ports)
    await until(one.publisher.has_subscriber, "a subscription to the new process")
    one.publisher.publish(removed(4711))
    await one.sees(0)
    assert one.count("event_restarts") == 1
    one.publisher.publish(STORED)
    await one.sees(4)


async def test_many_batches_at_once_let_others_run(scene: Make) -> None:
    one = await scene()
    turns: list[int] = []

    async def other() -> None:
        while one.count("event_batches") < 2001:
            turns.append(one.count("event_batches"))
            await asyncio.sleep(0)

    running = asyncio.create_task(other())
    for _ in range(2000):
        one.publisher.publish(removed(1))
    one.publisher.publish(STORED)
    await one.sees(4)
    await running
    steps = [later - earlier for earlier, later in pairwise(turns)]
    assert max(steps) <= 2 * kv_events.MAX_BATCHES_AT_ONCE
    assert one.count("event_gaps") == 0


async def test_a_source_that_moved_is_followed_there(scene: Make) -> None:
    one = await scene()
    other = Publisher(one.context)
    moved = KvSource("127.0.0.1", other.ports[0], None, "kv", 16)
    one.events.follow(one.worker, moved, one.router)
    await one.subscribed(other)
    other.publish(STORED)
    await one.sees(4)
    one.events.follow(one.worker, None, one.router)
    assert one.events.feed("w") is None
    other.close()


async def test_a_worker_that_says_more_of_itself_is_still_followed(scene: Make) -> None:
    one = await scene()
    feed = one.events.feed("w")
    one.events.follow(replace(one.worker, host_cache=True, store="s"), one.source, one.router)
    assert one.events.feed("w") is feed


@pytest.mark.parametrize("host", ["no host", "a/b", "x\x00y"])
async def test_an_address_that_is_none_is_passed_over(scene: Make, host: str, caplog: pytest.LogCaptureFixture) -> None:
    one = await scene()
    for _ in range(3):  # each probe asks again
        one.events.follow(one.worker, KvSource(host, 5557, 5558, "", 16), one.router)
    assert one.events.feed("w") is None
    assert caplog.text.count("cannot be followed") == 1
    one.events.follow(one.worker, one.source, one.router)
    assert one.events.feed("w") is not None


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"endpoint_host": "*"}, KvSource("engine", 5557, None, "", 64)),
        ({"endpoint_host": "0.0.0.0"}, KvSource("engine", 5557, None, "", 64)),
        ({"endpoint_host": "10.0.0.7", "topic": "kv"}, KvSource("10.0.0.7", 5557, None, "kv", 64)),
        ({"replay_endpoint_port_base": 5558}, KvSource("engine", 5557, 5558, "", 64)),
        ({"replay_endpoint_port_base": "x"}, KvSource("engine", 5557, None, "", 64)),
        ({"endpoint_port_base": None}, None),
        ({"endpoint_port_base": 70_000}, None),
        ({"block_size": 0}, None),
        ({"endpoint_host": 5}, None),
    ],
)
def test_where_an_engine_publishes(said: dict[str, Any], expected: KvSource | None) -> None:
    described = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "block_size": 64, **said}
    assert kv_source({"kv_events": described}, "engine") == expected
    assert kv_source({"kv_events": None}, "engine") is None
    assert kv_source({}, "engine") is None
