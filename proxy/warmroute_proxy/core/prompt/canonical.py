"""Brings messages and tools into their canonical form: the bytes that a fingerprint hashes.

The canonical form keeps what chat templates print: of a message, the raw JSON of role, content, reasoning, tool calls,
tool call id and name; of a tool, its function. It drops the order of members, unknown members, space between members,
`null` members, empty content and `cache_control`. Space in the JSON of a call's arguments and of a tool's schema is
dropped too, because engines parse both. The order of their keys stays, because templates print it. Media (images,
audio, files) are represented by their content, or by a digest if the content exceeds `LONG_MEDIA_BYTES`. The number of
their tokens does not follow from their bytes.
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
"""Larger arguments of a call are not compacted, because parsing takes up to four times their size in memory."""

NULL: Final = Raw(b"null")
EMPTY: Final = Raw(b'""')
NO_PARTS: Final = (b"", b'""')
QUOTE: Final = 0x22
BRACKET: Final = 0x5B

_BRACE: Final = 0x7B
# The separators. JSON always escapes control characters, so no raw value contains a separator.
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
"""The byte in front of media."""

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
    """A client's prompt that no engine would accept. `path`: the malformed part, such as `messages[3].content`."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path} {problem}")
        self.path = path
        self.problem = problem


def message_part(message: Message, index: int, addresses: Addresses | None = None) -> bytes:
    """The canonical bytes of a message. `addresses`: the addresses that it may contain; None if the message will not be
    served. Then it may contain any address, and also parts and arguments that engines refuse.
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
    """The arguments of a call: the JSON inside their string, without space between its tokens. Arguments that are
    longer than `MAX_COMPACTED_BYTES` or not JSON are returned unchanged. `index`: the index of the message; None if the
    message will not be served. Engines parse the arguments of a served message, so arguments that are not an object are
    refused.
    """
    view = memoryview(raw)
    size = len(view)
    is_written = size > 0 and view[0] == QUOTE
    found: bytes | Raw = raw
    try:
        written = _STRING.decode(raw).encode() if is_written else bytes(raw)
        if MIN_ARGUMENTS_BYTES < size <= MAX_COMPACTED_BYTES:
            found = msgspec.json.format(written, indent=-1)  # refuses control characters
        elif is_written and index is not None:
            _RAW.decode(written)
        is_object = written.startswith(b"{") or written.lstrip(_SPACE).startswith(b"{")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        is_object = False
    if not is_object and is_written and index is not None:
        raise MalformedPrompt(f"messages[{index}].tool_calls", "has arguments that are not the JSON of an object")
    return found


def _compact(value: Raw) -> bytes | Raw:
    """JSON without space between its tokens; unchanged if it cannot be parsed or is nested too deeply."""
    try:
        return msgspec.json.format(bytes(value), indent=-1)
    except (msgspec.MsgspecError, RecursionError):
        return value


def text_part(message: Message) -> bytes | None:
    """The canonical bytes of a message that has only a role and a text, as most do; None for other messages."""
    if (
        message.tool_calls is None
        and message.tool_call_id is ABSENT
        and message.reasoning_content is ABSENT
        and message.reasoning is ABSENT
        and message.name is ABSENT
    ):
        part = b"".join((_MESSAGE, message.role.encode(), _CONTENT, message.content))
        if part[-1] == QUOTE and not part.endswith(_NO_TEXT):  # only a JSON string ends with a quote
            return part
    return None


def _content_parts(content: Raw, path: str, addresses: Addresses | None) -> bytes:
    """The canonical bytes of a list of content parts. One text part has the same bytes as a plain string."""
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
        elif addresses is not None:
            raise MalformedPrompt(f"{path}.image_url", "is not an object")
        return _media(bytes(image))
    return _media(_members(part))


def _check_addresses(part: dict[str, Raw], path: str, addresses: Addresses) -> None:
    """Check all members named `..._url` of a part. Raises: MalformedPrompt, if an engine may not fetch an address."""
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
            continue  # the usual case, and such a value may be long
        problem = addresses.problem(decode_part(_STRING, address, where))
        if problem is not None:
            raise MalformedPrompt(where, problem)


def _media(content: bytes) -> bytes:
    return _MEDIA + (content if len(content) <= LONG_MEDIA_BYTES else xxh3_128_digest(content))


def tool_parts(tools: Raw) -> list[bytes]:
    """The canonical bytes of each tool: of its function, or of the whole tool if it does not have a function."""
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
    """The members of an object, sorted by name, without `cache_control`."""
    pieces: list[bytes | Raw] = []
    for name in sorted(members):
        if name != "cache_control":
            pieces += (_MEMBER, name.encode(), _FIELD, members[name])
    return b"".join(pieces)


def is_present(value: Raw) -> bool:
    return value not in (ABSENT, NULL, EMPTY)


def decode_part(decoder: "msgspec.json.Decoder[_T]", raw: Raw | memoryview | bytes, path: str) -> _T:
    """Decode a part. Raises: MalformedPrompt, which names the path of the error but does not quote the prompt."""
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
