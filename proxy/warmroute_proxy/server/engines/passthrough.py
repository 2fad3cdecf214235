"""Relays the chunks of a stream unchanged, including the engine's HTTP framing.

Engines write each event as one HTTP chunk, and a read brings one or several whole chunks. As long as the chunks contain
only content (`sse`), the client gets the same bytes, including chunk sizes, with one write for each read. For this, a
`Passthrough` replaces the connection as the protocol of the transport once the head of a streamed answer has ended.

A chunk is checked twice before it passes. The first check is its *framing*: the chunk must end at the byte that its
size says, after the blank line of an event. The second check is its *shape*: events of one stream differ only in a
short text. So an event is not parsed if it begins and ends like an event that was parsed, and its text has neither a
quote nor a line feed. Any other event is parsed (`sse`), and later events are compared with it.

The parser of HTTP and the scanner of events (`sse`) get everything else: the beginning of an answer, its end from the
usage on, and each answer that the proxy has to read or rewrite (`Stream.passthrough_target` is None). They get whole
chunks, so that they are between two chunks when the next chunk passes without them. If a read ends within a chunk, the
chunk waits for its rest. The parser gets all the rest of the answer if an unfinished chunk exceeds `MAX_REST_BYTES` or
has a whole event, or if the stream has another framing.

Without this module, the benchmark workload w2 executes 2.08 times as many instructions; without shapes, 2.00 times as
many (`python -m bench instructions --workloads w2`): see docs/decisions/020-one-way.md.
"""

import re
from collections.abc import Callable
from typing import Final, Protocol

from warmroute_proxy.dialects.chat_answers import has_surrogate
from warmroute_proxy.server.engines.chunk_shape import ChunkShape
from warmroute_proxy.server.engines.portions import TURN_BYTES
from warmroute_proxy.server.engines.sse import EventShape, UsageTracker

MAX_REST_BYTES: Final = 65_536  # size of an unfinished chunk that waits for its rest
SMALL_BYTES: Final = 4096  # a smaller answer or beginning that came in one read is parsed, and sent in one write
MAX_SHAPES: Final = 16  # how many shapes are learned from one stream
MAX_SIZE_DIGITS: Final = 8

_END: Final = b"\n\n\r\n"  # the end of an event and of its chunk
_QUOTE: Final = 34
_NEWLINE: Final = 10
_BACKSLASH: Final = 92
"""These bytes are numbers, because CPython finds a number in bytes seven times as fast as a bytes object."""

_LAST_CHUNK: Final = b"\r\n0\r\n\r\n"
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,%d})\r\n" % MAX_SIZE_DIGITS)

Write = Callable[[bytes], None]


class Stream(Protocol):
    """The stream of an answer, as `Passthrough` uses it."""

    scanner: UsageTracker

    def passthrough_target(self) -> Write | None:
        """The function that takes whole HTTP chunks unread; None if the stream must read all chunks from now on."""


class EngineConnection(Protocol):
    def read_much(self, data: bytes) -> bool:
        """Let a read wait for its turn, in which `take` gets it. Returns False if reads do not wait for turns."""

    def reads(self, passthrough: "Passthrough") -> bool:
        """Whether the answer of this passthrough goes on."""

    def feed(self, data: bytes) -> None:
        """Parse bytes, and give the leg what they contain."""

    def go_on(self, data: bytes) -> None:
        """Become the transport's protocol again, and parse `data` first."""

    def connection_lost(self, exc: Exception | None) -> None: ...


