"""Serves OpenAI's Responses: `/v1/responses`, stateless."""

import time
from collections.abc import Mapping
from typing import Final

import msgspec

from warmroute_proxy.dialects.responses.answer import Response, whole
from warmroute_proxy.dialects.responses.compaction import CompactionTranslator, whole_compaction
from warmroute_proxy.dialects.responses.events import EventTranslator
from warmroute_proxy.dialects.responses.request import ChatRequest, chat_request
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.server.base.errors import error_body
from warmroute_proxy.server.base.schema import ANY, COMMON, COUNT, MANY, STRING, Operation, Schema, object_of, or_null
from warmroute_proxy.server.base.sealing import Seal
from warmroute_proxy.server.base.terms import Terms
from warmroute_proxy.server.dialects.dialect import Dialect, Headers, TranslatedChat

RESPONSES: Final = "/v1/responses"
INPUT_TOKENS: Final = "/v1/responses/input_tokens"
COMPACT: Final = "/v1/responses/compact"
_STRAY: Final = (
    "set base_url to this server's address and /v1, and nothing behind it: responses are served at /v1/responses and "
    "/v1/responses/input_tokens, and this request came to {}"
)
_COPIED: Final = ("model", "stream", "temperature", "top_p", "metadata", "prompt_cache_key")
_BODY: Final[Schema] = {
    "type": "object",
    "properties": {
        **{name: COMMON[name] for name in _COPIED},
        "input": {"anyOf": [{**STRING, "minLength": 1}, {**MANY, "minItems": 1}]},
        "instructions": or_null(STRING),
        "max_output_tokens": COMMON["max_tokens"],
        "store": or_null({"type": "boolean"}),
    },
    "required": ["model", "input"],
}
_NAMES: Final = {"max_tokens": "max_output_tokens", "messages": "input", "response_format": "text.format"}
"""Chat's name of a parameter -> its name in this API."""


class TranslatedResponse(TranslatedChat):
    """One request to `/v1/responses`."""

    def __init__(self, found: ChatRequest, seal: Seal) -> None:
        self._seal = seal
        self._created_s = int(time.time())
        super().__init__(found)
        self._found = found

    def answer(self, raw: bytes, receipt_id: str) -> bytes:
        response = self._response(receipt_id)
        return whole_compaction(raw, response) if self._found.compacts else whole(raw, response)

    def events(self, receipt_id: str) -> EventTranslator:
        response = self._response(receipt_id)
        return CompactionTranslator(response) if self._found.compacts else EventTranslator(response)

    def _response(self, receipt_id: str) -> Response:
        return Response(receipt_id, self._created_s, self._found, self._seal.seal)


class Responses(Dialect):
    route = RESPONSES
    vendor = "OpenAI"
    paths = (RESPONSES, INPUT_TOKENS, COMPACT)
    strays = ((("/responses", "/responses/compact", "/responses/input_tokens"), _STRAY),)
    operations: Mapping[str, Operation] = {
        RESPONSES: Operation("The next items, in OpenAI's Responses", object_of(usage=ANY), _BODY),
        INPUT_TOKENS: Operation("How many tokens a prompt has", object_of(input_tokens=COUNT), _BODY),
        COMPACT: Operation("A summary of a conversation", object_of(output=MANY, usage=ANY), _BODY),
    }

    def counts(self, path: str) -> bool:
        return path == INPUT_TOKENS

    def translate(
        self,
        path: str,
        query: bytes,  # noqa: ARG002
        body: bytes,
        terms: Terms,
        work: TranslationWork,
    ) -> TranslatedResponse:
        seal = Seal(terms.reasoning_key("seal"))
        return TranslatedResponse(chat_request(body, seal, terms.texts, work=work, compacts=path == COMPACT), seal)

    def count(self, tokens: int, *, estimated: bool) -> bytes:
        named = ["input_tokens"] if estimated else []
        found = {"object": "response.input_tokens", "input_tokens": tokens, "warmroute": {"estimated": named}}
        return msgspec.json.encode(found)

    def error(self, status: int, message: str, code: object, param: object) -> bytes:
        """The error body, which has chat's format."""
        name = _NAMES.get(param, param) if isinstance(param, str) else None
        return error_body(status, message, code if isinstance(code, str) else None, name)

    def headers(self, headers: Headers, receipt_id: str) -> Headers:
        """Adds the receipt's id as the header in which OpenAI's clients look for the id of a request."""
        return [*headers, ("x-request-id", receipt_id)] if receipt_id else headers
