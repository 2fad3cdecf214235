"""The first break between two prompts, and its cause.

A *break* is the first part, in the order of a chat template, that differs from the earlier prompt, so that the cached
prefix ends there. Two prompts are *related* if one continues the other, or would continue it without a change. Only
related prompts are compared. A session has unrelated prompts, too: a title, a sub-agent, the next conversation under
the same key. An unrelated prompt is not a break: it begins a new lineage (prompts that continue each other).
"""

from dataclasses import dataclass
from typing import Final

from warmroute.guard.canonical import sorted_form
from warmroute.guard.causes import Cause
from warmroute.guard.history import what_happened
from warmroute.guard.prompt import Prompt, Section, common_parts, text_of
from warmroute.guard.volatile import class_of_change, class_of_marks, common_chars, first_line

SIMILAR: Final = 0.5
"""Two lists of tools are alike if they share this part of their tools. Two system prompts are alike if they share this
part of their lines."""


@dataclass(frozen=True, slots=True)
class Break:
    """Where the prefix of an earlier prompt ends."""

    cause: Cause
    where: str
    kept_bytes: int
    """Bytes of the earlier prompt before the break, in canonical form."""
    lost_bytes: int
    line: int | None = None
    """The number of the first changed line in the text of the part."""


def first_break(before: Prompt, now: Prompt) -> Break | None:
    """The first part of `now` that breaks the prefix of `before`; None if messages were only added or dropped at the
    end.
    """
    if now.model != before.model:
        return Break(Cause.MODEL, "model", 0, before.size)
    if (found := _tools(before, now)) is not None:
        return found
    tools_bytes = sum(before.tools.sizes)
    names = {*before.settings, *now.settings}
    if changed := sorted(name for name in names if before.settings.get(name) != now.settings.get(name)):
        return Break(Cause.SETTINGS, changed[0], tools_bytes, before.size - tools_bytes)
    return _system(before, now, tools_bytes) or _history(before, now, tools_bytes + sum(before.system.sizes))


def related(before: Prompt, now: Prompt) -> bool:
    tools, system, history = _tools_alike(before, now), _system_alike(before, now), _shares_history(before, now)
    if not before.messages.digests or not now.messages.digests:
        return tools and system
    return (system and (tools or history)) or (tools and history)


def shared_bytes(before: Prompt, now: Prompt) -> int:
    """Bytes of the equal parts at the beginning of two prompts."""
    total = 0
    for one, other in zip(before.sections, now.sections, strict=True):
        common = common_parts(one.digests, other.digests)
        total += sum(one.sizes[:common])
        if common < max(len(one), len(other)):
            break
    return total


def _tools_alike(before: Prompt, now: Prompt) -> bool:
    old, new = set(before.tools.roles), set(now.tools.roles)
    if not old or not new:
        return old == new
    return len(old & new) >= SIMILAR * max(len(old), len(new))


def _system_alike(before: Prompt, now: Prompt) -> bool:
    if before.system.digests == now.system.digests:
        return True
    if before.system.raw is None:
        return bool(before.marks) and before.marks.get("all") == now.marked().get("all")
    old, new = _system_lines(before), _system_lines(now)
    return bool(old and new) and len(old & new) >= SIMILAR * max(len(old), len(new))


def _system_lines(prompt: Prompt) -> set[str]:
    return {line for line in prompt.system_text().split("\n") if line.strip()}


def _shares_history(before: Prompt, now: Prompt) -> bool:
    return not set(before.messages.digests).isdisjoint(now.messages.digests)


def _tools(before: Prompt, now: Prompt) -> Break | None:
    old, new = before.tools, now.tools
    at = common_parts(old.digests, new.digests)
    if at == len(old) == len(new):
        return None
    kept_bytes = sum(old.sizes[:at])
    name = new.roles[at] if at < len(new) else old.roles[at]
    return Break(_tool_cause(old, new, at), f"tools[{at}] {name!r}", kept_bytes, before.size - kept_bytes)


def _tool_cause(old: Section, new: Section, at: int) -> Cause:
    if sorted(old.digests) == sorted(new.digests):
        return Cause.TOOL_ORDER
    if sorted(old.roles) != sorted(new.roles):
        return Cause.TOOL_SET
    if at < len(new) and old.roles[at] == new.roles[at]:
        one, other = old.piece(at), new.piece(at)
        same = one is not None and sorted_form(one) == sorted_form(other)
        return Cause.KEY_ORDER if same else Cause.TOOL_SCHEMA
    return Cause.TOOL_ORDER


def _system(before: Prompt, now: Prompt, kept_bytes: int) -> Break | None:
    old, new = before.system, now.system
    at = common_parts(old.digests, new.digests)
    if at == len(old) == len(new):
        return None
    kept_bytes += sum(old.sizes[:at])
    if at >= min(len(old), len(new)):
        longer = old if at < len(old) else new
        return Break(Cause.SYSTEM, longer.where(at), kept_bytes, before.size - kept_bytes)
    one, other = old.piece(at), new.piece(at)
    if one is None or other is None:
        cause = class_of_marks(before.marks, now.marked()) or Cause.SYSTEM
        return Break(cause, new.where(at), kept_bytes, before.size - kept_bytes)
    one_text, other_text = text_of(one), text_of(other)
    kept_bytes += _common_size(one_text, other_text, old.sizes[at])
    if one_text == other_text:
        return Break(Cause.CONTENT_SHAPE, new.where(at), kept_bytes, before.size - kept_bytes)
    cause = class_of_change(one_text, other_text) or Cause.SYSTEM
    return Break(cause, new.where(at), kept_bytes, before.size - kept_bytes, first_line(one_text, other_text))


def _history(before: Prompt, now: Prompt, kept_bytes: int) -> Break | None:
    old, new = before.messages, now.messages
    at = common_parts(old.digests, new.digests)
    if at == len(old):
        return _system_in_history(before, now)
    if at == len(new):
        return None  # the earlier prompt begins with this whole prompt, so all of it is cached
    kept_bytes += sum(old.sizes[:at])
    cause = what_happened(old, new, at)
    if cause is None:
        return None
    one_text, other_text = text_of(old.piece(at)), text_of(new.piece(at))
    line = None
    if old.roles[at] == new.roles[at] and one_text and other_text:
        kept_bytes += _common_size(one_text, other_text, old.sizes[at])
        line = first_line(one_text, other_text)
    return Break(cause, new.where(at), kept_bytes, before.size - kept_bytes, line)


def _system_in_history(before: Prompt, now: Prompt) -> Break | None:
    for at in range(max(len(before.messages), 1), len(now.messages)):
        if now.messages.roles[at] == "system":
            kept_bytes = sum(before.tools.sizes)
            return Break(Cause.SYSTEM_IN_HISTORY, now.messages.where(at), kept_bytes, before.size - kept_bytes)
    return None


def _common_size(before: str, now: str, size: int) -> int:
    return min(common_chars(before, now), size)
