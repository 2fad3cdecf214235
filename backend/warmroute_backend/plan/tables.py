"""Makes a dataclass from the values of a TOML table, and writes the text of a table."""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec
import tomli_w

from warmroute_backend.plan.errors import PlanError, unknown

T = TypeVar("T")
_WANTED: Final[Mapping[Any, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "a list of texts",
}


def record(kind: type[T], values: object, where: str, *, keys: Mapping[str, str] | None = None) -> T:
    """A dataclass with a table's values, checked against the types of its fields. `keys`: field -> the field's key in
    the file.

    Raises: PlanError, with the key that is wrong.
    """
    if not isinstance(values, dict):
        raise PlanError(f"{where} is not a table.")
    named = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    known(values, named, where)
    needed = [name for name, field in named.items() if field.default is MISSING and field.default_factory is MISSING]
    shown = {name: (keys or {}).get(name, name) for name in named}
    if missing := [shown[name] for name in needed if name not in values]:
        raise PlanError(f"{where} lacks {', '.join(missing)}.")
    found = {}
    for name, given in values.items():
        try:
            found[name] = msgspec.convert(given, named[name].type)
        except msgspec.ValidationError:
            raise PlanError(f"{where}.{shown[name]} is {given!r}, which is {_unlike(named[name].type)}.") from None
    return kind(**found)


def _unlike(kind: Any) -> str:
    """Words that say why a value does not fit a field's type."""
    if isinstance(kind, UnionType):
        (kind,) = (each for each in get_args(kind) if each is not NoneType)
    if get_origin(kind) is Literal:
        return f"not one of {', '.join(get_args(kind))}"
    kind, meta = get_args(kind) if get_origin(kind) is Annotated else (kind, msgspec.Meta())
    bounds = [f"at {word} {bound}" for word, bound in (("least", meta.ge), ("most", meta.le)) if bound is not None]
    return f"not {_WANTED[get_origin(kind) or kind]}{' of ' if bounds else ''}{' and '.join(bounds)}"


def known(values: Mapping[str, Any], names: Iterable[str], where: str) -> None:
    """Raise PlanError, with the nearest names, for a key that is not one of `names`."""
    for key in values:
        if key not in names:
            raise unknown(f"key of {where}", key, names)


def table(head: str, values: Mapping[str, Any]) -> str:
    """The text of a table under its head, without keys whose value is None."""
    return f"{head}\n{tomli_w.dumps({key: value for key, value in values.items() if value is not None})}"


def value(given: Any) -> str:
    """The text of a value, as it stands after `key = `."""
    return tomli_w.dumps({"_": given}).removeprefix("_ = ").rstrip("\n")
