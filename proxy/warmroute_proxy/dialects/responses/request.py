"""The body of a request to `/v1/responses` as one to `/v1/chat/completions`.

The members of the chat body have one order, with the messages last.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from msgspec import Raw

from warmroute_proxy.dialects.raw_json import encode, object_at, text_at
from warmroute_proxy.dialects.responses.items import ItemReader, Opened
from warmroute_proxy.dialects.responses.settings import asks_summary, settings, unlisted
from warmroute_proxy.dialects.responses.tools import Tool, Tools
from warmroute_proxy.normalising.texts import Texts

_ECHOED: Final = (
    "max_output_tokens", "metadata", "parallel_tool_calls", "prompt_cache_key", "reasoning", "safety_identifier",
    "temperature", "text", "tool_choice", "top_p", "user",
)  # fmt: skip


class ChatRequest(NamedTuple):
    """A request in chat's terms, and what its answer is translated by.

    `tools`: by their names in chat. `echoed`: settings that an answer repeats. `summarised`: whether it shows reasoning
    as a summary. `dropped`: members, and tools by their type, that chat has no place for; `dropped_blocks`: how many
    items of a type the model does not see; `texts`: what cleaned its texts.
    """

    body: bytes
    model: str
    tools: dict[str, Tool]
    echoed: dict[str, Raw]
    summarised: bool
    dropped: frozenset[str]
    unlisted: frozenset[str]
    dropped_blocks: dict[str, int]
    texts: Texts


def chat_request(raw: bytes, opened: Opened, texts_of: Callable[[str], Texts]) -> ChatRequest:
    """Translate a body. `texts_of`: what cleans the texts of a prompt for a model. Raises: BadRequest."""
    members = object_at(raw, "")
    model = text_at(members, "model", "")
    dropped: set[str] = set()
    chat: dict[str, Any] = {"model": model, **settings(members, dropped)}
    tools = Tools(members)
    if tools.chat:
        chat["tools"] = tools.chat
    if tools.choice is not None:
        chat["tool_choice"] = tools.choice
    texts = texts_of(model)
    reader = ItemReader(opened, texts)
    if "instructions" in members and text_at(members, "instructions", ""):
        reader.instruct(members["instructions"])
    reader.read(members.get("input"))
    chat["messages"] = reader.messages
    unknown = unlisted(members)
    echoed: dict[str, Raw] = {name: members[name] for name in _ECHOED if name in members}
    all_dropped = frozenset(dropped) | tools.dropped | unknown
    summarised = asks_summary(members)
    return ChatRequest(
        encode(chat), model, tools.by_name, echoed, summarised, all_dropped, unknown, dict(reader.dropped), texts
    )
