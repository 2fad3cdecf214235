"""Messages and tools in their canonical form: the bytes that a fingerprint hashes.

The canonical form has what templates print and drops the rest: of a message role, content, reasoning, tool calls, tool
call id and name, as the raw JSON of each value; of a tool its function. Member order, unknown members, space between
members, `null` members, empty content and `cache_control` make no difference, nor does space in the JSON of a call's
arguments and in a tool's schema: engines parse both. The order of their keys does: templates print it. Anything but
text (images, audio, files) counts by its content, but a long one only as a digest: its number of tokens does not follow
from its bytes.
"""

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec
from msgspec import Raw
from xxhash import xxh3_128_digest

from warmroute.contract.steering import ENGINE_PARTS
from warmroute_proxy.core.prompt.addresses import Addresses
from warmroute_proxy.core.prompt.messages import ABSENT, Message, ToolCall

MAX_PARTS: Final = 32_768
LONG_MEDIA_BYTES: Final = 512
MIN_ARGUMENTS_BYTES: Final = 2
MAX_COMPACTED_BYTES: Final = 262_144
"""Of the arguments of one call: to parse them takes up to four times as much memory."""

NULL: Final = Raw(b"null")
EMPTY: Final = Raw(b'""')
NO_PARTS: Final = (b"", b'""')
QUOTE: Final = 0x22
BRACKET: Final = 0x5B

_BRACE: Final = 0x7B
# Control characters are always escaped in JSON, so no raw value can contain one of these.
_TOOL: Final = b"\x01"
_MESSAGE: Final = b"\x02"
_CONTENT: Final = b"\x03"
_REASONING: Final = b"\x04"
_TOOL_CALL: Final = b"\x05"
_TOOL_CALL_ID: Final = b"\x06"
_NAME: Final = b"\x07"
_NO_TEXT: Final = b'\x03""'
_MEMBER: Final = b"\x1d"
_PART: Final = b"\x1e"
_FIELD: Final = b"\x1f"
MEDIA: Final = 0x08
"""The byte in front of anything but text."""

_MEDIA: Final = b"\x08"

_T = TypeVar("_T")
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_STRING: Final = msgspec.json.Decoder(str)
_RAW: Final = msgspec.json.Decoder(Raw)
_SPACE: Final = b" \t\r\n"
_PARTS: Final = frozenset(f'"{name}"'.encode() for name in ENGINE_PARTS)
_DATA_URL: Final = b'"data:'
_OBJECTS: Final = msgspec.json.Decoder(list[dict[str, Raw]])


