"""The rule `anthropic-breakpoints`: at most four, where they stay from turn to turn.

Anthropic refuses a request with more than four `cache_control` marks. Those that help most are kept: at the end of the
tools, at the end of the system prompt, and on the two newest messages that have one.
Source: docs.anthropic.com, prompt caching (4 breakpoints, 20 blocks of look-back).
"""

from collections.abc import Mapping
from typing import Any, Final

MAX_BREAKPOINTS: Final = 4
_MARK: Final = "cache_control"

Body = Mapping[str, Any]


def too_many(body: Body) -> bool:
    """Whether a request has more marks than the server takes."""
    return sum(map(_count, (body.get(name) for name in ("tools", "system", "messages")))) > MAX_BREAKPOINTS


def with_four(body: Body) -> Body:
    """The request with those marks that help most."""
    made = dict(body)
    left = MAX_BREAKPOINTS
    for name in ("tools", "system"):
        if _count(body.get(name)):
            made[name], found = _last_kept(body[name], 1)
            left -= found
    made["messages"], _ = _last_kept(body.get("messages"), left)
    return made


def _last_kept(value: Any, left: int) -> tuple[Any, int]:
    """The value with the last `left` marks in it, and how many there are."""
    if isinstance(value, list):
        items, found = [], 0
        for item in reversed(value):
            item_kept, count = _last_kept(item, left - found)
            found += count
            items.append(item_kept)
        return items[::-1], found
    if not isinstance(value, dict):
        return value, 0
    inner, found = _last_kept(value.get("content"), left)
    made = {**value, "content": inner} if isinstance(value.get("content"), list) else dict(value)
    if _MARK in made and found < left:
        return made, found + 1
    made.pop(_MARK, None)
    return made, found


def _count(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_count, value))
    if isinstance(value, dict):
        return (_MARK in value) + _count(value.get("content"))
    return 0
