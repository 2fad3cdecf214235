"""Decodes the parser's header lines into names in lower case and values as text.

Clients and engines send the same few lines in each message, so up to `MAX_LINES` decoded lines are cached.
"""

from typing import Any, Final

Line = tuple[bytes, bytes]
"""Name and value."""

MAX_LINES: Final = 4096
MAX_LINE_BYTES: Final = 512

_KNOWN: Final[dict[Line, tuple[str, str]]] = {}


def decode(lines: list[Line]) -> dict[str, str]:
    """Name -> value of all headers. If a name is given several times, its last value counts."""
    return dict(decode_each(lines))


def decode_each(lines: list[Line]) -> list[tuple[str, str]]:
    found: list[Any] = list(map(_KNOWN.get, lines))
    at = -1
    for _ in range(found.count(None)):
        at = found.index(None, at + 1)
        found[at] = decode_line(lines[at])
    return found


def decode_line(line: Line) -> tuple[str, str]:
    """Name and value as text, without the space after the value, which the parser leaves there."""
    name, value = line
    decoded = name.decode("latin-1").lower(), value.decode("latin-1").rstrip(" \t")
    if len(name) + len(value) <= MAX_LINE_BYTES:
        if len(_KNOWN) >= MAX_LINES:
            _KNOWN.clear()
        _KNOWN[line] = decoded
    return decoded