class Passthrough:
    """The protocol of an engine's connection while a stream passes through the proxy."""

    __slots__ = (
        "_learned",
        "_rest",
        "_scanner",
        "_shape",
        "_shapes",
        "_source",
        "_stream",
        "_tail",
        "_target",
        "_text_at",
        "_text_to",
        "_write",
    )

    def __init__(self, source: EngineConnection, stream: Stream) -> None:
        self._source = source
        self._stream = stream
        self._scanner = stream.scanner
        self._target: Write | None = None
        self._write: Write | None = None  # the target; None while a chunk waits for its rest or no shape is known
        self._rest = b""
        self._shapes = 0
        self._learned: EventShape | None = None  # the event shape from which `_shape` was made
        self._shape: ChunkShape | None = None
        self._tail = b""
        self._text_at = 0
        self._text_to = 0  # end of the text, counted from the end of a chunk, so not positive

    def data_received(self, data: bytes) -> None:
        """Relay a read, which is usually one chunk of the known shape."""
        write, shape = self._write, self._shape
        if write is not None and data.endswith(self._tail) and data.startswith(shape[len(data)]):  # type: ignore[index]
            text = data[self._text_at : self._text_to]
            if _QUOTE not in text and (_BACKSLASH not in text or not has_surrogate(text)):
                self._scanner.tokens_seen += 1
                write(data)
                return
        if len(data) <= TURN_BYTES or not self._source.read_much(data):
            self.take(data)

    def eof_received(self) -> None:
        """Does nothing: the engine has ended, and the transport closes."""

    def pause_writing(self) -> None:
        """Does nothing, since a request is sent whole before its answer begins."""

    def resume_writing(self) -> None:
        """Does nothing, like `pause_writing`."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Parse the unfinished chunk, which belongs to the answer, and pass the event on."""
        rest, self._rest = self._rest, b""
        if rest:
            self._source.feed(rest)
        self._source.connection_lost(exc)

    def parse_all(self) -> None:
        self._target = self._write = None

    def take(self, data: bytes) -> None:
        """Relay the bytes that may pass. Parse all other bytes, or keep them until more have come."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        elif self._target is not None and self._passes_counted(data, self._target):
            return
        if self._target is not None and not (len(data) < SMALL_BYTES and data.endswith(_LAST_CHUNK)):
            data = self._pass(data, self._target)
        if data.endswith(_LAST_CHUNK) and (len(data) < SMALL_BYTES or self._scanner.started):
            self._source.feed(data)
            if self._source.reads(self):  # what looked like the last chunk was text, so the border of chunks is unknown
                self._source.go_on(b"")
            return
        while data:
            begins_long = not self._scanner.started and len(data) >= SMALL_BYTES
            whole = _whole_bytes(data, only_first=begins_long)
            if whole < 0 or (not whole and not _may_wait(data)):
                self._source.go_on(data)
                return
            if not whole:
                break
            parsed, data = data[:whole], data[whole:]
            self._source.feed(parsed)
            if not self._goes_on(data):
                return
            if self._target is not None and begins_long:
                data = self._pass(data, self._target)
        self._rest = data
        self._write = self._target if not data and self._shape is not None else None

    def _passes_counted(self, data: bytes, target: Write) -> bool:
        """Relay a read if it is one chunk that differs from an earlier chunk only in text and token counts. Returns
        whether the read was relayed.
        """
        shape = self._scanner.shape
        if shape is None or not shape.counts or not data.endswith(_END):
            return False
        at = data.find(b"\r\n")
        if data[:at] != b"%x" % (len(data) - at - 4) or not self._scanner.passes_alike(data[at + 2 : -2]):
            return False
        target(data)
        return True

    def _goes_on(self, data: bytes) -> bool:
        """Whether the passthrough goes on after a chunk was parsed. `data`: the bytes after that chunk."""
        if not self._source.reads(self):
            return False
        self._target = None
        if self._scanner.passes:
            self._target = self._stream.passthrough_target()
            if self._target is None:
                self._source.go_on(data)
                return False
        return True

    def _pass(self, data: bytes, target: Write) -> bytes:
        """Relay the whole chunks at the start of `data` that may pass. Returns the bytes after them."""
        at, compared = 0, None
        while True:
            if self._shape is not compared:  # a new shape
                compared = self._shape
                at += self._alike(data[at:])
            end = data.find(_END, at) + 4
            if end < 4 or not self._clear(data[at:end]):
                break
            at = end
        if at:
            target(data[:at])
        return data[at:]

    def _alike(self, data: bytes) -> int:
        """The number of bytes at the start of `data` that are chunks of the known shape and may pass."""
        shape = self._shape
        assert shape is not None
        pieces = data.rsplit(shape.tail)  # from the right: CPython searches twice as fast
        pieces.pop()  # the bytes after the last tail
        sizes = map(shape.tail_bytes.__add__, map(len, pieces))
        alike = list(map(bytes.startswith, pieces, map(shape.__getitem__, sizes)))
        if False in alike:
            del pieces[alike.index(False) :]
        at = shape.text_at
        texts = b"".join([piece[at:] for piece in pieces])
        if not _is_plain(texts):
            for number, piece in enumerate(pieces):
                if not _is_plain(piece[at:]):
                    del pieces[number:]
                    break
        self._scanner.tokens_seen += len(pieces)
        return sum(map(len, pieces)) + shape.tail_bytes * len(pieces)

    def _clear(self, chunk: bytes) -> bool:
        """Whether these bytes, up to the end of an event, are one chunk that may pass. Learns the chunk's shape.

        Chunks without content, such as a comment, pass only together with content.
        """
        digits = chunk.find(b"\r\n")
        if chunk[:digits] != b"%x" % (len(chunk) - digits - 4):
            return False
        scanner = self._scanner
        if not scanner.passes_whole(chunk[digits + 2 : -2]):
            return False
        learned = scanner.shape
        if learned is not None and not learned.counts and learned is not self._learned and self._shapes < MAX_SHAPES:
            self._shapes += 1
            self._learned = learned
            shape = self._shape = ChunkShape(digits, learned.head, learned.tail + b"\r\n")
            self._tail = shape.tail
            self._text_at = shape.text_at
            self._text_to = -shape.tail_bytes
        return True


def _is_plain(text: bytes) -> bool:
    """Whether a text has neither a quote nor a line feed, which could end it, nor half of a surrogate pair."""
    return _QUOTE not in text and _NEWLINE not in text and (_BACKSLASH not in text or not has_surrogate(text))


def _whole_bytes(data: bytes, *, only_first: bool) -> int:
    """The length of the whole chunks at the start of `data`: all of `data` if the answer's last chunk is among them.

    -1 if `data` does not begin with a chunk. `only_first`: stop after the first chunk.
    """
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
    """Whether an unfinished chunk can wait for its rest: it is small, and has no whole event."""
    events = begun[:-3]
    return len(begun) <= MAX_REST_BYTES and b"\n\n" not in events and b"\r\n\r\n" not in events
