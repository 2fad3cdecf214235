"""Streams that pass as they came: to a client there is no difference, however they are framed and cut."""

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute_proxy.server.leg import Leg
from warmroute_proxy.server.passage import MAX_REST_BYTES
from warmroute_proxy.server.sse import Scanner
from warmroute_proxy.server.upstream import Upstream, _Connection

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
TEXTS = [
    "a",
    " the",
    "\n\n",
    'say "hi"',
    "\\",
    "error",
    "abort",
    "[DONE]",
    "data: [DONE]\n\n",
    "☃",
    "x" * 300,
    "",
    "usage",
]


def event(chunk: dict[str, Any] | str) -> bytes:
    text = chunk if isinstance(chunk, str) else json.dumps(chunk, separators=(",", ":"), ensure_ascii=False)
    return f"data: {text}\n\n".encode()


def said(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": fields, "logprobs": None, "finish_reason": finish, "matched_stop": None}
    return {"id": "r", "object": "chat.completion.chunk", "model": "m", "choices": [choice], "usage": None}


ROLE = event(said(role="assistant", content=""))
FINISH = event(said("stop", content=""))
ACCOUNTS = event({"id": "r", "choices": [], "usage": USAGE})
DONE = event("[DONE]")
TOLD = st.one_of(
    st.sampled_from(TEXTS).map(lambda text: event(said(content=text))),
    st.sampled_from(TEXTS).map(lambda text: event(said(reasoning_content=text))),
    st.sampled_from(TEXTS).map(lambda text: event({**said(content=text), "usage": USAGE})),
    st.sampled_from(TEXTS).map(lambda text: event({**said(content=text), "id": "longer " * 9})),
    st.just(event({**said(), "choices": said(content="a")["choices"] + said("length")["choices"]})),
    st.just(b": comment\n\n"),
)
ENDS = st.sampled_from(
    [[ACCOUNTS, DONE], [DONE], [event({"error": {"message": "no"}}), DONE], [event(said("abort")), DONE], []]
)


def one_each(events: list[bytes], _chance: Callable[[int], int]) -> list[bytes]:
    return events


def several(events: list[bytes], chance: Callable[[int], int]) -> list[bytes]:
    edges = sorted({0, len(events), *(chance(len(events)) for _ in range(len(events) // 2))})
    return [b"".join(events[a:b]) for a, b in itertools.pairwise(edges)]


def anywhere(events: list[bytes], chance: Callable[[int], int]) -> list[bytes]:
    data = b"".join(events)
    edges = sorted({0, len(data), *(chance(len(data)) for _ in range(len(events)))})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


FRAMINGS: list[bytes] = [b"%x\r\n%b\r\n", b"%x\r\n%b\r\n", b"%X\r\n%b\r\n", b"%04x\r\n%b\r\n", b"%x;a=b\r\n%b\r\n"]


class FakeTransport:
    """The engine's side of a connection."""

    def __init__(self, protocol: _Connection) -> None:
        self.protocol: Any = protocol
        self.aborted = False

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def writelines(self, _parts: list[bytes]) -> None: ...

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


class Reader(Leg):
    """The relay and the client behind it: what came through the scanner gets a frame of its own."""

    def __init__(self, *, sees_all: bool = False) -> None:
        self.scanner = Scanner(keep_sglext=False)
        self.sees_all = sees_all
        self.left = False
        self.written: list[bytes] = []
        self.held = b""
        self.told: list[str] = []
        self.upstream = Upstream("http://127.0.0.1:1", 1.0, lambda: 0.0)
        self.wire = _Connection(self.upstream)
        self.transport = FakeTransport(self.wire)
        self.wire.connection_made(self.transport)  # type: ignore[arg-type]
        self.wire.start(self, b"", [])

    def streams(self) -> "Reader":
        return self

    def way(self) -> Callable[[bytes], None] | None:
        return None if self.sees_all or self.left else self.written.append

    def on_body(self, data: bytes) -> None:
        out = self.held + self.scanner.feed(data)
        self.held = b"" if self.scanner.started else out
        if self.scanner.started and out and not self.left:
            self.written.append(b"%x\r\n%b\r\n" % (len(out), out))

    def on_end(self) -> None:
        self.told.append("end")

    def on_fail(self, reason: str) -> None:
        self.told.append(reason)

    def read(self, data: bytes, cuts: list[int]) -> None:
        edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
        for start, end in itertools.pairwise(edges):
            if start < end and not self.transport.aborted:
                self.transport.protocol.data_received(data[start:end])

    @property
    def body(self) -> bytes:
        """What the client reads."""
        data, at, body = b"".join(self.written), 0, b""
        while at < len(data):
            size = re.compile(rb"[0-9a-fA-F]+").match(data, at)
            assert size is not None
            start = data.index(b"\r\n", at) + 2
            end = start + int(size[0], 16)
            assert data[end : end + 2] == b"\r\n"
            body += data[start:end]
            at = end + 2
        return body


@given(
    st.lists(TOLD, max_size=14),
    ENDS,
    st.sampled_from([one_each, one_each, several, anywhere]),
    st.sampled_from(FRAMINGS),
    st.sampled_from([b"\n", b"\n", b"\r\n"]),
    st.lists(st.integers(0, 20_000), max_size=30),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_the_client_reads_the_same_whatever_the_framing_and_the_cuts(
    told: list[bytes],
    ends: list[bytes],
    packed: Callable[[list[bytes], Callable[[int], int]], list[bytes]],
    frame: bytes,
    line_end: bytes,
    cuts: list[int],
    sees_all: bool,
    chance: Any,
) -> None:
    events = [each.replace(b"\n", line_end) for each in (ROLE, *told, FINISH, *ends)]
    expected = Scanner(keep_sglext=False)
    through = expected.feed(b"".join(events))
    chunks = [frame % (len(chunk), chunk) for chunk in packed(events, lambda n: chance.randint(0, n)) if chunk]
    reader = Reader(sees_all=sees_all)
    reader.read(HEAD + b"".join(chunks) + b"0\r\n\r\n", cuts)
    assert reader.body == (through if expected.started else b"")
    for name in ("started", "content_events", "usage", "error", "aborted", "done"):
        assert getattr(reader.scanner, name) == getattr(expected, name), name
    assert reader.told == ["end"]
    assert reader.transport.protocol is reader.wire
    assert len(reader.upstream._idle) == 1


def test_reads_pass_as_they_are() -> None:
    reads = [event(said(content=f" word{number}")) for number in range(1000, 1040)]
    framed = [b"%x\r\n%b\r\n" % (len(each), each) for each in reads]
    reader = Reader()
    reader.read(HEAD + framed[0], [])
    for each in framed[1:]:
        reader.read(each, [])
    assert [id(each) for each in reader.written[3:]] == [id(each) for each in framed[3:]]
    reader.read(b"".join(framed), [])
    assert reader.written[-1] == b"".join(framed)
    assert reader.scanner.content_events == 80


def test_nothing_passes_unseen_once_the_client_has_left() -> None:
    chunk = event(said(content="word"))
    reader = Reader()
    reader.read(HEAD + (b"%x\r\n%b\r\n" % (len(chunk), chunk)) * 3, [])
    reader.left = True
    reader.see()
    written = len(reader.written)
    reader.read((b"%x\r\n%b\r\n" % (len(chunk), chunk)) * 3, [])
    assert len(reader.written) == written


@pytest.mark.parametrize("size", [b"g", b"", b"-5", b"1_0", b" 5"])
def test_a_chunk_without_a_size_is_an_error(size: bytes) -> None:
    chunk = event(said(content="word"))
    reader = Reader()
    reader.read(HEAD + (b"%x\r\n%b\r\n" % (len(chunk), chunk)) * 3 + size + b"\r\n" + chunk, [])
    assert reader.transport.aborted
    assert len(reader.told) == 1
    assert reader.body == chunk * 3


def test_a_chunk_that_grows_without_an_end_is_not_kept() -> None:
    chunk = event(said(content="word"))
    reader = Reader()
    reader.read(HEAD + (b"%x\r\n%b\r\n" % (len(chunk), chunk)) * 3 + b"%x\r\n" % 1_000_000, [])
    reader.read(b"data: " + b"x" * MAX_REST_BYTES, [])
    assert reader.transport.protocol is reader.wire


def test_events_of_a_chunk_that_goes_on_do_not_wait_for_its_end() -> None:
    chunk = event(said(content="word"))
    reader = Reader()
    reader.read(HEAD + (b"%x\r\n%b\r\n" % (len(chunk), chunk)) * 3 + b"%x\r\n" % 1_000 + chunk + b"data", [])
    assert reader.body == chunk * 4


def test_what_came_before_the_connection_broke_is_read() -> None:
    chunk = event(said(content="word"))
    reader = Reader()
    reader.read(HEAD + (b"%x\r\n%b\r\n" % (len(chunk), chunk)) * 3 + b"%x\r\n%b" % (len(chunk), chunk), [])
    reader.transport.protocol.connection_lost(None)
    assert reader.body == chunk * 4
    assert reader.told == ["the connection to the engine broke"]
