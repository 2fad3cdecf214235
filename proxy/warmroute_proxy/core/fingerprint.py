"""The prompt as a chain of 64-bit hashes over its parts in template order.

An engine caches prefixes of the *rendered* prompt: tools first, then messages. The request body is no stand-in for
it: real harnesses send messages before tools, move `cache_control` markers from turn to turn, and write the same text
as a string or as a list with one part. So each part (a tool, a message) gets a canonical form, and the chain is

    h[0] = xxh3_64(block[0], seed),    h[i] = xxh3_64(block[i], seed = h[i - 1])

where a block ends with its part, or after `STRIDE_BYTES` inside a longer one. Equal hashes at cut i then mean equal
prompts up to cut i (but for 64-bit collisions, which can only misplace a request of the same tenant: the seed is made
from the tenant's salt and the model, so chains of two tenants have nothing in common).

The canonical form keeps what templates print and drops the rest: of a message role, content, reasoning, tool calls,
tool call id and name, as the raw JSON of each value; of a tool its function. Member order, unknown members, space
between members, `null` or empty content and `cache_control` make no difference. Anything but text (images, audio,
files) counts by its content, but a long one only as a digest: its bytes say nothing of its tokens.

The stride: a long part is cut so that a changed or appended tail does not lose its head. On recorded agent bodies
2,048 costs 5 us per 100 KB more than 4,096 (50 against 45) and loses 1 KB at a break instead of 2 on average, which
is some pages of an engine's cache.

Limits: `MAX_PARTS` tools and messages in a prompt, else `MalformedPrompt`. Chains of the last `MAX_KEPT_TOOLS` tool
lists are kept (by digest; hashes only, all dropped when full), because reading tools is a third of the work.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Raw
from xxhash import xxh3_64_intdigest, xxh3_128_digest

STRIDE_BYTES: Final = 2048
MAX_PARTS: Final = 32_768
LONG_MEDIA_BYTES: Final = 512
MAX_KEPT_TOOLS: Final = 512
MAX_KEPT_TOOL_CUTS: Final = 1024

_ABSENT: Final = Raw(b"")
_NULL: Final = Raw(b"null")
_EMPTY: Final = Raw(b'""')
_NO_PARTS: Final = (b"", b'""')
_LEADING: Final = frozenset({"system", "developer"})
_QUOTE, _BRACKET, _BRACE = b'"[{'

# Control characters cannot stand unescaped in JSON, so no raw value can imitate one of these.
_TOOL: Final = b"\x01"
_MESSAGE: Final = b"\x02"
_CONTENT: Final = b"\x03"
_REASONING: Final = b"\x04"
_TOOL_CALL: Final = b"\x05"
_TOOL_CALL_ID: Final = b"\x06"
_NAME: Final = b"\x07"
_MEMBER: Final = b"\x1d"
_PART: Final = b"\x1e"
_FIELD: Final = b"\x1f"


class MalformedPrompt(ValueError):
    """A prompt that no engine would take. The client's fault; `path` says where, like `messages[3].content`."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path} {problem}")
        self.path = path
        self.problem = problem


class Chain(msgspec.Struct, frozen=True, gc=False):
    """A hash for each cut, and where each cut ends, in canonical bytes."""

    hashes: list[int]
    ends: list[int]

    @property
    def total_bytes(self) -> int:
        """Canonical bytes of the whole prompt."""
        return self.ends[-1] if self.ends else 0


class Fingerprint(msgspec.Struct, frozen=True, gc=False):
    """What the proxy keeps of a prompt.

    `structural_bytes` are those before the last assistant message, which an append-only conversation has already sent;
    `tools_digest` and `tools_system_digest` do not depend on the seed; `user_contents` are the raw contents of the user
    messages in front of the first assistant message. `prompts` is above 1 for a list of texts or of lists of ids: each
    is a prompt of its own to the engine.
    """

    chain: Chain
    structural_bytes: int
    turn: int
    tools_digest: int
    tools_system_digest: int
    user_contents: list[Raw]
    prompts: int = 1

    @property
    def first_user_text(self) -> str | None:
        """What a derived key is made from. Read only when asked for: most clients name their sessions."""
        return _last_user_text(self.user_contents)


