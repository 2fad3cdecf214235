"""Anthropic's messages: `/v1/messages`."""

from typing import Final

import msgspec

from warmroute_proxy.dialects.messages.answer import message
from warmroute_proxy.dialects.messages.errors import error, status_of
from warmroute_proxy.dialects.messages.events import EventTranslator
from warmroute_proxy.dialects.messages.request import ChatRequest, chat_request
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.server.base.terms import Terms
from warmroute_proxy.server.dialects.dialect import Dialect, Headers, TranslatedChat

MESSAGES: Final = "/v1/messages"
COUNT_TOKENS: Final = "/v1/messages/count_tokens"


class TranslatedMessages(TranslatedChat):
    """One request to `/v1/messages`."""

    def __init__(self, found: ChatRequest, key: bytes) -> None:
        """`key`: signs the reasoning of the answer."""
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
    """The dialect."""

    route = MESSAGES

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
        """With 529 for overload."""
        return status_of(status)

    def error(self, status: int, message: str, code: object, param: object) -> bytes:  # noqa: ARG002
        return error(status, message, code)

    def headers(self, headers: Headers, receipt_id: str) -> Headers:
        """With the receipt's id where Anthropic's clients look for the id of a request."""
        return [*headers, ("request-id", receipt_id)] if receipt_id else headers
