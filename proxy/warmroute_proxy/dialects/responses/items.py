"""The items of a request's input: each becomes a message of chat, or a piece of the model's message before it."""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.content import check_image, cleaned, content_of, is_given, misread
from warmroute_proxy.dialects.raw_json import MAX_SHOWN_CHARS, BadRequest, ChatPart, encode, is_text
from warmroute_proxy.dialects.responses.tools import INPUT, chat_name
from warmroute_proxy.normalising.texts import Texts

Opened = Callable[[str], str | None]
"""Opens sealed reasoning; None for what was not sealed here."""

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


_LIST: Final = 0x5B
_decode_items: Final = msgspec.json.Decoder(list[_Item]).decode
_decode_parts: Final = msgspec.json.Decoder(list[_Piece]).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_TEXTS: Final = frozenset({"input_text", "output_text", "text", "reasoning_text", "summary_text"})


class ItemReader:
    """The messages of one input. It joins what the model said in one turn: reasoning, then text, then calls.

    `dropped`: how many items of a type the model does not see.
    """

    def __init__(self, opened: Opened, texts: Texts) -> None:
        self.messages: list[ChatPart] = []
        self.dropped: Counter[str] = Counter()
        self._opened = opened
        self._texts = texts
        self._calls: set[str] = set()
        self._dropped_calls: set[str] = set()
        self._reasoning: list[str] = []
        self._content: Any = None
        self._called: list[ChatPart] = []

    def instruct(self, raw: Raw) -> None:
        """Begin with a system prompt."""
        text = self._texts.clean(raw, "system")
        if text is not None:
            self.messages.append({"role": "system", "content": text})

    def read(self, raw: Raw | None) -> None:
        """Take an input: a text or items. Raises: BadRequest."""
        if raw is None:
            raise BadRequest("input", "is required")
        if not is_text(raw):
            self._read_items(raw)
        elif len(memoryview(raw)) == len(b'""'):
            raise BadRequest("input", "is empty")
        elif (text := self._texts.clean(raw, "user")) is not None:
            self.messages.append({"role": "user", "content": text})
        if not self.messages:
            raise BadRequest("input", "holds nothing that a model can be asked")

    def _read_items(self, raw: Raw) -> None:
        if memoryview(raw)[0] != _LIST:
            raise BadRequest("input", "must be a text or a list of items")
        try:
            items = _decode_items(raw)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise misread(error, "input") from None
        if not items:
            raise BadRequest("input", "is empty")
        for at, item in enumerate(items):
            self._item(item, f"input[{at}]")
        self.flush()

    def _item(self, item: _Item, path: str) -> None:
        kind = item.type
        if kind == "message":
            self._message(item, path)
        elif kind == "function_call":
            self._call(item, path, _text(item.arguments, f"{path}.arguments"))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._result(item, path)
        elif kind == "reasoning":
            self._reason(item, path)
        elif kind == "custom_tool_call":
            given = _decode_text(_text(item.input, f"{path}.{INPUT}"))
            self._call(item, path, encode({INPUT: given}).decode())
        elif kind == "item_reference":
            raise BadRequest(path, "refers to an item, and nothing is stored here: send the item itself")
        elif kind in _HOSTED:
            self.dropped[kind] += 1
            if item.call_id is not None:
                self._dropped_calls.add(item.call_id)
        else:
            raise BadRequest(f"{path}.type", f"{kind[:MAX_SHOWN_CHARS]!r} is no item that is known here")

    def flush(self) -> None:
        """End the model's message."""
        if not (self._reasoning or self._content is not None or self._called):
            return
        message: ChatPart = {"role": "assistant"}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        message["content"] = self._content if self._content is not None or self._called else ""
        if self._called:
            message["tool_calls"] = self._called
        self.messages.append(message)
        self._reasoning, self._content, self._called = [], None, []

    def _message(self, item: _Item, path: str) -> None:
        role = _ROLES.get(item.role or "")
        if role is None:
            raise BadRequest(f"{path}.role", f"must be one of {', '.join(_ROLES)}")
        parts = _pieces(item.content, f"{path}.content")
        if role != "user" and any(piece["type"] != "text" for piece in parts):
            raise BadRequest(f"{path}.content", "must be a text or parts that are texts")
        if role == "assistant":
            if self._content is not None or self._called:
                self.flush()
            self._content = content_of(parts)
            return
        self.flush()
        parts = cleaned(parts, role, self._texts)
        if parts:
            self.messages.append({"role": role, "content": content_of(parts)})

    def _reason(self, item: _Item, path: str) -> None:
        """Reasoning that was sealed here; without a seal, the text that the client has."""
        if self._content is not None or self._called:
            self.flush()
        if item.encrypted_content:
            text = self._opened(item.encrypted_content)
        elif item.content and is_given(item.content):
            parts = _pieces(item.content, f"{path}.content")
            text = "".join([_decode_text(piece["text"]) for piece in parts if piece["type"] == "text"])
        else:
            text = None
        if text:
            self._reasoning.append(text)
        else:
            self.dropped["reasoning"] += 1

    def _call(self, item: _Item, path: str, arguments: Any) -> None:
        if not item.call_id:
            raise BadRequest(f"{path}.call_id", "is required")
        if not item.name:
            raise BadRequest(f"{path}.name", "is required")
        self._calls.add(item.call_id)
        function = {"name": chat_name(item.name, item.namespace), "arguments": arguments}
        self._called.append({"id": item.call_id, "type": "function", "function": function})

    def _result(self, item: _Item, path: str) -> None:
        call_id = item.call_id
        if not call_id:
            raise BadRequest(f"{path}.call_id", "is required")
        if call_id in self._dropped_calls:
            self.dropped[item.type] += 1
            return
        if call_id not in self._calls:
            raise BadRequest(f"{path}.call_id", "no call before it has this id")
        self.flush()
        parts = _pieces(item.output, f"{path}.output", may_be_empty=True)
        texts = [piece for piece in parts if piece["type"] == "text"]
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content_of(texts) if texts else ""})
        images = [piece for piece in parts if piece["type"] != "text"]
        if images:  # a message of this role has no place for them
            self.messages.append({"role": "user", "content": images})


def _pieces(raw: Raw, path: str, *, may_be_empty: bool = False) -> list[ChatPart]:
    """Content that is a text or a list of parts."""
    if not is_given(raw):
        raise BadRequest(path, "is required")
    if is_text(raw):
        return [{"type": "text", "text": raw}]
    try:
        found = _decode_parts(raw)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise misread(error, path) from None
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