class _Function(msgspec.Struct, gc=False):
    name: Raw = _ABSENT
    arguments: Raw = _ABSENT


class _ToolCall(msgspec.Struct, gc=False):
    id: Raw = _ABSENT
    function: _Function | None = None
    custom: Raw = _ABSENT


class _Message(msgspec.Struct, gc=False):
    role: str
    content: Raw = _ABSENT
    reasoning_content: Raw = _ABSENT
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: Raw = _ABSENT
    name: Raw = _ABSENT


class _ToolsPrefix(NamedTuple):
    hashes: tuple[int, ...]
    ends: tuple[int, ...]
    digest: int


_T = TypeVar("_T")
_MESSAGES: Final = msgspec.json.Decoder(list[_Message])
_ONE_MESSAGE: Final = msgspec.json.Decoder(_Message)
_KEPT_TOOLS: Final[dict[tuple[int, bytes], _ToolsPrefix]] = {}
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_OBJECTS: Final = msgspec.json.Decoder(list[dict[str, Raw]])
_VALUE: Final = msgspec.json.Decoder()
_VALUES: Final = msgspec.json.Decoder(list[Raw])


class _Chainer:
    """Appends parts to a chain, cutting at their ends and at the stride inside them."""

    __slots__ = ("ends", "hashes", "last", "total")

    def __init__(self, seed: int, prefix: "_ToolsPrefix | None" = None) -> None:
        self.hashes: list[int] = list(prefix.hashes) if prefix else []
        self.ends: list[int] = list(prefix.ends) if prefix else []
        self.last = self.hashes[-1] if self.hashes else seed
        self.total = self.ends[-1] if self.ends else 0

    def add(self, part: bytes) -> None:
        size = len(part)
        if size <= STRIDE_BYTES:
            self.last = last = xxh3_64_intdigest(part, self.last)
            self.total = total = self.total + size
            self.hashes.append(last)
            self.ends.append(total)
            return
        last, total = self.last, self.total
        view = memoryview(part)
        for start in range(0, size, STRIDE_BYTES):
            last = xxh3_64_intdigest(view[start : start + STRIDE_BYTES], last)
            self.hashes.append(last)
            self.ends.append(total + min(start + STRIDE_BYTES, size))
        self.last = last
        self.total = total + size

    def chain(self) -> Chain:
        return Chain(self.hashes, self.ends)


def fingerprint_chat(tools: Raw | None, messages: Raw | Sequence[Raw], seed: int) -> Fingerprint:
    """The fingerprint of a chat prompt; `MalformedPrompt` where it is none.

    `messages` as one raw JSON array is twice as fast as a list of raw items: it is read once.
    """
    prefix = _tools_prefix(tools, seed)
    chainer = _Chainer(seed, prefix)
    add, digest = chainer.add, prefix.digest
    structural_bytes, turn, leading = 0, 1, True
    user_contents: list[Raw] = []
    for index, message in enumerate(_decode_messages(messages)):
        role = message.role
        if _is_plain(message):
            part = b"\x02%b\x03%b" % (role.encode(), message.content)  # what `_message_part` gives
        else:
            part = _message_part(message, index)
        if role == "assistant":
            structural_bytes = chainer.total
            turn += 1
        elif role == "user" and turn == 1:
            user_contents.append(message.content)
        leading = leading and role in _LEADING
        if leading:
            digest = xxh3_64_intdigest(part, digest)
        add(part)
    _check_unicode(user_contents)
    return Fingerprint(chainer.chain(), structural_bytes, turn, prefix.digest, digest, user_contents)


