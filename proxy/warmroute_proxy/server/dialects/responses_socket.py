"""OpenAI's Responses over a WebSocket: events of a client become turns, each a request like one over HTTP.

A *stream* is a line of turns: those of one stream follow each other, those of several run at the same time. Each stream
keeps the conversation of its last response, which any stream of the connection may continue. Nothing is kept beyond
the connection, and nothing is kept of a response that failed. The key is checked for each turn.

Limits: `MAX_RUNNING` turns at the same time, `MAX_STREAMS` named streams, `MAX_WAITING` turns that wait.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple
from uuid import uuid4

from warmroute_proxy.dialects.raw_json import BadRequest
from warmroute_proxy.dialects.responses.client_events import (
    CANCEL,
    CREATE,
    MAX_STREAM_CHARS,
    PROCESSED,
    ClientEvent,
    InvalidStream,
    client_event,
)
from warmroute_proxy.dialects.responses.conversation import Conversation
from warmroute_proxy.dialects.work import TooMuch, Work
from warmroute_proxy.server.base.config import TenantConfig
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.terms import Terms
from warmroute_proxy.server.dialects.kept_conversations import KeptConversation, KeptConversations
from warmroute_proxy.server.dialects.responses import RESPONSES
from warmroute_proxy.server.dialects.socket_turn import TurnDialect, TurnExchange, not_found, turn_headers
from warmroute_proxy.server.http.body_memory import Reservation
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.http.open_connections import OpenConnections
from warmroute_proxy.server.http.websocket import WebSocket, handshake
from warmroute_proxy.server.intake.caller import Caller
from warmroute_proxy.server.intake.intake import check_light

log = logging.getLogger(__name__)

MAX_RUNNING: Final = 16
MAX_STREAMS: Final = 32
MAX_WAITING: Final = 64
SWITCHED: Final = 101


class _Asked(NamedTuple):
    """A turn that waits."""

    event: ClientEvent
    raw: bytes
    began_s: float
    reservation: Reservation


class _Stream:
    """A line of turns."""

    __slots__ = ("continues", "history", "last_id", "name", "running", "waiting")

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.waiting: deque[_Asked] = deque()
        self.running: TurnExchange | None = None
        self.continues: KeptConversation | None = None  # what the running turn does
        self.last_id = ""  # the id of the last response
        self.history: KeptConversation | None = None  # the conversation up to it


class ResponsesSockets:
    """Opens WebSockets."""

    def __init__(self, terms: Callable[[TenantConfig], Terms]) -> None:
        """`terms`: what a translation of a tenant's request depends on."""
        self._terms = terms
        self._kept_conversations: KeptConversations | None = None

    def open(self, request: Request, exchange: Exchange) -> None:
        """Take the offer of a client whose key was checked. Raises: Refusal, where it is none."""
        status, head = handshake(request)
        if status != SWITCHED:
            raise Refusal(400, "the offer of a WebSocket is not valid: see RFC 6455, 4.1", code="bad_request")
        exchange.switch(head, lambda connections: self._socket(connections, request))

    def _socket(self, connections: OpenConnections, request: Request) -> WebSocket:
        if self._kept_conversations is None:
            self._kept_conversations = KeptConversations(connections.memory)
        conversations, terms = self._kept_conversations, self._terms
        return WebSocket(
            connections, request.tenant, lambda socket: ResponsesSocket(socket, request, conversations, terms)
        )