class MalformedPrompt(ValueError):
    """A prompt that no engine would accept, by the client's fault; `path` is where, like `messages[3].content`."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path} {problem}")
        self.path = path
        self.problem = problem


def message_part(message: Message, index: int, addresses: Addresses | None = None) -> bytes:
    """The canonical bytes of a message. `addresses`: those that may stand in one that is to be served; None: it is
    not, so any may stand in it, and parts and arguments that engines refuse.
    """
    pieces: list[bytes | Raw] = [_MESSAGE, message.role.encode()]
    content = message.content
    if content is not ABSENT:
        first = memoryview(content)[0]
        if first == QUOTE:
            if content != EMPTY:
                pieces += (_CONTENT, content)
        elif first == BRACKET:
            parts = _content_parts(content, f"messages[{index}].content", addresses)
            if parts not in NO_PARTS:
                pieces += (_CONTENT, parts)
        elif content != NULL:
            raise MalformedPrompt(f"messages[{index}].content", "is neither a string nor a list of parts")
    thoughts = message.reasoning if message.reasoning_content is ABSENT else message.reasoning_content
    if thoughts is not ABSENT and is_present(thoughts):
        pieces += (_REASONING, thoughts)
    if message.tool_calls:
        for call in message.tool_calls:
            pieces += _call_pieces(call, None if addresses is None else index)
    if message.tool_call_id is not ABSENT and message.tool_call_id != NULL:
        pieces += (_TOOL_CALL_ID, message.tool_call_id)
    if message.name is not ABSENT and is_present(message.name):
        pieces += (_NAME, message.name)
    return b"".join(pieces)


def _call_pieces(call: ToolCall, index: int | None) -> tuple[bytes | Raw, ...]:
    function, id_ = call.function, call.id if call.id != NULL else ABSENT
    if function is None:
        return _TOOL_CALL, id_, _FIELD, call.custom
    return _TOOL_CALL, id_, _FIELD, function.name, _FIELD, _arguments(function.arguments, index)


def _arguments(raw: Raw, index: int | None) -> bytes | Raw:
    """The arguments of a call: the JSON that is written in a string, without space between its tokens. As they are
    if they are longer than `MAX_COMPACTED_BYTES`, or no JSON. `index`: of a message that is to be served. Engines
    parse the arguments there, so those that are not objects are refused.
    """
    view = memoryview(raw)
    size = len(view)
    is_written = size > 0 and view[0] == QUOTE
    found: bytes | Raw = raw
    try:
        written = _STRING.decode(raw).encode() if is_written else bytes(raw)
        if MIN_ARGUMENTS_BYTES < size <= MAX_COMPACTED_BYTES:
            found = msgspec.json.format(written, indent=-1)  # which refuses control characters
        elif is_written and index is not None:
            _RAW.decode(written)
        is_object = written.startswith(b"{") or written.lstrip(_SPACE).startswith(b"{")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        is_object = False
    if not is_object and is_written and index is not None:
        raise MalformedPrompt(f"messages[{index}].tool_calls", "has arguments that are not the JSON of an object")
    return found


def _compact(value: Raw) -> bytes | Raw:
    """JSON without space between its tokens, or as it is if it is nested too deeply."""
    try:
        return msgspec.json.format(bytes(value), indent=-1)
    except (msgspec.MsgspecError, RecursionError):
        return value


def text_part(message: Message) -> bytes | None:
    """The canonical bytes of a message that is a role and a text and nothing else, as most are; None of any other."""
    if (
        message.tool_calls is None
        and message.tool_call_id is ABSENT
        and message.reasoning_content is ABSENT
        and message.reasoning is ABSENT
        and message.name is ABSENT
    ):
        part = b"".join((_MESSAGE, message.role.encode(), _CONTENT, message.content))
        if part[-1] == QUOTE and not part.endswith(_NO_TEXT):  # of JSON, only a string ends with a quote
            return part
    return None


def _content_parts(content: Raw, path: str, addresses: Addresses | None) -> bytes:
    """A list of content parts; one text part gives the bytes that a plain string has."""
    parts = decode_part(_OBJECTS, content, path)
    if len(parts) > MAX_PARTS:
        raise MalformedPrompt(path, f"holds more than {MAX_PARTS} parts")
    return _PART.join([_content_part(part, f"{path}[{index}]", addresses) for index, part in enumerate(parts)])


def _content_part(part: dict[str, Raw], path: str, addresses: Addresses | None) -> bytes:
    if addresses is not None:
        _check_addresses(part, path, addresses)
    kind = part.get("type", ABSENT)
    text = part.get("text")
    if text is not None and (kind is ABSENT or kind == Raw(b'"text"')):
        if memoryview(text)[0] != QUOTE:
            raise MalformedPrompt(f"{path}.text", "is not a string")
        return bytes(text)
    if addresses is not None and kind is not ABSENT and bytes(kind) not in _PARTS:
        raise MalformedPrompt(f"{path}.type", "is not a type that engines read")
    image = part.get("image_url")
    if image is not None:
        if memoryview(image)[0] == _BRACE:
            image = decode_part(_OBJECT, image, f"{path}.image_url").get("url", ABSENT)
        return _media(bytes(image))
    return _media(_members(part))


def _check_addresses(part: dict[str, Raw], path: str, addresses: Addresses) -> None:
    """Raises: MalformedPrompt, if an engine would fetch what it may not. Any `..._url` is such an address."""
    for name, value in part.items():
        if not name.endswith("_url") or value == NULL:
            continue
        where, first = f"{path}.{name}", memoryview(value)[0]
        address = value
        if first == _BRACE:
            address, where = decode_part(_OBJECT, value, where).get("url", NULL), f"{where}.url"
        view = memoryview(address)
        if view[0] != QUOTE:
            raise MalformedPrompt(where, "is not a string")
        if bytes(view[: len(_DATA_URL)]) == _DATA_URL:
            continue  # as mostly, and it may be long
        problem = addresses.problem(decode_part(_STRING, address, where))
        if problem is not None:
            raise MalformedPrompt(where, problem)


def _media(content: bytes) -> bytes:
    return _MEDIA + (content if len(content) <= LONG_MEDIA_BYTES else xxh3_128_digest(content))


def tool_parts(tools: Raw) -> list[bytes]:
    """The canonical bytes of each tool: its function, or all of it if it has none."""
    decoded = decode_part(_OBJECTS, tools, "tools")
    if len(decoded) > MAX_PARTS:
        raise MalformedPrompt("tools", f"holds more than {MAX_PARTS} items")
    parts = []
    for index, tool in enumerate(decoded):
        function = tool.get("function")
        members = tool if function is None else decode_part(_OBJECT, function, f"tools[{index}].function")
        pieces: list[bytes] = [_TOOL]
        for name in sorted(members):
            if name != "cache_control":
                pieces += (_MEMBER, name.encode(), _FIELD, _compact(members[name]))
        parts.append(b"".join(pieces))
    return parts


def _members(members: Mapping[str, Raw]) -> bytes:
    """The members of an object in order of name, without `cache_control`."""
    pieces: list[bytes | Raw] = []
    for name in sorted(members):
        if name != "cache_control":
            pieces += (_MEMBER, name.encode(), _FIELD, members[name])
    return b"".join(pieces)


def is_present(value: Raw) -> bool:
    return value not in (ABSENT, NULL, EMPTY)


def decode_part(decoder: "msgspec.json.Decoder[_T]", raw: Raw | memoryview | bytes, path: str) -> _T:
    """Decode, or raise `MalformedPrompt` with the path of the error and none of the text."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        problem, _, inner = str(error).partition(" - at `$")
        raise MalformedPrompt(_join(path, problem, inner.rstrip("`")), f"is malformed: {problem}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise MalformedPrompt(path, "is not valid JSON") from None


def _join(path: str, problem: str, inner: str) -> str:
    _, _, missing = problem.partition("missing required field `")
    return path + inner + (f".{missing.rstrip('`')}" if missing else "")
