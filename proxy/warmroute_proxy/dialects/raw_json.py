"""Reads a request's JSON member by member: values stay raw until they are needed, and errors name the path."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

Members = dict[str, Raw]
Piece = bytes | bytearray
"""A piece of a chat's body. It may be a conversation's buffer, so pieces must be joined before that buffer grows."""

ChatPart = dict[str, Any]

MAX_SHOWN_CHARS: Final = 64
MAX_NAMES: Final = 1000
"""The largest number of members of an object that is read member by member, such as a chat's body."""

_QUOTE: Final = 0x22
_LIST: Final = 0x5B
_OBJECT: Final = 0x7B
NOTHING: Final = Raw(b"null")
_decode_members: Final = msgspec.json.Decoder(Members).decode
_decode_list: Final = msgspec.json.Decoder(list[Raw]).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_PROBLEMS: Final = (msgspec.DecodeError, ValueError, RecursionError)
encode: Final = msgspec.json.Encoder().encode


def in_list(messages: list[ChatPart]) -> bytes:
    """Messages as JSON, with commas between them. A single message is not copied by the join."""
    return b",".join([encode(message) for message in messages])


def chat_pieces(before: dict[str, Any], messages: Sequence[Piece], behind: dict[str, Any]) -> list[Piece]:
    """The body of a chat in pieces: members, messages, members. Joining them here would copy long messages again."""
    head = encode(before)[:-1]
    pieces: list[Piece] = [head, b',"messages":[' if before else b'"messages":[']
    for message in messages:
        pieces += (message, b",")
    pieces[-1] = b"]" if messages else b'"messages":[]'
    if behind:
        pieces += (b",", encode(behind)[1:-1])
    pieces.append(b"}")
    return pieces


class BadRequest(ValueError):
    """What is wrong with a request, and where: `messages.0.content`. `code`: the error code that the client gets."""

    def __init__(self, path: str, problem: str, code: str = "invalid_value") -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path
        self.code = code


class Misshapen(BadRequest):
    """A value of the wrong type. In a history, the value is dropped or becomes text; elsewhere it is refused."""


def object_at(raw: Raw | bytes, path: str) -> Members:
    """The members of an object, except those that are null."""
    try:
        found = _decode_members(raw)
    except _PROBLEMS:
        raise Misshapen(path, "must be a JSON object") from None
    if len(found) > MAX_NAMES:
        raise BadRequest(path, f"has {len(found)} members, at most {MAX_NAMES} are taken")
    return {name: value for name, value in found.items() if bytes(memoryview(value)[:1]) != b"n"}


def list_at(raw: Raw, path: str) -> list[Raw]:
    try:
        return _decode_list(raw)
    except _PROBLEMS:
        raise Misshapen(path, "must be a list") from None


def text_at(members: Members, name: str, path: str) -> str:
    """The text of a member that is required."""
    raw = members.get(name)
    path = f"{path}.{name}" if path else name
    if raw is None:
        raise Misshapen(path, "is required")
    try:
        return _decode_text(raw)
    except _PROBLEMS:
        raise Misshapen(path, "must be a text") from None


def text_in(members: Members, name: str) -> str:
    """The text of a member; empty if the member is missing or not a text."""
    raw = members.get(name)
    try:
        return "" if raw is None else _decode_text(raw)
    except _PROBLEMS:
        return ""


def kind_of(block: Members, path: str) -> str:
    return text_at(block, "type", path)


def is_text(raw: Raw) -> bool:
    return memoryview(raw)[0] == _QUOTE


def is_list(raw: Raw) -> bool:
    return memoryview(raw)[0] == _LIST


def is_object(raw: Raw) -> bool:
    return memoryview(raw)[0] == _OBJECT


def json_as_text(raw: Raw) -> Raw:
    return Raw(encode(str(raw, "utf-8", "replace")))


_NULL: Final = 0x6E


class BodyReader:
    def __init__(self, conversation: str, names: Iterable[str]) -> None:
        """`conversation`: the member that is the list of messages; `names`: all members that clients send."""
        self._conversation = conversation
        self._names = tuple(sorted(set(names) - {conversation}))
        fields: list[Any] = [(conversation, list[Raw]), *((name, Raw, Raw()) for name in self._names)]
        body: Any = msgspec.defstruct("_Body", fields, forbid_unknown_fields=True)
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(body).decode

    def read(self, raw: bytes) -> tuple[Members, list[Raw] | None]:
        """Return the members that are not null, and the elements of the conversation. Raises: BadRequest.

        If the body has other members, or its conversation is not a list, the body is read member by member. The list
        is then None, and a conversation of any type is among the members.
        """
        try:
            body = self._decode(raw)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return object_at(raw, ""), None
        elements: list[Raw] = getattr(body, self._conversation)
        return given_members(body, self._names), elements


def given_members(body: object, names: Iterable[str]) -> Members:
    """The raw members with these names, except null or absent ones."""
    members = {}
    for name in names:
        value = getattr(body, name)
        if value and memoryview(value)[0] != _NULL:
            members[name] = value
    return members
