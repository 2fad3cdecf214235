"""Anthropic's messages: `/v1/messages`."""

from typing import Final

import msgspec

from warmroute_proxy.dialects.messages.answer import message
from warmroute_proxy.dialects.messages.errors import error, status_of
from warmroute_proxy.dialects.messages.events import EventTranslator
from warmroute_proxy.dialects.messages.request import ChatRequest, chat_request
from warmroute_proxy.server.base.config import TenantConfig
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.dialects.dialect import Headers
from warmroute_proxy.server.http.exchange import Request

MESSAGES: Final = "/v1/messages"
COUNT_TOKENS: Final = "/v1/messages/count_tokens"


class TranslatedMessages:
    """One request to `/v1/messages`."""

    def __init__(self, found: ChatRequest) -> None:
        self._found = found
        self.body = found.body
        self.dropped = found.dropped
        self.unlisted = found.dropped - {"redacted_thinking"}

    def answer(self, raw: bytes, receipt_id: str) -> bytes:
        """A message."""
        return message(raw, f"msg_{receipt_id}", self._found.model, self._found.stop_sequences)

    def events(self, receipt_id: str) -> EventTranslator:
        """The events of a message."""
        return EventTranslator(f"msg_{receipt_id}", self._found.model, self._found.stop_sequences)


class Messages:
    """The dialect."""

    route = MESSAGES

    def counts(self, path: str) -> bool:
        """Whether it is the path that counts tokens."""
        return path == COUNT_TOKENS

    def translate(self, request: Request, tenant: TenantConfig, secrets: Secrets) -> TranslatedMessages:  # noqa: ARG002
        """A body in chat's terms."""
        return TranslatedMessages(chat_request(bytes(request.body), counts_only=self.counts(request.path)))

    def count(self, tokens: int) -> bytes:
        """Counted tokens, which are estimated."""
        return msgspec.json.encode({"input_tokens": tokens, "warmroute": {"estimated": ["input_tokens"]}})

    def status(self, status: int) -> int:
        """With 529 for overload."""
        return status_of(status)

    def error(self, status: int, message: str, code: object, param: object) -> bytes:  # noqa: ARG002
        """Anthropic's error object."""
        return error(status, message, code)

    def headers(self, headers: Headers, receipt_id: str) -> Headers:
        """With the receipt's id where Anthropic's clients look for the id of a request."""
        return [*headers, ("request-id", receipt_id)] if receipt_id else headers
