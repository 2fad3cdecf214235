"""What an engine sends is bounded before it is read, and read in portions that come out as the whole."""

import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from tests.field.fuzz.passthrough import HEAD, Transport
from warmroute_proxy.core.load.blame import Cause
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.queue.fair_budget import FairBudget
from warmroute_proxy.dialects.chat_answers import read_answer, read_chunk
from warmroute_proxy.dialects.work import MAX_CALLS, MAX_PARTS
from warmroute_proxy.server.base.config import EngineConfig
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.base.turns import SLICE_S, Turns
from warmroute_proxy.server.engines import kv_feed, probing
from warmroute_proxy.server.engines.engine_metrics import add_counts, add_reports, counts_of, reports_of
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.engines.kv_events import (
    BURST_S,
    BYTES_A_SECOND,
    MAX_MESSAGE_BYTES,
    RECEIVE_QUEUE,
    KvEvents,
    _connected,
    _Subscription,
)
from warmroute_proxy.server.engines.kv_feed import MAX_BATCH_BYTES, MAX_LEFT_BYTES, UNITS_AT_ONCE, KvFeed
from warmroute_proxy.server.engines.leg import Leg
from warmroute_proxy.server.engines.small_get import Collector
from warmroute_proxy.server.engines.sse import UsageTracker
from warmroute_proxy.server.engines.upstream import Upstream, _Connection
from warmroute_proxy.server.http.body_memory import UNCOUNTED_BYTES, BodyMemory
from warmroute_proxy.server.http.header_lines import Line
from warmroute_proxy.server.request.answer import Answer


