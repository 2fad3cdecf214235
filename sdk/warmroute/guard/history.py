"""Finds how a client changed the messages of an earlier prompt."""

import re
from typing import Any, Final

from warmroute.guard.canonical import sorted_form
from warmroute.guard.causes import Cause
from warmroute.guard.prompt import SYSTEM_ROLES, Section, text_of
from warmroute.guard.volatile import class_of_change

SHRUNK: Final = 0.5
"""A tool result is pruned if less than this share of its earlier size is left."""

_ASKING_ROLES: Final = frozenset({"", "user", *SYSTEM_ROLES})
_TOOL_ROLES: Final = frozenset({"tool", "function", "function_call_output", "tool_result"})
_REASONING: Final = frozenset({"reasoning_content", "reasoning", "reasoning_details", "thoughtSignature", "signature"})
_REASONING_TYPES: Final = frozenset({"thinking", "redacted_thinking", "reasoning"})
_SUMMARY: Final = re.compile(
    r"(?i)\b(?:summary|summari[sz]ed?|compact(?:ed|ion)|what did we do so far|continued from a previous conversation)\b"
)


def what_happened(old: Section, new: Section, at: int) -> Cause | None:
    """The cause of the difference at `at`, the index of the first unequal message. None if `new` is another
    conversation.
    """
    later = set(new.digests[at:])
    survivors = [index for index in range(at + 1, len(old)) if old.digests[index] in later]
    unmoved = any(index < len(new) and old.digests[index] == new.digests[index] for index in survivors)
    if old.roles[at] == new.roles[at] and (unmoved or not survivors) and not _replaced(old, new, at, survivors):
        found = _changed(old, new, at)
        if found is not None or survivors or at > 0:
            return found or Cause.HISTORY_EDITED
        return None  # no message in common
    if old.roles[at] in _REASONING_TYPES and new.digests[at] in old.digests[at + 1 :]:
        return Cause.REASONING_DROPPED
    if not survivors:
        return Cause.COMPACTION if at or _is_summary(new, at) else None
    inserted = new.digests.index(old.digests[survivors[0]], at) - at
    if inserted == 0:
        return Cause.HISTORY_PRUNED
    removed = survivors[0] - at
    return Cause.COMPACTION if removed > inserted or _is_summary(new, at) else Cause.HISTORY_EDITED


def _replaced(old: Section, new: Section, at: int, survivors: list[int]) -> bool:
    """Whether a shorter text, such as a summary, replaced the rest of the history."""
    if survivors:
        return False
    shorter = len(new) - at < len(old) - at and sum(new.sizes[at:]) < SHRUNK * sum(old.sizes[at:])
    return (shorter and len(old) - at > 2 and at <= 1) or (shorter and _is_summary(new, at))


def _is_summary(new: Section, at: int) -> bool:
    return any(_SUMMARY.search(text_of(piece)[:2000]) for piece in (new.raw or [])[at : at + 2])


def _changed(old: Section, new: Section, at: int) -> Cause | None:
    """The cause of the change of one message; None if the change fits no cause."""
    one, other = old.piece(at), new.piece(at)
    if one is None or other is None:
        pruned = old.roles[at] in _TOOL_ROLES and new.sizes[at] < SHRUNK * old.sizes[at]
        return Cause.HISTORY_PRUNED if pruned else None
    if sorted_form(one) == sorted_form(other):
        return Cause.KEY_ORDER
    if same_but_reasoning(one, other):
        return Cause.REASONING_DROPPED
    if _without_queries(one) == _without_queries(other):
        return Cause.IMAGE_RESIGNED
    one_text, other_text = text_of(one), text_of(other)
    if one_text and one_text == other_text:
        return Cause.CONTENT_SHAPE
    if _without_space(one_text) == _without_space(other_text) and one_text.strip():
        return Cause.CONTENT_SHAPE
    if _is_tool_result(one, old.roles[at]) and new.sizes[at] < SHRUNK * old.sizes[at]:
        return Cause.HISTORY_PRUNED
    if not any(role not in _ASKING_ROLES for role in new.roles[at:]):
        return None  # a new question, whose dates and paths are those that the caller means
    return class_of_change(one_text, other_text) if one_text and other_text else None


def is_answered_alike(old: Section, new: Section, at: int) -> bool:
    """Whether the same answer follows the part `at` in both, so that the part is history and not a new question."""
    later = zip(old.digests[at + 1 :], new.digests[at + 1 :], new.roles[at + 1 :], strict=False)
    return any(one == other and role not in _ASKING_ROLES for one, other, role in later)


def _without_space(text: str) -> str:
    return "".join(text.split())


def _is_tool_result(piece: object, role: str) -> bool:
    if role in _TOOL_ROLES:
        return True
    content = piece.get("content") if isinstance(piece, dict) else None
    blocks = content if isinstance(content, list) else ()
    return any(isinstance(block, dict) and block.get("type") == "tool_result" for block in blocks)


def same_but_reasoning(one: object, other: object) -> bool:
    return _without_reasoning(one) == _without_reasoning(other)


def _without_reasoning(piece: Any) -> object:
    if not isinstance(piece, dict):
        return piece
    found = {name: value for name, value in piece.items() if name not in _REASONING}
    for name in ("content", "parts"):
        blocks = found.get(name)
        if isinstance(blocks, list):
            found[name] = [_plain(block) for block in blocks if not _thinks(block)]
    return sorted_form(found)


def _thinks(block: object) -> bool:
    return isinstance(block, dict) and (block.get("type") in _REASONING_TYPES or block.get("thought") is True)


def _plain(block: object) -> object:
    if not isinstance(block, dict):
        return block
    return {name: value for name, value in block.items() if name not in _REASONING}


def _without_queries(piece: object) -> object:
    """A copy of a part without the query strings of image URLs, since they hold signatures that change."""
    if isinstance(piece, dict):
        found = {}
        for name, value in piece.items():
            image = name in ("url", "image_url", "fileUri") and isinstance(value, str) and value.startswith("http")
            found[name] = value.partition("?")[0] if image else _without_queries(value)
        return found
    return [_without_queries(item) for item in piece] if isinstance(piece, list) else piece
