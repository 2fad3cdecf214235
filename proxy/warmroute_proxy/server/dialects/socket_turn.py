"""One turn on a WebSocket: a request to `/v1/responses` that continues a conversation, and the events of its answer."""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final
from uuid import uuid4

import msgspec

from warmroute.contract import headers as names
from warmroute_proxy.dialects.responses.client_events import ClientEvent, created_request
from warmroute_proxy.dialects.responses.conversation import Continued, ResponsesConversation, continued
from warmroute_proxy.dialects.responses.events import EventTranslator
from warmroute_proxy.dialects.responses.request import ChatRequest, OtherScope
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.sealing import Seal
from warmroute_proxy.server.base.terms import Terms
from warmroute_proxy.server.dialects.dialect import Translated, translated_body
from warmroute_proxy.server.dialects.responses import RESPONSES, Responses, TranslatedResponse
from warmroute_proxy.server.http.body_memory import BodyReservation
from warmroute_proxy.server.http.exchange import Exchange, Request

CANCELLED: Final = 499
_SHOWN: Final = frozenset({"retry-after", names.RECEIPT, "x-request-id"})
_EVENTS: Final = re.compile(rb"\ndata: (.*)")


def not_found(previous: str) -> Refusal:
    """The refusal of a turn whose conversation is not kept. It makes the client send the whole conversation again."""
    message = f"Previous response with id '{previous[:128]}' not found."
    return Refusal(400, message, code="previous_response_not_found", param="previous_response_id")


def _nothing() -> None:
    """The default of `before`: the turn continues no conversation."""


def _unnoted(lineage: int) -> None:
    """The default of `begins`: nobody follows the turn's conversation."""


class TurnDialect(Responses):
    """The dialect of one turn: puts the conversation that the turn continues in front of its input."""

    def __init__(
        self,
        event: ClientEvent | None = None,
        before: Callable[[], ResponsesConversation | None] = _nothing,
        begins: Callable[[int], None] = _unnoted,
    ) -> None:
        """`event`: the client's event that asks for the turn, if it was read. `before`: returns the conversation that
        the turn continues; raises Refusal. `begins`: called with the lineage (the conversation branch) once the turn
        was read.
        """
        self._event = event
        self._previous = "" if event is None else event.previous_response_id or ""
        self._before = before
        self._begins = begins
        self.asks = event is None or event.generate is not False
        """Whether the model should answer."""

        self._found: TranslatedTurn | None = None

    def translate(self, path: str, query: bytes, body: bytes, terms: Terms, work: TranslationWork) -> "TranslatedTurn":  # noqa: ARG002
        event, self._event = self._event, None
        created = created_request(body, event)
        seal = Seal(terms.reasoning_key("seal"))
        before, self._before = self._before(), _nothing
        try:
            found, more = continued(created.members, created.items, seal, terms.texts, work, before, asks=self.asks)
        except OtherScope:
            raise not_found(self._previous) from None
        self._found = TranslatedTurn(found, seal, more)
        return self._found

    def elsewhere(self, path: str, query: bytes) -> Callable[[bytes, Terms], Translated]:  # noqa: ARG002
        """Another process translates a turn only if the turn continues nothing: that process keeps no conversations."""
        self._event = None  # frees the body, which the event refers to
        if not self.asks:
            problem = "the turn is too large to be warmed ahead: send it to the model"
            raise Refusal(413, problem, code="request_too_large")
        if self._previous:
            raise not_found(self._previous)
        return whole_turn

    def translated(self, found: Translated) -> None:
        assert isinstance(found, TranslatedTurn)
        self._found = found

    def only_kept(self, found: Translated) -> str | None:
        assert isinstance(found, TranslatedTurn)
        return None if self.asks else found.model

    def begins(self, lineage: int) -> None:
        self._begins(lineage)

    @property
    def response_id(self) -> str:
        """The id of the turn's response; empty if the response has not begun."""
        translator = None if self._found is None else self._found.translator
        return "" if translator is None else translator.response_id

    @property
    def more(self) -> Continued | None:
        """What the turn adds to its conversation; None if the conversation is not kept."""
        return None if self._found is None else self._found.more

    def hold(self, reservation: BodyReservation) -> None:
        """Keep the reservation for what the turn adds until `let_go`: the turn's body is released earlier."""
        if self._found is not None:
            self._found.reservation = reservation

    def let_go(self) -> None:
        """Forget what the turn adds: the turn has ended, so this was appended to the conversation or is not kept."""
        if self._found is not None:
            self._found.more = self._found.reservation = None

    @property
    def is_whole(self) -> bool:
        """Whether the model's response is complete."""
        translator = None if self._found is None else self._found.translator
        return translator is not None and translator.output is not None

    def answered(self) -> tuple[str, ResponsesConversation] | None:
        """The response's id, and the conversation up to it; None if the response is incomplete or is not kept."""
        return None if self._found is None else self._found.answered()

    def failed(self, status: int, message: str, code: str) -> bytes:
        """The last event of a response that fails; empty if the response has not begun, or has ended."""
        translator = None if self._found is None else self._found.translator
        return b"" if translator is None or translator.ended else translator.error(status, message, code)

    def interrupted(self) -> bytes:
        """The last events of a response that its client interrupts; empty if it has not begun, or has ended."""
        translator = None if self._found is None else self._found.translator
        return b"" if translator is None or translator.ended else translator.interrupted()

    def kept_answer(self) -> bytes:
        assert self._found is not None
        return self._found.prepared()


def whole_turn(raw: bytes, terms: Terms) -> Translated:
    """Translate a turn that continues nothing and is not kept into chat's terms. Raises: Refusal, TooMuch."""
    found = translated_body(TurnDialect(), RESPONSES, b"", raw, terms)
    assert isinstance(found, TranslatedTurn)
    found.more = None
    return found


