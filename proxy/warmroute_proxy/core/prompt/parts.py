"""Describes the parts of a prompt without their text, so that a later prompt can be compared with them.

The comparison (`breaks`) finds which part was changed, and how. A tool is described by a size, and by hashes that are
keyed by tenant. A line of the system prompt is described by two hashes: one of the line as it is, and one of the line
with 0 in place of every digit. If only the second hash is equal, a date, a time or a count was changed. Messages are
described in `Fingerprint.messages`, by their ends and roles.

Limits: `MAX_TOOLS` tools and `MAX_LINES` lines of a prompt. The descriptions of `MAX_READ` lists of tools, and of as
many system prompts, are cached, so that a text which several sessions send is read once. A full cache is emptied.
"""

import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from warmroute_proxy.core.prompt.canonical import BRACKET, QUOTE, is_present, tool_parts
from warmroute_proxy.core.prompt.messages import Message

MAX_TOOLS: Final = 512
MAX_LINES: Final = 2048
MAX_READ: Final = 64
MAX_LEADING: Final = 8

_LEADING: Final = frozenset({"system", "developer"})
_ZEROS: Final = bytes.maketrans(b"0123456789", b"0000000000")
_MESSAGE: Final = msgspec.json.Decoder(Message)
_RAWS: Final = msgspec.json.Decoder(list[Raw])
_STRING: Final = msgspec.json.Decoder(str)


class ToolMark(NamedTuple):
    """A tool. `bytes_sum`: a sum over its bytes, which does not depend on the order of its keys."""

    name: int
    digest: int
    size: int
    bytes_sum: int


class LineMark(NamedTuple):
    """Hashes of a line of the system prompt: of the line as it is, and of the line with a 0 for each digit."""

    digest: int
    zeroed: int


class Head(NamedTuple):
    """What a prompt has before its first answer. `asked`: the hash of the first user's message; 0 if it has none."""

    tools: tuple[ToolMark, ...]
    lines: tuple[LineMark, ...]
    asked: int

    @property
    def size(self) -> int:
        """About how many bytes of memory this head takes."""
        return 200 * (len(self.tools) + len(self.lines)) + 200


class _Function(msgspec.Struct):
    name: str = ""


class _Tool(msgspec.Struct):
    function: _Function | None = None
    name: str = ""


class _Piece(msgspec.Struct):
    text: str = ""


_TOOLS: Final = msgspec.json.Decoder(list[_Tool])
_PIECES: Final = msgspec.json.Decoder(list[_Piece])
_read_tools: Final[dict[tuple[int, bytes], tuple[ToolMark, ...]]] = {}
_read_lines: Final[dict[tuple[int, bytes], tuple[LineMark, ...]]] = {}


def head_of(tools: Raw | None, messages: Raw, key: int) -> Head:
    """The head of a prompt that was read before. `key`: the tenant's key for the hashes.

    Raises: msgspec.MsgspecError, ValueError.
    """
    marks = () if tools is None or not is_present(tools) else _tools(tools, key)
    lines: tuple[LineMark, ...] = ()
    for at, raw in enumerate(_RAWS.decode(messages)):
        message = _MESSAGE.decode(raw)
        if message.role in _LEADING and at < MAX_LEADING:
            lines += _lines(message.content, key)[: MAX_LINES - len(lines)]
        elif message.role == "user":
            return Head(marks, lines, xxh3_64_intdigest(message.content, key))
        else:
            break
    return Head(marks, lines, 0)


def system_lines(messages: Raw) -> list[str]:
    """The lines of the system prompt, as `Head.lines` numbers them. Raises: msgspec.MsgspecError."""
    found: list[str] = []
    for raw in _RAWS.decode(messages)[:MAX_LEADING]:
        message = _MESSAGE.decode(raw)
        if message.role not in _LEADING:
            break
        found += text_of(message.content).split("\n")
    return found[:MAX_LINES]


def message_texts(messages: Raw, at: int, count: int) -> list[str]:
    """The texts of some messages: of a message in parts, that of each part. Raises: msgspec.MsgspecError."""
    found: list[str] = []
    for raw in _RAWS.decode(messages)[at : at + count]:
        found += texts_of(_MESSAGE.decode(raw).content)
    return found


def text_of(content: Raw) -> str:
    """The text of a message's content: a string, or the texts of its parts."""
    return "\n".join(texts_of(content))


def texts_of(content: Raw) -> list[str]:
    """The texts of a message's content: one string, or the text of each part."""
    view = memoryview(content)
    if view and view[0] == QUOTE:
        return [_STRING.decode(content)]
    if view and view[0] == BRACKET:
        return [piece.text for piece in _PIECES.decode(content)]
    return []


def line_mark(line: bytes, key: int) -> LineMark:
    return LineMark(xxh3_64_intdigest(line, key), xxh3_64_intdigest(line.translate(_ZEROS), key))


def _tools(raw: Raw, key: int) -> tuple[ToolMark, ...]:
    known = (key, xxh3_128_digest(raw, key))
    found = _read_tools.get(known)
    if found is None:
        names = [tool.function.name if tool.function is not None else tool.name for tool in _TOOLS.decode(raw)]
        marks = [_tool(name, piece, key) for name, piece in zip(names, tool_parts(raw), strict=True)]
        found = tuple(marks[:MAX_TOOLS])
        if len(_read_tools) >= MAX_READ:
            _read_tools.clear()
        _read_tools[known] = found
    return found


def _tool(name: str, piece: bytes, key: int) -> ToolMark:
    hashed = xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"), key)
    return ToolMark(hashed, xxh3_64_intdigest(piece, key), len(piece), zlib.adler32(piece) & 0xFFFF)


def _lines(content: Raw, key: int) -> tuple[LineMark, ...]:
    known = (key, xxh3_128_digest(content, key))
    found = _read_lines.get(known)
    if found is None:
        lines = text_of(content).encode("utf-8", "surrogatepass").split(b"\n", MAX_LINES)[:MAX_LINES]
        found = tuple([line_mark(line, key) for line in lines])
        if len(_read_lines) >= MAX_READ:
            _read_lines.clear()
        _read_lines[known] = found
    return found


def sizes_of(messages: Sequence[int], ends: Sequence[int], first: int) -> list[tuple[int, int]]:
    """The (role, canonical bytes) of each message from `first` on; `messages` as in `Fingerprint`."""
    found: list[tuple[int, int]] = []
    begin = ends[(messages[first - 1] >> 2) - 1] if first else 0
    for mark in messages[first:]:
        end = ends[(mark >> 2) - 1]
        found.append((mark & 3, end - begin))
        begin = end
    return found
