"""Annotations of config fields: bounds, form, and whether a field may change while the proxy runs. Does no I/O.

The annotation of a number has its bounds (`within`). The annotation of a text says whether the text is a name, an
address or a digest. The reader of config files, their JSON Schema, the reference pages and `config_difference` use
these annotations.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

from msgspec import Meta

LIVE: Final = Meta(extra={"live": True})
"""Marks a field of [proxy] or [limits] that may change while the proxy runs. Lists such as [[tenant]] need no mark:
`config_difference` says which lists may change.
"""

NAME: Final = Meta(extra={"form": "name"})
ADDRESS: Final = Meta(extra={"form": "url"})
ADDRESSES: Final = Meta(extra={"form": "urls"})
DIGEST: Final = Meta(extra={"form": "digest"})


def among(*words: str) -> Meta:
    """Annotates a set whose elements are among these words."""
    return Meta(extra={"among": words})


class Bounds(NamedTuple):
    """The bounds of a number. `whole`: an integer; `default`: None if the number may be absent."""

    low: float
    high: float
    default: float | None
    whole: bool


def within(low: float, high: float, *, live: bool = False) -> Meta:
    """Annotates a number with its bounds, both included. `live`: whether it may change while the proxy runs."""
    return Meta(ge=low, le=high, extra={"live": live})


@cache
def bounds(kind: type) -> Mapping[str, Bounds]:
    """Field name -> bounds, for a record (a dataclass or named tuple) and the records in it."""
    found: dict[str, Bounds] = {}
    for name, hint, default in fields_of(kind):
        member, meta, _ = annotated(hint)
        if meta is not None and meta.ge is not None and meta.le is not None:
            found[name] = Bounds(meta.ge, meta.le, default, member is int)
        elif hasattr(member, "_field_defaults"):
            found |= bounds(member)
    return found


def live_fields(kind: type) -> frozenset[str]:
    """The fields of a record that may change while the proxy runs."""
    metas = ((name, annotated(hint)) for name, hint, _ in fields_of(kind))
    return frozenset(name for name, (_, _, extra) in metas if extra.get("live"))


def fields_of(kind: Any) -> list[tuple[str, Any, Any]]:
    """The name, annotation and default (None without one) of each field of a dataclass or named tuple."""
    hints = get_type_hints(kind, include_extras=True)
    if is_dataclass(kind):
        return [(one.name, hints[one.name], None if one.default is MISSING else one.default) for one in fields(kind)]
    return [(name, hints[name], kind._field_defaults.get(name)) for name in kind._fields]


def annotated(hint: Any) -> tuple[Any, Meta | None, Mapping[str, Any]]:
    """The type of a field (without None), the field's `Meta`, and the `extra` of the `Meta`."""
    if get_origin(hint) in {Union, UnionType}:
        (hint,) = (member for member in get_args(hint) if member is not NoneType)
    meta = next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Meta)), None)
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint, meta, (meta and meta.extra) or {}
