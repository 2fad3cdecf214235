"""The body of a request to `/v1/responses` as one to `/v1/chat/completions`.

The members of the chat body have one order, with the tools last: what is short is in front of the messages, so that the
intake knows bodies of one client again.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Raw

from warmroute_proxy.dialects.raw_json import (
    BadRequest,
    BodyReader,
    Members,
    Piece,
    chat_pieces,
    is_list,
    is_text,
    list_at,
    text_at,
)
from warmroute_proxy.dialects.responses.items import ItemReader, Opens, ReadItems
from warmroute_proxy.dialects.responses.settings import READ, asks_summary, settings, unlisted
from warmroute_proxy.dialects.responses.tools import Tool, read_tools, tool_choice
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.normalising.texts import Texts

_ECHOED: Final = (
    "max_output_tokens", "metadata", "parallel_tool_calls", "prompt_cache_key", "reasoning", "safety_identifier",
    "temperature", "text", "tool_choice", "top_p", "user",
)  # fmt: skip


class OtherScope(Exception):
    """The items in front of an input were read by other rules, or for another tenant."""


_BODY: Final = BodyReader("input", READ)


class ChatRequest(NamedTuple):
    """A request in chat's terms, and what its answer is translated by.

    `tools`: by their names in chat. `echoed`: settings that an answer repeats. `summarised`: whether it shows reasoning
    as a summary. `dropped`: members, and tools by their type, that chat has no place for; `dropped_blocks`: how many
    items of a type the model does not see; `texts`: what cleaned its texts.
    """

    pieces: list[Piece]
    model: str
    tools: dict[str, Tool]
    echoed: dict[str, Raw]
    summarised: bool
    dropped: frozenset[str]
    unlisted: frozenset[str]
    dropped_blocks: dict[str, int]
    texts: Texts

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)


class RequestReading:
    """Reads the members of a request, then its input. `lead`: the messages in front of the input's own."""

    def __init__(
        self,
        members: Members,
        seal: Opens,
        texts_of: Callable[[str], Texts],
        work: TranslationWork,
        before: ReadItems | None = None,
    ) -> None:
        """`before`: what was read of the items in front of the input. Raises: BadRequest, OtherScope."""
        self._members = members
        self._model = text_at(members, "model", "")
        self._dropped: set[str] = set()
        self._chat: dict[str, Any] = {"model": self._model, **settings(members, self._dropped)}
        self._tools = read_tools(members, seal.key, work)
        if "tool_choice" in members:
            chosen = tool_choice(members["tool_choice"], self._tools, self._dropped)
            if chosen is not None:
                self._chat["tool_choice"] = chosen
        self._texts = texts_of(self._model)
        if before is not None and before.scope != (seal.key, self._texts.on):
            raise OtherScope
        self._items = ItemReader(seal, self._texts, work, before)
        self.lead: list[bytes] = []
        if "instructions" in members and text_at(members, "instructions", ""):
            first = ItemReader(seal, self._texts, work)
            first.add_text(members["instructions"], "system")
            self.lead = first.messages

    def read_input(self, items: list[Raw] | None, *, may_be_empty: bool = False) -> ItemReader:
        """Read the input: its items where they were found, else what it is. Raises: BadRequest."""
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
        reader.read(items)
        return reader

    def request(self, messages: Sequence[Piece]) -> ChatRequest:
        """The request, whose messages these are behind `lead`."""
        members, tools = self._members, self._tools
        pieces = chat_pieces(self._chat, [*self.lead, *messages], {"tools": Raw(tools.chat)} if tools.chat else {})
        unknown = unlisted(members)
        copies = ((name, members[name].copy()) for name in _ECHOED if name in members)  # without the whole body
        dropped = tools.dropped.union(self._dropped, unknown)
        return ChatRequest(
            pieces, self._model, tools.by_name, dict(copies), asks_summary(members), dropped, unknown,
            dict(self._items.dropped), self._texts,
        )  # fmt: skip


def chat_request(
    raw: bytes, seal: Opens, texts_of: Callable[[str], Texts], *, work: TranslationWork | None = None
) -> ChatRequest:
    """Translate a body. Raises: BadRequest.

    `texts_of`: what cleans the texts of a prompt for a model. `work`: what may be made of it.
    """
    members, items = _BODY.read(raw)
    reading = RequestReading(members, seal, texts_of, work or TranslationWork())
    messages = reading.read_input(items).messages
    if not reading.lead and not messages:
        raise BadRequest("input", "holds nothing that a model can be asked")
    return reading.request(messages)
