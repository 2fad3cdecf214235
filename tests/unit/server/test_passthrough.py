"""Streams that pass as they came: to a client there is no difference, however they are framed and cut."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.field.fuzz.passthrough import HEAD, Reader

from warmroute_proxy.server.engines.passthrough import MAX_REST_BYTES
from warmroute_proxy.server.engines.sse import UsageTracker

USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
TEXTS = [
    "a", " the", "\n\n", 'say "hi"', "\\", "error", "abort", "[DONE]", "data: [DONE]\n\n", "☃", "x" * 300, "", "usage",
]  # fmt: skip


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
    st.just(event({**said(), "choices": said(content="a")["choices"] + said(content="b")["choices"]})),
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
    expected = UsageTracker(keep_sglext=False)
    through = expected.feed(b"".join(events))
    chunks = [frame % (len(chunk), chunk) for chunk in packed(events, lambda n: chance.randint(0, n)) if chunk]
    reader = Reader(sees_all=sees_all)
    reader.read(HEAD + b"".join(chunks) + b"0\r\n\r\n", cuts)
    assert reader.body == (through if expected.started else b"")
    for name in ("started", "tokens_seen", "usage", "error", "aborted", "done"):
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
    assert reader.scanner.tokens_seen == 80


@pytest.mark.parametrize("size", [1, 100])
def test_a_short_first_read_is_one_write_and_a_long_one_passes(size: int) -> None:
    chunk = event(said(content="word " * size))
    framed = b"%x\r\n%b\r\n" % (len(chunk), chunk)
    reader = Reader()
    reader.read(HEAD, [])
    reader.read(framed * 10, [])
    assert len(reader.written) == (1 if size == 1 else 2)
    assert reader.body == chunk * 10
    assert (framed * 9 in reader.written) == (size > 1)


WORD = event(said(content="word"))
FRAMED = b"%x\r\n%b\r\n" % (len(WORD), WORD)


def after_three(data: bytes = b"") -> Reader:
    """A reader of a head, three words and what follows them."""
    reader = Reader()
    reader.read(HEAD + FRAMED * 3 + data, [])
    return reader


def test_nothing_passes_unseen_once_the_client_has_left() -> None:
    reader = after_three()
    reader.left = True
    reader.leg.parse_all()
    written = len(reader.written)
    reader.read(FRAMED * 3, [])
    assert len(reader.written) == written


@pytest.mark.parametrize("size", [b"g", b"", b"-5", b"1_0", b" 5"])
def test_a_chunk_without_a_size_is_an_error(size: bytes) -> None:
    reader = after_three(size + b"\r\n" + WORD)
    assert reader.transport.aborted
    assert len(reader.told) == 1
    assert reader.body == WORD * 3


def test_a_chunk_that_grows_without_an_end_is_not_kept() -> None:
    reader = after_three(b"%x\r\n" % 1_000_000)
    reader.read(b"data: " + b"x" * MAX_REST_BYTES, [])
    assert reader.transport.protocol is reader.wire


def test_events_of_a_chunk_that_goes_on_do_not_wait_for_its_end() -> None:
    reader = after_three(b"%x\r\n" % 1_000 + WORD + b"data")
    assert reader.body == WORD * 4


def test_what_came_before_the_connection_broke_is_read() -> None:
    reader = after_three(b"%x\r\n%b" % (len(WORD), WORD))
    reader.transport.protocol.connection_lost(None)
    assert reader.body == WORD * 4
    assert reader.told == ["the connection to the engine broke"]
