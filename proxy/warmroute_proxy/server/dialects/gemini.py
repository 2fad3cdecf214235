"""Gemini's API: `/v1beta/models/{model}:generateContent`, `:streamGenerateContent` and `:countTokens`."""

from typing import Final
from urllib.parse import unquote, unquote_plus

import msgspec

from warmroute_proxy.dialects.gemini.answer import AnswerTerms, whole
from warmroute_proxy.dialects.gemini.errors import error
from warmroute_proxy.dialects.gemini.events import EventTranslator
from warmroute_proxy.dialects.gemini.request import ChatRequest, chat_request, counted_body
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.server.base.sealing import Seal
from warmroute_proxy.server.base.terms import Terms
from warmroute_proxy.server.dialects.dialect import EVENTS, Dialect, Headers, TranslatedChat
from warmroute_proxy.server.http.exchange import Request

API_KEY: Final = "x-goog-api-key"
GEMINI: Final = "/v1beta/"
_MODELS: Final = ("/v1beta/models/", "/v1/models/")
_STREAMS: Final = ":streamGenerateContent"
_COUNTS: Final = ":countTokens"
_AS_EVENTS: Final = b"alt=sse"
_METHODS: Final = (":generateContent", _STREAMS, _COUNTS)
GOOGLES_OTHERS: Final = (
    ":batchGenerateContent", ":embedContent", ":batchEmbedContents", ":asyncBatchEmbedContent", ":predict",
    ":predictLongRunning", ":generateAnswer",
)  # fmt: skip
"""Methods of Google's models that are not served here."""


def is_gemini(path: str) -> bool:
    return path.endswith(_METHODS) and path.startswith(_MODELS)


def has_its_shape(path: str) -> bool:
    return path.startswith(GEMINI) or (path.startswith(_MODELS) and path.endswith(GOOGLES_OTHERS))


def cut_key(request: Request) -> None:
    """Take the API key out of a request's query, so that nothing behind this sees it there.

    Only clients of this API put it there, and it is used on their paths alone: what is in an address ends up in logs.
    """
    is_used = request.path.startswith(GEMINI) or is_gemini(request.path)
    pairs = []
    for pair in request.query.split(b"&"):
        name, _, value = pair.decode("latin-1").partition("=")
        if unquote_plus(name) == "key":
            if is_used:
                request.headers.setdefault(API_KEY, unquote_plus(value))
        else:
            pairs.append(pair)
    request.query = b"&".join(pairs)


class TranslatedGemini(TranslatedChat):
    """One request to a model."""

    def __init__(self, found: ChatRequest, seal: Seal, *, array: bool) -> None:
        """`array`: a stream is one JSON array."""
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
    """The dialect."""

    route = "/v1beta/models/{model}:generateContent"

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

    def status(self, status: int) -> int:
        return status

    def error(self, status: int, message: str, code: object, param: object) -> bytes:  # noqa: ARG002
        return error(status, message, code)

    def headers(self, headers: Headers, receipt_id: str) -> Headers:  # noqa: ARG002
        return headers
