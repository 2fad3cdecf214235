"""The body of a request to `/v1/messages` as one to `/v1/chat/completions`.

The members of the chat body have one order, with the tools last: what is short is in front of the messages, so that the
intake knows bodies of one client again. A value that chat takes under the same name is copied as it came, and checked
with all others by the list of chat's fields.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.messages.conversation import ConversationReader
from warmroute_proxy.dialects.messages.tools import read_tools
from warmroute_proxy.dialects.raw_json import (
    BadRequest,
    BodyReader,
    Members,
    Piece,
    chat_pieces,
    kind_of,
    list_at,
    object_at,
    text_at,
)
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.normalising.texts import Texts

_COPIED: Final = ("max_tokens", "temperature", "top_p", "top_k", "stream", "metadata", "service_tier")
_READ: Final = frozenset(
    {*_COPIED, "model", "messages", "system", "tools", "tool_choice", "stop_sequences", "thinking", "cache_control"}
)
_UNSERVED: Final = (
    "betas", "container", "context_management", "mcp_servers", "output_config", "output_format", "speed"
)  # fmt: skip
"""What Anthropic's clients send besides; it is dropped like other members."""

_BODIES: Final = BodyReader("messages", _READ.union(_UNSERVED))
_THINKS: Final = {"enabled": True, "adaptive": True, "disabled": False}
_decode_texts: Final = msgspec.json.Decoder(list[str]).decode


class ChatRequest(NamedTuple):
    """A request in chat's terms, and what its answer is translated by.

    `dropped`: members, and tools by their type, that chat has no place for. `dropped_blocks`: how many blocks of a type
    the model does not see. `cache_marks`: how many `cache_control` were taken off. `texts`: what cleaned its texts.
    """

    pieces: list[Piece]
    model: str
    stop_sequences: tuple[str, ...]
    dropped: frozenset[str]
    dropped_blocks: dict[str, int]
    cache_marks: int
    texts: Texts

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)


def chat_request(
    raw: bytes,
    key: bytes,
    texts_of: Callable[[str], Texts],
    *,
    counts_only: bool = False,
    work: TranslationWork | None = None,
) -> ChatRequest:
    """Translate a body. Raises: BadRequest.

    `key`: that of signatures. `texts_of`: what cleans the texts of a prompt for a model. `counts_only`: the body is one
    of `/v1/messages/count_tokens`. `work`: what may be made of it.
    """
    work = work or TranslationWork()
    members, messages = _read(raw)
    model = text_at(members, "model", "")
    if not counts_only and "max_tokens" not in members:
        raise BadRequest("max_tokens", "is required")
    texts = texts_of(model)
    reader = ConversationReader(texts, key, work)
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
    found = [*reader.system(members), *reader.messages(messages, counts_only=counts_only)]
    tools = read_tools(members, key, work)
    dropped = frozenset(name for name in members if name not in _READ) | tools.dropped
    marks = reader.marks + tools.marks + ("cache_control" in members)
    pieces = chat_pieces(chat, found, tools.chat)
    return ChatRequest(pieces, model, tuple(stops), dropped, dict(reader.dropped), marks, texts)


def _read(raw: bytes) -> tuple[Members, list[Raw]]:
    """The members of a body but its messages, those that are null left out, and the messages."""
    members, messages = _BODIES.read(raw)
    if messages is None:
        if "messages" not in members:
            raise BadRequest("messages", "is required")
        messages = list_at(members.pop("messages"), "messages")
    return members, messages


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
