"""The body of a request to `:generateContent` and its like as one to `/v1/chat/completions`.

The members of the chat body have one order, with the tools last: what is short is in front of the messages, so that the
intake knows bodies of one client again. The model, and whether the answer is streamed, are
in the path of the request.
"""

from typing import Any, Final, NamedTuple

from msgspec import Raw

from warmroute_proxy.dialects.gemini.contents import ContentReader, Opens
from warmroute_proxy.dialects.gemini.settings import settings
from warmroute_proxy.dialects.gemini.tools import NO_FUNCTIONS, choice, either, listed_functions, snake
from warmroute_proxy.dialects.raw_json import BadRequest, BodyReader, Members, Piece, chat_pieces, list_at, object_at
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.normalising.texts import Texts

_READ: Final = frozenset(
    {
        "contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "cachedContent",
        "safetySettings",  # of filters that are Google's
        "labels", "store", "model", "serviceTier",
    }
)  # fmt: skip
_KNOWN: Final = _READ | {snake(name) for name in _READ}


_BODY: Final = BodyReader("contents", _KNOWN)


class ChatRequest(NamedTuple):
    """A request in chat's terms, and what its answer is translated by. `shows_thoughts`: whether it has them.

    `dropped`: members, and tools by their kind, that chat has no place for; `dropped_blocks`: how many parts of a kind
    the model does not see; `texts`: what cleaned its texts.
    """

    pieces: list[Piece]
    model: str
    shows_thoughts: bool
    dropped: frozenset[str]
    unlisted: frozenset[str]
    dropped_blocks: dict[str, int]
    texts: Texts

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)


def chat_request(
    raw: bytes, model: str, seal: Opens, texts: Texts, *, streams: bool, work: TranslationWork | None = None
) -> ChatRequest:
    """Translate a body. `work`: what may be made of it. Raises: BadRequest."""
    work = work or TranslationWork()
    members, contents = _BODY.read(raw)
    if either(members, "cachedContent") is not None:
        raise BadRequest(
            "cachedContent", "this proxy stores no content: send the contents; prefixes are cached automatically"
        )
    dropped: set[str] = set()
    chat: dict[str, Any] = {"model": model}
    if streams:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    found, thinking = settings(either(members, "generationConfig"), dropped, work)
    chat |= found
    tools = listed_functions(members["tools"], seal.key, work) if "tools" in members else NO_FUNCTIONS
    dropped |= tools.dropped
    config = either(members, "toolConfig")
    chosen = None if config is None else choice(config, tools, dropped)
    if chosen is not None:
        chat["tool_choice"] = chosen
    reader = ContentReader(seal, texts, work)
    instruction = either(members, "systemInstruction")
    if instruction is not None:
        reader.instruct(instruction)
    reader.read(_contents(members) if contents is None else contents)
    pieces = chat_pieces(chat, reader.messages, {"tools": Raw(tools.chat)} if tools.chat else {})
    unlisted = frozenset(name for name in members if name not in _KNOWN)
    all_dropped = frozenset(dropped) | unlisted
    return ChatRequest(pieces, model, thinking.shown, all_dropped, unlisted, dict(reader.dropped), texts)


def counted_body(raw: bytes) -> bytes:
    """The body whose tokens a request to `:countTokens` asks for: itself, or its `generateContentRequest`."""
    inner = either(object_at(raw, ""), "generateContentRequest")
    return raw if inner is None else bytes(inner)


def _contents(members: Members) -> list[Raw]:
    if "contents" not in members:
        raise BadRequest("contents", "is required")
    return list_at(members["contents"], "contents")
