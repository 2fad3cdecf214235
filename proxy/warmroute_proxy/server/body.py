"""A request body as top-level members: read what steers, forward the rest as it came.

msgspec parses the object once into raw slices (2 GB/s). What a map of them cannot show is a name that stands twice:
engines take the last one, so a duplicate could steer what was checked clean. Names are compared after JSON unescaping.

Most bodies are compact: their length is that of their names, values and punctuation, to the byte. White space, escapes
in names and duplicates can only make a body longer, so equal lengths say that there is none of them, and where each
member stands follows by adding up. Any other body is walked: each raw value is compared with the bytes at its place,
which is a memcmp and not a second parse.

The body is never rebuilt from parsed values. `rewritten` drops whole members and appends new ones before the last
brace; all other bytes are the client's.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

import msgspec

from warmroute_proxy.server.errors import Refusal

_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NAME: Final = msgspec.json.Decoder(str)
_SPACE: Final = b" \t\r\n"


class Span(NamedTuple):
    """Where a member stands in the body: its name's first quote to its value's end."""

    start: int
    end: int


class Body:
    """The top-level members of a JSON object, and where they stand in it."""

    __slots__ = ("close", "members", "raw", "spans")

    def __init__(self, raw: bytes) -> None:
        """Parse; a 400 `Refusal` for anything that is not one JSON object with distinct names."""
        self.raw = raw
        try:
            self.members = _MEMBERS.decode(raw)
        except msgspec.ValidationError:
            raise Refusal(400, "the request body is not a JSON object", code="invalid_json") from None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise Refusal(400, f"the request body is not valid JSON: {error}", code="invalid_json") from None
        compact = _compact(self.members)
        self.spans, self.close = compact if compact[1] + 1 == len(raw) else _walk(raw, self.members)

    def rewritten(self, drop: Collection[str], add: bytes) -> list[bytes | memoryview]:
        """The body without the members in `drop` and with `add` (`"name":value,...`) before the last brace."""
        dropped = [name for name in drop if name in self.spans]
        if not dropped:
            separator = b"," if self.spans and add else b""
            return [memoryview(self.raw)[: self.close], separator + add + b"}"]
        kept = [self.raw[span.start : span.end] for name, span in self.spans.items() if name not in drop]
        if add:
            kept.append(add)
        return [b"{" + b",".join(kept) + b"}"]


def _compact(members: dict[str, msgspec.Raw]) -> tuple[dict[str, Span], int]:
    """Spans of all members and the place of the closing brace, if the body is compact."""
    spans: dict[str, Span] = {}
    at = 1
    for name, value in members.items():
        size = len(name) if name.isascii() else len(name.encode("utf-8", "surrogatepass"))
        end = at + size + 3 + len(memoryview(value))  # two quotes and the colon
        spans[name] = Span(at, end)
        at = end + 1  # the comma, or the brace
    return spans, at - 1 if members else at


def _walk(raw: bytes, members: dict[str, msgspec.Raw]) -> tuple[dict[str, Span], int]:
    """Spans of all members and the place of the closing brace."""
    spans: dict[str, Span] = {}
    at = _skip(raw, _skip(raw, 0) + 1)
    while raw[at] != 0x7D:  # }
        start = at
        name, at = _name(raw, at)
        at = _skip(raw, _skip(raw, at) + 1)  # past the colon
        value = members.get(name)
        if name in spans or value is None or not raw.startswith(memoryview(value), at):
            # Either seen before, or a later duplicate's value replaced this one's in the map.
            raise Refusal(400, f"duplicate field {name!r} in the request body", code="duplicate_field", param=name)
        at += len(memoryview(value))
        spans[name] = Span(start, at)
        at = _skip(raw, at)
        if raw[at] == 0x2C:  # ,
            at = _skip(raw, at + 1)
        elif raw[at] != 0x7D:
            raise Refusal(400, f"duplicate field {name!r} in the request body", code="duplicate_field", param=name)
    return spans, at


def _name(raw: bytes, at: int) -> tuple[str, int]:
    """The member name whose opening quote is at `at`, and where its closing quote ends."""
    end = raw.index(b'"', at + 1)
    if raw.find(b"\\", at, end) < 0:
        return raw[at + 1 : end].decode(), end + 1
    while raw[end - 1] == 0x5C and _odd_backslashes(raw, end):
        end = raw.index(b'"', end + 1)
    return _NAME.decode(raw[at : end + 1]), end + 1


def _odd_backslashes(raw: bytes, end: int) -> bool:
    count = 0
    while raw[end - 1 - count] == 0x5C:
        count += 1
    return bool(count & 1)


def _skip(raw: bytes, at: int) -> int:
    while raw[at] in _SPACE:
        at += 1
    return at
