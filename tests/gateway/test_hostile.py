"""What anybody in the gateway's network may send to the picker: it costs little time, memory and log."""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as messages

from tests.gateway.test_protocol import CHAT, Scene, scene
from tests.subjects.ext_proc_client import Conversation, answer_body, body, head
from tests.subjects.processes import chat, until
from warmroute_proxy.server.engines.leg import Leg, Receiver
from warmroute_proxy.server.http.body_memory import UNCOUNTED_BYTES, BodyMemory
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.http.request_reader import BYTES_PER_CHUNK, MAX_CHUNKS
from warmroute_proxy.server.picker.answer import GatewayAnswer, Outbox
from warmroute_proxy.server.picker.exchange import GatewayExchange
from warmroute_proxy.server.picker.listener import AT_ONCE, FirstReads
from warmroute_proxy.server.picker.stream import Gateway, Stream

MIB = 2**20
STREAMS = 24
MESSAGE_BYTES = 16 * MIB
READ_AT_ONCE_MIB = 8 * 16 * 2
"""Eight streams without a key are read at once, each with a message in two copies."""


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene(tmp_path_factory.mktemp("hostile"), engines=1, fresh=True) as found:
        yield found


@pytest.fixture
def channel(it: Scene) -> Iterator[grpc.Channel]:
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(it.picker.address, options=options) as found:
        yield found


def served(it: Scene) -> None:
    assert it.post(chat("after")).status_code == 200


