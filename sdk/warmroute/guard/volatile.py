"""Classifies text that changes between requests: dates, ids, counters of tokens, paths, and memory files of agents.

A *mask* replaces all text of one class, such as dates. The class of a change is the first class whose mask makes the
old and the new text equal. Dates are masked first, because the other masks match parts of dates.
"""

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from warmroute.contract.volatile import NONCE, PATH, ends_in_memory_file
from warmroute.guard.causes import Cause

MAX_TEXT_CHARS: Final = 400_000
"""Longer texts are not masked, so their changes have no class."""

_MONTH: Final = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_WEEKDAY: Final = r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)(?:day|sday|nesday|rsday|urday)?\b"
_DAY: Final = (
    r"\b\d{4}-\d{2}-\d{2}\b"
    r"|\b\d{1,4}[/.]\d{1,2}[/.]\d{1,4}\b"
    rf"|(?:{_WEEKDAY},? )?\b(?:{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?|\d{{1,2}} {_MONTH})(?:,? \d{{4}})?\b"
    rf"|{_WEEKDAY}"
)
_CLOCK: Final = (
    r"\b\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?"
    r"|\b\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?[AaPp]\.?[Mm]\b)?(?: ?(?:UTC|GMT|[A-Z]{3,4}))?"
    r"|\b1\d{9}(?:\d{3})?\b"
)
DAY: Final = re.compile(_DAY)
"""A day's date, without a time."""

_MASKS: Final[Mapping[Cause, re.Pattern[str]]] = {
    Cause.DATE: re.compile(f"{_CLOCK}|{_DAY}"),
    Cause.TOKEN_COUNTER: re.compile(
        r"(?i)\b\d[\d,._]*\s?[kKmM%]?(?=[^\n\d]{0,40}\b(?:tokens?|context)\b)"
        r"|(?<=tokens)\W{1,3}\d[\d,._]*|(?:\b(?:tokens?|context|budget)\b[^\n\d]{0,40})\d[\d,._]*\s?[kKmM%]?(?:\s?/\s?\d[\d,._]*)?"
    ),
    Cause.NONCE: NONCE,
    Cause.WORKING_DIRECTORY: PATH,
}
_NEIGHBOURS: Final = re.compile(r"\0(?:[ ,]*\0)+")
"""Adjacent matches, such as a date and a time, count as one."""

VOLATILE: Final = tuple(_MASKS)
"""The classes with a mask, in the order in which the masks are tried."""


def masked(text: str, cause: Cause) -> str:
    """The text without the parts that the class covers."""
    return _NEIGHBOURS.sub("\0", _MASKS[cause].sub("\0", text))


def masked_by_all(text: str) -> str:
    """The text without the parts that any class covers."""
    for cause in VOLATILE:
        text = masked(text, cause)
    return text


def marks(text: str) -> dict[str, str]:
    """The *marks* of a text: for each class, a digest of the masked text. `class_of_marks` needs only these digests."""
    if not text or len(text) > MAX_TEXT_CHARS:
        return {}
    found = {str(cause): _digest(masked(text, cause)) for cause in VOLATILE}
    return {**found, "all": _digest(masked_by_all(text))}


def class_of_marks(before: Mapping[str, str], now: Mapping[str, str]) -> Cause | None:
    """The class of a change between two texts, from their marks; None if it fits no class."""
    for cause in VOLATILE:
        if before.get(cause) and before.get(cause) == now.get(cause):
            return cause
    return Cause.DATE if before.get("all") and before.get("all") == now.get("all") else None


def class_of_change(before: str, now: str) -> Cause | None:
    """The class of a change between two texts; None if it fits no class."""
    if max(len(before), len(now)) > MAX_TEXT_CHARS:
        return None
    old, new = before.split("\n"), now.split("\n")
    first = first_line(before, now) - 1
    at_end = 0
    while at_end < min(len(old), len(new)) - first and old[-1 - at_end] == new[-1 - at_end]:
        at_end += 1
    old_lines, new_lines = old[first : len(old) - at_end], new[first : len(new) - at_end]
    old_text, new_text = "\n".join(old_lines), "\n".join(new_lines)
    for cause in VOLATILE:
        if masked(old_text, cause) == masked(new_text, cause):
            return cause
    if ends_in_memory_file(old[: first + 1]) or ends_in_memory_file(new[: first + 1]):
        return Cause.MEMORY_FILE
    if masked_by_all(old_text) == masked_by_all(new_text):
        return next(cause for cause in VOLATILE if masked(old_text, cause) != old_text)
    return _class_of_lines(old_lines, new_lines)


def _class_of_lines(old: list[str], new: list[str]) -> Cause | None:
    """The class of added or removed lines, such as a reminder of tokens that only some requests have."""
    common = set(old) & set(new)
    changed = [line for line in (*old, *new) if line not in common and line.strip()]
    if changed and all(_MASKS[Cause.TOKEN_COUNTER].search(line) for line in changed):
        return Cause.TOKEN_COUNTER
    return None


def first_line(before: str, now: str) -> int:
    """The number of the first line that differs, from 1."""
    at = common_chars(before, now)
    longer = before if len(before) > len(now) else now
    ends_a_line = at == min(len(before), len(now)) and longer[at : at + 1] == "\n"  # only lines were appended or cut
    return before.count("\n", 0, at) + 1 + ends_a_line


def common_chars(before: str, now: str) -> int:
    """The number of equal characters at the beginning of two texts."""
    low, high = 0, min(len(before), len(now))
    while low < high:
        middle = (low + high + 1) // 2
        if before[low:middle] == now[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
