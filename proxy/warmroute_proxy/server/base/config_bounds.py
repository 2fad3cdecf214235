"""What fields of config records say of themselves: bounds, and whether they change while the proxy runs. Pure.

A field of numbers has its bounds in its annotation, by `within`. The reader of the file, its JSON Schema, the reference
and the difference of two configs take them from there.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin, get_type_hints

from msgspec import Meta

LIVE: Final = Meta(extra={"live": True})
"""Marks a field that changes while the proxy runs."""


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
        for member, meta in annotated(hint):
            if meta is not None and meta.ge is not None and meta.le is not None:
                found[name] = Bounds(meta.ge, meta.le, default, member is int)
            elif hasattr(member, "_field_defaults"):
                found |= bounds(member)
    return found


def live_fields(kind: type) -> frozenset[str]:
    """The fields of a record that change while the proxy runs."""
    metas = ((name, meta) for name, hint, _ in fields_of(kind) for _, meta in annotated(hint) if meta is not None)
    return frozenset(name for name, meta in metas if (meta.extra or {}).get("live"))


def fields_of(kind: Any) -> list[tuple[str, Any, Any]]:
    """Name, annotation and default (None if there is none) of the fields of a dataclass or named tuple."""
    hints = get_type_hints(kind, include_extras=True)
    if is_dataclass(kind):
        return [(one.name, hints[one.name], None if one.default is MISSING else one.default) for one in fields(kind)]
    return [(name, hints[name], kind._field_defaults.get(name)) for name in kind._fields]


def annotated(hint: Any) -> list[tuple[Any, Meta | None]]:
    """The types of a union but None, each with what is said of it."""
    options = get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) not in {None, Annotated} else (hint,)
    found = []
    for member in options:
        metas = [each for each in getattr(member, "__metadata__", ()) if isinstance(each, Meta)]
        bare = get_args(member)[0] if get_origin(member) is Annotated else member
        if bare is not type(None):
            found.append((bare, metas[0] if metas else None))
    return found