def fingerprint_text(prompt: Raw, seed: int) -> Fingerprint:
    """The fingerprint of a `/v1/completions` prompt: the raw JSON of a string, a list of strings, or token ids.

    A prompt without a token ends the scheduler of SGLang 0.5.23, also as one of several, so none passes here.
    """
    raw = bytes(prompt)
    if raw == b'""':
        raise MalformedPrompt("prompt", "is empty")
    if raw[:1] == b'"':
        parts: Iterable[bytes] = (raw,)
        prompts = 1
    else:
        values = _decode(_VALUES, prompt, "prompt")
        if not values:
            raise MalformedPrompt("prompt", "is empty")
        kind = memoryview(values[0])[0]
        prompts = len(values) if kind in {_QUOTE, _BRACKET} else 1
        if prompts > MAX_PARTS:
            raise MalformedPrompt("prompt", f"holds more than {MAX_PARTS} prompts")
        if kind in {_QUOTE, _BRACKET}:
            _check_none_empty(values)
        parts = map(bytes, values) if kind == _QUOTE else (raw,)
    chainer = _Chainer(seed)
    for part in parts:
        chainer.add(part)
    return Fingerprint(chainer.chain(), 0, 1, 0, 0, [], prompts)


def _check_none_empty(prompts: Sequence[Raw]) -> None:
    for index, prompt in enumerate(prompts):
        if bytes(prompt).strip(b"[] \t\r\n") in _NO_PARTS:
            raise MalformedPrompt(f"prompt[{index}]", "is empty")


def _decode_messages(messages: Raw | Sequence[Raw]) -> list[_Message]:
    if isinstance(messages, Raw):
        decoded = _decode(_MESSAGES, messages, "messages")
    else:
        decoded = [_decode(_ONE_MESSAGE, raw, f"messages[{index}]") for index, raw in enumerate(messages)]
    if not decoded:
        raise MalformedPrompt("messages", "is empty")
    if len(decoded) > MAX_PARTS:
        raise MalformedPrompt("messages", f"holds more than {MAX_PARTS} items")
    return decoded


def _message_part(message: _Message, index: int) -> bytes:
    """The canonical bytes of a message."""
    pieces: list[bytes | Raw] = [_MESSAGE, message.role.encode()]
    content = message.content
    if content is not _ABSENT:
        first = memoryview(content)[0]
        if first == _QUOTE:
            if content != _EMPTY:
                pieces += (_CONTENT, content)
        elif first == _BRACKET:
            parts = _content_parts(content, f"messages[{index}].content")
            if parts not in _NO_PARTS:
                pieces += (_CONTENT, parts)
        elif content != _NULL:
            raise MalformedPrompt(f"messages[{index}].content", "is neither a string nor a list of parts")
    if message.reasoning_content is not _ABSENT and _is_present(message.reasoning_content):
        pieces += (_REASONING, message.reasoning_content)
    if message.tool_calls:
        for call in message.tool_calls:
            function = call.function
            pieces += (_TOOL_CALL, call.id, _FIELD)
            pieces += (call.custom,) if function is None else (function.name, _FIELD, function.arguments)
    if message.tool_call_id is not _ABSENT:
        pieces += (_TOOL_CALL_ID, message.tool_call_id)
    if message.name is not _ABSENT and _is_present(message.name):
        pieces += (_NAME, message.name)
    return b"".join(pieces)


def _is_plain(message: _Message) -> bool:
    """Whether a message is a role and a text and nothing else, as most are."""
    content = message.content
    return (
        message.tool_calls is None
        and message.tool_call_id is _ABSENT
        and message.reasoning_content is _ABSENT
        and message.name is _ABSENT
        and content is not _ABSENT
        and memoryview(content)[0] == _QUOTE
        and content != _EMPTY
    )


def _content_parts(content: Raw, path: str) -> bytes:
    """A list of content parts; one text part gives the bytes that a plain string has."""
    parts = _decode(_OBJECTS, content, path)
    return _PART.join([_content_part(part, f"{path}[{index}]") for index, part in enumerate(parts)])


