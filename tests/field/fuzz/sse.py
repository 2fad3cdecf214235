"""Fuzz target: what the scanner lets through of any stream, in any pieces.

What must hold: the bytes that pass and the accounts that are taken do not depend on where the reads cut the stream, and
what passes is the stream with whole events left out, nothing else. A stream has one kind of line ending and one blank
line behind an event: such a stream is made of the data first.
"""

import itertools
import random
import re
from typing import Any

from warmroute_proxy.server.engines.sse import UsageTracker


def run(pieces: list[bytes], *, keep_sglext: bool) -> tuple[bytes, dict[str, Any]]:
    """What passed, and what the scanner has noted."""
    scanner = UsageTracker(keep_sglext=keep_sglext)
    passed = b"".join(bytes(scanner.feed(piece)) for piece in pieces)
    noted = ("content_events", "usage", "usage_event", "details", "error", "aborted", "done")
    return passed, {name: getattr(scanner, name) for name in noted}


def check(data: bytes) -> None:
    """Raise `AssertionError` where the pieces make a difference, or bytes are changed."""
    chance = random.Random(data[:64])
    line_end = chance.choice((b"\n", b"\r\n"))
    data = made_regular(data).replace(b"\n", line_end)
    keep = bool(chance.getrandbits(1))
    whole = run([data], keep_sglext=keep)
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(1, 12)))
    edges = [0, *cuts, len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(edges) if start < end]
    assert run(pieces, keep_sglext=keep) == whole, pieces
    at = 0
    for event in whole[0].split(2 * line_end):
        at = data.find(event, at)
        assert at >= 0, (data, event)
        at += len(event)


def made_regular(data: bytes) -> bytes:
    """The data as a stream with bare line feeds, and one blank line behind each event."""
    return re.sub(b"\n{2,}", b"\n\n", data.replace(b"\r", b""))