class ResponsesSocket:
    """What one connection is for."""

    def __init__(
        self,
        socket: WebSocket,
        request: Request,
        conversations: KeptConversations,
        terms: Callable[[TenantConfig], Terms],
    ) -> None:
        self._socket = socket
        self._headers = turn_headers(request.headers)
        self._kept_conversations = conversations
        self._terms = terms
        self._streams: dict[str | None, _Stream] = {None: _Stream(None)}
        self._running = 0
        self._waiting = 0
        self._paused = False
        self._starting = False
        self._is_gone = False

    @property
    def busy(self) -> bool:
        """Whether a turn runs or waits."""
        return bool(self._running or self._waiting)

    # -- called by the connection

    def message(self, raw: bytes, began_s: float, reservation: Reservation) -> None:
        """An event of the client."""
        try:
            event = client_event(raw)
            stream = self._stream(event)
            if event.type == CREATE:
                if self._waiting >= MAX_WAITING:
                    problem = f"more than {MAX_WAITING} turns wait on this connection: wait for the answers"
                    raise Refusal(429, problem, code="too_many_requests")
                stream.waiting.append(_Asked(event, raw, began_s, reservation))
                self._waiting += 1
                self._start_turns()
            elif event.type == CANCEL:
                if stream.running is not None:
                    stream.running.cancel()
            elif event.type != PROCESSED:
                raise Refusal(400, f"the event type must be {CREATE} or {CANCEL}", code="invalid_value", param="type")
        except BadRequest as error:
            self.refused(Refusal(400, str(error), code="invalid_value", param=error.path))
        except InvalidStream:
            self.refused(_invalid_stream())
        except Refusal as refusal:
            self.refused(refusal, event.stream_id)

    def refused(self, refusal: Refusal, stream: str | None = None) -> None:
        """An event that cannot be taken."""
        request = Request(0.0, "POST", RESPONSES)
        exchange = TurnExchange(request, TurnDialect("", None), stream, self._socket.send, _nothing)
        exchange.on_status = self._socket.on_status
        exchange.refuse(refusal)

    def expired(self) -> None:
        """The client is to connect again, and knows this code."""
        self.refused(_expired())

    def pause(self, paused: bool) -> None:
        """The client reads too slowly, or has caught up."""
        self._paused = paused
        for stream in self._streams.values():
            if stream.running is not None and stream.running.on_pause is not None:
                stream.running.on_pause(paused)

    def gone(self) -> None:
        """The client has left: what runs is stopped, and nothing is kept."""
        self._is_gone = True
        for stream in self._streams.values():
            stream.waiting.clear()
            if stream.running is not None:
                stream.running.leave()
            if stream.history is not None:
                self._kept_conversations.drop(stream.history)
        self._streams.clear()

    # -- turns

    def _stream(self, event: ClientEvent) -> _Stream:
        name = event.stream_id
        stream = self._streams.get(name)
        if stream is None:
            if len(self._streams) > MAX_STREAMS:
                raise _too_many_streams()
            stream = self._streams[name] = _Stream(name)
        return stream

    def _start_turns(self) -> None:
        """Begin what waits, in each stream one after the other; a loop, because an answer may come at once."""
        if self._starting:
            return
        self._starting = True
        try:
            while self._waiting and self._running < MAX_RUNNING and not self._is_gone:
                ready = [each for each in self._streams.values() if each.running is None and each.waiting]
                if not ready:
                    break
                for stream in ready[: MAX_RUNNING - self._running]:
                    self._waiting -= 1
                    self._start(stream, stream.waiting.popleft())
        finally:
            self._starting = False
        if not self.busy and not self._is_gone:
            self._socket.idle()

    def _start(self, stream: _Stream, asked: _Asked) -> None:
        request = Request(asked.began_s, "POST", RESPONSES, self._headers)
        request.body, request.length, request.reservation = asked.raw, len(asked.raw), asked.reservation
        previous = asked.event.previous_response_id or ""
        asks = asked.event.generate is not False
        history, before = self._before(previous)
        request.dialect = dialect = TurnDialect(previous, before, asks=asks)
        exchange = TurnExchange(request, dialect, stream.name, self._socket.send, self._ended)
        exchange.on_status = self._socket.on_status
        stream.running, stream.continues = exchange, history
        self._running += 1
        if history is not None:
            history.in_use += 1
        try:
            if self._socket.ending:
                raise _expired()
            if previous and before is None:
                raise not_found(previous)
            self._socket.check(request)
            if asks:
                self._socket.handle(request, exchange)
                if self._paused and exchange.on_pause is not None:
                    exchange.on_pause(True)
            else:
                self._prepare(stream, exchange)
        except Refusal as refusal:
            exchange.refuse(refusal)

    def _before(self, previous: str) -> tuple[KeptConversation | None, Conversation | None]:
        """What a response has left."""
        for stream in self._streams.values():
            if previous and stream.last_id == previous and stream.history is not None:
                return stream.history, stream.history.conversation
        return None, None

    def _prepare(self, stream: _Stream, exchange: TurnExchange) -> None:
        """Answer a turn that asks for nothing: its conversation is kept for those that do."""
        request, dialect = exchange.request, exchange.dialect
        caller, raw = request.caller, bytes(request.body)
        assert isinstance(caller, Caller)
        try:
            check_light(raw)
            dialect.translate(request.path, b"", raw, self._terms(caller.tenant), Work.in_loop(len(raw)))
        except TooMuch:
            raise Refusal(
                413, "the turn is too large to be warmed ahead: send it to the model", code="request_too_large"
            ) from None
        except BadRequest as error:
            raise Refusal(400, str(error), code="invalid_value", param=error.path) from None
        response_id = f"warm_{uuid4().hex}"
        events, conversation = dialect.prepared(response_id)
        self._keep(stream, exchange, f"resp_{response_id}", conversation)
        exchange.end(b"".join([b"event: \ndata: %b\n\n" % event for event in events]))

    def _ended(self, exchange: TurnExchange) -> None:
        """A turn has ended: keep its conversation, and go on."""
        stream = next((each for each in self._streams.values() if each.running is exchange), None)
        if stream is None:
            return
        try:
            answered = exchange.dialect.answered()
        except ValueError as error:
            log.error("the conversation of an answer cannot be kept: %s", type(error).__name__)
            answered = None
        if answered is not None:
            self._keep(stream, exchange, *answered)
        if stream.continues is not None:
            stream.continues.in_use -= 1
        stream.running, stream.continues = None, None
        exchange.request.release()
        self._running -= 1
        self._start_turns()

    def _keep(self, stream: _Stream, exchange: TurnExchange, response_id: str, conversation: Conversation) -> None:
        history = stream.history
        if history is not None and history is not stream.continues:
            self._kept_conversations.drop(history)
            history = None
        stream.history = self._kept_conversations.keep(history, exchange.request.tenant, conversation)
        stream.last_id = response_id


def _nothing(exchange: TurnExchange) -> None:
    """A refusal is no turn that ends."""


def _expired() -> Refusal:
    message = (
        "Responses websocket connection limit reached (60 minutes). Create a new websocket connection to continue."
    )
    return Refusal(400, message, code="websocket_connection_limit_reached")


def _invalid_stream() -> Refusal:
    message = (
        f"The 'stream_id' field must be a non-empty string with at most {MAX_STREAM_CHARS} characters and may only "
        "contain letters, numbers, underscores, hyphens, and periods."
    )
    return Refusal(400, message, code="invalid_stream_id", param="stream_id")


def _too_many_streams() -> Refusal:
    message = (
        f"This WebSocket connection has reached its maximum number of distinct stream IDs ({MAX_STREAMS}). "
        "Reuse an existing stream_id or open a new WebSocket connection."
    )
    return Refusal(400, message, code="websocket_stream_limit_reached", param="stream_id")
