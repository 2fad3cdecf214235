"""The body of a request to `/v1/responses` as one to `/v1/chat/completions`.

The members of the chat body have one order, with the tools last: what is short is in front of the messages, so that the
intake knows bodies of one client again.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from msgspec import Raw

from warmroute_proxy.dialects.one_pass import BodyReader
from warmroute_proxy.dialects.raw_json import BadRequest, chat_pieces, is_text, list_at, text_at
from warmroute_proxy.dialects.responses.items import ItemReader, Opens
from warmroute_proxy.dialects.responses.settings import READ, asks_summary, settings, unlisted
from warmroute_proxy.dialects.responses.tools import Tool, read_tools, tool_choice
from warmroute_proxy.dialects.work import Work
from warmroute_proxy.normalising.texts import Texts

_ECHOED: Final = (
    "max_output_tokens", "metadata", "parallel_tool_calls", "prompt_cache_key", "reasoning", "safety_identifier",
    "temperature", "text", "tool_choice", "top_p", "user",
)  # fmt: skip


_LIST: Final = 0x5B
_BODY: Final = BodyReader("input", READ)


class ChatRequest(NamedTuple):
    """A request in chat's terms, and what its answer is translated by.

    `tools`: by their names in chat. `echoed`: settings that an answer repeats. `summarised`: whether it shows reasoning
    as a summary. `dropped`: members, and tools by their type, that chat has no place for; `dropped_blocks`: how many
    items of a type the model does not see; `texts`: what cleaned its texts.
    """

    pieces: list[bytes]
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
        """The body of the chat."""
        return b"".join(self.pieces)


def chat_request(raw: bytes, seal: Opens, texts_of: Callable[[str], Texts], *, work: Work | None = None) -> ChatRequest:
    """Translate a body. Raises: BadRequest.

    `texts_of`: what cleans the texts of a prompt for a model. `work`: what may be made of it.
    """
    work = work or Work()
    members, items = _BODY.read(raw)
    model = text_at(members, "model", "")
    dropped: set[str] = set()
    chat: dict[str, Any] = {"model": model, **settings(members, dropped)}
    tools = read_tools(members, seal.key, work)
    if "tool_choice" in members and (chosen := tool_choice(members["tool_choice"], tools, dropped)) is not None:
        chat["tool_choice"] = chosen
    texts = texts_of(model)
    reader = ItemReader(seal, texts, work)
    if "instructions" in members and text_at(members, "instructions", ""):
        reader.add_text(members["instructions"], "system")
    _read_input(reader, members.get("input"), items)
    pieces = chat_pieces(chat, reader.messages, {"tools": Raw(tools.chat)} if tools.chat else {})
    unknown = unlisted(members)
    echoed: dict[str, Raw] = {name: members[name] for name in _ECHOED if name in members}
    all_dropped = tools.dropped.union(dropped, unknown)
    summarised = asks_summary(members)
    return ChatRequest(
        pieces, model, tools.by_name, echoed, summarised, all_dropped, unknown, dict(reader.dropped), texts
    )


def _read_input(reader: ItemReader, raw: Raw | None, items: list[Raw] | None) -> None:
    """Read an input: its items where they were found, else what it is."""
    if items is None:
        if raw is None:
            raise BadRequest("input", "is required")
        if is_text(raw):
            if len(memoryview(raw)) == len(b'""'):
                raise BadRequest("input", "is empty")
            reader.add_text(raw, "user")
            items = []
        elif memoryview(raw)[0] != _LIST:
            raise BadRequest("input", "must be a text or a list of items")
        else:
            items = list_at(raw, "input")
    if not items and (raw is None or not is_text(raw)):
        raise BadRequest("input", "is empty")
    reader.read(items)
    if not reader.messages:
        raise BadRequest("input", "holds nothing that a model can be asked")
