"""Reads members of a JSON body as SGLang does: a value of another type is accepted if it can mean only one thing.

A number in a string, a whole float or a boolean counts as an integer; "yes", "on", "1" and their opposites count as
booleans. Nothing else counts as a string. `None` counts as absent. Any other value raises `Refusal.schema`.
"""

from collections.abc import Mapping
from typing import Any, Final

from warmroute_lab.engine.http.errors import Refusal

Body = Mapping[str, Any]

_WORDS: Final = {
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
}


def string(body: Body, name: str) -> str | None:
    value = body.get(name)
    if value is None or isinstance(value, str):
        return value
    raise Refusal.schema(f"{name} must be a string")


def flag(body: Body, name: str) -> bool:
    """A boolean; false if it is absent."""
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    word = value.lower() if isinstance(value, str) else str(int(value)) if value in (0, 1) else ""
    if word not in _WORDS:
        raise Refusal.schema(f"{name} must be a boolean")
    return _WORDS[word]


def integer(body: Body, name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        try:
            return int(value.removesuffix(".0"))
        except ValueError:
            pass
    raise Refusal.schema(f"{name} must be an integer")


def within(body: Body, name: str, low: int | None, high: int | None) -> int | None:
    """An integer in `[low, high]`. A value outside is a semantic `Refusal`: well formed, but it cannot be served."""
    value = integer(body, name)
    if value is not None and low is not None and value < low:
        raise Refusal(400, f"{name} must be at least {low}, got {value}.")
    if value is not None and high is not None and value > high:
        raise Refusal(400, f"{name} must be at most {high}, got {value}.")
    return value


def mapping(body: Body, name: str) -> Body:
    """An object; empty if it is absent."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Refusal.schema(f"{name} must be an object")
    return value


def strings(body: Body, name: str, most: int) -> tuple[str, ...]:
    """The strings of a member: one string, or a list of at most `most`; empty if it is absent."""
    value = body.get(name)
    items = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(items, list) or len(items) > most or not all(isinstance(item, str) for item in items):
        raise Refusal.schema(f"{name} must be a string or a list of at most {most} strings")
    return tuple(items)


def each(body: Body, name: str, kind: type, count: int) -> list[Any]:
    """A value for each of `count` prompts. The member is one value for all prompts, or a list."""
    value = body.get(name)
    values = value if isinstance(value, list) else [value] * count
    if len(values) != count or not all(item is None or isinstance(item, kind) for item in values):
        raise Refusal.schema(f"{name} must be one {kind.__name__} or a list with one for each prompt")
    return values
