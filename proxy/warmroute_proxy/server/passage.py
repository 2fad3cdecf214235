"""A stream whose chunks pass as they came: the engine's framing is the client's too.

Engines write each event as one HTTP chunk, and a read brings one or several of them whole. As long as nothing of
interest is in them, the client gets the very bytes, chunk sizes included, in one write a read. So a `Passage` takes the
place of the connection as the protocol of its transport, from the end of a streamed answer's head on.

What passes has been looked at twice. First its *framing*: by its size, each chunk ends where it should, behind the
blank line of an event. Then what it says, by its *shape*: the events of one stream differ in a few letters of text, so
an event that begins and ends like one that was searched for markers (`sse`), with text between that has neither quote
nor line feed, holds none either. Other events are searched themselves, and the next is compared with them.

All else goes through the parser and the scanner, whole chunks at a time, so that both stand at the border of a chunk
when the next one passes: what begins an answer, and its end from the accounts on; an answer that somebody has to see or
rewrite (`Leg.stream` says so). A chunk that is cut by the end of a read waits for its rest, up to `MAX_REST_BYTES` and
unless it holds an event that could go. A stream with another framing is left to the parser for good.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Final, Protocol

from warmroute_proxy.server.sse import UNFINISHED, Scanner, has_marker

MAX_REST_BYTES: Final = 65_536
MAX_SHAPES: Final = 16  # that one stream may take: then its events are searched
MAX_SIZES: Final = 16  # of chunks, whose beginnings are kept for a shape
MAX_SIZE_DIGITS: Final = 8

_END: Final = b"\n\n\r\n"  # of an event and of its chunk
_LINE_FEEDS: Final = 4  # of a chunk of one event with one line
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,%d})\r\n" % MAX_SIZE_DIGITS)
_TEXT: Final = re.compile(rb'"(?:content|text|reasoning_content|reasoning|arguments)":"((?:[^"\\\n]|\\.)+)"[,}]')

Write = Callable[[bytes], None]


class Stream(Protocol):
    """Whose answer it is."""

    scanner: Scanner

    def way(self) -> Write | None:
        """Where whole chunks of HTTP may go unseen; None if it is to see them all, from now on."""


class Source(Protocol):
    """The connection to the engine."""

    def reads(self, passage: "Passage") -> bool:
        """Whether the answer that takes this way still goes on."""

    def feed(self, data: bytes) -> None:
        """Parse, and tell what was found."""

    def go_on(self, data: bytes) -> None:
        """Be the transport's protocol again; `data` comes first."""

    def connection_lost(self, exc: Exception | None) -> None: ...


class _Beginnings(dict[int, bytes | tuple[()]]):
    """How a chunk of a shape begins, by its size without the end that the shape has."""

    def __init__(self, digits: int, head: bytes, tail_bytes: int) -> None:
        super().__init__()
        self._digits = digits
        self._head = head
        self._more = tail_bytes - digits - 4  # from a key to the size in the chunk

    def __missing__(self, key: int) -> bytes | tuple[()]:
        size = b"%x" % (key + self._more) if key + self._more > 0 else b""
        if len(size) != self._digits or key < len(self._head) + self._digits + 2:
            return ()  # nothing begins like this
        begins = b"%b\r\n%b" % (size, self._head)
        if len(self) < MAX_SIZES:
            self[key] = begins
        return begins


