"""Serves Gemini's API: `/v1beta/models/{model}:generateContent`, `:streamGenerateContent` and `:countTokens`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote, unquote_plus

import msgspec

from warmroute_proxy.dialects.gemini.answer import AnswerTerms, whole
from warmroute_proxy.dialects.gemini.errors import error
from warmroute_proxy.dialects.gemini.events import EventTranslator
from warmroute_proxy.dialects.gemini.request import ChatRequest, chat_request, counted_body
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.server.base.config import ModelConfig
from warmroute_proxy.server.base.errors import Refusal, quoted
from warmroute_proxy.server.base.schema import ANY, COUNT, MANY, STRING, Operation, Schema, object_of, or_null
from warmroute_proxy.server.base.sealing import Seal
from warmroute_proxy.server.base.terms import Terms
from warmroute_proxy.server.dialects.dialect import CHAT_ALONE, EVENTS, Dialect, TranslatedChat
from warmroute_proxy.server.http.exchange import Request

_API_KEY: Final = "x-goog-api-key"
_PREFIX: Final = "/v1beta/"
_MODELS: Final = ("/v1beta/models/", "/v1/models/")
_STREAMS: Final = ":streamGenerateContent"
_COUNTS: Final = ":countTokens"
_AS_EVENTS: Final = b"alt=sse"
_METHODS: Final = (":generateContent", _STREAMS, _COUNTS)
_OTHERS: Final = (
    ":batchGenerateContent", ":embedContent", ":batchEmbedContents", ":asyncBatchEmbedContent", ":predict",
    ":predictLongRunning", ":generateAnswer",
)  # fmt: skip
"""Methods of Google's models that are not served here."""

_BODY: Final[Schema] = {
    "type": "object",
    "properties": {
        "contents": {**MANY, "minItems": 1, "items": object_of(parts={**MANY, "minItems": 1})},
        "systemInstruction": or_null({"type": "object"}),
        "generationConfig": or_null({"type": "object"}),
    },
    "required": ["contents"],
}


class TranslatedGemini(TranslatedChat):
    def __init__(self, found: ChatRequest, seal: Seal, *, array: bool) -> None:
        """`array`: whether a streamed answer is one JSON array instead of events."""
        self._seal = seal
        self._array = array
        super().__init__(found)
        self._found = found
        self.stream_type = "application/json" if array else EVENTS

    def answer(self, raw: bytes, receipt_id: str) -> bytes:
        return whole(raw, self._asked(receipt_id))

    def events(self, receipt_id: str) -> EventTranslator:
        return EventTranslator(self._asked(receipt_id), array=self._array)

    def _asked(self, receipt_id: str) -> AnswerTerms:
        return AnswerTerms(receipt_id, self._found.model, self._found.shows_thoughts, self._seal.seal)


class Gemini(Dialect):
    route = "/v1beta/models/{model}:generateContent"
    vendor = "Gemini"
    prefix = _PREFIX
    key_header = _API_KEY
    strays = (
        (_METHODS,
         "set GOOGLE_GEMINI_BASE_URL to this server's address, and nothing behind it: this request came to {}"),
        (_OTHERS, CHAT_ALONE),
    )  # fmt: skip
    operations: Mapping[str, Operation] = {
        "/v1beta/models": Operation("The models that you may use, in Gemini's API", object_of(models=MANY), None),
        "/v1beta/models/{model}": Operation(
            "One model, by name or alias, in Gemini's API", object_of(name=STRING), None, "model"
        ),
        **{
            f"/v1beta/models/{{model}}{method}": Operation(f"{summary}, in Gemini's API", answer, _BODY, "model")
            for method, summary, answer in (
                (":generateContent", "The next content", object_of(candidates=MANY, usageMetadata=ANY)),
                (_STREAMS, "The next content, streamed: as events with `alt=sse`, else as one array", MANY),
                (_COUNTS, "How many tokens a prompt has", object_of(totalTokens=COUNT)),
            )
        },
    }
    error_schema: Mapping[str, Schema] = {
        "GeminiError": object_of(error=object_of(code=COUNT, message=STRING, status=STRING))
    }

    def serves(self, path: str) -> bool:
        return path.endswith(_METHODS) and path.startswith(_MODELS)

    def has_its_shape(self, path: str) -> bool:
        return path.startswith((_PREFIX, *_MODELS)) and (
            path.startswith(_PREFIX) or path.endswith((*_METHODS, *_OTHERS))
        )

    def cut_key(self, request: Request) -> None:
        """Remove the key from the query of any path, because addresses end up in logs. Only clients of this API put a
        key into the query, so it is used as the key only on this API's paths.
        """
        is_used = request.path.startswith(_PREFIX) or self.serves(request.path)
        pairs = []
        for pair in request.query.split(b"&"):
            name, _, value = pair.decode("latin-1").partition("=")
            if unquote_plus(name) == "key":
                if is_used:
                    request.headers.setdefault(_API_KEY, unquote_plus(value))
            else:
                pairs.append(pair)
        request.query = b"&".join(pairs)

    def stray(self, path: str) -> Refusal | None:
        found = super().stray(path)
        if found is None and path.startswith(_PREFIX):
            return Refusal(400, CHAT_ALONE.format(quoted(path)), code="api_not_served")
        return found

    def lists_models(self, path: str, headers: Mapping[str, str]) -> bool:
        return path.startswith(_PREFIX) or _API_KEY in headers

    def model_card(self, model: ModelConfig) -> dict[str, Any]:
        card: dict[str, Any] = {"name": f"models/{model.name}", "version": "", "displayName": model.name}
        if model.context_tokens is not None:
            card["inputTokenLimit"] = model.context_tokens
        return {**card, "supportedGenerationMethods": [method[1:] for method in _METHODS]}

    def model_list(self, models: Sequence[ModelConfig]) -> dict[str, Any]:
        return {"models": [self.model_card(model) for model in models]}

    def counts(self, path: str) -> bool:
        return path.endswith(_COUNTS)

    def translate(self, path: str, query: bytes, body: bytes, terms: Terms, work: TranslationWork) -> TranslatedGemini:
        model = unquote(path.partition("/models/")[2].rpartition(":")[0])
        raw = counted_body(body) if self.counts(path) else body
        streams = path.endswith(_STREAMS)
        seal = Seal(terms.reasoning_key("thoughts"))
        found = chat_request(raw, model, seal, terms.texts(model), streams=streams, work=work)
        return TranslatedGemini(found, seal, array=streams and _AS_EVENTS not in query.split(b"&"))

    def count(self, tokens: int, *, estimated: bool) -> bytes:
        named = ["totalTokens"] if estimated else []
        return msgspec.json.encode({"totalTokens": tokens, "warmroute": {"estimated": named}})

    def error(self, status: int, message: str, code: object, param: object) -> bytes:  # noqa: ARG002
        return error(status, message, code)
