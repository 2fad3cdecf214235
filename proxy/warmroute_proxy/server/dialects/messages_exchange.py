"""The exchange of a request to `/v1/messages`: what the request path answers in chat reaches the client translated."""

import logging
from collections.abc import Iterable
from typing import Final

from warmroute.contract import headers as names
from warmroute_proxy.dialects.messages.answer import message
from warmroute_proxy.dialects.messages.errors import status_of, translated
from warmroute_proxy.dialects.messages.events import EventTranslator, error_event
from warmroute_proxy.dialects.messages.request import ChatRequest
from warmroute_proxy.server.base.errors import error_body
from warmroute_proxy.server.http.exchange import Exchange, Request

log = logging.getLogger(__name__)

Headers = Iterable[tuple[str, str]]

_UNREADABLE: Final = "the engine's answer cannot be translated"


class MessagesExchange(Exchange):
    """It looks like a client of chat to the request, and like the request to the client's exchange."""

    def __init__(self, client: Exchange, chat: Request, found: ChatRequest) -> None:
        """`chat`: the translated request; `found`: what its answer is translated by."""
        self.request = chat
        self.started = False
        self.ended = False
        self._client = client
        self._found = found
        self._events: EventTranslator | None = None
        client.on_gone = self._gone
        client.on_pause = self._pause

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer or an error."""
        if self.ended:
            return
        headers = list(headers)
        answer = None
        if status == 200:
            answer = self._message(_receipt_id(headers), body)
            status, body = (200, body) if answer is not None else (502, error_body(502, _UNREADABLE, "engine_error"))
        self._finish()
        shown = answer if answer is not None else translated(status, body)
        self._client.respond(status_of(status), _named(headers), shown)

    def answer(self, lines: bytes, body: bytes) -> None:
        """A whole 200."""
        pairs = [line.partition(": ") for line in lines.decode("latin-1").split("\r\n")[:-1]]
        self.respond(200, [(name, value) for name, _, value in pairs], body)

    def start(self, status: int, headers: Headers, data: bytes = b"") -> None:
        """The head of a stream."""
        headers = list(headers)
        self.started = True
        found = self._found
        self._events = EventTranslator(_message_id(_receipt_id(headers)), found.model, found.stop_sequences)
        self._client.start(status, _named(headers))
        self.write(data)

    def write(self, data: bytes) -> None:
        """Some of a stream."""
        if data and not self.ended:
            self._client.write(self._translated(data))

    def passthrough_target(self) -> None:
        """None: what passes is translated."""

    def end(self, data: bytes = b"") -> None:
        """The last of a stream that is complete."""
        if self.ended:
            return
        rest = self._translated(data)
        complete = self._events is not None and self._events.ended
        self._finish()
        if complete:
            self._client.end(rest)
        else:
            self._client.abort(rest)

    def abort(self, data: bytes = b"") -> None:
        """The end of a stream that is not complete."""
        if self.ended:
            return
        rest = self._translated(data)
        self._finish()
        self._client.abort(rest)

    def _message(self, receipt_id: str, body: bytes) -> bytes | None:
        found = self._found
        try:
            return message(body, _message_id(receipt_id), found.model, found.stop_sequences)
        except ValueError as error:
            log.error("an answer could not be translated: %s", error)
            return None

    def _translated(self, data: bytes) -> bytes:
        """Some of a stream in Anthropic's events; after what cannot be read, an error and nothing more."""
        events = self._events
        if events is None or events.ended or not data:
            return b""
        try:
            return events.feed(data)
        except ValueError as error:
            log.error("a stream could not be translated: %s", error)
            events.ended = True
            return error_event(502, _UNREADABLE, "engine_error")

    def _finish(self) -> None:
        self.started = self.ended = True
        self.on_gone = self.on_pause = None

    def _gone(self) -> None:
        """The client has left."""
        self.ended = True
        self.client_left = self._client.client_left
        on_gone, self.on_gone, self.on_pause = self.on_gone, None, None
        if on_gone is not None:
            on_gone()

    def _pause(self, paused: bool) -> None:
        if self.on_pause is not None:
            self.on_pause(paused)


def _receipt_id(headers: list[tuple[str, str]]) -> str:
    """The id of the answer's receipt, empty where it has none."""
    return next((value for name, value in headers if name == names.RECEIPT), "")


def _message_id(receipt_id: str) -> str:
    """The id of a message: its receipt's."""
    return f"msg_{receipt_id.removeprefix('wr-')}"


def _named(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The headers, with the receipt's id where Anthropic's clients look for the id of a request."""
    receipt_id = _receipt_id(headers)
    return [*headers, ("request-id", receipt_id)] if receipt_id else headers