class Passage(asyncio.Protocol):
    """The way of one streamed answer through the proxy."""

    __slots__ = ("_begins", "_cut", "_from", "_rest", "_shapes", "_source", "_stream", "_tail", "_way", "_write")

    def __init__(self, source: Source, stream: Stream) -> None:
        self._source = source
        self._stream = stream
        self._way: Write | None = None
        self._write: Write | None = None  # the way, unless a chunk waits for its rest or no shape is known
        self._rest = b""
        self._shapes = 0
        self._tail = b""
        self._cut = 0  # its length
        self._from = 0  # where the text begins
        self._begins: _Beginnings | None = None

    def data_received(self, data: bytes) -> None:
        write = self._write
        if write is not None and data.endswith(self._tail):
            end = len(data) - self._cut
            if data.startswith(self._begins[end]):  # type: ignore[index]  # there is a shape where there is a way
                text = data[self._from : end]
                if b'"' not in text and b"\n" not in text:
                    self._stream.scanner.content_events += 1
                    write(data)
                    return
        self._take(data)

    def see(self) -> None:
        """Nothing passes any more."""
        self._way = self._write = None

    def connection_lost(self, exc: Exception | None) -> None:
        rest, self._rest = self._rest, b""
        if rest:
            self._source.feed(rest)  # what came of it is still a part of the answer
        self._source.connection_lost(exc)

    def _take(self, data: bytes) -> None:
        """Any bytes: those that may pass do, and the others are parsed, or kept until there are more."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        while data:
            passing = self._passing(data) if self._way is not None else 0
            if passing:
                assert self._way is not None
                self._way(data[:passing])
                data = data[passing:]
                continue
            whole = _whole_bytes(data, only_first=not self._stream.scanner.started)
            if whole < 0 or (not whole and not _may_wait(data)):
                self._source.go_on(data)
                return
            if not whole:
                break
            parsed, data = data[:whole], data[whole:]
            self._source.feed(parsed)
            if not self._goes_on(data):
                return
        self._rest = data
        self._write = self._way if not data and self._begins is not None else None

    def _goes_on(self, data: bytes) -> bool:
        """After something was parsed: whether there is more to come, of which `data` has arrived."""
        if not self._source.reads(self):
            return False
        self._way = None
        if self._stream.scanner.passes:
            self._way = self._stream.way()
            if self._way is None:
                self._source.go_on(data)
                return False
        return True

    def _passing(self, data: bytes) -> int:
        """How much of it passes as it is: whole chunks, of whole events, without a marker. They are counted."""
        at, compared = 0, None
        while True:
            if self._begins is not compared:  # there is a new shape
                compared = self._begins
                at += self._alike(data[at:])
            end = data.find(_END, at) + 4
            if end < 4 or not self._clear(data[at:end]):
                return at
            at = end

    def _alike(self, data: bytes) -> int:
        """The same for chunks that are of the shape, all at once."""
        assert self._begins is not None
        pieces = data.rsplit(self._tail)  # from the right, CPython searches twice as fast
        pieces.pop()  # what is behind the last of them
        alike = list(map(bytes.startswith, pieces, map(self._begins.__getitem__, map(len, pieces))))
        if False in alike:
            del pieces[alike.index(False) :]
        texts = b"".join([piece[self._from :] for piece in pieces])
        if b'"' in texts or b"\n" in texts:
            odd = (number for number, piece in enumerate(pieces) if not _is_plain(piece[self._from :]))
            del pieces[next(odd, len(pieces)) :]
        self._stream.scanner.content_events += len(pieces)
        return sum(map(len, pieces)) + self._cut * len(pieces)

    def _clear(self, chunk: bytes) -> bool:
        """Whether these bytes, up to the end of an event, are one chunk that passes as it is."""
        size = chunk.find(b"\r\n")
        if chunk[:size] != b"%x" % (len(chunk) - size - 4) or has_marker(chunk):
            return False
        events = chunk.count(UNFINISHED)
        if not events:
            return False
        self._stream.scanner.content_events += events
        if self._shapes < MAX_SHAPES:
            self._learn(chunk, size)
        return True

    def _learn(self, chunk: bytes, digits: int) -> None:
        """The shape of a chunk that was searched: what stands before its text, and behind it."""
        found = _TEXT.search(chunk)
        if found is None or chunk.count(b"\n") != _LINE_FEEDS or chunk.count(UNFINISHED) != 1:
            return
        start, end = found.span(1)
        self._shapes += 1
        self._tail = chunk[end:]
        self._cut = len(self._tail)
        self._from = start
        self._begins = _Beginnings(digits, chunk[digits + 2 : start], self._cut)


def _is_plain(text: bytes) -> bool:
    """Whether nothing of interest can be in it or at its edges. Quotes that are escaped are text."""
    return b"\n" not in text and (
        b'"' not in text or not (UNFINISHED in text or has_marker(b'"%b"' % text))  # its edges are quotes
    )


def _whole_bytes(data: bytes, *, only_first: bool) -> int:
    """Where the whole chunks end that `data` begins with, all of it if the last is among them; -1 if none begins so."""
    at = 0
    while found := _SIZE.match(data, at):
        size = int(found[1], 16)
        if not size:
            return len(data)
        end = found.end() + size + 2
        if end > len(data):
            return at
        if data[end - 2 : end] != b"\r\n":
            return at or -1
        at = end
        if only_first:
            return at
    begun = data[at:]
    return at if at or (len(begun) <= MAX_SIZE_DIGITS and b"\n" not in begun) else -1


def _may_wait(begun: bytes) -> bool:
    """Whether a chunk that is not whole can wait: it is small, and no event in it is."""
    events = begun[:-3]
    return len(begun) <= MAX_REST_BYTES and b"\n\n" not in events and b"\r\n\r\n" not in events
