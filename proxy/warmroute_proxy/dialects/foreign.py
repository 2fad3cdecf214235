"""Extracts the texts of items, blocks and parts that have no place in chat. The rest is dropped, and counted.

An agent sends its whole history with each turn, so a single refusal ends its session. A history holds whatever another
provider, version or model left there. So a history is refused only if it is not JSON, or too large.
"""

from typing import Any, Final

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.raw_json import Members
from warmroute_proxy.dialects.work import TranslationWork

MAX_TYPE_CHARS: Final = 64
MAX_TYPES: Final = 32
OTHER_TYPES: Final = "other"  # counts all types after the first `MAX_TYPES`, since clients choose types
UNTYPED: Final = "untyped"

MAX_DEPTH: Final = 16
_TEXT_MEMBERS: Final = frozenset(
    {
        "text", "title", "url", "content", "output", "outputs", "results", "code", "logs", "stdout", "stderr", "source",
        "transcript", "connector_text",
    }
)  # fmt: skip
"""Members that hold a text, or a value with texts in it."""

_decode: Final = msgspec.json.Decoder().decode
_PROBLEMS: Final = (msgspec.DecodeError, UnicodeError, RecursionError)


def count(dropped: dict[str, int], kind: str, number: int = 1) -> None:
    """Add to the count of a dropped type. The first `MAX_TYPES` are counted by name, further types together."""
    name = kind if 0 < len(kind) <= MAX_TYPE_CHARS else f"{kind[:MAX_TYPE_CHARS]}..." if kind else UNTYPED
    if name not in dropped and len(dropped) >= MAX_TYPES:
        name = OTHER_TYPES
    dropped[name] = dropped.get(name, 0) + number


def texts_in(members: Members, work: TranslationWork) -> str:
    """The texts of an item, block or part, joined by line ends."""
    found: list[str] = []
    for name, raw in members.items():
        if name in _TEXT_MEMBERS:
            _collect(_decoded(raw, work), found, 0)
    return "\n".join(found)


def _decoded(raw: Raw, work: TranslationWork) -> Any:
    work.take_values(bytes(raw))
    try:
        return _decode(raw)
    except _PROBLEMS:
        return None


def _collect(value: Any, found: list[str], depth: int) -> None:
    if isinstance(value, str):
        if value and not value.startswith("data:"):
            found.append(value)
    elif depth < MAX_DEPTH and isinstance(value, list):
        for each in value:
            _collect(each, found, depth + 1)
    elif depth < MAX_DEPTH and isinstance(value, dict):
        is_plain = value.get("type") == "text"  # the source of a document has its text in `data`
        for name, inner in value.items():
            if name in _TEXT_MEMBERS or (name == "data" and is_plain):
                _collect(inner, found, depth + 1)


def not_shown(kind: str) -> str:
    """The text that replaces content which the model cannot be shown."""
    return f"[{kind}: not shown]"
