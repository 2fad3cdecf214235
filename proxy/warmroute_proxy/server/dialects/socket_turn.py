"""One turn on a WebSocket: a request to `/v1/responses` that continues a conversation, and the events of its answer."""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from warmroute.contract import headers as names
from warmroute_proxy.dialects.responses.client_events import created_request
from warmroute_proxy.dialects.responses.conversation import Conversation, continued
from warmroute_proxy.dialects.responses.events import EventTranslator
from warmroute_proxy.dialects.responses.request import ChatRequest, OtherScope
from warmroute_proxy.dialects.work import Work
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.sealing import Seal
from warmroute_proxy.server.base.terms import Terms
from warmroute_proxy.server.dialects.responses import Responses, TranslatedResponse
from warmroute_proxy.server.http.exchange import Exchange, Request

CANCELLED: Final = 499
_SHOWN: Final = frozenset({"retry-after", names.RECEIPT, "x-request-id"})
_DATA: Final = b"\ndata: "
_DATA_BYTES: Final = len(_DATA)


def not_found(previous: str) -> Refusal:
    """The refusal of a turn whose conversation is not kept: its client sends all of it again."""
    message = f"Previous response with id '{previous[:128]}' not found."
    return Refusal(400, message, code="previous_response_not_found", param="previous_response_id")


class TurnDialect(Responses):
    """The dialect of one turn: what it continues is in front of its input."""

    def __init__(self, previous: str, before: Conversation | None, *, asks: bool = True) -> None:
        """`previous`: the id of the response that it continues. `asks`: whether the model is to answer."""
        self._previous = previous
        self._before = before
        self._asks = asks
        self._found: TranslatedTurn | None = None

    def translate(self, path: str, query: bytes, body: bytes, terms: Terms, work: Work) -> "TranslatedTurn":  # noqa: ARG002
        """The request in chat's terms, with the whole conversation."""
        created = created_request(body)
        seal = Seal(terms.reasoning_key("seal"))
        try:
            found, conversation = continued(
                created.members, created.items, seal, terms.texts, work, self._before, asks=self._asks
            )
        except OtherScope:
            raise not_found(self._previous) from None
        self._found = TranslatedTurn(found, seal, conversation)
        return self._found

    def check_whole(self) -> None:
        """Raises: Refusal, where it continues a conversation: that is kept in the event loop's process only."""
        if self._before is not None:
            raise not_found(self._previous)

    def answered(self) -> tuple[str, Conversation] | None:
        """The id of the response and the conversation with it, if it has ended as it should."""
        return None if self._found is None else self._found.answered()

    @property
    def ended(self) -> bool:
        """Whether the last event has come."""
        return self._found is not None and self._found.translator is not None and self._found.translator.ended

    def cancelled(self) -> bytes:
        """The last event of a response that its client has cancelled; none where none has come."""
        translator = None if self._found is None else self._found.translator
        if translator is None:
            return b""
        return translator.error(CANCELLED, "the client has cancelled the turn", "cancelled")

    def prepared(self, response_id: str) -> tuple[list[bytes], Conversation]:
        """The events of a turn that asked for nothing, and its conversation."""
        assert self._found is not None
        return self._found.prepared(response_id)


class TranslatedTurn(TranslatedResponse):
    """Its request in chat's terms."""

    def __init__(self, found: ChatRequest, seal: Seal, conversation: Conversation) -> None:
        super().__init__(found, seal)
        self._conversation = conversation
        self.translator: EventTranslator | None = None

    def events(self, receipt_id: str) -> EventTranslator:
        """The events of the response."""
        self.translator = super().events(receipt_id)
        return self.translator

    def answered(self) -> tuple[str, Conversation] | None:
        """The conversation with the response."""
        translator = self.translator
        if translator is None or translator.output is None:
            return None
        return translator.response_id, self._conversation.answered(translator.output, self._seal)

    def prepared(self, response_id: str) -> tuple[list[bytes], Conversation]:
        """The events of a response without output."""
        response = self._response(response_id)
        snapshots = response.snapshot("in_progress", []), response.snapshot("completed", [])
        kinds = "response.created", "response.completed"
        events = [
            msgspec.json.encode({"type": kind, "response": snapshot, "sequence_number": at})
            for at, (kind, snapshot) in enumerate(zip(kinds, snapshots, strict=True))
        ]
        return events, self._conversation


