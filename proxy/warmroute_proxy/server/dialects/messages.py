"""Serves Anthropic's messages: `/v1/messages`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from warmroute_proxy.dialects.messages.answer import message
from warmroute_proxy.dialects.messages.errors import error, status_of
from warmroute_proxy.dialects.messages.events import EventTranslator
from warmroute_proxy.dialects.messages.request import ChatRequest, chat_request
from warmroute_proxy.dialects.openai_fields import MAX_COUNT
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.server.base.config import ModelConfig
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.schema import ANY, COMMON, COUNT, MESSAGE, STRING, Operation, Schema, object_of
from warmroute_proxy.server.base.terms import Terms
from warmroute_proxy.server.dialects.dialect import Dialect, DialectRefusal, Headers, TranslatedChat

MESSAGES: Final = "/v1/messages"
COUNT_TOKENS: Final = "/v1/messages/count_tokens"
_SHOWN: Final = ("claude", "anthropic")
_UNKNOWN_TIME: Final = "1970-01-01T00:00:00Z"  # a model's time of creation, which clients require
_COUNTED: Final = object_of(model=COMMON["model"], messages={"type": "array", "items": MESSAGE, "minItems": 1})
_BODY: Final = object_of(
    "stream", **_COUNTED["properties"], max_tokens={**COUNT, "minimum": 1, "maximum": MAX_COUNT},
    stream=COMMON["stream"],
)  # fmt: skip


class TranslatedMessages(TranslatedChat):
    """One request to `/v1/messages`."""

    def __init__(self, found: ChatRequest, key: bytes) -> None:
        """`key`: the key that signs the answer's reasoning."""
        self._key = key
        super().__init__(found)
        self._found = found

    def answer(self, raw: bytes, receipt_id: str) -> bytes:
        found = self._found
        return message(raw, f"msg_{receipt_id}", found.model, found.stop_sequences, self._key)

    def events(self, receipt_id: str) -> EventTranslator:
        found = self._found
        return EventTranslator(f"msg_{receipt_id}", found.model, found.stop_sequences, self._key)


class Messages(Dialect):
    route = MESSAGES
    vendor = "Anthropic"
    paths = (MESSAGES, COUNT_TOKENS)
    counts_first = True
    key_header = "x-api-key"
    strays = (
        (("/messages", "/messages/count_tokens"),
         "set ANTHROPIC_BASE_URL to this server's address, and nothing behind it: this request came to {}"),
        (("/messages/batches",),
         "Anthropic's batches are not served here, only messages: send each of them to /v1/messages"),
    )  # fmt: skip
    operations: Mapping[str, Operation] = {
        MESSAGES: Operation("The next message, in Anthropic's API", object_of(usage=ANY), _BODY),
        COUNT_TOKENS: Operation("How many tokens a prompt has", object_of(input_tokens=COUNT), _COUNTED),
    }
    error_schema: Mapping[str, Schema] = {
        "MessagesError": object_of(type={"const": "error"}, error=object_of(type=STRING, message=STRING))
    }

    def stray(self, path: str) -> Refusal | None:
        found = super().stray(path)
        return found if found is None else DialectRefusal(self, found)

    def lists_models(self, path: str, headers: Mapping[str, str]) -> bool:  # noqa: ARG002
        return "anthropic-version" in headers

    def model_card(self, model: ModelConfig) -> dict[str, Any]:
        card = {"type": "model", "id": model.name, "display_name": model.name, "created_at": _UNKNOWN_TIME}
        return {**card, "max_input_tokens": model.context_tokens, "lifecycle": "active"}

    def model_list(self, models: Sequence[ModelConfig]) -> dict[str, Any]:
        """The models, and their aliases that Claude Code shows: it leaves out models of other names."""
        data = [self.model_card(model) for model in models]
        for model in models:
            shown = [alias for alias in model.aliases if alias.startswith(_SHOWN) and "*" not in alias]
            data += [{**self.model_card(model), "id": alias} for alias in shown]
        first_id, last_id = (data[0]["id"], data[-1]["id"]) if data else (None, None)
        return {"data": data, "has_more": False, "first_id": first_id, "last_id": last_id}

    def counts(self, path: str) -> bool:
        return path == COUNT_TOKENS

    def translate(
        self,
        path: str,
        query: bytes,  # noqa: ARG002
        body: bytes,
        terms: Terms,
        work: TranslationWork,
    ) -> TranslatedMessages:
        key = terms.reasoning_key("signature")
        found = chat_request(body, key, terms.texts, counts_only=self.counts(path), work=work)
        return TranslatedMessages(found, key)

    def count(self, tokens: int, *, estimated: bool) -> bytes:
        named = ["input_tokens"] if estimated else []
        return msgspec.json.encode({"input_tokens": tokens, "warmroute": {"estimated": named}})

    def status(self, status: int) -> int:
        """The API's HTTP status for a status of chat: 529 for overload."""
        return status_of(status)

    def error(self, status: int, message: str, code: object, param: object) -> bytes:  # noqa: ARG002
        return error(status, message, code)

    def headers(self, headers: Headers, receipt_id: str) -> Headers:
        """Adds the receipt's id as the header in which Anthropic's clients look for the id of a request."""
        return [*headers, ("request-id", receipt_id)] if receipt_id else headers
