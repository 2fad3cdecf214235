"""Fuzz target: what the reader of event streams makes of any bytes, and what the scanner lets through of them.

What must hold: the events are those of a slow reader that follows the standard, in whatever pieces the bytes come. What
passes the scanner, and the accounts that it takes, do not depend on the pieces either. What passes is the stream with
whole events left out, nothing else.
"""

import itertools
import random
import re
from typing import Any

from tests.field.fuzz.slow_events import ALIVE, events_of

from warmroute_proxy.dialects.chat_answers import whole_pairs
from warmroute_proxy.dialects.event_reader import ERROR_EVENT, EventReader
from warmroute_proxy.server.engines.sse import UsageTracker

LINE_ENDS = (b"\n", b"\n", b"\r\n", b"\r")
FIELDS = (
    b"",
    b"",
    b"id: 7\n",
    b"event: message\n",
    b"event: error\n",
    b": ping\n",
    b"retry: 5\n",
    b"\n",
    b"\xef\xbb\xbf",
)


def run(pieces: list[bytes], *, keep_sglext: bool) -> tuple[bytes, dict[str, Any]]:
    """What passed, and what the scanner has noted."""
    scanner = UsageTracker(keep_sglext=keep_sglext)
    passed = b"".join(bytes(scanner.feed(piece)) for piece in pieces)
    noted = (
        "tokens_seen",
        "usage",
        "usage_event",
        "details",
        "error",
        "aborted",
        "done",
        "ended_choices",
        "called_tools",
    )
    return passed, {name: getattr(scanner, name) for name in noted}


def check(data: bytes) -> None:
    """Raise `AssertionError` where the pieces make a difference, or events are others."""
    chance = random.Random(data[:64])
    stream = dressed(data, chance)
    cuts = sorted(chance.randrange(len(stream) + 1) for _ in range(chance.randrange(1, 12)))
    edges = [0, *cuts, len(stream)]
    pieces = [stream[start:end] for start, end in itertools.pairwise(edges) if start < end]
    expected = events_of(stream)
    assert read(pieces) == expected, pieces
    assert read([bytes([each]) for each in stream]) == expected
    keep = bool(chance.getrandbits(1))
    passed, noted = run([stream], keep_sglext=keep)
    assert run(pieces, keep_sglext=keep) == (passed, noted), pieces
    left = iter([(name, whole_pairs(data)) for name, data in expected])
    assert all(event in left for event in events_of(passed)), (stream, passed)


def read(pieces: list[bytes]) -> list[tuple[bytes, bytes]]:
    """The events as `events_of` gives them."""
    reader = EventReader()
    found = [event for piece in pieces for event in reader.feed(piece)]
    return [_taken_apart(event) for event in found]


def _taken_apart(event: bytes) -> tuple[bytes, bytes]:
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2 + event.startswith(ERROR_EVENT)
    if event.startswith(b":"):
        return ALIVE, b""
    if event.startswith(ERROR_EVENT):
        return b"error", event[len(ERROR_EVENT) :].strip()
    assert event.startswith(b"data:")
    return b"", event[5:].strip()


def dressed(data: bytes, chance: random.Random) -> bytes:
    """The stream in another of the forms that the standard allows: with other line ends, and more fields."""
    if chance.random() < 0.3:
        return data
    events = re.split(b"(?<=\n\n)", data)
    return b"".join(chance.choice(FIELDS) + event for event in events).replace(b"\n", chance.choice(LINE_ENDS))


def made_regular(data: bytes) -> bytes:
    """The data as a stream with bare line feeds, and one blank line behind each event."""
    return re.sub(b"\n{2,}", b"\n\n", data.replace(b"\r", b""))
