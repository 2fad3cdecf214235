"""Bounds the work for one body: by a count over its bytes before parsing, then by the objects that a translator makes.

The time for a body depends on its values, not its bytes: a translator takes a second for 2 MB of `{}`, and 3 ms for a
chat of long texts. Two counts bound the time. `is_dense` counts brackets, colons and commas in the bytes. A body has at
least as many of these as values. Agents send few (a bracket in 230 bytes, a comma in 67, in the recorded sessions).
`TranslationWork` counts the steps of a translator. Each step makes a message, a block or a tool, and takes 10 to 20 us.

A body is read in the event loop if both counts are small. Any other body goes to the process that reads large bodies.
That process refuses bodies beyond the limits of `check_values` and `MAX_STEPS`.

Engines compile JSON schemas into grammars, and render templates with nested arguments. Their cost grows with size and
depth. At a depth that a parser still accepts, a recursive compiler crashes its process.

A schema or a list of tools can have hundreds of kilobytes, so depth is measured by operations on bytes objects. First
everything but the brackets outside of strings is removed. Then each removal of empty pairs takes the innermost level.
"""

import re
from collections.abc import Iterator
from typing import Final

from msgspec import Raw

from warmroute_proxy.dialects.raw_json import BadRequest, list_at

SMALL_BYTES: Final = 32_768
"""A body up to this size is not checked: the worst one takes 3 ms."""

BYTES_PER_BRACKET: Final = 256
MOST_BRACKETS: Final = 6144
"""A body in the event loop may have min(1,024 + bytes / BYTES_PER_BRACKET, MOST_BRACKETS) lists and objects, three
times as many members and six times as many values. A body with MOST_BRACKETS takes as long as three chats of 2 MB.
"""

TEXTS_BYTES: Final = 262_144
"""Up to this size, a body that looks dense is counted again without its strings, at 5 ms a MB."""

MAX_BRACKETS: Final = 131_072
MAX_MEMBERS: Final = 262_144
MAX_COMMAS: Final = 524_288
"""Limits of a body, not counting its strings. Each value is at least one token of the prompt, and models take at most a
million tokens, so hardly any request needs more."""

MAX_EVENT_BRACKETS: Final = 16_384
MAX_EVENT_VALUES: Final = 131_072
"""Limits of one event of a stream, enough for the probabilities of 4,000 tokens."""

MAX_CALLS: Final = 1_024
MAX_PARTS: Final = 8_192
"""The maximum number of tool calls in one answer, and of parts in its content."""

MAX_TOOLS_BYTES: Final = 4_194_304
MAX_STEPS: Final = 65_536
STEPS_IN_LOOP: Final = 192
BYTES_PER_STEP: Final = 16_384
"""In the event loop, translation may take STEPS_IN_LOOP steps plus one per BYTES_PER_STEP bytes."""

KNOWN_PER_STEP: Final = 8
"""This number of messages whose translations are cached counts as one step."""

VALUES_PER_STEP: Final = 32
SCHEMA_BYTES_PER_STEP: Final = 8192
"""This number of values, or of bytes, of a schema that is translated anew counts as one step."""

_NO_STRUCTURE: Final = bytes(byte for byte in range(256) if byte not in b"[{:,")
_NO_STRUCTURE_OR_QUOTES: Final = bytes(byte for byte in range(256) if byte not in b'[{:,"')
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b'"[]{}')
_TEXTS: Final = re.compile(rb'(?:"[^"]*+")++')
_WINDOW_BYTES: Final = 262_144


class TooMuch(Exception):
    """The event loop may not do this much work for a body; another process may."""


