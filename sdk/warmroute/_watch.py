"""Watches the answer of a turn while it is read: notes its usage, and tells which chunk the caller must not get.

The turn ends when the stream of httpx's response ends, is closed or is dropped, whatever the library makes of it.
"""

import json
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import cache
from typing import Any, Final, cast

from warmroute._books import Books
from warmroute._turns import Turn
from warmroute.contract.receipt_type import Receipt
from warmroute.contract.usage import usage_in

_EXTENSION: Final = "warmroute.watch"
_LAST_EVENTS: Final = frozenset({"message_stop", "response.completed", "response.incomplete", "response.failed"})
"""Events that end a stream of Anthropic's messages or of Responses."""


class Watch:
    """Observes a turn's answer while it is read. The `extensions` of httpx's response hold this object."""

    __slots__ = ("_answer", "_books", "turn", "usage")

    def __init__(self, books: Books, turn: Turn) -> None:
        self._answer: AnswerBytes | None = None
        self._books = books
        self.turn = turn
        self.usage: Mapping[str, Any] | None = None

    def attach(self, response: Any) -> None:
        """Watch a response, and read along if its body has not been read."""
        response.extensions[_EXTENSION] = self
        if not response.is_closed:
            self._answer = AnswerBytes(self, response.headers)
            response.stream = _stream_class(response.stream.__class__)(response.stream, self._answer)

    def read(self, response: Any) -> None:
        """Note the usage in a body that was read before the turn was watched, and end the turn."""
        answer = AnswerBytes(self, {"content-type": response.headers.get("content-type", "")})
        answer.feed(response.content)
        answer.end()

    def parsed(self, data: object) -> None:
        """Note the usage in what the library has parsed, unless the bytes are read along, which are ahead of it."""
        if self._answer is None or not self._answer.reads:
            self.observe(data)

    def observe(self, data: object, *, is_event: bool = False) -> None:
        """Note the usage in parsed data, which is a whole answer or an event of a stream. Later counts replace earlier
        ones: Anthropic sends the prompt's counts with the first event, and the other counts with the last event.
        """
        with self._books.shelter():
            if not isinstance(data, Mapping):
                return
            if usage := usage_in(data):
                known = {name: value for name, value in usage.items() if value is not None}
                self.usage = {**(self.usage or {}), **known}
            if not (is_event or self.turn.streamed) or data.get("type") in _LAST_EVENTS:
                self.finished()

    def withholds(self, chunk: object) -> bool:
        """Whether a chunk has usage that only the SDK requested, so that the caller must not get the chunk."""
        return self.turn.withhold and getattr(chunk, "usage", None) is not None and not getattr(chunk, "choices", True)

    def finished(self) -> None:
        """Settle the turn (count its usage): its answer was read to the end or dropped, or its call has failed."""
        with self._books.shelter():
            self._books.ended(self.turn, self.usage)


def watch_of(response: Any) -> Watch | None:
    extensions = getattr(response, "extensions", None)
    watch = extensions.get(_EXTENSION) if isinstance(extensions, dict) else None
    return watch if isinstance(watch, Watch) else None


def receipt_of(answer: object) -> Receipt | None:
    """The receipt (`usage.warmroute`) of an answer of any API, of a chunk, or of a stream that has been read to its
    end, including openai's `.stream()`. None if there is no receipt.
    """
    response = getattr(answer, "response", None) or getattr(answer, "_response", None)
    watch = watch_of(response)
    for each in (answer, watch, response):  # an event of Responses has its answer in `response`
        usage = getattr(each, "usage", None)
        receipt = usage.get("warmroute") if isinstance(usage, Mapping) else getattr(usage, "warmroute", None)
        if isinstance(receipt, Mapping):
            return cast("Receipt", receipt)
    return None


# `AnswerBytes` finds the usage in the bytes of an answer: a whole JSON answer, or a stream of events.
#
# Of a stream, only events with the word `usage` are parsed. Bytes in encodings that zlib cannot unpack are not read.

MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
"""A whole answer, or an event of a stream, that is longer is not searched for usage."""

ZLIB: Final = ("gzip", "deflate")
_ANY_HEADER: Final = zlib.MAX_WBITS | 32


class AnswerBytes:
    """Collects an answer's bytes until its usage is known."""

    def __init__(self, watch: Watch, headers: Mapping[str, str]) -> None:
        encoding = headers.get("content-encoding", "").strip().lower()
        self._watch = watch
        self._unpack = zlib.decompressobj(_ANY_HEADER) if encoding in ZLIB else None
        self._is_stream = "event-stream" in headers.get("content-type", "")
        self._rest = bytearray()
        self.reads = encoding in ("", "identity", *ZLIB)
        """Whether usage is looked for. It stays true after the end, when all of it is known."""
        self._ended = False

    def feed(self, chunk: bytes) -> None:
        """Add the next bytes of the answer. Never raises."""
        if not self.reads or self._ended:
            return
        try:
            piece = self._unpack.decompress(chunk) if self._unpack is not None else chunk
        except zlib.error:
            self.reads = False
            return
        self._rest += piece
        if self._is_stream and b"\n" in piece:
            self._events()
        if len(self._rest) > MAX_ANSWER_BYTES:
            self.reads = False
            self._rest.clear()

    def end(self) -> None:
        """Note that the answer was read to its end or dropped. Later calls do nothing."""
        if self._ended:
            return
        self._ended = True
        if self.reads and self._is_stream:
            self._rest += b"\n"
            self._events()
        elif self.reads:
            self._observe(bytes(self._rest))
        self._rest.clear()
        self._watch.finished()

    def _events(self) -> None:
        *lines, rest = bytes(self._rest).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and b"usage" in line:
                self._observe(line[5:])
        self._rest = bytearray(rest)

    def _observe(self, data: bytes) -> None:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            return
        self._watch.observe(found[-1] if isinstance(found, list) and found else found, is_event=self._is_stream)


class _Stream:
    """The stream of an answer, for synchronous and asynchronous clients. It passes each chunk to an `AnswerBytes`."""

    def __init__(self, stream: Any, answer: AnswerBytes) -> None:
        self._stream = stream
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._stream:
                self._answer.feed(chunk)
                yield chunk
        finally:
            self._answer.end()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._stream:
                self._answer.feed(chunk)
                yield chunk
        finally:
            self._answer.end()

    def close(self) -> None:
        try:
            self._answer.end()
        finally:
            self._stream.close()

    async def aclose(self) -> None:
        try:
            self._answer.end()
        finally:
            await self._stream.aclose()

    def __del__(self) -> None:
        self._answer.end()


@cache
def _stream_class(kind: type) -> Any:
    """The class of an observed stream that takes the place of one of class `kind`: httpx and httpx2 require theirs."""
    bases = [each for each in kind.__mro__ if each.__name__ in ("SyncByteStream", "AsyncByteStream")]
    return type(_Stream.__name__, (_Stream, *bases), {})
