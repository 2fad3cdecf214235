"""The protocol of log readers, and how they read values.

Limits: a line of more than `MAX_LINE_BYTES` is skipped. At most `MAX_OPEN` requests wait for further lines; beyond
that, the oldest request is read with the lines that it has.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from warmroute.contract.usage import whole
from warmroute.files.documents import DocumentError, json_of
from warmroute_proxy.ladder.of_reports import Report

MAX_LINE_BYTES: Final = 16 << 20
MAX_OPEN: Final = 10_000
PIECE_CHARS: Final = 64
"""The characters of a unit of a prompt, if the log has the prompt's text and not its tokens."""


class Reader(Protocol):
    """Reads one log. `skipped`: how many lines may belong to a request but could not be read."""

    skipped: int

    def reports(self, lines: Iterable[bytes]) -> Iterator[Report]:
        """The reports of a log's lines."""
        ...


def json_object(line: bytes) -> dict[str, Any] | None:
    """The JSON object in a line; None if the line has another content, or is too long."""
    if len(line) > MAX_LINE_BYTES:
        return None
    try:
        found = json_of(line)
    except DocumentError:
        return None
    return found if isinstance(found, dict) else None


def count_of(value: object) -> int | None:
    """A count of tokens; None if it is not a count."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 14:
        value = int(value)
    return whole(value)


def nanousd_of(value: object) -> int | None:
    """An amount in USD as nanodollars; None if it is not an amount."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e6:
        return round(value * 1e9)
    return None


def text_of(value: object) -> str:
    """A short text; empty if it is not a text."""
    return value[:256] if isinstance(value, str) else ""


def pieces_of(text: str) -> list[int | str]:
    return [text[at : at + PIECE_CHARS] for at in range(0, len(text), PIECE_CHARS)]


def day_of(unix_s: float) -> str:
    """The day of a time, UTC; empty if it is not a time."""
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d")
    except (OverflowError, ValueError, OSError):
        return ""
