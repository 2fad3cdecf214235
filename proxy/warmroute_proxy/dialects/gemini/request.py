"""Translates the body of a request to `:generateContent` and similar methods to one for `/v1/chat/completions`.

The path of the request names the model, and says whether the answer is streamed.
"""

from typing import Final

from msgspec import Raw

from warmroute_proxy.dialects import chat_draft
from warmroute_proxy.dialects.chat_draft import ChatDraft, Opens
from warmroute_proxy.dialects.gemini.contents import ContentReader
from warmroute_proxy.dialects.gemini.settings import settings
from warmroute_proxy.dialects.gemini.tools import NO_FUNCTIONS, as_list, choice, either, listed_functions, snake
from warmroute_proxy.dialects.raw_json import BadRequest, BodyReader, Members, list_at, object_at
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.normalising.texts import Texts

_READ: Final = frozenset(
    {
        "contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "cachedContent",
        "safetySettings",  # for Google's own filters
        "labels", "store", "model", "serviceTier",
    }
)  # fmt: skip
_KNOWN: Final = _READ | {snake(name) for name in _READ}


_BODY: Final = BodyReader("contents", _KNOWN)


class ChatRequest(chat_draft.ChatRequest, kw_only=True):
    """A request of Gemini's API. `shows_thoughts`: whether the answer shows thoughts."""

    shows_thoughts: bool


def chat_request(
    raw: bytes, model: str, seal: Opens, texts: Texts, *, streams: bool, work: TranslationWork | None = None
) -> ChatRequest:
    """Translate a body. `work`: the steps that the translation may take. Raises: BadRequest."""
    work = work or TranslationWork()
    members, contents = _BODY.read(raw)
    if either(members, "cachedContent") is not None:
        raise BadRequest(
            "cachedContent", "this proxy stores no content: send the contents; prefixes are cached automatically"
        )
    draft = ChatDraft(model)
    if streams:
        draft.chat |= {"stream": True, "stream_options": {"include_usage": True}}
    found, thinking = settings(either(members, "generationConfig"), draft.dropped, work)
    draft.chat |= found
    tools = listed_functions(members["tools"], seal.key, work) if "tools" in members else NO_FUNCTIONS
    draft.dropped |= tools.dropped
    config = either(members, "toolConfig")
    chosen = None if config is None else choice(config, tools, draft.dropped)
    if chosen is not None:
        draft.chat["tool_choice"] = chosen
    reader = ContentReader(seal, texts, work)
    instruction = either(members, "systemInstruction")
    if instruction is not None:
        reader.instruct(instruction)
    reader.read(_contents(members) if contents is None else contents)
    unlisted = frozenset(name for name in members if name not in _KNOWN)
    return draft.request(ChatRequest, reader, reader.messages, tools.chat, unlisted, shows_thoughts=thinking.shown)


def counted_body(raw: bytes) -> bytes:
    """The body whose tokens `:countTokens` counts: its `generateContentRequest` if it has one, else `raw` itself."""
    inner = either(object_at(raw, ""), "generateContentRequest")
    return raw if inner is None else bytes(inner)


def _contents(members: Members) -> list[Raw]:
    if "contents" not in members:
        raise BadRequest("contents", "is required")
    return list_at(as_list(members["contents"]), "contents")
