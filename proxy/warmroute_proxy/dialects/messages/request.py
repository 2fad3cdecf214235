"""The body of a request to `/v1/messages` as one to `/v1/chat/completions`.

The members of the chat body have one order, with the messages last. A value that chat takes under the same name is
copied as it came, and checked with all others by the list of chat's fields.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.messages.blocks import content_of, part_of, parts_at, tool_call, tool_message
from warmroute_proxy.dialects.raw_json import (
    MAX_SHOWN_CHARS,
    BadRequest,
    ChatPart,
    Members,
    encode,
    is_text,
    kind_of,
    list_at,
    object_at,
    text_at,
)

_COPIED: Final = ("max_tokens", "temperature", "top_p", "top_k", "stream", "metadata", "service_tier")
_READ: Final = frozenset(
    {*_COPIED, "model", "messages", "system", "tools", "tool_choice", "stop_sequences", "thinking", "cache_control"}
)
_THINKS: Final = {"enabled": True, "adaptive": True, "disabled": False}
_CHOICES: Final[dict[str, Any]] = {"auto": "auto", "any": "required", "none": "none"}
_MANY: Final = frozenset({"text", "image", "document"})
_decode_texts: Final = msgspec.json.Decoder(list[str]).decode


class ChatRequest(NamedTuple):
    """A request in chat's terms, and what its answer is translated by. `dropped`: what chat has no path for."""

    body: bytes
    model: str
    stop_sequences: tuple[str, ...]
    dropped: frozenset[str]


def chat_request(raw: bytes, *, counts_only: bool = False) -> ChatRequest:
    """Translate a body. `counts_only`: of `/v1/messages/count_tokens`. Raises: BadRequest."""
    members = object_at(raw, "")
    model = text_at(members, "model", "")
    if not counts_only and "max_tokens" not in members:
        raise BadRequest("max_tokens", "is required")
    reader = _Reader()
    chat: dict[str, Any] = {"model": model}
    for name in _COPIED:
        if name in members:
            chat[name] = members[name]
    stops = _stop_sequences(members)
    if stops:
        chat["stop"] = stops
    if bytes(members.get("stream", b"")) == b"true":
        chat["stream_options"] = {"include_usage": True}
    if "thinking" in members:
        thinks = _thinks(members["thinking"])
        chat["chat_template_kwargs"] = {"thinking": thinks, "enable_thinking": thinks}
    chat |= _tools(members)
    chat["messages"] = [*_system(members), *reader.messages(members, counts_only=counts_only)]
    dropped = frozenset(name for name in members if name not in _READ) | reader.dropped
    return ChatRequest(encode(chat), model, tuple(stops), dropped)


def _stop_sequences(members: Members) -> list[str]:
    raw = members.get("stop_sequences")
    if raw is None:
        return []
    try:
        return _decode_texts(raw)
    except (msgspec.DecodeError, ValueError):
        raise BadRequest("stop_sequences", "must be a list of texts") from None


def _thinks(raw: Raw) -> bool:
    """Whether the model is to think: what the templates of open models call it."""
    kind = kind_of(object_at(raw, "thinking"), "thinking")
    if kind not in _THINKS:
        raise BadRequest("thinking.type", f"must be one of {', '.join(_THINKS)}")
    return _THINKS[kind]


def _tools(members: Members) -> dict[str, Any]:
    """Tools and how they are chosen."""
    found: dict[str, Any] = {}
    if "tools" in members:
        tools = [_tool(object_at(raw, f"tools.{at}"), f"tools.{at}") for at, raw in enumerate(_elements(members))]
        if tools:
            found["tools"] = tools
    if "tool_choice" in members:
        choice = object_at(members["tool_choice"], "tool_choice")
        kind = kind_of(choice, "tool_choice")
        if kind == "tool":
            found["tool_choice"] = {"type": "function", "function": {"name": text_at(choice, "name", "tool_choice")}}
        elif kind in _CHOICES:
            found["tool_choice"] = _CHOICES[kind]
        else:
            raise BadRequest("tool_choice.type", f"must be one of {', '.join([*_CHOICES, 'tool'])}")
        alone = bytes(choice.get("disable_parallel_tool_use", b"false"))
        if alone not in (b"true", b"false"):
            raise BadRequest("tool_choice.disable_parallel_tool_use", "must be true or false")
        if alone == b"true":
            found["parallel_tool_calls"] = False
    return found


def _elements(members: Members) -> list[Raw]:
    return list_at(members["tools"], "tools")


