"""What fields of config records say of themselves: bounds, form, and whether they change while the proxy runs. Pure.

A field of numbers has its bounds in its annotation, by `within`; a text says whether it is a name, an address or a
digest. The reader of the file, its JSON Schema, the reference and the difference of two configs take them from there.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

from msgspec import Meta

LIVE: Final = Meta(extra={"live": True})
"""Marks a field that changes while the proxy runs."""

NAME: Final = Meta(extra={"form": "name"})
ADDRESS: Final = Meta(extra={"form": "url"})
ADDRESSES: Final = Meta(extra={"form": "urls"})
DIGEST: Final = Meta(extra={"form": "digest"})


def among(*words: str) -> Meta:
    """Some of these words."""
    return Meta(extra={"among": words})


class Bounds(NamedTuple):
    """The bounds of a number. `whole`: an integer; `default`: None if the number may be absent."""

    low: float
    high: float
    default: float | None
    whole: bool


def within(low: float, high: float, *, live: bool = False) -> Meta:
    """The bounds of a number, both of which it may have."""
    return Meta(ge=low, le=high, extra={"live": live})


@cache
def bounds(kind: type) -> Mapping[str, Bounds]:
    """The bounds of the fields of a record, and of the records in it, by name."""
    found: dict[str, Bounds] = {}
    for name, hint, default in fields_of(kind):
        member, meta, _ = annotated(hint)
        if meta is not None and meta.ge is not None and meta.le is not None:
            found[name] = Bounds(meta.ge, meta.le, default, member is int)
        elif hasattr(member, "_field_defaults"):
            found |= bounds(member)
    return found


def live_fields(kind: type) -> frozenset[str]:
    """The fields of a record that change while the proxy runs."""
    metas = ((name, annotated(hint)) for name, hint, _ in fields_of(kind))
    return frozenset(name for name, (_, _, extra) in metas if extra.get("live"))


def fields_of(kind: Any) -> list[tuple[str, Any, Any]]:
    """Name, annotation and default (None if there is none) of the fields of a dataclass or named tuple."""
    hints = get_type_hints(kind, include_extras=True)
    if is_dataclass(kind):
        return [(one.name, hints[one.name], None if one.default is MISSING else one.default) for one in fields(kind)]
    return [(name, hints[name], kind._field_defaults.get(name)) for name in kind._fields]


def annotated(hint: Any) -> tuple[Any, Meta | None, Mapping[str, Any]]:
    """The type of a field without None, what is said of it, and what of that is this project's."""
    if get_origin(hint) in {Union, UnionType}:
        (hint,) = (member for member in get_args(hint) if member is not NoneType)
    meta = next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Meta)), None)
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint, meta, (meta and meta.extra) or {}