class Router:
    """Notes what a feed says of a cache."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []

    def cache_stored(self, _worker: str, keys: list[int], tier: str) -> None:
        self.said += [("stored", tier, key) for key in keys]  # type: ignore[misc]

    def cache_removed(self, _worker: str, keys: list[int], tier: str) -> None:
        self.said += [("removed", tier, key) for key in keys]  # type: ignore[misc]

    def cache_cleared(self, worker: str) -> None:
        self.said.append(("cleared", worker))

    worker_restarted = cache_cleared


def counted_feed(total_bytes: int = 2**30, *, can_replay: bool = False) -> tuple[KvFeed, Router, FairBudget]:
    """A feed whose waiting batches are counted."""
    router, memory = Router(), BodyMemory(total_bytes, 1, [0])
    worker, counted = Worker("w", "w", 0, "aggregated"), memory.reserve("@w", 0)
    feed = KvFeed(worker, router, Metrics(), block_size=1, can_replay=can_replay, memory=counted)  # type: ignore[arg-type]
    return feed, router, memory.budget


def fed(batches: list[bytes]) -> tuple[KvFeed, Router]:
    feed, router, _ = counted_feed()
    for number, batch in enumerate(batches):
        feed.live(number, batch, 100.0)
    return feed, router


def drained(feed: KvFeed) -> int:
    """How many portions were left."""
    portions = 0
    while feed.is_behind:
        feed.go_on()
        portions += 1
    return portions


def batch(*events: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode([99.0, events, 0])


blocks = st.lists(st.integers(1, 60), max_size=40)
events = st.one_of(
    blocks.map(lambda found: {"type": "BlockStored", "block_hashes": found, "medium": "GPU"}),
    blocks.map(lambda found: {"type": "BlockRemoved", "block_hashes": found}),
    st.just({"type": "AllBlocksCleared"}),
)


@given(st.lists(st.lists(events, max_size=6), max_size=6), st.integers(1, 7), st.integers(1, 5))
def test_events_in_portions_are_those_of_the_whole(sent: list[list[dict[str, Any]]], units: int, at_once: int) -> None:
    batches = [batch(*each) for each in sent]
    whole, said = fed(batches)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_feed, "UNITS_AT_ONCE", units)
        patch.setattr(kv_feed, "BLOCKS_AT_ONCE", at_once)
        feed, router = fed(batches)
        drained(feed)
    assert router.said == said.said
    assert feed.blocks.blocks == whole.blocks.blocks


def test_a_large_batch_is_applied_in_portions() -> None:
    feed, _ = fed([batch({"type": "BlockStored", "block_hashes": list(range(200_000)), "medium": "GPU"})])
    assert 1 + drained(feed) >= 200_000 / (UNITS_AT_ONCE + 1_024)


@pytest.mark.parametrize(
    ("size", "count"), [(MAX_BATCH_BYTES + 1, 1), (MAX_BATCH_BYTES // 2, 3 + 2 * MAX_LEFT_BYTES // MAX_BATCH_BYTES)]
)
def test_what_is_too_much_drops_the_index_and_waits_no_more(size: int, count: int) -> None:
    hashes = [2**40 + number for number in range(size // 9)]
    feed, router = fed([batch({"type": "BlockRemoved", "block_hashes": hashes}) + b"\0" * 16] * count)
    assert ("cleared", "w") in router.said
    assert feed._left_bytes <= MAX_LEFT_BYTES


def test_batches_that_wait_for_a_replay_are_bounded_by_their_bytes() -> None:
    feed, router, _ = counted_feed(can_replay=True)
    large = batch({"type": "BlockRemoved", "block_hashes": [2**40 + number for number in range(MAX_BATCH_BYTES // 10)]})
    feed.live(0, batch(), 100.0)
    assert feed.live(2, large, 100.0) == 1, "batch 1 is asked for"
    for number in range(3, 3 + 2 * MAX_LEFT_BYTES // len(large)):
        feed.live(number, large, 100.0)
        assert sum(len(waiting) for _, waiting in feed._waiting) <= MAX_LEFT_BYTES
    assert ("cleared", "w") in router.said


def test_a_batch_of_more_events_than_its_bytes_can_hold_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_feed, "_decode_events", lambda _: pytest.fail("4 million objects for 4 MiB"))
    feed, router = fed([msgspec.msgpack.encode([99.0, [None] * (MAX_BATCH_BYTES - 64), 0])])
    assert router.said == [("cleared", "w")]
    assert not feed.is_behind


@pytest.mark.parametrize("count", [1, 15, 16, 65_535, 65_536])
def test_batches_of_the_smallest_events_are_read(count: int) -> None:
    feed, router = fed([batch(*[{"type": "AllBlocksCleared"}] * count)])
    drained(feed)
    assert router.said == [("cleared", "w")] * count


def large_batch() -> bytes:
    """A batch that takes several portions."""
    return batch({"type": "BlockRemoved", "block_hashes": list(range(2**40, 2**40 + 3 * UNITS_AT_ONCE))})


@pytest.mark.parametrize("first", [1, 2], ids=["each after the other", "a replay is awaited"])
def test_batches_that_wait_are_reserved_until_they_are_applied(first: int) -> None:
    feed, _, budget = counted_feed(can_replay=True)
    payload = large_batch()
    feed.live(0, batch(), 100.0)
    for number in range(first, first + 3):
        feed.live(number, payload, 100.0)
    assert budget.used == 3 * len(payload)
    if first > 1:
        feed.replay_ended(100.0)
    drained(feed)
    assert not budget.used


@pytest.mark.parametrize("first", [1, 2])
def test_batches_without_memory_drop_the_index_of_their_worker(first: int) -> None:
    feed, router, budget = counted_feed(len(large_batch()) + 1_000, can_replay=True)
    feed.live(0, batch(), 100.0)
    for number in range(first, first + 3):
        feed.live(number, large_batch(), 100.0)
        assert budget.used <= len(large_batch()) + 1_000
    assert ("cleared", "w") in router.said


def test_small_batches_reserve_nothing() -> None:
    feed, _, budget = counted_feed(1)
    for number in range(1_000):
        feed.live(number, batch({"type": "BlockRemoved", "block_hashes": [2**40 + number]}), 100.0)
    assert not budget.used


def test_an_engine_that_sends_more_than_its_bytes_a_second_rests_and_no_other_does() -> None:
    events = KvEvents(Metrics(), lambda: 100.0)
    assert not events.rest_s("@a", int(BYTES_A_SECOND * BURST_S) // 2)
    for _ in range(4):
        rest_s = events.rest_s("@a", BYTES_A_SECOND // 2)
    assert 1.0 < rest_s < 2.0
    assert not events.rest_s("@b", 1_000)


class Socket:
    """Has `count` messages of these frames."""

    def __init__(self, *frames: bytes, count: int = 1_000) -> None:
        self.frames = list(frames)
        self.count = count
        self.received = 0

    def getsockopt(self, _option: int) -> int:
        return int(zmq.POLLIN) if self.received < self.count else 0

    def recv_multipart(self, _flags: int) -> list[bytes]:
        self.received += 1
        return self.frames


def subscribed() -> _Subscription:
    """A subscription without sockets."""
    found = _Subscription.__new__(_Subscription)
    found._owner, found.line, found._closed = KvEvents(Metrics(), lambda: 100.0), "@a", False
    return found


@pytest.mark.parametrize(("count", "more"), [(RECEIVE_QUEUE - 1, False), (RECEIVE_QUEUE, True)])
def test_more_may_wait_if_as_many_batches_have_come_as_zeromq_keeps(count: int, more: bool) -> None:
    socket = Socket(b"kv", b"0" * 8, b"", count=count)
    found, found_more, rest_s = subscribed()._received(socket)  # type: ignore[arg-type]
    assert (len(found), found_more, rest_s) == (count, more, 0.0)


@pytest.mark.parametrize("large", [0, 1, 2])
def test_each_frame_of_a_message_counts(large: int) -> None:
    frames = [b"kv", b"0" * 8, b""]
    frames[large] = b"x" * MAX_MESSAGE_BYTES
    socket, subscription = Socket(*frames), subscribed()
    for count in (1, 2):
        _, more, rest_s = subscription._received(socket)  # type: ignore[arg-type]
        assert (socket.received, more) == (count, True)
    assert rest_s > 0.1


def test_what_is_not_read_waits_at_the_engine() -> None:
    with zmq.Context() as context:
        engine: zmq.Socket[bytes] = context.socket(zmq.XPUB)
        engine.setsockopt(zmq.SNDHWM, 1)
        reader = _connected(context, zmq.SUB, "127.0.0.1", engine.bind_to_random_port("tcp://127.0.0.1"))
        reader.setsockopt(zmq.SUBSCRIBE, b"")
        engine.recv()
        for _ in range(80):
            engine.send_multipart([b"kv", b"0" * 8, b"x" * 1_000_000])
            time.sleep(0.005)
        arrived = 0
        while reader.poll(200):
            reader.recv_multipart()
            arrived += 1
        assert RECEIVE_QUEUE <= arrived < 40
        engine.close(linger=0)
        reader.close(linger=0)


class Answers:
    """What an engine answers to the proxy itself."""

    def __init__(self, total_bytes: int) -> None:
        self.memory = BodyMemory(total_bytes, 1, [0])
        self.given: list[tuple[int, bytes]] = []
        collector = Collector(self._take, 4 * 2**20, self.memory.reserve("@w", 0))
        self.leg = collector.leg
        self.leg.head(200, {})

    def _take(self, status: int, body: bytes) -> None:
        self.given.append((status, body))


def test_an_answer_to_the_proxy_itself_is_reserved_while_it_comes() -> None:
    answers = Answers(2**30)
    for _ in range(100):
        answers.leg.body(b"x" * 10_000)
    assert answers.memory.budget.used == 1_000_000
    answers.leg.end()
    assert answers.given == [(200, b"x" * 1_000_000)]
    assert not answers.memory.budget.used


@pytest.mark.parametrize("whole", [False, True])
def test_an_answer_to_the_proxy_itself_that_finds_no_memory_counts_as_missing(whole: bool) -> None:
    answers = Answers(500_000)
    if whole:
        answers.leg.whole([], b"x" * 1_000_000, 0.0)
    for _ in range(100):
        answers.leg.body(b"x" * 10_000)
        assert answers.memory.budget.used <= 500_000
    answers.leg.end()
    assert answers.given == [(0, b"")]


def test_a_small_answer_to_the_proxy_itself_reserves_nothing() -> None:
    answers = Answers(1)
    answers.leg.body(b"x" * UNCOUNTED_BYTES)
    answers.leg.end()
    assert answers.given == [(200, b"x" * UNCOUNTED_BYTES)]


@pytest.mark.uncompiled
async def test_metrics_are_reserved_until_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, held = BodyMemory(2**30, 1, [0]), list[int]()
    text = b"# nothing\n" * 20_000
    router: Any = SimpleNamespace()
    engines = Engines([EngineConfig("e", "http://127.0.0.1:1", "east")], 1.0, lambda: 0.0, lambda: 0.0, Metrics())
    engine, engines.memory = engines.by_id["e"], memory
    monkeypatch.setattr(engine.upstream, "send", lambda *sent: sent[-1].whole([], text, 0.0))

    async def read(_engine: object, body: bytes) -> Any:
        held.append(memory.budget.used)
        assert body == text
        raise ValueError

    monkeypatch.setattr(probing, "_read_metrics", read)
    await probing._observe_metrics(engines, engine, router)
    assert held == [len(text)]
    assert not memory.budget.used
    engines.close()


LINE = 'sglang:{0}{{dp_rank="{1}",model_name="m",cache_source="host"}} {2}\n'
lines = st.lists(
    st.builds(
        LINE.format,
        st.sampled_from(["num_running_reqs", "prompt_tokens_total", "cached_tokens_total", "num_requests_total", "x"]),
        st.integers(0, 70),
        st.integers(0, 1000),
    ),
    max_size=60,
)


@given(lines, st.integers(1, 9))
def test_metrics_in_portions_are_those_of_the_whole(text: list[str], each: int) -> None:
    def read(step: int) -> tuple[Any, Any]:
        found: Any = {}
        sums: dict[str, float] = {}
        for at in range(0, len(text), step):
            portion = "".join(text[at : at + step])
            add_reports(found, portion)
            add_counts(sums, portion)
        return reports_of(found), counts_of(sums)

    assert read(each) == read(len(text) or 1)


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
DENSE: dict[str, dict[str, Any]] = {
    "calls": {"content": None, "tool_calls": [CALL] * (MAX_CALLS + 1)},
    "parts": {"content": [{"type": "text", "text": "a"}] * (MAX_PARTS + 1)},
    "objects": {"content": "a", "reasoning": [{"a": [{}]}] * 60_000},
}


@pytest.mark.parametrize("name", DENSE)
def test_no_translator_makes_more_of_an_answer_than_a_model_says(name: str) -> None:
    whole = {"choices": [{"index": 0, "message": DENSE[name], "finish_reason": "stop"}]}
    with pytest.raises(ValueError, match=r"more than|not a chat completion"):
        read_answer(json.dumps(whole).encode())
    with pytest.raises(ValueError, match=r"more than|not a chunk"):
        read_chunk(json.dumps({"choices": [{"index": 0, "delta": DENSE[name]}]}).encode())


def test_calls_in_all_choices_together_are_bounded() -> None:
    choices = [{"message": {"tool_calls": calls}, "finish_reason": "tool_calls"} for calls in ([], *[[CALL] * 600] * 2)]
    with pytest.raises(ValueError, match="more than 1024 tools"):
        read_answer(json.dumps({"choices": choices}).encode())


def test_calls_without_end_are_no_answer() -> None:
    whole = {"choices": [{"index": 0, "message": {"content": None, "tool_calls": [CALL] * 5_000}}]}
    assert not Answer(json.dumps(whole).encode()).is_one
    chunk = {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": n, **CALL} for n in range(5_000)]}}]}
    with pytest.raises(ValueError, match="tools"):
        UsageTracker(keep_sglext=False).feed(b"data: " + json.dumps(chunk).encode() + b"\n\n")


EVENT_BYTES = 4_000_000
CHOICE = b'{"choices":[{"index":0,"delta":{"content":"a"%b},"finish_reason":null}]%b}'
DENSE_EVENTS = {
    "objects beside a text": CHOICE % (b',"x":[' + b"{}," * (EVENT_BYTES // 3) + b"{}]", b""),
    "calls": CHOICE % (b',"tool_calls":[' + b"{}," * (EVENT_BYTES // 3) + b"{}]", b""),
    "numbers": CHOICE % (b"", b',"x":[' + b"1," * (EVENT_BYTES // 2) + b"1]"),
    "members": CHOICE % (b"", b',"x":{' + b'"":1,' * (EVENT_BYTES // 5) + b'"":1}'),
    "choices": b'{"choices":[' + b"{}," * (EVENT_BYTES // 3) + b"{}]}",
    "texts elsewhere": b'{"output":[' + b'"a",' * (EVENT_BYTES // 4) + b'"a"]}',
    "an error": b'{"error":[' + b"{}," * (EVENT_BYTES // 3) + b"{}]}",
    "usage": b'{"choices":[],"usage":{"a":[' + b"{}," * (EVENT_BYTES // 3) + b"{}]}}",
    "halves of surrogate pairs": CHOICE % (b',"x":"' + rb"\ud800" * (EVENT_BYTES // 6) + b'"', b""),
}


@pytest.mark.parametrize("name", DENSE_EVENTS)
def test_no_event_of_a_stream_is_read_that_holds_more_than_a_model_says(name: str) -> None:
    with pytest.raises(ValueError, match="an event holds more than"):
        UsageTracker(keep_sglext=False).feed(b"data: " + DENSE_EVENTS[name] + b"\n\n")


LIKELY = [{"token": "a", "logprob": -1.5, "bytes": [97]}] * 20
LARGE_EVENTS: dict[str, dict[str, Any]] = {
    "probabilities of 300 tokens": {
        "delta": {"content": "a" * 300}, "logprobs": {"content": [{**LIKELY[0], "top_logprobs": LIKELY}] * 300}
    },
    "a file in a call": {
        "delta": {"tool_calls": [{"index": 0, "id": "call_abc", "function": {"arguments": '{"a":[' * 300_000}}]}
    },
    "a picture": {"delta": {"images": [{"image_url": {"url": "data:image/png;base64," + "A" * 10_000_000}}]}},
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE_EVENTS)
def test_large_events_pass(name: str) -> None:
    event = b"data: " + json.dumps({"choices": [{"index": 0, "finish_reason": None, **LARGE_EVENTS[name]}]}).encode()
    assert UsageTracker(keep_sglext=False).feed(event + b"\n\n") == event + b"\n\n"


def test_braces_in_a_text_are_no_values() -> None:
    text = "{[" * 200_000
    choice, _ = read_answer(json.dumps({"choices": [{"message": {"content": text}}]}).encode())
    assert choice.message.text() == text


COMMENTS = b"4\r\n: \n\n\r\n" * 160
EVENT = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
READS = {
    "comments": COMMENTS,
    "events unlike each other": b"".join(
        b"%x\r\n%b\r\n" % (len(event), event) for event in [EVENT % (b'a","b%d":"' % n) for n in range(16)]
    ),
    "an event without its end": b"5dc\r\n%b\r\n" % (b"a" * 1_500),
}


class Stream:
    """A stream of alice's from an engine that sends as fast as it can. Each look at what was read takes a while."""

    tenant = "alice"

    def __init__(self, turns: Turns, clock: "Ticks") -> None:
        self.scanner = UsageTracker(keep_sglext=False)
        self.handled = 0
        self._clock = clock
        upstream = Upstream("http://127.0.0.1:1", 1.0, clock)
        upstream.turns = turns
        self.wire = _Connection(upstream)
        self.transport = Paused(self.wire)
        self.wire.connection_made(self.transport)  # type: ignore[arg-type]
        self.wire.start(Leg(self, streamed=True), b"", [], anew=False)
        self.transport.protocol.data_received(HEAD + b"%x\r\n%b\r\n" % (len(EVENT % b"a"), EVENT % b"a"))
        self.handled = 0

    def streams(self) -> "Stream":
        return self

    def passthrough_target(self) -> None:
        """All of it is read, as by a translator."""

    def on_body(self, data: bytes) -> None:
        self.scanner.feed(data)
        self.handled += 1
        self._clock.now_s += 0.001

    def on_head(self, status: int, headers: dict[str, str]) -> None: ...
    def holds(self, size_bytes: int) -> None: ...

    def on_end(self) -> None: ...
    def on_whole(self, lines: list[Line], body: bytes, now_s: float) -> None: ...
    def on_fail(self, cause: Cause, reason: str) -> None: ...
    def on_crash(self) -> None: ...


