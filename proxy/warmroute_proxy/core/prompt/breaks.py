"""Finds the first part of a prompt that differs from an earlier prompt of its conversation, and the likely cause.

The text of the earlier prompt is not stored (`parts`), so the cause is inferred from hashes, sizes and the text of the
new prompt. Examples: a line that contains a date and differs only in its digits; a changed line that contains a path;
equal tools in another order; a history that was replaced by a summary. If even the first user message differs, the
prompt belongs to another conversation, unless it begins with the words of a compaction (`compactions`). The SDK's
prefix guard uses the same names of causes. The guard has the texts of both prompts, so its result is more certain.

Limits, so that the work stays proportional to the prompt: up to `MAX_LEFT_OUT` messages are assumed to be removed, and
`MAX_COMPARED` messages after them are compared. Names of other days and months are tried only in lines of up to
`MAX_DATE_CHARS`.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from warmroute.contract.volatile import MAX_LINE_CHARS, NONCE, PATH, ends_in_memory_file
from warmroute_proxy.core.prompt.compactions import has_mark
from warmroute_proxy.core.prompt.messages import TOOL
from warmroute_proxy.core.prompt.parts import Head, LineMark, ToolMark, line_mark, sizes_of

SIMILAR: Final = 0.5
"""Two prompts belong to one conversation if at least this share of the smaller set of tools is equal, or of the larger
set of system prompt lines.
"""

SHRUNK: Final = 0.5
MAX_SUMMARY_CHARS: Final = 2_000
MAX_LEFT_OUT: Final = 64
MAX_COMPARED: Final = 256
MAX_DATE_CHARS: Final = 300
MAX_CHANGED_LINES: Final = 3
_ROLES: Final = ("system", "user", "assistant", "tool")

_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_LONG_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_LONG_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTH: Final = re.compile(rf"\b(?:{'|'.join((*_LONG_MONTHS, *_MONTHS))})\b")
_DAY: Final = re.compile(rf"\b(?:{'|'.join((*_LONG_DAYS, *_DAYS))})\b")
_DATE: Final = re.compile(
    r"\b\d{4}-\d{2}-\d{2}|\b\d{1,4}[/.]\d{1,2}[/.]\d{1,4}\b|\b\d{1,2}:\d{2}\b|\b1\d{9}(?:\d{3})?\b"
    rf"|\b(?:{'|'.join((*_LONG_MONTHS, *_MONTHS))})\b|\b(?:{'|'.join((*_LONG_DAYS, *_DAYS))})\b"
)
_COUNTER: Final = re.compile(r"(?i)\d[^\n]{0,40}\b(?:tokens?|context)\b|\b(?:tokens?|context|budget)\b[^\n]{0,40}\d")
_SUMMARY: Final = re.compile(
    r"(?i)\b(?:summary|summari[sz]ed?|compact(?:ed|ion)|what did we do so far|continued from a previous conversation)\b"
)


class PromptShape(NamedTuple):
    """What is stored of a prompt. `messages`, `hashes` and `ends` are taken from its `Fingerprint`."""

    head: Head
    hashes: list[int]
    ends: list[int]
    messages: list[int]


class Texts(NamedTuple):
    """Functions that read the text of the new prompt."""

    system_lines: Callable[[], list[str]]
    messages: Callable[[int, int], list[str]]
    """(index of the first message, number of messages) -> their texts."""


class Break(NamedTuple):
    """The first difference from an earlier prompt. `where`: the place in words, such as `system, line 1`."""

    where: str
    cause: str


def find_break(before: PromptShape, now: PromptShape, texts: Texts, key: int) -> Break | None:
    """Find the first difference. None if the new prompt continues the earlier one, or belongs to another conversation.

    Raises: msgspec.MsgspecError, if a text cannot be read.
    """
    alike = before.head.asked == now.head.asked != 0
    if before.head.tools != now.head.tools:
        if not (_tools_alike(before.head.tools, now.head.tools) and _lines_alike(before.head, now.head)):
            return None
        return _tools(before.head.tools, now.head.tools)
    if before.head.lines != now.head.lines:
        if not _lines_alike(before.head, now.head) and not (alike and (now.head.tools or _goes_on(before, now))):
            return None
        return _system(before.head.lines, now.head.lines, texts, key)
    return _history(before, now, texts)


def _tools_alike(old: tuple[ToolMark, ...], new: tuple[ToolMark, ...]) -> bool:
    names, others = {tool.name for tool in old}, {tool.name for tool in new}
    # Compared with the smaller set: a client that gives up tool search sends many tools that it had left out before.
    return len(names & others) >= SIMILAR * min(len(names), len(others)) and bool(names) and bool(others)


def _lines_alike(old: Head, new: Head) -> bool:
    if old.lines == new.lines:
        return True
    lines, others = {line.zeroed for line in old.lines}, {line.zeroed for line in new.lines}
    return len(lines & others) >= SIMILAR * max(len(lines), len(others))


def _tools(old: tuple[ToolMark, ...], new: tuple[ToolMark, ...]) -> Break:
    at = _common(old, new)
    where = f"tools, number {at + 1}"
    if sorted(tool.digest for tool in old) == sorted(tool.digest for tool in new):
        return Break(where, "tool-order")
    if sorted(tool.name for tool in old) != sorted(tool.name for tool in new):
        return Break(where, "tool-set")
    one, other = old[at], new[at]
    if one.name != other.name:
        return Break(where, "tool-order")
    same = (one.size, one.bytes_sum) == (other.size, other.bytes_sum)
    return Break(where, "key-order" if same else "tool-schema")


def _goes_on(before: PromptShape, now: PromptShape) -> bool:
    """Whether the new prompt repeats the roles and sizes of all earlier messages (two or more), and adds messages."""
    old, new = sizes_of(before.messages, before.ends, 0), sizes_of(now.messages, now.ends, 0)
    old, new = [each for each in old if each[0]], [each for each in new if each[0]]  # without the system prompt
    return len(new) > len(old) > 1 and new[: len(old)] == old


def _common(old: tuple[object, ...], new: tuple[object, ...]) -> int:
    least = min(len(old), len(new))
    return next((at for at in range(least) if old[at] != new[at]), least)


def _system(old: tuple[LineMark, ...], new: tuple[LineMark, ...], texts: Texts, key: int) -> Break:
    at = _common(old, new)
    where = f"system, line {at + 1}" if new or old else "system"
    lines = texts.system_lines()
    if at >= len(lines):
        return Break(where, "system")
    if ends_in_memory_file(lines[:at]):
        return Break(where, "memory-file")
    changed = [n for n in range(min(len(old), len(new))) if old[n] != new[n]]
    if len(old) == len(new) and len(changed) <= MAX_CHANGED_LINES:
        return Break(where, _cause_of_line(old[at], new[at], lines[at][:MAX_LINE_CHARS], key) or "system")
    return Break(where, "system")


def _cause_of_line(old: LineMark, new: LineMark, line: str, key: int) -> str | None:
    """The cause of a changed line. Only the hashes of the old line are known."""
    if _DATE.search(line) and (old.zeroed == new.zeroed or _other_day(old, line, key)):
        return "date"
    if old.zeroed == new.zeroed:
        return "token-counter" if _COUNTER.search(line) else "nonce"
    if NONCE.search(line):
        return "nonce"
    return "working-directory" if PATH.search(line) else None


def _other_day(old: LineMark, line: str, key: int) -> bool:
    """Whether the old line differs only in digits and in the names of its day and month."""
    if len(line) > MAX_DATE_CHARS:
        return False
    return any(line_mark(each.encode("utf-8", "surrogatepass"), key).zeroed == old.zeroed for each in _days(line))


def _days(line: str) -> Iterator[str]:
    for month in (None, *_MONTHS, *_LONG_MONTHS):
        there = line if month is None else _MONTH.sub(month, line)
        if month is not None and there == line:
            continue
        yield there
        yield from (_DAY.sub(day, there) for day in (*_DAYS, *_LONG_DAYS) if _DAY.search(there))


def _history(before: PromptShape, now: PromptShape, texts: Texts) -> Break | None:
    at = _first_other_message(before, now)
    if at >= len(before.messages) or at >= len(now.messages):
        return None  # the new prompt continues the earlier one, or is a beginning of it
    old, new = sizes_of(before.messages, before.ends, at), sizes_of(now.messages, now.ends, at)
    where = f"message {at + 1} ({_ROLES[new[0][0]]})"
    shorter = sum(size for _, size in new) < SHRUNK * sum(size for _, size in old)
    leading = sum(1 for mark in now.messages[:at] if mark & 3 == 0)
    is_other = at <= leading  # only the leading system messages are equal
    if shorter and _is_summary(texts, at, has_mark if is_other else _has_summary):
        return Break(where, "compaction")
    if is_other:
        return None
    return Break(where, _cause_in_history(old, new))


def _first_other_message(before: PromptShape, now: PromptShape) -> int:
    """The index of the first message that differs; the length of the shorter list if its messages do not differ."""
    least = min(len(before.messages), len(now.messages))
    for at in range(least):
        cut = now.messages[at] >> 2
        if before.messages[at] >> 2 != cut or before.hashes[cut - 1] != now.hashes[cut - 1]:
            return at
    return least


def _cause_in_history(old: list[tuple[int, int]], new: list[tuple[int, int]]) -> str:
    """Infer the cause by roles and sizes of messages: one message was changed, or up to `MAX_LEFT_OUT` removed."""
    rest = len(old) - 1
    if rest and new[1 : 1 + rest] == old[1:]:  # one message differs, and the sizes after it are unchanged
        return "history-pruned" if old[0][0] == TOOL and new[0][1] < SHRUNK * old[0][1] else "history-edited"
    for removed in range(1, min(len(old), 1 + MAX_LEFT_OUT)):
        stay = min(len(old) - removed, len(new), MAX_COMPARED)
        if old[removed] == new[0] and old[removed : removed + stay] == new[:stay]:
            return "history-pruned"
    return "history-edited"


def _has_summary(text: str) -> bool:
    return _SUMMARY.search(text[:MAX_SUMMARY_CHARS]) is not None


def _is_summary(texts: Texts, at: int, is_one: Callable[[str], bool]) -> bool:
    try:
        return any(is_one(text) for text in texts.messages(at, 2))
    except msgspec.MsgspecError:
        return False