class TranslationWork:
    """Counts the steps that a translator may still take."""

    __slots__ = ("_in_loop", "_left")

    def __init__(self, steps: int = MAX_STEPS, *, in_loop: bool = False) -> None:
        self._left = steps
        self._in_loop = in_loop

    @classmethod
    def in_loop(cls, size_bytes: int) -> "TranslationWork":
        """The steps that the event loop may take for a body of this size."""
        return cls(STEPS_IN_LOOP + size_bytes // BYTES_PER_STEP, in_loop=True)

    def take(self, steps: int) -> None:
        """Count `steps` before they are done. Raises, if too few are left: TooMuch (event loop) or BadRequest."""
        self._left -= steps
        if self._left < 0:
            if self._in_loop:
                raise TooMuch
            raise BadRequest("", f"holds more than {MAX_STEPS} messages, parts and tools")

    def take_tools(self, raw: Raw) -> list[Raw]:
        """The elements of a list of tools; each takes a step. Raises: as `take`; BadRequest, if it is too long."""
        if len(memoryview(raw)) > MAX_TOOLS_BYTES:
            raise BadRequest("tools", f"has more than {MAX_TOOLS_BYTES} bytes of JSON")
        return self.take_list(raw, "tools")

    def take_list(self, raw: Raw, path: str) -> list[Raw]:
        """The elements of a list; each takes a step. Raises: as `take`."""
        found = list_at(raw, path)
        self.take(len(found))
        return found

    def take_values(self, raw: bytes) -> None:
        """Take the steps for a schema that is translated anew."""
        self.take(1 + len(raw.translate(None, _NO_STRUCTURE)) // VALUES_PER_STEP + len(raw) // SCHEMA_BYTES_PER_STEP)


def most_brackets(size_bytes: int) -> int:
    """How many lists and objects a body of this size may hold to be read in the event loop."""
    return min(MOST_BRACKETS, 1024 + size_bytes // BYTES_PER_BRACKET)


def is_dense(raw: bytes | memoryview) -> bool:
    """Whether a body may hold too many values to be read in the event loop, by a count over its bytes."""
    size = len(raw)
    if size <= SMALL_BYTES:
        return False
    raw = bytes(raw)
    most = most_brackets(size)
    if not _is_more(raw.translate(None, _NO_STRUCTURE), most):
        return False  # the usual case: few brackets and commas, even counting those in strings
    if size > TEXTS_BYTES:
        return True
    bare = _unescaped(raw).translate(None, _NO_STRUCTURE_OR_QUOTES)
    return bare.count(b'"') > 12 * most or _is_more(b"".join(bare.split(b'"')[::2]), most)


def check_values(raw: bytes) -> None:
    """Raises: BadRequest, if a body holds too many values outside of its texts."""
    if not _exceed(*_counted(raw.translate(None, _NO_STRUCTURE)), 0):
        return
    brackets = members = commas = quotes = 0
    for outside, more_quotes in _outside_of_texts(raw):
        more_brackets, more_members, more_commas = _counted(outside)
        brackets, members, commas = brackets + more_brackets, members + more_members, commas + more_commas
        quotes += more_quotes
        if _exceed(brackets, members, commas, quotes):
            problem = f"{MAX_BRACKETS} lists and objects, {MAX_MEMBERS} members or {MAX_COMMAS} values"
            raise BadRequest("", f"the request body holds more than {problem}")


def check_answer(raw: bytes) -> None:
    """Raises: ValueError, if an answer of an engine holds too many values to be translated in the event loop."""
    if len(raw) <= SMALL_BYTES or raw.count(b"{") + raw.count(b"[") <= MAX_BRACKETS:
        return  # the usual case: few brackets, even counting those in strings
    brackets = 0
    for outside, _ in _outside_of_texts(raw):
        brackets += _counted(outside)[0]
        if brackets > MAX_BRACKETS:
            raise ValueError(f"it holds more than {MAX_BRACKETS} lists and objects")


def check_event(raw: bytes) -> None:
    """Raises: ValueError, if an event of an engine's stream holds too much to be read in the event loop."""
    most = f"{MAX_EVENT_BRACKETS} lists and objects, or {MAX_EVENT_VALUES} members, values or escapes"
    if raw.count(b"\\u") > MAX_EVENT_VALUES:
        raise ValueError(f"an event holds more than {most}")
    if not _is_much(*_counted(raw)):
        return  # the usual case: few brackets and commas, even counting those in strings
    brackets = members = commas = 0
    for outside, _ in _outside_of_texts(raw):
        more_brackets, more_members, more_commas = _counted(outside)
        brackets, members, commas = brackets + more_brackets, members + more_members, commas + more_commas
        if _is_much(brackets, members, commas):
            raise ValueError(f"an event holds more than {most}")


def _is_much(brackets: int, members: int, commas: int) -> bool:
    return brackets > MAX_EVENT_BRACKETS or members > MAX_EVENT_VALUES or commas > MAX_EVENT_VALUES


def brackets_of(raw: bytes) -> bytes:
    """The brackets of a valid JSON text that stand outside of its strings."""
    return _TEXTS.sub(b"", _unescaped(raw).translate(None, _NO_BRACKETS))


def _is_more(structure: bytes, most: int) -> bool:
    brackets, members, commas = _counted(structure)
    return brackets > most or members > 3 * most or commas > 6 * most


def _counted(found: bytes) -> tuple[int, int, int]:
    return found.count(b"{") + found.count(b"["), found.count(b":"), found.count(b",")


def _exceed(brackets: int, members: int, commas: int, quotes: int) -> bool:
    most_quotes = 2 * (MAX_BRACKETS + MAX_MEMBERS + MAX_COMMAS)  # each string is a name or a value
    return brackets > MAX_BRACKETS or members > MAX_MEMBERS or commas > MAX_COMMAS or quotes > most_quotes


def _unescaped(raw: bytes) -> bytes:
    """A JSON text without escaped quotes and escaped backslashes."""
    return raw.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in raw else raw


def _outside_of_texts(raw: bytes) -> Iterator[tuple[bytes, int]]:
    """The structure of a JSON text outside of its strings, and the number of quotes, window by window."""
    at, inside = 0, False
    while at < len(raw):
        window = raw[at : at + _WINDOW_BYTES]
        if (len(window) - len(window.rstrip(b"\\"))) % 2:  # not in the middle of an escape
            window = raw[at : at + _WINDOW_BYTES + 1]
        at += len(window)
        parts = _unescaped(window).split(b'"')
        yield b"".join(parts[inside::2]).translate(None, _NO_STRUCTURE), len(parts) - 1
        inside ^= not len(parts) % 2


def is_deeper(raw: bytes, levels: int) -> bool:
    """Whether a valid JSON text nests deeper than `levels`: a scalar has no level, `[1]` has one."""
    brackets = brackets_of(raw).replace(b"[", b"{").replace(b"]", b"}")
    for _ in range(levels):
        if not brackets:
            return False
        brackets = _without_innermost(brackets)
    return bool(brackets)


def _without_innermost(brackets: bytes) -> bytes:
    """Remove each empty pair, and keep the pairs around it."""
    return brackets.replace(b"{}", b"")