def _tool(tool: Members, path: str) -> ChatPart:
    """A tool of the client's. Those that Anthropic runs itself have a type and no schema."""
    name = text_at(tool, "name", path)
    kind = text_at(tool, "type", path) if "type" in tool else "custom"
    if kind != "custom":
        shown = kind[:MAX_SHOWN_CHARS]
        raise BadRequest(f"{path}.type", f"{shown!r} is a tool that only Anthropic runs; send tools with input_schema")
    if "input_schema" not in tool:
        raise BadRequest(f"{path}.input_schema", "is required")
    object_at(tool["input_schema"], f"{path}.input_schema")
    function: dict[str, Any] = {"name": name}
    if "description" in tool:
        text_at(tool, "description", path)
        function["description"] = tool["description"]
    function["parameters"] = tool["input_schema"]
    return {"type": "function", "function": function}


def _system(members: Members) -> list[ChatPart]:
    raw = members.get("system")
    if raw is None:
        return []
    parts = parts_at(raw, "system")
    _only_texts(parts, "system")
    return [{"role": "system", "content": content_of(parts)}] if parts else []


def _only_texts(parts: list[ChatPart], path: str) -> None:
    if any(piece["type"] != "text" for piece in parts):
        raise BadRequest(path, "must be a text or text blocks")


class _Reader:
    """The messages of one request. `dropped`: the kinds of block that were."""

    def __init__(self) -> None:
        self.dropped: frozenset[str] = frozenset()
        self._calls: set[str] = set()

    def messages(self, members: Members, *, counts_only: bool) -> list[ChatPart]:
        """All of a request's messages, each translated by itself."""
        if "messages" not in members:
            raise BadRequest("messages", "is required")
        raws = list_at(members["messages"], "messages")
        if not raws:
            raise BadRequest("messages", "at least one message is required")
        out: list[ChatPart] = []
        for at, raw in enumerate(raws):
            out += self._message(object_at(raw, f"messages.{at}"), f"messages.{at}")
        if out[-1]["role"] == "assistant" and not counts_only:
            raise BadRequest(f"messages.{len(raws) - 1}.role", "the last message must not be the assistant's")
        return out

    def _message(self, message: Members, path: str) -> list[ChatPart]:
        role = text_at(message, "role", path)
        raw = message.get("content")
        path = f"{path}.content"
        if raw is None:
            raise BadRequest(path, "is required")
        if bytes(raw) in (b'""', b"[]"):
            raise BadRequest(path, "is empty")
        if role == "system":
            parts = parts_at(raw, path)
            _only_texts(parts, path)
            return [{"role": "system", "content": content_of(parts)}]
        if role not in ("user", "assistant"):
            raise BadRequest(f"{path.removesuffix('content')}role", "must be user, assistant or system")
        if is_text(raw):
            return [{"role": role, "content": raw}]
        blocks = [(object_at(each, f"{path}.{at}"), f"{path}.{at}") for at, each in enumerate(list_at(raw, path))]
        return list(self._of_user(blocks)) if role == "user" else [self._of_assistant(blocks)]

    def _of_user(self, blocks: list[tuple[Members, str]]) -> Iterator[ChatPart]:
        """Results of tools first, then what the user says."""
        parts: list[ChatPart] = []
        for block, path in blocks:
            if kind_of(block, path) == "tool_result":
                message, images = tool_message(block, path)
                if message["tool_call_id"] not in self._calls:
                    raise BadRequest(f"{path}.tool_use_id", "no tool_use before it has this id")
                yield message
                parts += images
            else:
                parts.append(part_of(block, path))
        if parts:
            yield {"role": "user", "content": content_of(parts)}

    def _of_assistant(self, blocks: list[tuple[Members, str]]) -> ChatPart:
        texts: list[ChatPart] = []
        calls: list[ChatPart] = []
        thoughts: list[str] = []
        for block, path in blocks:
            kind = kind_of(block, path)
            if kind == "tool_use":
                call = tool_call(block, path)
                self._calls.add(call["id"])
                calls.append(call)
            elif kind == "thinking":
                thoughts.append(text_at(block, "thinking", path))
            elif kind == "redacted_thinking":
                self.dropped |= {kind}
            elif kind in _MANY:
                texts.append(part_of(block, path))
            else:
                raise BadRequest(f"{path}.type", f"{kind[:MAX_SHOWN_CHARS]!r} is no block of an assistant's message")
        _only_texts(texts, blocks[0][1])
        message: ChatPart = {"role": "assistant"}
        thought = "".join(thoughts)
        if thought:
            message["reasoning_content"] = thought
        message["content"] = content_of(texts) if texts else None if calls else ""
        if calls:
            message["tool_calls"] = calls
        return message