class TurnExchange(Exchange):
    """The answer of one turn: each event is a message. `on_end` is called once."""

    def __init__(
        self,
        request: Request,
        dialect: TurnDialect,
        stream: str | None,
        send: Callable[[list[bytes]], None],
        on_end: Callable[["TurnExchange"], None],
    ) -> None:
        """`stream`: the name of the stream that the turn is of; its events name it."""
        self.request = request
        self.takes_bare = True  # of the instance: compiled code does not see an attribute of a subclass
        self.started = False
        self.ended = False
        self.dialect = dialect
        self._ending = b"}" if stream is None else b',"stream_id":"%b"}' % stream.encode()
        self._send = send
        self._on_end = on_end
        self.on_status: Callable[[Request, int], None] | None = None

    def respond(self, status: int, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        """An error, as an event."""
        if self.ended:
            return
        self._report(status)
        shown = {name: value for name, value in headers if name in _SHOWN}
        more = b',"headers":%b' % msgspec.json.encode(shown) if shown else b""
        self._send([b'{"type":"error","status":%d,%b%b%b' % (status, body[1:-1], more, self._ending)])
        self._finish()

    def start(self, status: int, headers: Iterable[tuple[str, str]], data: bytes = b"") -> None:  # noqa: ARG002
        """The head of a stream, which has no place here."""
        self.started = True
        self._report(status)
        self.write(data)

    def write(self, data: bytes) -> None:
        """Some events, each of them whole."""
        if self.ended or not data:
            return
        found = []
        for event in data.split(b"\n\n"):
            at = event.find(_DATA)
            if at >= 0:
                found.append(
                    event[at + _DATA_BYTES :] if self._ending == b"}" else event[at + _DATA_BYTES : -1] + self._ending
                )
        self._send(found)

    def passthrough_target(self) -> Callable[[bytes], None] | None:
        """Takes whole events, until the answer ends or the client leaves."""
        return None if self.ended else self.write

    def end(self, data: bytes = b"") -> None:
        """The last events."""
        self.write(data)
        self._finish()

    def abort(self, data: bytes = b"") -> None:
        """The end of an answer that is incomplete; the client is told, if it was not."""
        self.write(data)
        if not self.ended and not self.dialect.ended:
            self.started = False
            self.refuse(Refusal(502, "the answer ended early", code="engine_error"))
        self._finish()

    def leave(self) -> None:
        """The client wants no more of it."""
        if self.ended:
            return
        self.ended = self.client_left = True
        on_gone, self.on_gone, self.on_pause = self.on_gone, None, None
        if on_gone is not None:
            on_gone()

    def cancel(self) -> None:
        """The same of a client that stays, which is told so in an event that it knows as a last one."""
        if self.ended:
            return
        self.leave()
        event = self.dialect.cancelled()
        self.ended = False
        if event:
            self.write(event)
        else:
            self.refuse(Refusal(CANCELLED, "the client has cancelled the turn", code="cancelled"))
        self._finish()

    def _report(self, status: int) -> None:
        if self.on_status is not None:
            self.on_status(self.request, status)

    def _finish(self) -> None:
        if not self.ended:
            self.started = self.ended = True
            self.on_gone = self.on_pause = None
            self._on_end(self)


def turn_headers(headers: dict[str, str]) -> dict[str, str]:
    """The headers of a handshake that are those of each turn, too."""
    dropped: Any = {"connection", "upgrade", "content-length", names.IDEMPOTENCY}
    return {n: v for n, v in headers.items() if n not in dropped and not n.startswith("sec-websocket-")}
