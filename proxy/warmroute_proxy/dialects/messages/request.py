"""Translates the body of a request to `/v1/messages` to one for `/v1/chat/completions`.

A value that chat takes under the same name is copied as it came. The list of chat's fields checks all values later.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects import chat_draft
from warmroute_proxy.dialects.chat_draft import ChatDraft
from warmroute_proxy.dialects.messages.conversation import ConversationReader
from warmroute_proxy.dialects.messages.state import STATE, refuse_state
from warmroute_proxy.dialects.messages.tools import read_tools, tool_choice
from warmroute_proxy.dialects.raw_json import (
    BadRequest,
    BodyReader,
    Members,
    list_at,
    object_at,
    text_at,
    text_in,
)
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.normalising.texts import Texts

_COPIED: Final = ("max_tokens", "temperature", "top_p", "top_k", "stream", "metadata", "service_tier")
_READ: Final = frozenset(
    {
        *_COPIED, "model", "messages", "system", "tools", "tool_choice", "stop_sequences", "thinking", "cache_control",
        *STATE, "output_config", "output_format",
    }
)  # fmt: skip
_UNSERVED: Final = ("betas", "diagnostics", "fallbacks", "inference_geo", "speed", "user_profile_id")
"""Members that Anthropic's clients also send; they are dropped."""

_KNOWN: Final = _READ.union(_UNSERVED)
_BODIES: Final = BodyReader("messages", _KNOWN)
_THINKS: Final = {"enabled": True, "adaptive": True, "disabled": False, "between_tools": False}
"""Whether the model thinks, by the type of `thinking`. With `between_tools`, only its progress notes count as thoughts.
"""

_OFF: Final[dict[str, tuple[bytes, Any]]] = {"top_k": (b"0", -1), "service_tier": (b'"standard_only"', "default")}
"""Values that turn a setting off, as Anthropic and as chat write them."""

_decode_texts: Final = msgspec.json.Decoder(list[str]).decode


class ChatRequest(chat_draft.ChatRequest, kw_only=True):
    stop_sequences: tuple[str, ...]


def chat_request(
    raw: bytes,
    key: bytes,
    texts_of: Callable[[str], Texts],
    *,
    counts_only: bool = False,
    work: TranslationWork | None = None,
) -> ChatRequest:
    """Translate a body. Raises: BadRequest.

    `key`: the key that signs reasoning. `texts_of`: takes a model, and gives the `Texts` that clean a prompt for it.
    `counts_only`: the body came to `/v1/messages/count_tokens`. `work`: the steps that the translation may take.
    """
    work = work or TranslationWork()
    members, messages = _read(raw)
    model = text_at(members, "model", "")
    draft = ChatDraft(model)
    refuse_state(members, draft.dropped)
    if not counts_only and "max_tokens" not in members:
        raise BadRequest("max_tokens", "is required")
    reader = ConversationReader(texts_of(model), key, work)
    stops = _stop_sequences(members)
    draft.chat |= _settings(members, stops, draft.dropped)
    if "system" in members:
        reader.system(members["system"])
    found = reader.read(messages, counts_only=counts_only)
    if reader.effort:
        draft.chat["reasoning_effort"] = reader.effort
    tools = read_tools(members, reader.added, key, work)
    if "tool_choice" in members:
        chosen = tool_choice(members["tool_choice"])
        draft.behind = chosen if tools.chat else {}
    draft.dropped |= tools.dropped.union(name for name in _UNSERVED if name in members)
    unlisted = frozenset(name for name in members if name not in _KNOWN)
    marks = reader.marks + tools.marks + ("cache_control" in members)
    return draft.request(
        ChatRequest, reader, found, tools.chat, unlisted, cache_marks=marks, stop_sequences=tuple(stops)
    )


def _read(raw: bytes) -> tuple[Members, list[Raw]]:
    """The members of a body without its messages and without nulls, and the messages."""
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


def _settings(members: Members, stops: list[str], dropped: set[str]) -> dict[str, Any]:
    """The settings of the answer, in chat's terms. Settings without a place in chat are added to `dropped`."""
    chat: dict[str, Any] = {name: members[name] for name in _COPIED if name in members}
    for name, (given, in_chat) in _OFF.items():
        if bytes(members.get(name, b"")) == given:
            chat[name] = in_chat
    if stops:
        chat["stop"] = stops
    if bytes(members.get("stream", b"")) == b"true":
        chat["stream_options"] = {"include_usage": True}
    if "thinking" in members:
        thinks = _THINKS.get(text_in(object_at(members["thinking"], "thinking"), "type"))
        if thinks is None:
            dropped.add("thinking")
        else:
            chat["chat_template_kwargs"] = {"thinking": thinks, "enable_thinking": thinks}
    return chat | _output(members, dropped)


def _output(members: Members, dropped: set[str]) -> dict[str, Any]:
    """`output_config`, and the older `output_format`, in chat's terms."""
    chat: dict[str, Any] = {}
    config = object_at(members["output_config"], "output_config") if "output_config" in members else {}
    dropped.update(f"output_config.{name}" for name in config if name not in ("effort", "format"))
    if "effort" in config:
        text_at(config, "effort", "output_config")
        chat["reasoning_effort"] = config["effort"]
    for raw, path in ((config.get("format"), "output_config.format"), (members.get("output_format"), "output_format")):
        if raw is not None and "response_format" not in chat:
            form = object_at(raw, path)
            if text_at(form, "type", path) != "json_schema":
                raise BadRequest(f"{path}.type", "must be json_schema")
            if "schema" not in form:
                raise BadRequest(f"{path}.schema", "is required")
            object_at(form["schema"], f"{path}.schema")
            schema = {"name": "answer", "schema": form["schema"], "strict": True}
            chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    return chat
