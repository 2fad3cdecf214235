"""A request body as top-level members: read what steers, forward the rest as it came.

msgspec parses the object once into raw slices (2 GB/s). What a map of them cannot show is a name that stands twice:
engines take the last one, so a duplicate could steer what was checked clean. Names are compared after JSON unescaping.

Clients send few kinds of body: the same names in the same order, with no space between members, or with one after each
comma and colon. So a *shape*, kept for each list of names, has a template of either style; filled with the values it
must give the body to the byte, which says that each member stands once, and where. Any other body (other spaces,
escaped names, duplicates, large ones) is walked: each raw value is compared with the bytes at its place, which is a
memcmp and not a second parse.

The body is never rebuilt from parsed values. `rewritten` drops whole members and appends new ones before the last
brace; all other bytes are the client's.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final

import msgspec

from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.intake.body_template import BodyTemplate

MAX_NAMES: Final = 1000  # of a body; engines know some hundred, and a walk is 3 us for each
MAX_SHAPES: Final = 512  # kept; all are dropped when it is full
MAX_SHAPE_NAMES: Final = 64
MAX_SHAPE_CHARS: Final = 1024
MAX_DROP_SETS: Final = 32  # kept for each shape; the code has few
MAX_TEMPLATE_BYTES: Final = 65_536  # a template copies the body, a walk does not

_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NAME: Final = msgspec.json.Decoder(str)
_SPACE: Final = b" \t\r\n"


class Span:
    """Where a member stands in the body: its name's first quote to its value's end."""

    __slots__ = ("end", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end


class _Left:
    """What is left of a body of known shape and style without some members, as a template and its values."""

    __slots__ = ("template", "values")

    def __init__(self, template: bytes, values: Callable[[dict[str, msgspec.Raw]], Any]) -> None:
        self.template = template
        self.values = values


class _Shape:
    """The names of a body's members, in order, and its templates in both styles."""

    __slots__ = ("_kept", "names", "templates", "value_at")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        quoted = [b'"%b":' % name.replace("%", "%%").encode("utf-8", "replace") for name in names]
        self.value_at = len(names[0].encode("utf-8", "replace")) + 4 if names else 0  # behind the first colon
        self.templates = (
            b"{" + b",".join([name + b"%b" for name in quoted]) + b"}",
            b"{" + b", ".join([name + b" %b" for name in quoted]) + b"}",
        )
        if not all(name.isprintable() and '"' not in name and "\\" not in name for name in names):
            never = b"%b" * len(names)  # a name that may need an escape: no body is its values alone, so it is walked
            self.templates = never, never
        self._kept: dict[tuple[frozenset[str], int], _Left | None] = {}

    def without(self, drop: frozenset[str], style: int) -> _Left | None:
        """What is left without `drop`; None where too little is to be worth it."""
        try:
            return self._kept[drop, style]
        except KeyError:
            kept = [name for name in self.names if name not in drop]
            found = None
            if len(kept) > 1:  # an itemgetter of one name gives no tuple
                separator = b'": %b' if style else b'":%b'
                parts = [b'"' + name.replace("%", "%%").encode() + separator for name in kept]
                found = _Left(b"{" + b",".join(parts), itemgetter(*kept))
            if len(self._kept) < MAX_DROP_SETS:
                self._kept[drop, style] = found
            return found


_SHAPES: Final[dict[tuple[str, ...], _Shape]] = {}


def is_small(names: tuple[str, ...]) -> bool:
    """Whether what follows from the names of a body may be kept."""
    return len(names) <= MAX_SHAPE_NAMES and sum(map(len, names)) <= MAX_SHAPE_CHARS


def _check_number(names: tuple[str, ...]) -> None:
    if len(names) > MAX_NAMES:
        problem = f"the request body has {len(names)} fields, at most {MAX_NAMES} are taken"
        raise Refusal(400, problem, code="invalid_value")


def _shape(names: tuple[str, ...]) -> _Shape:
    shape = _SHAPES.get(names)
    if shape is None:
        _check_number(names)
        shape = _Shape(names)
        if is_small(names):
            if len(_SHAPES) >= MAX_SHAPES:
                _SHAPES.clear()
            _SHAPES[names] = shape
    return shape


class Body:
    """The top-level members of a JSON object, and where they stand in it."""

    __slots__ = ("_shape", "_spans", "_style", "close", "members", "names", "raw")

    def __init__(self, raw: bytes) -> None:
        """Parse; a 400 `Refusal` for anything that is not one JSON object with distinct names."""
        self.raw = raw
        try:
            members = self.members = _MEMBERS.decode(raw)
        except msgspec.ValidationError:
            raise Refusal(400, "the request body is not a JSON object", code="invalid_json") from None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise Refusal(400, f"the request body is not valid JSON: {error}", code="invalid_json") from None
        names = self.names = tuple(members)
        if len(raw) <= MAX_TEMPLATE_BYTES:
            shape = self._shape = _SHAPES.get(names) or _shape(names)
            style = self._style = 1 if raw[shape.value_at] == 0x20 else 0
            if shape.templates[style] % tuple(members.values()) == raw:
                self._spans: dict[str, Span] | None = None
                self.close = len(raw) - 1
                return
        _check_number(names)
        self._spans, self.close = _walk(raw, members)

    @property
    def spans(self) -> dict[str, Span]:
        """Where each member stands."""
        if self._spans is None:
            self._spans, self.close = _walk(self.raw, self.members)
        return self._spans

    def rewritten(self, drop: frozenset[str], add: bytes) -> list[bytes | memoryview]:
        """The body without the members in `drop` and with `add` (`"name":value,...`) before the last brace."""
        if drop.isdisjoint(self.members):
            separator = b"," if self.members and add else b""
            return [memoryview(self.raw)[: self.close], separator + add + b"}"]
        if self._spans is None and add:
            left = self._shape.without(drop, self._style)
            if left is not None:
                return [left.template % left.values(self.members), b",", add, b"}"]
        kept = [self.raw[span.start : span.end] for name, span in self.spans.items() if name not in drop]
        if add:
            kept.append(add)
        return [b"{" + b",".join(kept) + b"}"]


class TemplatedBody:
    """A request's body that matches a body template: its members are parsed only when they are asked for."""

    __slots__ = ("_body", "_template", "raw")

    def __init__(self, raw: bytes, template: BodyTemplate) -> None:
        self.raw = raw
        self._template = template
        self._body: Body | None = None

    @property
    def members(self) -> dict[str, msgspec.Raw]:
        """Raw values by name."""
        if self._body is None:
            self._body = Body(self.raw)
        return self._body.members

    def rewritten(self, drop: frozenset[str], add: bytes) -> list[bytes | memoryview]:
        """The body without the members in `drop` and with `add` (`"name":value,...`) before the last brace."""
        return self._template.rewritten(self.raw, drop, add)


AnyBody = Body | TemplatedBody


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


NO_BODY: Final = Body(b"{}")  # where one was, and is not needed any more
