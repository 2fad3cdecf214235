"""Gemini's API: `/v1beta/models/{model}:generateContent`, `:streamGenerateContent` and `:countTokens`."""

from typing import Final
from urllib.parse import unquote, unquote_plus

import msgspec

from warmroute_proxy.dialects.gemini.answer import Asked, whole
from warmroute_proxy.dialects.gemini.errors import error
from warmroute_proxy.dialects.gemini.events import EventTranslator
from warmroute_proxy.dialects.gemini.request import ChatRequest, chat_request, counted_body
from warmroute_proxy.server.base.config import TenantConfig
from warmroute_proxy.server.base.sealing import Seal
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.dialects.dialect import EVENTS, Headers
from warmroute_proxy.server.http.exchange import Request

API_KEY: Final = "x-goog-api-key"
GEMINI: Final = "/v1beta/"
_MODELS: Final = ("/v1beta/models/", "/v1/models/")
_STREAMS: Final = ":streamGenerateContent"
_COUNTS: Final = ":countTokens"
_METHODS: Final = (":generateContent", _STREAMS, _COUNTS)


def is_gemini(path: str) -> bool:
    """Whether a path asks a model by Gemini's API."""
    return path.endswith(_METHODS) and path.startswith(_MODELS)


def cut_key(request: Request) -> None:
    """Take the API key out of a request's query, so that nothing behind this sees it there."""
    pairs = []
    for pair in request.query.split(b"&"):
        name, _, value = pair.decode("latin-1").partition("=")
        if unquote_plus(name) == "key":
            request.headers.setdefault(API_KEY, unquote_plus(value))
        else:
            pairs.append(pair)
    request.query = b"&".join(pairs)


class TranslatedGemini:
    """One request to a model."""

    def __init__(self, found: ChatRequest, seal: Seal, *, array: bool) -> None:
        """`array`: a stream is one JSON array."""
        self._found = found
        self._seal = seal
        self._array = array
        self.body = found.body
        self.dropped = found.dropped
        self.unlisted = found.unlisted
        self.stream_type = "application/json" if array else EVENTS

    def answer(self, raw: bytes, receipt_id: str) -> bytes:
        """A whole answer."""
        return whole(raw, self._asked(receipt_id))

    def events(self, receipt_id: str) -> EventTranslator:
        """The answers of a stream."""
        return EventTranslator(self._asked(receipt_id), array=self._array)

    def _asked(self, receipt_id: str) -> Asked:
        return Asked(receipt_id, self._found.model, self._found.shows_thoughts, self._seal.seal)


class Gemini:
    """The dialect."""

    route = "/v1beta/models/{model}:generateContent"

    def counts(self, path: str) -> bool:
        """Whether it is a path that counts tokens."""
        return path.endswith(_COUNTS)

    def translate(self, request: Request, tenant: TenantConfig, secrets: Secrets) -> TranslatedGemini:
        """A body in chat's terms."""
        path = request.path
        model = unquote(path.partition("/models/")[2].rpartition(":")[0])
        raw = bytes(request.body)
        if self.counts(path):
            raw = counted_body(raw)
        streams = path.endswith(_STREAMS)
        seal = Seal(secrets.reasoning_key(tenant.share_group, "thoughts"))
        array = streams and b"alt=sse" not in request.query.split(b"&")
        return TranslatedGemini(chat_request(raw, model, seal.open, streams=streams), seal, array=array)

    def count(self, tokens: int) -> bytes:
        """Counted tokens, which are estimated."""
        return msgspec.json.encode({"totalTokens": tokens, "warmroute": {"estimated": ["totalTokens"]}})

    def status(self, status: int) -> int:
        """The same as chat's."""
        return status

    def error(self, status: int, message: str, code: object, param: object) -> bytes:  # noqa: ARG002
        """Google's error object."""
        return error(status, message, code)

    def headers(self, headers: Headers, receipt_id: str) -> Headers:  # noqa: ARG002
        """As they are."""
        return headers
