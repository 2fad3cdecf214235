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
rewrite (`Stream.passthrough_target` is None). A chunk that is cut by the end of a read waits for its rest, up to
`MAX_REST_BYTES` and unless it holds an event that could go. A stream with another framing is left to the parser for
good.
"""

import re
from collections.abc import Callable
from typing import Final, Protocol

from warmroute_proxy.server.engines.chunk_shape import Shape, shape_of
from warmroute_proxy.server.engines.sse import UNFINISHED, Scanner, has_marker

MAX_REST_BYTES: Final = 65_536
SMALL_BYTES: Final = 4096  # of an answer that came whole: it is parsed
MAX_SHAPES: Final = 16  # that one stream may take: then its events are searched
MAX_SIZE_DIGITS: Final = 8

_END: Final = b"\n\n\r\n"  # of an event and of its chunk
_LAST: Final = b"\r\n0\r\n\r\n"
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,%d})\r\n" % MAX_SIZE_DIGITS)

Write = Callable[[bytes], None]


class Stream(Protocol):
    """Whose answer it is."""

    scanner: Scanner

    def passthrough_target(self) -> Write | None:
        """Where whole chunks of HTTP may go unseen; None if it is to see them all, from now on."""


class Source(Protocol):
    """The connection to the engine."""

    def reads(self, passage: "Passthrough") -> bool:
        """Whether the answer that takes this way still goes on."""

    def feed(self, data: bytes) -> None:
        """Parse, and tell what was found."""

    def go_on(self, data: bytes) -> None:
        """Be the transport's protocol again; `data` comes first."""

    def connection_lost(self, exc: Exception | None) -> None: ...


class Passthrough:
    """The protocol of an engine's connection while a stream takes its way through the proxy."""

    __slots__ = (
        "_rest",
        "_shape",
        "_shapes",
        "_source",
        "_stream",
        "_tail",
        "_tail_bytes",
        "_text_at",
        "_way",
        "_write",
    )

    def __init__(self, source: Source, stream: Stream) -> None:
        self._source = source
        self._stream = stream
        self._way: Write | None = None
        self._write: Write | None = None  # the way, unless a chunk waits for its rest or no shape is known
        self._rest = b""
        self._shapes = 0
        self._shape: Shape | None = None
        self._tail = b""
        self._tail_bytes = 0
        self._text_at = 0

    def data_received(self, data: bytes) -> None:
        """A read, which is one chunk of the shape mostly."""
        write = self._write
        if write is not None and data.endswith(self._tail):
            end = len(data) - self._tail_bytes
            if data.startswith(self._shape[end]):  # type: ignore[index]  # there is a shape where there is a way
                text = data[self._text_at : end]
                if b'"' not in text and b"\n" not in text:
                    self._stream.scanner.content_events += 1
                    write(data)
                    return
        self._take(data)

    def eof_received(self) -> None:
        """The transport closes, and says so."""

    def pause_writing(self) -> None:
        """A request is sent whole before its answer comes."""

    def resume_writing(self) -> None:
        """Likewise."""

    def connection_lost(self, exc: Exception | None) -> None:
        """What came of a chunk is still a part of the answer."""
        rest, self._rest = self._rest, b""
        if rest:
            self._source.feed(rest)
        self._source.connection_lost(exc)

    def see(self) -> None:
        """Nothing passes any more."""
        self._way = self._write = None

    def _take(self, data: bytes) -> None:
        """Any bytes: those that may pass do, and the others are parsed, or kept until there are more."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        if self._way is not None:
            data = self._pass(data, self._way)
        if data.endswith(_LAST) and (len(data) < SMALL_BYTES or self._stream.scanner.started):
            self._source.feed(data)
            if self._source.reads(self):  # that was text of a chunk, and its border is unknown
                self._source.go_on(b"")
            return
        while data:
            begun = self._stream.scanner.started
            whole = _whole_bytes(data, only_first=not begun)
            if whole < 0 or (not whole and not _may_wait(data)):
                self._source.go_on(data)
                return
            if not whole:
                break
            parsed, data = data[:whole], data[whole:]
            self._source.feed(parsed)
            if not self._goes_on(data):
                return
            if self._way is not None and not begun:
                data = self._pass(data, self._way)
        self._rest = data
        self._write = self._way if not data and self._shape is not None else None

    def _goes_on(self, data: bytes) -> bool:
        """After something was parsed: whether there is more to come, of which `data` has arrived."""
        if not self._source.reads(self):
            return False
        self._way = None
        if self._stream.scanner.passes:
            self._way = self._stream.passthrough_target()
            if self._way is None:
                self._source.go_on(data)
                return False
        return True

    def _pass(self, data: bytes, way: Write) -> bytes:
        """Let pass what may, which is whole chunks of whole events without a marker, and return what follows."""
        at, compared = 0, None
        while True:
            if self._shape is not compared:  # a new one
                compared = self._shape
                at += self._alike(data[at:])
            end = data.find(_END, at) + 4
            if end < 4 or not self._clear(data[at:end], heard=at > 0):
                break
            at = end
        if at:
            way(data[:at])
        return data[at:]

    def _alike(self, data: bytes) -> int:
        """How much of it is chunks of the shape that may pass, all at once."""
        shape = self._shape
        assert shape is not None
        pieces = data.rsplit(shape.tail)  # from the right: CPython searches twice as fast
        pieces.pop()  # what is behind the last of them
        alike = list(map(bytes.startswith, pieces, map(shape.__getitem__, map(len, pieces))))
        if False in alike:
            del pieces[alike.index(False) :]
        at = shape.text_at
        texts = b"".join([piece[at:] for piece in pieces])
        if b'"' in texts or b"\n" in texts:
            for number, piece in enumerate(pieces):
                if not _is_plain(piece[at:]):
                    del pieces[number:]
                    break
        self._stream.scanner.content_events += len(pieces)
        return sum(map(len, pieces)) + shape.tail_bytes * len(pieces)

    def _clear(self, chunk: bytes, *, heard: bool) -> bool:
        """Whether these bytes, up to the end of an event, are one chunk that passes as it is; its shape is learned.

        What tells of life but is not counted, such as a comment, only passes together with what is.
        """
        digits = chunk.find(b"\r\n")
        events = chunk.count(UNFINISHED)
        if not (events or heard) or chunk[:digits] != b"%x" % (len(chunk) - digits - 4) or has_marker(chunk):
            return False
        self._stream.scanner.content_events += events
        if events == 1 and self._shapes < MAX_SHAPES:
            shape = shape_of(chunk, digits)
            if shape is not None:
                self._shapes += 1
                self._shape = shape
                self._tail = shape.tail
                self._tail_bytes = shape.tail_bytes
                self._text_at = shape.text_at
        return True


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
