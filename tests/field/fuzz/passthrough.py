"""Fuzz target: a stream that passes as it came, in any frames and any pieces.

What must hold: what the client reads, what is noted of the stream, and how it ends, are those of a parser that gets
byte by byte. Where the engine breaks off or its framing is wrong, the client has read the beginning of that.

The data is what an engine says. What frames and cuts it is drawn by its first bytes, as are the faults: a size that is
none, an end that is missing, bytes behind the end.
"""

import itertools
import random
import re
from collections.abc import Callable
from typing import Any

from tests.field.fuzz.sse import made_regular

from warmroute_proxy.core.load.blame import Cause
from warmroute_proxy.server.engines.leg import Leg, in_parts
from warmroute_proxy.server.engines.sse import UsageTracker
from warmroute_proxy.server.engines.upstream import Upstream, _Connection
from warmroute_proxy.server.http.header_lines import Line

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
SIZES = (b"%x", b"%x", b"%X", b"%04x", b"%x;a=b")
LAST = (b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\n\r\n", b"000\r\n\r\n", b"0;a\r\n\r\n", b"0\r\ntrailer: x\r\n\r\n")
NO_SIZES = (b"", b"g", b"-1", b" 5", b"1_0", b"0x5", b"f" * 17)
BEHIND = (b"x", b"\r\n", b"0\r\n\r\n", b"data: x\n\n", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno")
NOTED = ("started", "tokens_seen", "usage", "usage_event", "details", "error", "aborted", "done")


class Transport:
    """The engine's side of a connection. A mock, for speed and to cut reads at will."""

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


class Reader:
    """The receiver and the client behind it: what came through the scanner gets a frame of its own."""

    def __init__(self, *, sees_all: bool = False, passes: bool = True) -> None:
        """`sees_all`: nothing goes its way unseen; not `passes`: the parser alone reads."""
        self.scanner = UsageTracker(keep_sglext=False)
        self.sees_all = sees_all
        self.passes = passes
        self.left = False
        self.written: list[bytes] = []
        self.held = b""
        self.told: list[str] = []
        self.upstream = Upstream("http://127.0.0.1:1", 1.0, lambda: 0.0)
        self.wire = _Connection(self.upstream)
        self.transport = Transport(self.wire)
        self.wire.connection_made(self.transport)  # type: ignore[arg-type]
        self.leg = Leg(self, streamed=True)
        self.wire.start(self.leg, b"", [], anew=False)

    def streams(self) -> "Reader | None":
        return self if self.passes else None

    def passthrough_target(self) -> Callable[[bytes], None] | None:
        return None if self.sees_all or self.left else self.written.append

    def on_body(self, data: bytes) -> None:
        out = self.held + self.scanner.feed(data)
        self.held = b"" if self.scanner.started else out
        if self.scanner.started and out and not self.left:
            self.written.append(b"%x\r\n%b\r\n" % (len(out), out))

    def holds(self, size_bytes: int) -> None: ...

    def on_end(self) -> None:
        self.told.append("end")

    def on_whole(self, lines: list[Line], body: bytes, now_s: float) -> None:
        in_parts(self, lines, body)

    def on_fail(self, cause: Cause, reason: str) -> None:
        self.told.append(reason)

    def on_crash(self) -> None:
        self.told.append("crash")

    def on_head(self, status: int, headers: dict[str, str]) -> None: ...

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


def run(data: bytes, cuts: list[int], *, passes: bool) -> Reader:
    """Read it all; then the engine hangs up."""
    reader = Reader(passes=passes)
    reader.read(HEAD + data, [len(HEAD), *(len(HEAD) + cut for cut in cuts)] if cuts else [])
    reader.transport.protocol.connection_lost(None)
    return reader


def check(data: bytes) -> None:
    """Raise `AssertionError` where frames or pieces make a difference."""
    chance = random.Random(data[:64])
    said = made_regular(data).replace(b"\n", chance.choice((b"\n", b"\n", b"\r\n")))
    framed = frames(said, chance)
    expected = run(framed, list(range(len(framed))), passes=False)
    some = [chance.randrange(len(framed) + 1) for _ in range(chance.randrange(1, 12))]
    for cuts in ([], some):
        got = run(framed, cuts, passes=True)
        assert got.told == expected.told, (framed, cuts)
        if got.told == ["end"]:
            assert got.body == expected.body, (framed, cuts)
            for name in NOTED:
                assert getattr(got.scanner, name) == getattr(expected.scanner, name), (name, framed, cuts)
        else:
            assert expected.body.startswith(got.body), (framed, cuts)


def frames(said: bytes, chance: random.Random) -> bytes:
    """Whole events in chunks mostly, as engines write them."""
    blank = 2 * (b"\r\n" if b"\r\n" in said else b"\n")
    ends = [found.end() for found in re.finditer(blank, said)]
    whole = chance.random() < 0.7
    edges = {edge for edge in ends if not whole or chance.random() < 0.9}
    if not whole:
        edges |= {chance.randrange(len(said) + 1) for _ in range(chance.randrange(4))}
    chunks = [said[a:b] for a, b in itertools.pairwise(sorted({0, len(said), *edges}))]
    size = chance.choice(SIZES)
    framed = [size % len(chunk) + b"\r\n" + chunk + b"\r\n" for chunk in chunks]
    fault = chance.random()
    if fault < 0.1:
        at = chance.randrange(len(framed) + 1)
        return b"".join(framed[:at]) + chance.choice(NO_SIZES) + b"\r\n" + b"".join(framed[at:])
    wire = b"".join(framed) + chance.choice(LAST)
    if fault < 0.2:
        return wire[: chance.randrange(len(wire))]
    return wire + chance.choice(BEHIND) if fault < 0.3 else wire
