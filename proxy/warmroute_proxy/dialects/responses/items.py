"""The items of a request's input: each becomes a message of chat, or a piece of the model's message before it.

What the model said in one turn is one message of chat: reasoning, then text, then calls. An item is translated by
itself, so its translation is kept by its bytes (`Known`); what it means for those around it is worked out each time.
"""

from enum import Enum
from sys import getsizeof
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.content import check_image, cleaned, content_of, is_given, misread
from warmroute_proxy.dialects.known import Known
from warmroute_proxy.dialects.raw_json import MAX_SHOWN_CHARS, BadRequest, ChatPart, encode, in_list, is_text
from warmroute_proxy.dialects.responses.tools import INPUT, chat_name
from warmroute_proxy.dialects.work import KNOWN_PER_STEP, TranslationWork
from warmroute_proxy.normalising.texts import Texts


class Opens(Protocol):
    """Opens sealed reasoning, with a key."""

    @property
    def key(self) -> bytes:
        """The key."""

    def open(self, sealed: str) -> str | None:
        """The reasoning; None for what was not sealed with this key."""


_ROLES: Final = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}
_HOSTED: Final = frozenset(
    {
        "additional_tools", "agent_message", "apply_patch_call", "apply_patch_call_output", "code_interpreter_call",
        "compaction", "compaction_summary", "compaction_trigger", "computer_call", "computer_call_output",
        "configuration_update", "context_compaction", "file_search_call", "image_generation_call",
        "local_shell_call", "local_shell_call_output", "mcp_approval_request", "mcp_approval_response", "mcp_call",
        "mcp_list_tools", "program", "program_output", "shell_call", "shell_call_output", "tool_search_call",
        "tool_search_output", "web_search_call",
    }
)  # fmt: skip
"""Items of tools and services that only OpenAI has: openai's `ResponseInputItem`, and Codex's `ResponseItem`."""

MAX_CALL_ID_CHARS: Final = 256  # OpenAI takes 64
_SLOTS_BYTES: Final = 64  # of an id in a set, beside itself


class _Item(msgspec.Struct):
    """Any item: what is read of it."""

    type: str = "message"
    role: str | None = None
    content: Raw = Raw()
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: Raw = Raw()
    input: Raw = Raw()
    output: Raw = Raw()
    encrypted_content: str | None = None


class _Piece(msgspec.Struct):
    """A part of content."""

    type: str
    text: Raw = Raw()
    refusal: Raw = Raw()
    image_url: Raw = Raw()
    file_id: str | None = None


_decode_item: Final = msgspec.json.Decoder(_Item).decode
_decode_parts: Final = msgspec.json.Decoder(list[_Piece]).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_TEXTS: Final = frozenset({"input_text", "output_text", "text", "reasoning_text", "summary_text"})


class _Kind(Enum):
    """What an item is to the message of the model that is being joined."""

    MESSAGE = 1  # of somebody else: it ends that message
    RESULT = 2  # so does the result of a call
    REASONING = 3
    TEXT = 4
    CALL = 5
    DROPPED = 6


class _InChat(NamedTuple):
    """One item in chat. `json`: whole messages, or what the model's message gets: reasoning, content or a call.

    `call_id`: of a call, of its result, or of a dropped call; `name`: the type that a dropped item is counted as.
    `applied` and `off`: what rules did to its texts.
    """

    kind: _Kind
    json: bytes
    call_id: str
    name: str
    applied: frozenset[str]
    off: frozenset[str]


_KNOWN: Final[Known[_InChat]] = Known()


class ReadItems(NamedTuple):
    """What items that were read mean for those behind them. `scope`: what their translation depends on.

    `ids_bytes`: of the ids, in memory. `reasoning`, `content` and `called`: of the model's message that is still open.
    `applied` and `off`: what rules did.
    """

    scope: tuple[bytes, frozenset[str]]
    calls: frozenset[str]
    dropped_calls: frozenset[str]
    ids_bytes: int
    dropped: dict[str, int]
    reasoning: tuple[bytes, ...]
    content: bytes
    called: tuple[bytes, ...]
    applied: frozenset[str]
    off: frozenset[str]

    @property
    def size_bytes(self) -> int:
        """Of the model's message that is still open, and of the ids."""
        return self.ids_bytes + len(self.content) + sum(map(len, self.reasoning + self.called))


_NOTHING_READ: Final = ReadItems(
    (b"", frozenset()), frozenset(), frozenset(), 0, {}, (), b"", (), frozenset(), frozenset()
)


