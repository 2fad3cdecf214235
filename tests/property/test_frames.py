"""Messages in frames: found past the library, they are those that the library alone finds, and end as it ends them."""

import itertools
import struct
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import PayloadTooBig
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.utils import apply_mask

from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.http.frames import SLICE_BYTES, Messages

MAX_BYTES = 70_000
SIZES = st.sampled_from(
    [0, 1, 2, 125, 126, 127, SLICE_BYTES - 6, SLICE_BYTES, 65_535, 65_536, MAX_BYTES, MAX_BYTES + 1]
)
SAYS = [*[(True, 1)] * 6, (False, 1), (False, 0), (True, 0)]
CONTROLS = [(True, 8), (True, 9), (True, 10)]
ODD = [(False, 9), (False, 8), (True, 3), (True, 11), (True, 15)]
LIKE_FRAMES = b"\x81\x82\0\0\0\0ab"
"""What a payload says, so that a reader that has lost its place would find messages there."""


@st.composite
def frame(draw: st.DrawFn) -> bytes:
    """A client's frame. One of many is not valid, ends the connection, or has a longer head than it needs."""
    kind = draw(st.sampled_from(["says"] * 5 + ["controls", "odd"]))
    fin, opcode = draw(st.sampled_from(SAYS if kind == "says" else CONTROLS if kind == "controls" else SAYS + ODD))
    size = draw(SIZES)
    data = (LIKE_FRAMES * (size // 8 + 1))[: min(size, 125) if kind == "controls" else size]
    if opcode == 8:
        data = draw(st.sampled_from([b"", b"\x03", b"\x03\xe8", b"\x03\xe8bye"]))
    masked = kind != "odd" or draw(st.booleans())
    reserved = draw(st.sampled_from([0, 0, 0x40, 0x10])) if kind == "odd" else 0
    least = 0 if len(data) < 126 else 1 if len(data) < 65_536 else 2
    form = draw(st.sampled_from([least, least, least, 2]))
    head = struct.pack("!BB", fin << 7 | reserved | opcode, masked << 7 | (125 + form if form else len(data)))
    head += (b"", struct.pack("!H", len(data) & 65_535), struct.pack("!Q", len(data)))[form]
    mask = draw(st.sampled_from([bytes(4), b"mask"]))
    return head + mask + apply_mask(data, mask) if masked else head + data


class Found(NamedTuple):
    """What was found: the messages, the kind of the error, and all that was written."""

    messages: list[bytes]
    error: str
    written: bytes


def _kind(error: Exception | None) -> str:
    return "" if error is None else "too large" if isinstance(error, PayloadTooBig) else "broken"


def by_the_library(data: bytes) -> Found:
    protocol = ServerProtocol(state=State.OPEN, max_size=MAX_BYTES)
    protocol.receive_data(data)
    messages: list[bytes] = []
    parts: list[bytes] = []
    for found in protocol.events_received():
        assert isinstance(found, Frame)
        if found.opcode in (Opcode.TEXT, Opcode.CONT):
            parts.append(bytes(found.data))
            if found.fin:
                messages.append(b"".join(parts))
                parts.clear()
    return Found(messages, _kind(protocol.parser_exc), b"".join(protocol.data_to_send()))


def by_us(pieces: list[bytes]) -> Found:
    reader, messages = Messages(MAX_BYTES), []
    for piece in pieces:
        reader.read(piece)
        try:
            while (message := reader.next()) is not None:
                messages.append(message)
        except Refusal:
            break
    protocol: Any = reader.protocol
    return Found(messages, _kind(protocol.parser_exc), b"".join(protocol.data_to_send()))


@given(st.lists(frame(), min_size=1, max_size=8), st.lists(st.integers(0, 300_000), max_size=6), st.booleans())
def test_messages_are_those_of_the_library(frames: list[bytes], cuts: list[int], breaks_off: bool) -> None:
    data = b"".join(frames)[: -1 if breaks_off else None]
    steps = [8 * cut + 6 for cut in cuts]  # where a payload looks like a frame, if its head is short
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts + steps)})
    pieces = [data[start:end] for start, end in itertools.pairwise(edges)]
    assert by_us(pieces) == by_the_library(data)


MASK = bytes(4)
TEXT = b"\x81\x82" + MASK + b"hi"
STREAMS = {
    "texts": TEXT + b"\x81\x80" + MASK + TEXT,
    "a text between fragments": b"\x01\x81" + MASK + b"a" + TEXT,
    "a ping between fragments": b"\x01\x81" + MASK + b"a\x89\x82" + MASK + b"hi\x80\x80" + MASK + TEXT,
    "fragments of nothing": b"\x01\x80" + MASK + b"\x00\x80" + MASK + TEXT,
    "a text behind the end": TEXT + b"\x88\x80" + MASK + TEXT,
    "no mask": TEXT + b"\x81\x02hi" + TEXT,
    "a reserved bit": TEXT + b"\xc1\x82" + MASK + b"hi",
    "long heads": b"\x81\xfe\x00\x02" + MASK + b"hi\x81\xff" + bytes(7) + b"\x02" + MASK + b"hi" + TEXT,
    "too many bytes": TEXT + b"\x81\xff" + struct.pack("!Q", MAX_BYTES + 1) + MASK + LIKE_FRAMES,
    "a length below zero": TEXT + b"\x81\xff" + b"\xff" * 8 + MASK + LIKE_FRAMES,
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_cut_at_each_byte_changes_nothing(name: str) -> None:
    data = STREAMS[name]
    expected = by_the_library(data)
    for at in range(len(data)):
        assert by_us([data[:at], data[at:]]) == expected


def test_too_many_bytes_in_one_read_are_no_message() -> None:
    data = b"\x81\xff" + struct.pack("!Q", MAX_BYTES + 1) + MASK + bytes(MAX_BYTES + 1)
    assert by_us([data]) == by_the_library(data)