def _content_part(part: dict[str, Raw], path: str) -> bytes:
    kind = part.get("type", _ABSENT)
    text = part.get("text")
    if text is not None and (kind is _ABSENT or kind == Raw(b'"text"')):
        if memoryview(text)[0] != _QUOTE:
            raise MalformedPrompt(f"{path}.text", "is not a string")
        return bytes(text)
    image = part.get("image_url")
    if image is not None:
        if memoryview(image)[0] == _BRACE:
            image = _decode(_OBJECT, image, f"{path}.image_url").get("url", _ABSENT)
        return _media(bytes(image))
    return _media(_members(part))


def _media(content: bytes) -> bytes:
    return content if len(content) <= LONG_MEDIA_BYTES else _FIELD + xxh3_128_digest(content)


def _tool_parts(tools: Raw) -> list[bytes]:
    """The canonical bytes of each tool: its function, or all of it where it has none."""
    decoded = _decode(_OBJECTS, tools, "tools")
    if len(decoded) > MAX_PARTS:
        raise MalformedPrompt("tools", f"holds more than {MAX_PARTS} items")
    parts = []
    for index, tool in enumerate(decoded):
        function = tool.get("function")
        members = tool if function is None else _decode(_OBJECT, function, f"tools[{index}].function")
        parts.append(_TOOL + _members(members))
    return parts


def _tools_prefix(tools: Raw | None, seed: int) -> _ToolsPrefix:
    """The chain over the tools: the same in every turn of an agent, so it is kept."""
    if tools is None or not _is_present(tools):
        return _ToolsPrefix((), (), 0)
    key = (seed, xxh3_128_digest(tools))
    prefix = _KEPT_TOOLS.get(key)
    if prefix is None:
        chainer = _Chainer(seed)
        digest = 0
        for part in _tool_parts(tools):
            chainer.add(part)
            digest = xxh3_64_intdigest(part, digest)
        prefix = _ToolsPrefix(tuple(chainer.hashes), tuple(chainer.ends), digest)
        if len(_KEPT_TOOLS) >= MAX_KEPT_TOOLS:
            _KEPT_TOOLS.clear()
        if len(prefix.hashes) <= MAX_KEPT_TOOL_CUTS:
            _KEPT_TOOLS[key] = prefix
    return prefix


def _members(members: Mapping[str, Raw]) -> bytes:
    """The members of an object in order of name, without `cache_control`."""
    pieces: list[bytes | Raw] = []
    for name in sorted(members):
        if name != "cache_control":
            pieces += (_MEMBER, name.encode(), _FIELD, members[name])
    return b"".join(pieces)


def _is_present(value: Raw) -> bool:
    return value not in (_ABSENT, _NULL, _EMPTY)


def _check_unicode(contents: list[Raw]) -> None:
    """Refuse what `_last_user_text` could not read: raw slices are checked for JSON's syntax, not for UTF-8."""
    for content in reversed(contents):
        if _is_present(content):
            try:
                str(content, "utf-8")
            except UnicodeDecodeError:
                raise MalformedPrompt("messages", "holds a text that is not valid JSON") from None
            if memoryview(content)[0] == _QUOTE:
                return


def _last_user_text(contents: list[Raw]) -> str | None:
    """What `contract.identity.derived_key` finds in these contents of user messages; the last one counts."""
    for content in reversed(contents):
        if not _is_present(content):
            continue
        try:
            value = _VALUE.decode(content)
        except (ValueError, RecursionError):
            raise MalformedPrompt("messages", "holds a text that is not valid JSON") from None
        text = value if type(value) is str else _last_text(value)
        if text:
            return text
    return None


def _last_text(content: Any) -> str | None:
    if isinstance(content, str):
        return content
    return next((part["text"] for part in reversed(content) if isinstance(part.get("text"), str)), None)


def _decode(decoder: "msgspec.json.Decoder[_T]", raw: Raw, path: str) -> _T:
    """Decode, or say where the prompt is malformed; never with any of its text."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        raise MalformedPrompt(_join(path, problem, place.rstrip("`")), f"is malformed: {problem}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise MalformedPrompt(path, "is not valid JSON") from None


def _join(path: str, problem: str, place: str) -> str:
    _, _, missing = problem.partition("missing required field `")
    return path + place + (f".{missing.rstrip('`')}" if missing else "")
