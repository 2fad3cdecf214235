"""Splits a request body into its top-level members; the proxy reads some of them and forwards the rest as it came.

msgspec parses the object once into raw slices (2 GB/s). The resulting map does not show whether a name is given twice.
But engines take the last value of a name, so a duplicate could bypass a check. Therefore the body is walked: each raw
value is compared with the bytes at its place, which is a memcmp and not a second parse. Names are compared after JSON
unescaping.

The body is never rebuilt from parsed values. `rewritten` drops whole members and appends new ones before the last
brace; all other bytes are the client's.
"""

import re
from typing import Final

import msgspec

from warmroute_proxy.server.base.errors import Refusal, quoted
from warmroute_proxy.server.intake.body_template import BodyTemplate
from warmroute_proxy.server.intake.large_body import LargeBody

MAX_NAMES: Final = 1000  # in a body; engines know a few hundred, and the walk takes 3 us for each

_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NAME: Final = msgspec.json.Decoder(str)
_SPACE: Final = b" \t\r\n"
_SPACES: Final = re.compile(rb"[ \t\r\n]*+")
_REST_OF_NAME: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_WINDOW_BYTES: Final = 4096


class Span:
    """The place of a member in the body, from the first quote of its name to the end of its value."""

    __slots__ = ("end", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end


def _check_number(names: tuple[str, ...]) -> None:
    if len(names) > MAX_NAMES:
        problem = f"the request body has {len(names)} fields, at most {MAX_NAMES} are taken"
        raise Refusal(400, problem, code="invalid_value")


class Body:
    """The top-level members of a JSON object, and where they are in it."""

    __slots__ = ("close", "members", "names", "raw", "spans")

    def __init__(self, raw: bytes) -> None:
        """Parse a body. Raises: Refusal, with 400, if it is not one JSON object with distinct names."""
        self.raw = raw
        try:
            members = self.members = _MEMBERS.decode(raw)
        except msgspec.ValidationError:
            raise Refusal(400, "the request body is not a JSON object", code="invalid_json") from None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise Refusal(400, f"the request body is not valid JSON: {error}", code="invalid_json") from None
        self.names = tuple(members)
        _check_number(self.names)
        self.spans, self.close = _walk(raw, members)

    def value(self, name: str) -> bytes | None:
        """The JSON of a top-level member; None without the member."""
        return _value(self.members, name)

    def rewritten(self, drop: frozenset[str], add: bytes) -> list[bytes | memoryview]:
        """The body without the members in `drop`, and with `add` (`"name":value,...`) before the last brace."""
        if drop.isdisjoint(self.members):
            separator = b"," if self.members and add else b""
            return [memoryview(self.raw)[: self.close], separator + add + b"}"]
        kept_members = [self.raw[span.start : span.end] for name, span in self.spans.items() if name not in drop]
        if add:
            kept_members.append(add)
        return [b"{" + b",".join(kept_members) + b"}"]


class TemplatedBody:
    """A body that matches a body template (`body_template`). Its members are parsed only when they are asked for."""

    __slots__ = ("_body", "_template", "raw")

    def __init__(self, raw: bytes, template: BodyTemplate) -> None:
        self.raw = raw
        self._template = template
        self._body: Body | None = None

    @property
    def members(self) -> dict[str, msgspec.Raw]:
        if self._body is None:
            self._body = Body(self.raw)
        return self._body.members

    def value(self, name: str) -> bytes | None:
        return _value(self.members, name)

    def rewritten(self, drop: frozenset[str], add: bytes) -> list[bytes | memoryview]:
        return self._template.rewritten(self.raw, drop, add)


AnyBody = Body | TemplatedBody | LargeBody


def _value(members: dict[str, msgspec.Raw], name: str) -> bytes | None:
    found = members.get(name)
    return None if found is None else bytes(memoryview(found))


def _walk(raw: bytes, members: dict[str, msgspec.Raw]) -> tuple[dict[str, Span], int]:
    """The spans of all members, and the place of the closing brace."""
    spans: dict[str, Span] = {}
    at = _skip(raw, _skip(raw, 0) + 1)
    while raw[at] != 0x7D:  # }
        start = at
        name, at = _name(raw, at)
        at = _skip(raw, _skip(raw, at) + 1)  # past the colon
        value = members.get(name)
        if name in spans or value is None or not raw.startswith(memoryview(value), at):
            # The name is a duplicate, or the value of a later duplicate has replaced this value in the map.
            raise _duplicate(name)
        at += len(memoryview(value))
        spans[name] = Span(start, at)
        at = _skip(raw, at)
        if raw[at] == 0x2C:  # ,
            at = _skip(raw, at + 1)
        elif raw[at] != 0x7D:
            raise _duplicate(name)
    return spans, at


def _name(raw: bytes, at: int) -> tuple[str, int]:
    """The member name whose opening quote is at `at`, and where its closing quote ends."""
    end = raw.index(b'"', at + 1)
    if raw.find(b"\\", at, end) < 0:
        return raw[at + 1 : end].decode(), end + 1
    rest = _REST_OF_NAME.match(raw, at + 1)
    assert rest is not None  # because the body is valid JSON
    end = rest.end() - 1
    return _NAME.decode(raw[at : end + 1]), end + 1


def _skip(raw: bytes, at: int) -> int:
    if raw[at] not in _SPACE:  # usually there are no spaces
        return at
    spaces = _SPACES.match(raw, at)
    assert spaces is not None
    return spaces.end()


def spaces_begin(raw: bytes, end: int) -> int:
    """The position where the spaces before `end` begin."""
    while raw[end - 1] in _SPACE:
        window = raw[max(end - _WINDOW_BYTES, 0) : end]
        end -= len(window) - len(window.rstrip(_SPACE))
    return end


NO_BODY: Final = Body(b"{}")  # stands in for a body that is not needed any more


def _duplicate(name: str) -> Refusal:
    return Refusal(400, f"duplicate field {quoted(name)} in the request body", code="duplicate_field", param=name)