class Paused(Transport):
    """A socket that may be read or not. A mock, so that the order of reads does not depend on the machine."""

    is_read = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


class Ticks:
    """A clock that only work moves, and the loop that it belongs to."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.soon: list[Callable[[], None]] = []

    def __call__(self) -> float:
        return self.now_s

    def call_soon(self, step: Callable[[], None]) -> None:
        self.soon.append(step)

    def iterate(self) -> None:
        soon, self.soon = self.soon, []
        for step in soon:
            step()


@pytest.mark.parametrize("name", READS)
def test_small_reads_of_many_streams_leave_time_for_other_tenants(name: str) -> None:
    read = READS[name]
    assert len(read) < 2_048
    clock = Ticks()
    turns = Turns(clock, lambda _: None)
    turns.loop = clock  # type: ignore[assignment]
    streams = [Stream(turns, clock) for _ in range(64)]
    clock.iterate()
    waits = []
    for _ in range(20):
        began_s, done = clock.now_s, list[float]()
        for each in streams:
            if each.transport.is_read:
                each.transport.protocol.data_received(read)
        turns.take("bob", lambda done=done: done.append(clock.now_s))  # type: ignore[misc]
        while not done:
            clock.iterate()
        waits.append(done[0] - began_s)
    assert max(waits) < 4 * SLICE_S, "bob waits for a few steps of alice's, not for a read of each of her streams"
    assert sum(each.handled for each in streams) > 64
