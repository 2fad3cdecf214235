"""Translates the body of a request to `/v1/responses` into one for `/v1/chat/completions`."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects import chat_draft
from warmroute_proxy.dialects.chat_draft import ChatDraft, Opens
from warmroute_proxy.dialects.raw_json import (
    BadRequest,
    BodyReader,
    Members,
    Piece,
    encode,
    is_list,
    is_text,
    list_at,
    object_at,
    text_at,
)
from warmroute_proxy.dialects.responses.item_reading import PROMPT
from warmroute_proxy.dialects.responses.items import ItemReader, ReadItems
from warmroute_proxy.dialects.responses.settings import READ, asks_summary, settings, unlisted, updated
from warmroute_proxy.dialects.responses.tools import Tool, read_tools, tool_choice
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.normalising.texts import Texts

_ECHOED: Final = (
    "max_output_tokens", "metadata", "parallel_tool_calls", "prompt_cache_key", "reasoning", "safety_identifier",
    "temperature", "text", "tool_choice", "top_p", "user",
)  # fmt: skip

_PLAIN_TEXT: Final = {"format": {"type": "text"}}  # an answer names the format even if the request does not

_NOT_OF_SUMMARIES: Final = frozenset({"tool_choice", "response_format", "verbosity"})

MAX_KEPT_BYTES: Final = 262_144


class _Message(msgspec.Struct):
    """The members of an item that tell whether it is a message, whose it is, and what it says."""

    type: str = "message"
    role: str | None = None
    content: Raw = Raw()


_decode_message: Final = msgspec.json.Decoder(_Message).decode


class OtherScope(Exception):
    """The earlier items of a conversation were read by other normalising rules, or for another share group."""


_BODY: Final = BodyReader("input", READ)


class ChatRequest(chat_draft.ChatRequest, kw_only=True):
    """A request to `/v1/responses`.

    `tools`: the client's tools by name in chat. `echoed`: settings that the answer repeats. `summarised`: whether the
    answer shows reasoning as a summary. `compacts`: whether the answer is a summary of the conversation. `kept_items`:
    the messages that `/v1/responses/compact` returns before the summary; None for all other requests.
    """

    tools: dict[str, Tool]
    echoed: dict[str, Raw]
    summarised: bool
    compacts: bool
    kept_items: list[dict[str, Any]] | None


class RequestReading:
    """Reads the members of a request, then its input. `lead`: the message of `instructions`, before the input."""

    def __init__(
        self,
        members: Members,
        seal: Opens,
        texts_of: Callable[[str], Texts],
        work: TranslationWork,
        before: ReadItems | None = None,
        *,
        compacts: bool = False,
    ) -> None:
        """Read the members. Raises: BadRequest, OtherScope.

        `before`: what the conversation's earlier items leave. `compacts`: whether the answer is a summary of the input,
        and repeats the last messages of users.
        """
        self._kept_items: list[dict[str, Any]] | None = [] if compacts else None
        self._members = members
        self._draft = draft = ChatDraft(text_at(members, "model", ""))
        self._key = seal.key
        self._work = work
        draft.chat |= settings(members, draft.dropped)
        texts = texts_of(draft.model)
        if before is not None and before.scope != (seal.key, texts.on):
            raise OtherScope
        self.lead: list[bytes] = []
        if "instructions" in members and text_at(members, "instructions", ""):
            first = ItemReader(seal, texts, work)
            first.add_text(members["instructions"], "system")
            self.lead = first.messages
        self._items = ItemReader(seal, texts, work, before, is_led=bool(self.lead))

    def read_input(self, items: list[Raw] | None, *, may_be_empty: bool = False) -> ItemReader:
        """Read the input. `items`: its elements; None: they are read from the members. Raises: BadRequest."""
        reader, raw = self._items, self._members.get("input")
        is_one_text = items is None and raw is not None and is_text(raw)
        if items is None:
            if raw is None and not may_be_empty:
                raise BadRequest("input", "is required")
            if raw is None:
                items = []
            elif is_text(raw):
                if len(memoryview(raw)) == len(b'""'):
                    raise BadRequest("input", "is empty")
                reader.add_text(raw, "user")
                items = []
            elif not is_list(raw):
                raise BadRequest("input", "must be a text or a list of items")
            else:
                items = list_at(raw, "input")
        if not items and not is_one_text and not may_be_empty:
            raise BadRequest("input", "is empty")
        if self._kept_items is not None:
            self._kept_items += _users_last(items)
        reader.take(items)
        return reader

    def request(self, messages: Sequence[Piece]) -> ChatRequest:
        """The request with these messages after `lead`."""
        members, draft = self._members, self._draft
        tools = read_tools(members, self._items.tools, self._key, self._work)
        if "tool_choice" in members:
            chosen = tool_choice(members["tool_choice"], tools, draft.dropped)
            if chosen is not None:
                draft.chat["tool_choice"] = chosen
        if not tools.chat:
            draft.chat.pop("parallel_tool_calls", None)  # engines refuse it without tools
        if self._items.updates:
            draft.chat |= updated(self._items.updates, draft.dropped)
            draft.chat = {name: value for name, value in draft.chat.items() if value is not None}
        compacts = self._items.compacts or self._kept_items is not None
        if compacts:  # the tools stay: they are the beginning of a prompt that is in the cache
            draft.chat = {name: value for name, value in draft.chat.items() if name not in _NOT_OF_SUMMARIES}
            messages = [*messages, PROMPT]
        draft.dropped |= tools.dropped
        echoed = {name: members[name].copy() for name in _ECHOED if name in members}  # a view would keep the body
        if "text" in members and "format" not in (text := object_at(members["text"], "text")):
            echoed["text"] = Raw(encode({**_PLAIN_TEXT, **text}))
        return draft.request(
            ChatRequest,
            self._items,
            [*self.lead, *messages],
            tools.chat,
            unlisted(members),
            tools=tools.by_name,
            echoed=echoed,
            summarised=asks_summary(members),
            compacts=compacts,
            kept_items=self._kept_items,
        )


def _users_last(items: list[Raw]) -> list[dict[str, Any]]:
    """The last messages of users in an input, up to `MAX_KEPT_BYTES` in all."""
    found: list[dict[str, Any]] = []
    size = 0
    for raw in reversed(items):
        content = _users_content(raw)
        if content is None:
            continue
        size += len(memoryview(content))
        if size > MAX_KEPT_BYTES:
            break
        shown = [{"type": "input_text", "text": content.copy()}] if is_text(content) else content.copy()
        found.append({"type": "message", "role": "user", "content": shown})
    return found[::-1]


def _users_content(raw: Raw) -> Raw | None:
    """The content of a user's message; None for any other item. The reader of the input refuses malformed items."""
    try:
        item = _decode_message(raw)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return item.content if (item.type, item.role) == ("message", "user") and bytes(item.content) else None


def chat_request(
    raw: bytes,
    seal: Opens,
    texts_of: Callable[[str], Texts],
    *,
    work: TranslationWork | None = None,
    compacts: bool = False,
) -> ChatRequest:
    """Translate a body. Raises: BadRequest.

    `texts_of`: the `Texts` that clean a prompt for a model. `work`: the steps that translation may take. `compacts`:
    whether the answer is a summary of the conversation.
    """
    members, items = _BODY.read(raw)
    if compacts:
        members.pop("stream", None)
    reading = RequestReading(members, seal, texts_of, work or TranslationWork(), compacts=compacts)
    reader = reading.read_input(items)
    messages = [*reader.messages, *reader.open_messages()]
    if not reading.lead and not messages:
        raise BadRequest("input", "holds nothing that a model can be asked")
    return reading.request(messages)
