"""Tables of TOML: a record of the values of one, and the text of one."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Final, TypeVar

import msgspec
import tomli_w

from warmroute_backend.plan.errors import PlanError, unknown

T = TypeVar("T")
_WRONG: Final = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<key>.*)`)?")


def record(kind: type[T], values: object, where: str, *, keys: Mapping[str, str] | None = None) -> T:
    """A dataclass of a table's values, which its fields allow. `keys`: names of fields -> their names in the file.

    Raises: PlanError, with the key that is wrong.
    """
    if not isinstance(values, dict):
        raise PlanError(f"{where} is no table.")
    known(values, [field.name for field in fields(kind)], where)  # type: ignore[arg-type]
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        found = _WRONG.fullmatch(str(error))
        what, key = (found["what"], found["key"]) if found else (str(error), None)
        for name, shown in (keys or {}).items():
            what, key = what.replace(f"`{name}`", f"`{shown}`"), shown if key == name else key
        raise PlanError(f"{where}{f'.{key}' if key else ''}: {what}.") from None


def known(values: Mapping[str, Any], names: Iterable[str], where: str) -> None:
    """Raise PlanError for a key with none of these names: it says the nearest."""
    for key in values:
        if key not in names:
            raise unknown(f"key of {where}", key, names)


def table(head: str, values: Mapping[str, Any]) -> str:
    """A table under its head, without what is absent."""
    return f"{head}\n{tomli_w.dumps({key: value for key, value in values.items() if value is not None})}"


def value(given: Any) -> str:
    """A value as it stands behind `key = `."""
    return tomli_w.dumps({"_": given}).removeprefix("_ = ").rstrip("\n")
