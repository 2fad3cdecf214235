"""Holds the body of a large request, with the places of its members, which another process has found."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class NamedSpan(NamedTuple):
    """Where a member is: from the first quote of its name to the end of its value."""

    name: str
    start: int
    end: int


class LargeBody:
    """A body in shared memory. Its bytes are sent from this memory; the event loop never copies or reads them."""

    __slots__ = ("_spans", "raw")

    def __init__(self, raw: memoryview, spans: Sequence[NamedSpan]) -> None:
        self.raw = raw
        self._spans = spans

    def value(self, name: str) -> bytes | None:
        """The JSON of a top-level member; None without the member."""
        found = next((span for span in self._spans if span.name == name), None)
        if found is None:
            return None
        (value,) = _decode(b"{%b}" % bytes(self.raw[found.start : found.end])).values()
        return bytes(memoryview(value))

    def rewritten(self, drop: frozenset[str], add: bytes) -> list[bytes | memoryview]:
        parts: list[bytes | memoryview] = [b"{"]
        for span in self._spans:
            if span.name not in drop:
                parts += (self.raw[span.start : span.end], b",")
        if add:
            parts.append(b"%b}" % add)
        elif len(parts) > 1:
            parts[-1] = b"}"
        else:
            parts.append(b"}")
        return parts