class TranslatedTurn(TranslatedResponse):
    """A turn in chat's terms. `more`: what the turn adds to its conversation; None if the conversation is not kept."""

    def __init__(self, found: ChatRequest, seal: Seal, more: Continued | None) -> None:
        super().__init__(found, seal)
        self.more = more
        self.reservation: BodyReservation | None = None  # the memory of `more`
        self.model = found.model
        self.translator: EventTranslator | None = None
        self._prepared_id = ""

    def events(self, receipt_id: str) -> EventTranslator:
        self.translator = super().events(receipt_id)
        return self.translator

    def answered(self) -> tuple[str, ResponsesConversation] | None:
        more, translator = self.more, self.translator
        if more is None:
            return None
        if self._prepared_id:
            return self._prepared_id, more.prepared()
        if translator is None or translator.output is None:
            return None
        return translator.response_id, more.answered(translator.output, self._seal)

    def prepared(self) -> bytes:
        """The events of a response without output, for a turn that the model does not answer."""
        response = self._response(f"warm_{uuid4().hex}")
        self._prepared_id = response.named("resp")
        snapshots = response.snapshot("in_progress", []), response.snapshot("completed", [])
        kinds = "response.created", "response.completed"
        events = [
            msgspec.json.encode({"type": kind, "response": snapshot, "sequence_number": at})
            for at, (kind, snapshot) in enumerate(zip(kinds, snapshots, strict=True))
        ]
        return b"".join([b"event: \ndata: %b\n\n" % event for event in events])


class TurnExchange(Exchange):
    """Sends the answer of one turn, each event as a message. Calls `on_end` once."""

    def __init__(
        self,
        request: Request,
        dialect: TurnDialect,
        stream: str | None,
        send: Callable[[list[bytes]], None],
        on_end: Callable[["TurnExchange"], None],
    ) -> None:
        """`stream`: the name of the turn's stream, which its events repeat; None for the unnamed stream."""
        self.request = request
        self.takes_bare = True  # set on the instance: compiled code does not see a subclass's attribute
        self.started = False
        self.ended = False
        self.dialect = dialect
        self._paused = False
        self._ending = b"}" if stream is None else b',"stream_id":"%b"}' % stream.encode()
        self._send = send
        self._on_end = on_end
        self.on_status: Callable[[Request, int], None] | None = None

    def respond(self, status: int, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        if self.ended:
            return
        self._report(status)
        shown = {name: value for name, value in headers if name in _SHOWN}
        more = b',"headers":%b' % msgspec.json.encode(shown) if shown else b""
        self._send([b'{"type":"error","status":%d,%b%b%b' % (status, body[1:-1], more, self._ending)])
        self._finish()

    def start(self, status: int, headers: Iterable[tuple[str, str]], data: bytes = b"") -> None:  # noqa: ARG002
        """Begin a stream. Its status and headers are not sent, because events have no place for them."""
        self.started = True
        self._report(status)
        self.write(data)

    def write(self, data: bytes) -> None:
        if self.ended or not data:
            return
        if self._paused and self.on_pause is not None:
            self.on_pause(True)  # the client became slow before an engine could be paused
        found = _EVENTS.findall(data)
        self._send(found if self._ending == b"}" else [event[:-1] + self._ending for event in found])

    def passthrough_target(self) -> Callable[[bytes], None] | None:
        """The function that takes whole events; None once the answer has ended or the client has left."""
        return None if self.ended else self.write

    def end(self, data: bytes = b"") -> None:
        self.write(data)
        self._finish()

    def abort(self, data: bytes = b"") -> None:
        """End an incomplete answer. The client gets an error event, unless `data` ends with one."""
        self.write(data)
        self._break_off(502, "the answer ended early", "engine_error")

    def pause(self, paused: bool) -> None:
        """The client reads too slowly, or has caught up."""
        self._paused = paused
        if self.on_pause is not None:
            self.on_pause(paused)

    def leave(self) -> None:
        """Stop the turn, because the client wants no more of its answer."""
        if self.ended:
            return
        self.ended = self.client_left = True
        on_gone, self.on_gone, self.on_pause = self.on_gone, None, None
        if on_gone is not None:
            on_gone()

    def cancel(self) -> None:
        """Stop the turn of a client that stays connected, and end its answer with a terminal event."""
        if self.ended:
            return
        self.leave()
        self.ended = False
        self._break_off(CANCELLED, "the client has cancelled the turn", "cancelled")

    def interrupt(self) -> None:
        """Stop the turn, and end its response with the items that are whole."""
        if self.ended:
            return
        self.leave()
        self.ended = False
        self.end(self.dialect.interrupted())

    def _break_off(self, status: int, message: str, code: str) -> None:
        """End the answer with a terminal event: a failed response, or an error if the response has not begun."""
        event = self.dialect.failed(status, message, code)
        if event or self.dialect.response_id:
            self.end(event)
        else:
            self.refuse(Refusal(status, message, code=code))

    def _report(self, status: int) -> None:
        if self.on_status is not None:
            self.on_status(self.request, status)

    def _finish(self) -> None:
        if not self.ended:
            self.started = self.ended = True
            self.on_gone = self.on_pause = None
            self._on_end(self)


def turn_headers(headers: dict[str, str]) -> dict[str, str]:
    """The headers of a handshake that apply to each turn, too."""
    dropped: Any = {"connection", "upgrade", "content-length"}
    return {n: v for n, v in headers.items() if n not in dropped and not n.startswith("sec-websocket-")}
