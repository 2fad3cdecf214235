"""What anybody in the gateway's network may send to the picker: it costs little time, memory and log."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from tests.gateway.test_protocol import CHAT, Scene, scene
from tests.subjects.ext_proc_client import Conversation, body, head
from tests.subjects.processes import chat, until
from warmroute_proxy.server.http.request_reader import BYTES_PER_CHUNK, MAX_CHUNKS

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


def test_streams_without_a_key_take_no_place_of_others(tmp_path: Path) -> None:
    with scene(tmp_path, engines=1, limits="connections = 16") as it, contextlib.ExitStack() as stack:
        for _ in range(40):
            channel = stack.enter_context(grpc.insecure_channel(it.picker.address))
            stack.enter_context(Conversation(channel, 60))
        for _ in range(3):
            until(lambda: it.post(chat("beside")).status_code == 200, "others are served")
