"""The canonical form of parts of a prompt: two parts that a chat template renders alike have the same digest.

`cache_control`, ids of items and absent values do not count. A string equals a list of one text part. The order of keys
counts only in objects that templates render as JSON: tools, and the arguments of tool calls. Sources: the templates of
open models, and recordings of agents, in which `cache_control` moves and content changes its shape each turn.

A part has the same digest in all processes, so that a session can be saved and loaded.
"""

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

MAX_DEPTH: Final = 100
"""A value that is nested deeper is compared by its type alone; no real prompt is nested that deeply."""

_IGNORED: Final = frozenset({"cache_control"})
_IGNORED_OF_ITEMS: Final = frozenset({"cache_control", "id", "status"})
_PRINTED: Final = frozenset({"input", "args"})
"""Fields with the arguments of tool calls, in dialects that send them as objects. Templates render them as JSON."""

_TEXT_TYPES: Final = frozenset({"text", "input_text", "output_text"})
_EMPTY: Final[tuple[object, ...]] = (None, [], ())


class Digest(NamedTuple):
    """A part's digest, and the number of bytes of its canonical form."""

    value: int
    size: int


def digest_of_message(message: object) -> Digest:
    """The digest of a message, or of an item of a conversation."""
    return _digest(canonical_message(message))


def digest_of_tool(tool: object) -> Digest:
    """The digest of a tool's definition, in which the order of keys counts."""
    return _digest(_ordered(tool, 0))


def canonical_message(message: object) -> object:
    if not isinstance(message, dict):
        return _sorted(message, 0)
    found = {name: value for name, value in message.items() if name not in _IGNORED_OF_ITEMS}
    if found.get("type") == "message":
        del found["type"]
    return _sorted(found, 0)


def sorted_form(value: object) -> object:
    """A value with sorted keys. Two values with equal sorted forms but unequal digests differ only in the order of
    keys.
    """
    return _sorted(value, 0, printed=False)


def snapshot(value: Any, depth: int = 0) -> Any:
    """A copy of a value and of all objects and lists in it, so that the caller may change the original."""
    if depth > MAX_DEPTH:
        return None
    if isinstance(value, dict):
        return {name: snapshot(item, depth + 1) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [snapshot(item, depth + 1) for item in value]
    return value


def printed_objects(message: object) -> list[Mapping[str, Any]]:
    """The objects in a message for which the order of keys counts: the arguments of tool calls."""
    if not isinstance(message, dict):
        return []
    parts = message.get("content") or message.get("parts")
    found = []
    for piece in parts if isinstance(parts, list) else ():
        outer = piece.get("functionCall", piece) if isinstance(piece, dict) else None
        if isinstance(outer, dict):
            found += [outer[name] for name in _PRINTED if isinstance(outer.get(name), dict)]
    return found


def _digest(value: object) -> Digest:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_unknown)
    data = text.encode("utf-8", "surrogatepass")
    return Digest(int.from_bytes(blake2b(data, digest_size=8).digest()), len(data))


def _unknown(value: object) -> str:
    return f"<{type(value).__name__}>"


def _sorted(value: object, depth: int, *, printed: bool = True) -> object:
    if depth > MAX_DEPTH:
        return type(value).__name__
    if isinstance(value, dict):
        items = {}
        for name in sorted(map(str, value)):
            item = value.get(name)
            if name in _IGNORED or item in _EMPTY:
                continue
            if name == "content" and isinstance(item, str):
                item = [{"type": "text", "text": item}]
            if name == "type" and isinstance(item, str) and item in _TEXT_TYPES:
                item = "text"
            in_order = printed and name in _PRINTED and isinstance(item, dict)
            items[name] = _ordered(item, depth + 1) if in_order else _sorted(item, depth + 1, printed=printed)
        return items
    if isinstance(value, (list, tuple)):
        return [_sorted(item, depth + 1, printed=printed) for item in value]
    return value


def _ordered(value: object, depth: int) -> object:
    if depth > MAX_DEPTH:
        return type(value).__name__
    if isinstance(value, dict):
        return {
            str(name): _ordered(item, depth + 1)
            for name, item in value.items()
            if name not in _IGNORED and item is not None
        }
    if isinstance(value, (list, tuple)):
        return [_ordered(item, depth + 1) for item in value]
    return value