def cpu_s(it: Scene) -> float:
    assert it.picker.child is not None
    fields = Path(f"/proc/{it.picker.child.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("size", [0, 1, 16, 128])
@pytest.mark.parametrize("with_key", [True, False])
def test_small_messages_are_counted_as_chunks_over_http(
    it: Scene, channel: grpc.Channel, size: int, with_key: bool
) -> None:
    """20,000 of them took 3 s of the picker's time."""
    began_s = cpu_s(it)
    with Conversation(channel, 60) as stream:
        stream.send(head(CHAT, it.picker.keys[0] if with_key else "none"))
        stream.send(*[body(b" " * size, ends=False)] * 20_000)
        answered = stream.read().immediate_response
        assert answered.status.code == (400 if with_key else 401)
        if with_key:
            assert f"{BYTES_PER_CHUNK} bytes or more" in json.loads(answered.body)["error"]["message"]
        assert stream.status() is grpc.StatusCode.INTERNAL
    assert cpu_s(it) - began_s < 2.0
    served(it)


def test_as_many_messages_as_http_takes_chunks_are_a_body(it: Scene, channel: grpc.Channel) -> None:
    text = json.dumps(chat("a" * 4000)).encode()
    with Conversation(channel, 60) as stream:
        stream.send(head(CHAT, it.picker.keys[0]))
        stream.send(*[body(b"", ends=False)] * (MAX_CHUNKS // 2))
        stream.send(*[body(text[at : at + 8], ends=False) for at in range(0, len(text), 8)], body(b""))
        _, sent = stream.until_body_ends()
    assert json.loads(sent)["model"] == "kimi-k2.5"
    served(it)


ODD_HEADERS = {
    "another header": ("traceparent", "00-0\r\nx-admin: 1"),
    "half a line end": ("traceparent", "00-0\nx-admin: 1"),
    "a carriage return": ("x-session-affinity", "a\rb"),
    "a null": ("baggage", "a\x00b"),
    "a name with a line end": ("a\r\nx-admin", "1"),
    "a name that begins with one": ("\r\nx-admin", "1"),
    "a name with a space": ("a b", "1"),
    "an empty name": ("", "1"),
    "another request": (":path", f"{CHAT} HTTP/1.1\r\nx-admin: 1"),
}


@pytest.mark.parametrize("name", ODD_HEADERS)
def test_a_header_that_would_be_another_one_for_the_engine_is_refused(
    it: Scene, channel: grpc.Channel, name: str
) -> None:
    with Conversation(channel) as stream:
        message = head(CHAT, it.picker.keys[0])
        key, value = ODD_HEADERS[name]
        given = message.request_headers.headers.headers
        if key == ":path":
            next(each for each in given if each.key == key).raw_value = value.encode()
        else:
            given.add(key=key, raw_value=value.encode())
        stream.send(message, body(json.dumps(chat("a")).encode()))
        assert stream.read().immediate_response.status.code == 400
    served(it)


def test_messages_that_cannot_be_read_are_one_line_of_the_log(it: Scene, channel: grpc.Channel) -> None:
    for _ in range(20):
        with Conversation(channel) as stream:
            assert stream.send(b"\xff" * 10).status() is grpc.StatusCode.INTERNAL
    assert log_of(it).count("a message of the gateway could not be taken") == 1
    served(it)


def log_of(it: Scene) -> str:
    return "".join(path.read_text() for path in it.picker.folder.glob("*.log"))


def before_a_key(channel: grpc.Channel) -> Conversation:
    return Conversation(channel, 60).send(body(b"x" * MESSAGE_BYTES, ends=False))


def with_a_wrong_key(channel: grpc.Channel) -> Conversation:
    return Conversation(channel, 60).send(head(CHAT, "none"), *[body(b"x" * MESSAGE_BYTES, ends=False)] * 2)


def beyond_any_body(channel: grpc.Channel) -> Conversation:
    return Conversation(channel, 60).send(body(b"x" * 4 * MESSAGE_BYTES))


@pytest.mark.parametrize("begin", [before_a_key, with_a_wrong_key, beyond_any_body])
def test_messages_without_a_key_take_bounded_memory(it: Scene, begin: Callable[[grpc.Channel], Conversation]) -> None:
    """24 of 16 MiB took 400 MB and more, those of 128 MiB each three GB."""
    before = it.highest_mib()
    with contextlib.ExitStack() as stack:
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.insecure_channel(it.picker.address, options=options) for _ in range(STREAMS)]
        for channel in channels:
            stack.enter_context(channel)
            stack.enter_context(begin(channel))
        served(it)
        until(lambda: it.post(chat("beside")).status_code == 200, "others are served")
    assert it.highest_mib() - before < READ_AT_ONCE_MIB


MESSAGE = 1_000


async def read_at_once(memory_bytes: int) -> int:
    """How many of ten streams without a key are read at once. All of them are read sooner or later."""
    memory = BodyMemory(memory_bytes, 1, [0])
    reads = FirstReads(memory.reserve("", 0), MESSAGE)
    streams = [Outbox(lambda: None) for _ in range(10)]
    tasks = [asyncio.ensure_future(reads.enter(stream)) for stream in streams]
    await asyncio.sleep(0)
    count = sum(task.done() for task in tasks)
    assert memory.budget.used == (count - 1) * MESSAGE
    for stream, task in zip(streams, tasks, strict=True):
        await task
        reads.leave(stream)
    reads.sweep()
    assert not memory.budget.used
    return count


@pytest.mark.parametrize(
    ("memory_bytes", "count"), [(2**30, AT_ONCE), (2 * 3 * MESSAGE, 4), (2 * MESSAGE - 1, 2), (MESSAGE - 1, 1), (1, 1)]
)
async def test_messages_without_a_key_are_reserved_before_they_are_read(memory_bytes: int, count: int) -> None:
    assert await read_at_once(memory_bytes) == count


async def test_memory_of_messages_goes_back_while_streams_are_read() -> None:
    memory = BodyMemory(2**30, 1, [0])
    reads = FirstReads(memory.reserve("", 0), MESSAGE)
    streams = [Outbox(lambda: None) for _ in range(AT_ONCE)]
    for stream in streams:
        await reads.enter(stream)
    for stream in streams[2:]:
        reads.leave(stream)
    reads.sweep()
    assert memory.budget.used == MESSAGE
    await reads.enter(streams[2])
    assert memory.budget.used == 2 * MESSAGE


def bare_stream() -> Stream:
    """A stream of which no headers have come."""
    gateway = cast(
        "Gateway",
        SimpleNamespace(
            clock=lambda: 0.0,
            limits=SimpleNamespace(header_bytes=65_536, head_timeout_s=1.0),
            endpoint=SimpleNamespace(on_status=None),
        ),
    )
    return Stream(gateway, lambda: None)


def test_an_answer_that_nobody_expects_is_counted_as_small_messages() -> None:
    stream = bare_stream()
    message = answer_body(b"x", ends=False).SerializeToString()
    for _ in range(MAX_CHUNKS):
        stream.take(message)
    assert not stream.outbox.broken
    stream.take(message)
    assert stream.outbox.broken


class Held:
    """Takes an answer, and notes for how much of it memory is reserved."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.taken = 0

    def holds(self, size_bytes: int) -> None:
        self.held.append(size_bytes)

    def on_body(self, data: bytes) -> None:
        self.taken += len(data)


def test_only_a_large_message_of_an_answer_is_reserved() -> None:
    stream, held = bare_stream(), Held()
    stream.has_key = True
    stream._leg = Leg(cast("Receiver", held))
    for size in (UNCOUNTED_BYTES, UNCOUNTED_BYTES + 1):
        stream.take(answer_body(b"x" * size, ends=False).SerializeToString())
    assert held.held == [UNCOUNTED_BYTES + 1]
    assert held.taken == 2 * UNCOUNTED_BYTES + 1


class Answered:
    """A request whose answer goes to a gateway."""

    def __init__(self, memory_bytes: int, reserved_bytes: int = 0, path: str = CHAT) -> None:
        self.memory = BodyMemory(memory_bytes, 1, [0])
        self.outbox = Outbox(lambda: None)
        self.answer = GatewayAnswer(self.outbox, lambda _request, _status: None)
        request = Request(0.0, "POST", path)
        request.body_reservation = self.memory.reserve("t", reserved_bytes)
        self.exchange = GatewayExchange(self.answer, request)

    def response(self) -> "messages.ImmediateResponse":
        message = self.outbox.out[0]
        assert isinstance(message, bytes)
        return messages.ProcessingResponse.FromString(message).immediate_response

    def status(self) -> int:
        return int(self.response().status.code)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("taken", [False, True])
def test_an_answer_is_reserved_until_the_gateway_has_taken_it(begun: bool, taken: bool) -> None:
    one = Answered(MIB, 100_000)
    if begun:
        one.answer.names = []  # the engine's answer has begun
    one.exchange.respond(200, [], b"x" * 100_000)
    if begun:
        one.outbox.sent()  # the last bytes wait for the end of the engine's answer
        assert one.memory.budget.used == 100_000
        one.answer.engine_ended()
    assert one.memory.budget.used == 100_000
    if taken:
        one.outbox.sent()
    else:
        one.answer.lost()
    assert not one.memory.budget.used


def test_a_stream_that_is_gathered_is_reserved() -> None:
    one = Answered(MIB)
    one.exchange.start(200, [])
    for _ in range(10):
        one.exchange.write(b"x" * 20_000)
    assert one.memory.budget.used == 200_000
    one.exchange.end()
    assert one.status() == 200
    one.outbox.sent()
    assert not one.memory.budget.used


@pytest.mark.parametrize(("path", "status"), [(CHAT, 503), ("/v1/messages", 529)])
def test_a_stream_that_is_gathered_without_memory_is_refused(path: str, status: int) -> None:
    one = Answered(100_000, path=path)
    one.exchange.start(200, [])
    for _ in range(10):
        one.exchange.write(b"x" * 20_000)
        assert one.memory.budget.used <= 100_000
    one.exchange.end()
    assert one.status() == status
    assert ("type" in json.loads(one.response().body)) == (path != CHAT), "as the API's clients read it"
    assert one.memory.refused[0] == 1
