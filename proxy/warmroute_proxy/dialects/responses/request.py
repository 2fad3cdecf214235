"""The body of a request to `/v1/responses` as one to `/v1/chat/completions`.

The members of the chat body have one order, with the messages last.
"""

from typing import Any, Final, NamedTuple

from msgspec import Raw

from warmroute_proxy.dialects.raw_json import BadRequest, encode, is_text, object_at, text_at
from warmroute_proxy.dialects.responses.items import Opened, chat_messages
from warmroute_proxy.dialects.responses.settings import asks_summary, settings, unlisted
from warmroute_proxy.dialects.responses.tools import Tools

_ECHOED: Final = (
    "max_output_tokens", "metadata", "parallel_tool_calls", "prompt_cache_key", "reasoning", "safety_identifier",
    "temperature", "text", "tool_choice", "top_p", "user",
)  # fmt: skip


class ChatRequest(NamedTuple):
    """A request in chat's terms, and what its answer is translated by.

    `echoed`: settings that an answer repeats; `summarised`: whether it shows reasoning as a summary.
    """

    body: bytes
    model: str
    tools: Tools
    echoed: dict[str, Raw]
    summarised: bool
    dropped: frozenset[str]
    unlisted: frozenset[str]


def chat_request(raw: bytes, opened: Opened) -> ChatRequest:
    """Translate a body. Raises: BadRequest."""
    members = object_at(raw, "")
    model = text_at(members, "model", "")
    dropped: set[str] = set()
    chat: dict[str, Any] = {"model": model, **settings(members, dropped)}
    tools = Tools(members)
    if tools.chat:
        chat["tools"] = tools.chat
    if tools.choice is not None:
        chat["tool_choice"] = tools.choice
    messages: list[Any] = []
    if "instructions" in members and text_at(members, "instructions", ""):
        messages.append({"role": "system", "content": members["instructions"]})
    messages += _input(members.get("input"), opened, dropped)
    chat["messages"] = messages
    unknown = unlisted(members)
    echoed: dict[str, Raw] = {name: members[name] for name in _ECHOED if name in members}
    all_dropped = frozenset(dropped) | tools.dropped | unknown
    return ChatRequest(encode(chat), model, tools, echoed, asks_summary(members), all_dropped, unknown)


def _input(raw: Raw | None, opened: Opened, dropped: set[str]) -> list[Any]:
    if raw is None:
        raise BadRequest("input", "is required")
    if not is_text(raw):
        if memoryview(raw)[0] != 0x5B:
            raise BadRequest("input", "must be a text or a list of items")
        return chat_messages(raw, opened, dropped)
    if len(memoryview(raw)) == len(b'""'):
        raise BadRequest("input", "is empty")
    return [{"role": "user", "content": raw}]
