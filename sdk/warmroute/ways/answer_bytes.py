"""The usage in the bytes of an answer, read along: a whole JSON answer, or a stream of events.

Only events that have the word `usage` in them are parsed. Compressed bytes are unpacked where zlib can; what else a
server might choose is not offered to it (`plain_encodings`).
"""

import json
import zlib
from collections.abc import Mapping
from typing import Final

from warmroute._watch import Watch

MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
"""A longer whole answer is not read for its usage; of a stream, a longer event."""

_ZLIB: Final = ("gzip", "deflate")
_ANY_HEADER: Final = zlib.MAX_WBITS | 32


class AnswerBytes:
    """Collects an answer's bytes until its usage is known."""

    def __init__(self, watch: Watch, headers: Mapping[str, str]) -> None:
        encoding = headers.get("content-encoding", "").strip().lower()
        self._watch = watch
        self._unpack = zlib.decompressobj(_ANY_HEADER) if encoding in _ZLIB else None
        self._is_stream = "event-stream" in headers.get("content-type", "")
        self._rest = bytearray()
        self._ended = encoding not in ("", "identity", *_ZLIB)

    def feed(self, chunk: bytes) -> None:
        """The next bytes. Never raises."""
        if self._ended:
            return
        try:
            self._rest += self._unpack.decompress(chunk) if self._unpack is not None else chunk
            if self._is_stream:
                self._events()
        except zlib.error:
            self._ended = True
        if len(self._rest) > MAX_ANSWER_BYTES:
            self._ended = True
            self._rest.clear()

    def end(self) -> None:
        """The answer was read to its end, or dropped. Later calls do nothing."""
        if self._ended:
            return
        self._ended = True
        if self._is_stream:
            self._rest += b"\n"
            self._events()
        else:
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
        except ValueError:
            return
        self._watch.observe(found[-1] if isinstance(found, list) and found else found)


def plain_encodings(accepted: str) -> str:
    """The encodings of `accept-encoding` that can be read here."""
    names = map(str.strip, accepted.split(","))
    return ", ".join(name for name in names if name.partition(";")[0] in _ZLIB) or "identity"
