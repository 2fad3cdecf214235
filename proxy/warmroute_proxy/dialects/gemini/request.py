"""The body of a request to `:generateContent` and its like as one to `/v1/chat/completions`.

The members of the chat body have one order, with the messages last. The model, and whether the answer is streamed, are
in the path of the request.
"""

from typing import Any, Final, NamedTuple

from msgspec import Raw

from warmroute_proxy.dialects.gemini.contents import Opened, chat_messages, system_message
from warmroute_proxy.dialects.gemini.settings import settings
from warmroute_proxy.dialects.gemini.tools import choice, either, functions, snake
from warmroute_proxy.dialects.raw_json import BadRequest, Members, encode, object_at

_READ: Final = frozenset(
    {
        "contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "cachedContent",
        "safetySettings",  # of filters that are Google's
        "labels", "store", "model", "serviceTier",
    }
)  # fmt: skip
_KNOWN: Final = _READ | {snake(name) for name in _READ}


class ChatRequest(NamedTuple):
    """A request in chat's terms, and what its answer is translated by. `shows_thoughts`: whether it has them."""

    body: bytes
    model: str
    shows_thoughts: bool
    dropped: frozenset[str]
    unlisted: frozenset[str]


def chat_request(raw: bytes, model: str, opened: Opened, *, streams: bool) -> ChatRequest:
    """Translate a body. Raises: BadRequest."""
    members = object_at(raw, "")
    if either(members, "cachedContent") is not None:
        raise BadRequest(
            "cachedContent", "nothing is stored here: send the contents; prefixes are cached by themselves"
        )
    dropped: set[str] = set()
    chat: dict[str, Any] = {"model": model}
    if streams:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    found, thinking = settings(either(members, "generationConfig"), dropped)
    chat |= found
    chat |= _tools(members, dropped)
    messages = []
    instruction = either(members, "systemInstruction")
    if instruction is not None and (message := system_message(instruction, "systemInstruction")) is not None:
        messages.append(message)
    contents: Raw | None = members.get("contents")
    if contents is None:
        raise BadRequest("contents", "is required")
    chat["messages"] = messages + chat_messages(contents, opened, dropped)
    unlisted = frozenset(name for name in members if name not in _KNOWN)
    return ChatRequest(encode(chat), model, thinking.shown, frozenset(dropped) | unlisted, unlisted)


def counted_body(raw: bytes) -> bytes:
    """The body whose tokens a request to `:countTokens` asks for: itself, or its `generateContentRequest`."""
    inner = either(object_at(raw, ""), "generateContentRequest")
    return raw if inner is None else bytes(inner)


def _tools(members: Members, dropped: set[str]) -> dict[str, Any]:
    chat: dict[str, Any] = {}
    tools = functions(members["tools"], dropped) if "tools" in members else []
    if tools:
        chat["tools"] = tools
    config = either(members, "toolConfig")
    chosen = None if config is None else choice(config, tools, dropped)
    if chosen is not None:
        chat["tool_choice"] = chosen
    return chat