class ItemReader:
    """The messages of one input, as JSON. `dropped`: how many items of a type the model does not see."""

    def __init__(self, seal: Opens, texts: Texts, work: TranslationWork, before: ReadItems | None = None) -> None:
        """`work`: what may be made of them. `before`: what is in front of them, in the same scope."""
        self.messages: list[bytes] = []
        self.dropped: dict[str, int] = {}
        self._seal = seal
        self._texts = texts
        self._work = work
        self._scope = seal.key, texts.on
        self._before = _NOTHING_READ
        self._calls: set[str] = set()  # of these items; those before are not copied
        self._dropped_calls: set[str] = set()  # likewise
        self._reasoning: list[bytes] = []
        self._content = b""
        self._called: list[bytes] = []
        if before is not None:
            self._go_on(before)

    def _go_on(self, before: ReadItems) -> None:
        assert before.scope == self._scope
        self._before = before
        self.dropped.update(before.dropped)
        self._reasoning, self._content, self._called = [*before.reasoning], before.content, [*before.called]
        self._texts.add(before.applied, before.off)

    def read_items(self) -> ReadItems:
        """What was read so far means for what follows."""
        before = self._before
        calls, call_bytes = _with(before.calls, self._calls)
        dropped, dropped_bytes = _with(before.dropped_calls, self._dropped_calls)
        return ReadItems(
            self._scope, calls, dropped, before.ids_bytes + call_bytes + dropped_bytes, dict(self.dropped),
            tuple(self._reasoning), self._content, tuple(self._called), *self._texts.scope(),
        )  # fmt: skip

    def add_text(self, raw: Raw, role: str) -> None:
        """Add a message that is one text, unless the rules leave nothing of it."""
        self._flush()
        text = self._texts.clean(raw, role)
        if text is not None:
            self.messages.append(encode({"role": role, "content": text}))

    def read(self, raws: list[Raw]) -> None:
        """Take all items, behind which the model is to speak. Raises: BadRequest."""
        self.take(raws)
        self._flush()

    def take(self, raws: list[Raw]) -> None:
        """Take some items; what the model says in the last of them may go on. Raises: BadRequest."""
        self._work.take(len(raws) // KNOWN_PER_STEP)
        for at, raw in enumerate(raws):
            found = _KNOWN.get(self._scope, raw)
            if found is None:
                self._work.take(1)
                found = _ItemReading(self._seal, Texts(self._texts.on), self._work).read(raw, f"input[{at}]")
                _KNOWN.keep(self._scope, raw, found, len(found.json))
            if found.applied or found.off:
                self._texts.add(found.applied, found.off)
            self._take(found, at)

    def _take(self, item: _InChat, at: int) -> None:
        kind = item.kind
        if kind is _Kind.CALL:
            self._calls.add(item.call_id)
            self._called.append(item.json)
        elif kind is _Kind.RESULT:
            self._answer(item, at)
        elif kind is _Kind.MESSAGE:
            self._flush()
            if item.json:
                self.messages.append(item.json)
        elif kind is _Kind.DROPPED:
            self._drop(item)
            if item.call_id:
                self._dropped_calls.add(item.call_id)
        else:
            if self._content or self._called:
                self._flush()
            if kind is _Kind.TEXT:
                self._content = item.json
            else:
                self._reasoning.append(item.json)

    def _answer(self, item: _InChat, at: int) -> None:
        """The result of a call: with the call, or gone like it."""
        if item.call_id in self._dropped_calls or item.call_id in self._before.dropped_calls:
            self._drop(item)
        elif item.call_id not in self._calls and item.call_id not in self._before.calls:
            raise BadRequest(f"input[{at}].call_id", "no call before it has this id")
        else:
            self._flush()
            self.messages.append(item.json)

    def _drop(self, item: _InChat) -> None:
        self.dropped[item.name] = self.dropped.get(item.name, 0) + 1

    def _flush(self) -> None:
        """End the model's message."""
        if not (self._reasoning or self._content or self._called):
            return
        reasoning = b""
        if self._reasoning:
            reasoning = b'"reasoning_content":"%b",' % b"".join(self._reasoning)
        content = self._content or (b"null" if self._called else b'""')
        calls = b',"tool_calls":[%b]' % b",".join(self._called) if self._called else b""
        self.messages.append(b'{"role":"assistant",%b"content":%b%b}' % (reasoning, content, calls))
        self._reasoning, self._content, self._called = [], b"", []


def _with(ids: frozenset[str], more: set[str]) -> tuple[frozenset[str], int]:
    """Ids with more of them, and the bytes of those that are new."""
    new = more - ids
    return (ids | new, sum(map(getsizeof, new)) + _SLOTS_BYTES * len(new)) if new else (ids, 0)


class _ItemReading:
    """Reads one item."""

    def __init__(self, seal: Opens, texts: Texts, work: TranslationWork) -> None:
        self._seal = seal
        self._texts = texts
        self._work = work

    def read(self, raw: Raw, path: str) -> _InChat:
        """The item in chat."""
        try:
            item = _decode_item(raw)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise misread(error, path) from None
        if item.call_id is not None and len(item.call_id) > MAX_CALL_ID_CHARS:
            raise BadRequest(f"{path}.call_id", f"has more than {MAX_CALL_ID_CHARS} characters")
        kind = item.type
        if kind == "message":
            return self._message(item, path)
        if kind == "function_call":
            return self._call(item, path, _text(item.arguments, f"{path}.arguments"))
        if kind in ("function_call_output", "custom_tool_call_output"):
            return self._result(item, path)
        if kind == "reasoning":
            return self._reason(item, path)
        if kind == "custom_tool_call":
            given = _decode_text(_text(item.input, f"{path}.{INPUT}"))
            return self._call(item, path, encode({INPUT: given}).decode())
        if kind == "item_reference":
            raise BadRequest(path, "refers to an item, and nothing is stored here: send the item itself")
        if kind in _HOSTED:
            return self._made(_Kind.DROPPED, b"", item.call_id or "", kind)
        raise BadRequest(f"{path}.type", f"{kind[:MAX_SHOWN_CHARS]!r} is no item that is known here")

    def _made(self, kind: _Kind, json: bytes, call_id: str = "", name: str = "") -> _InChat:
        return _InChat(kind, json, call_id, name, *self._texts.scope())

    def _message(self, item: _Item, path: str) -> _InChat:
        role = _ROLES.get(item.role or "")
        if role is None:
            raise BadRequest(f"{path}.role", f"must be one of {', '.join(_ROLES)}")
        parts = self._pieces(item.content, f"{path}.content")
        if role != "user" and any(piece["type"] != "text" for piece in parts):
            raise BadRequest(f"{path}.content", "must be a text or parts that are texts")
        if role == "assistant":
            return self._made(_Kind.TEXT, encode(content_of(parts)))
        parts = cleaned(parts, role, self._texts)
        return self._made(_Kind.MESSAGE, encode({"role": role, "content": content_of(parts)}) if parts else b"")

    def _reason(self, item: _Item, path: str) -> _InChat:
        """Reasoning that was sealed here; without a seal, the text that the client has."""
        text: str | None = None
        if item.encrypted_content:
            text = self._seal.open(item.encrypted_content)
        elif is_given(item.content):
            parts = self._pieces(item.content, f"{path}.content")
            text = "".join([_decode_text(piece["text"]) for piece in parts if piece["type"] == "text"])
        if not text:
            return self._made(_Kind.DROPPED, b"", "", "reasoning")
        return self._made(_Kind.REASONING, encode(text)[1:-1])

    def _call(self, item: _Item, path: str, arguments: Any) -> _InChat:
        if not item.call_id:
            raise BadRequest(f"{path}.call_id", "is required")
        if not item.name:
            raise BadRequest(f"{path}.name", "is required")
        function = {"name": chat_name(item.name, item.namespace), "arguments": arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        return self._made(_Kind.CALL, encode(call), item.call_id)

    def _result(self, item: _Item, path: str) -> _InChat:
        if not item.call_id:
            raise BadRequest(f"{path}.call_id", "is required")
        parts = self._pieces(item.output, f"{path}.output", may_be_empty=True)
        texts = [piece for piece in parts if piece["type"] == "text"]
        content = content_of(texts) if texts else ""
        messages: list[ChatPart] = [{"role": "tool", "tool_call_id": item.call_id, "content": content}]
        images = [piece for piece in parts if piece["type"] != "text"]
        if images:  # a message of this role has no place for them
            messages.append({"role": "user", "content": images})
        return self._made(_Kind.RESULT, in_list(messages), item.call_id, item.type)

    def _pieces(self, raw: Raw, path: str, *, may_be_empty: bool = False) -> list[ChatPart]:
        """Content that is a text or a list of parts."""
        if not is_given(raw):
            raise BadRequest(path, "is required")
        if is_text(raw):
            return [{"type": "text", "text": raw}]
        try:
            found = _decode_parts(raw)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise misread(error, path) from None
        self._work.take(len(found))
        if not found and not may_be_empty:
            raise BadRequest(path, "is empty")
        return [_piece(piece, f"{path}[{at}]") for at, piece in enumerate(found)]


def _piece(piece: _Piece, path: str) -> ChatPart:
    kind = piece.type
    if kind in _TEXTS:
        return {"type": "text", "text": _text(piece.text, f"{path}.text")}
    if kind == "refusal":
        return {"type": "text", "text": _text(piece.refusal, f"{path}.refusal")}
    if kind == "input_image":
        if not is_given(piece.image_url):
            raise BadRequest(f"{path}.image_url", "is required: nothing is stored here, so a file has no id")
        url = _decode_text(_text(piece.image_url, f"{path}.image_url"))
        check_image(url, f"{path}.image_url")
        return {"type": "image_url", "image_url": {"url": piece.image_url}}
    shown = kind[:MAX_SHOWN_CHARS]
    raise BadRequest(f"{path}.type", f"{shown!r} is no part that is served here: input_text, input_image")


def _text(raw: Raw, path: str) -> Raw:
    if not is_given(raw):
        raise BadRequest(path, "is required")
    if not is_text(raw):
        raise BadRequest(path, "must be a text")
    return raw
