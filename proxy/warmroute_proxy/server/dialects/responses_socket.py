"""OpenAI's Responses over a WebSocket: each `response.create` of a client is a turn, run like a request over HTTP.

A *stream* is a sequence of turns. The turns of one stream run one after the other; several streams run at the same
time. Each stream keeps the conversation of its last response, which any stream of the connection may continue. Nothing
is kept beyond the connection, and nothing is kept of a response that failed. The API key is checked for each turn.

A turn waits in the queues of all requests (`RequestStarts`), and is read when its request begins. That also holds for a
turn that the model does not answer.

Limits: `MAX_RUNNING` turns run at the same time, `MAX_WAITING` turns wait, `MAX_STREAMS` streams have names. After
`MAX_REFUSED` refused events that are not turns, the connection is closed.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from websockets.frames import CloseCode

from warmroute.contract import headers as names
from warmroute_proxy.dialects.chat_answers import has_surrogate, whole_pairs
from warmroute_proxy.dialects.raw_json import BadRequest
from warmroute_proxy.dialects.responses.client_events import (
    CANCEL,
    CREATE,
    INTERRUPT,
    MAX_STREAM_CHARS,
    PROCESSED,
    STEER,
    ClientEvent,
    InvalidStream,
    client_event,
    steer_failed,
)
from warmroute_proxy.dialects.responses.conversation import MAX_KEPT_BYTES, ResponsesConversation
from warmroute_proxy.server.base.config import TenantConfig
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.terms import Terms
from warmroute_proxy.server.dialects.open_conversations import OpenConversations
from warmroute_proxy.server.dialects.responses import RESPONSES
from warmroute_proxy.server.dialects.socket_turn import CANCELLED, TurnDialect, TurnExchange, not_found, turn_headers
from warmroute_proxy.server.http.body_memory import BodyMemory, BodyReservation
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.http.frames import handshake
from warmroute_proxy.server.http.open_connections import OpenConnections
from warmroute_proxy.server.http.websocket import WebSocket

# The conversations that open WebSockets keep. They count in the memory of bodies, and are dropped before a body is
# refused.
#
# A client whose conversation was dropped sends all of it again, which costs it no more than HTTP does. So if a body
# finds no memory, but would fit without kept conversations, some conversations are dropped until it fits: first those
# of the body's tenant, the least recently used first, then those of the tenant that used its conversations least
# recently. To keep another conversation, only conversations of its own tenant are dropped. A conversation that a turn
# is continuing is never dropped.


class KeptConversation:
    """A conversation and its reserved memory. `conversation` is None once it was dropped."""

    __slots__ = ("conversation", "reservation", "size_bytes", "tenant")

    def __init__(self, tenant: str, reservation: BodyReservation) -> None:
        self.tenant = tenant
        self.reservation = reservation
        self.size_bytes = 0
        self.conversation: ResponsesConversation | None = None


class _OfTenant:
    """A tenant's conversations that may be dropped, the least recently used first, and their bytes."""

    def __init__(self) -> None:
        self.histories: dict[KeptConversation, None] = {}
        self.size_bytes = 0


class KeptConversations:
    """The conversations of all WebSockets of a process. The limits on connections and streams limit their number."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._tenants: dict[str, _OfTenant] = {}  # the least recently used first; without tenants that keep nothing
        self._size_bytes = 0
        memory.spare = self

    def keep(
        self, history: KeptConversation | None, tenant: str, conversation: ResponsesConversation
    ) -> KeptConversation | None:
        """Keep a conversation. Returns None if it is too large, or there is no memory for it.

        `history`: the entry whose conversation it continues and replaces, if any.
        """
        if history is None:
            history = KeptConversation(tenant, self._memory.reserve(tenant, 0))
        size_bytes = conversation.size_bytes
        more = max(size_bytes - history.size_bytes, 0)
        if size_bytes > MAX_KEPT_BYTES or not history.reservation.grow_by_own(more):
            self.drop(history)
            return None
        history.size_bytes += more
        history.conversation = conversation
        self.release(history)
        return history

    def reserve(self, tenant: str, size_bytes: int) -> BodyReservation:
        """Reserve memory for what a turn adds to a conversation, until the turn ends. Raises: Refusal."""
        reservation = self._memory.reserve(tenant, 0)
        if not reservation.grow(size_bytes):
            raise reservation.refusal()
        return reservation

    def hold(self, history: KeptConversation) -> None:
        """Do not let a conversation be dropped while a turn continues it."""
        found = self._tenants.get(history.tenant)
        if found is not None and history in found.histories:
            del found.histories[history]
            found.size_bytes -= history.size_bytes
            self._size_bytes -= history.size_bytes
            if not found.histories:
                del self._tenants[history.tenant]

    def release(self, history: KeptConversation) -> None:
        """Let a conversation be dropped again. It counts as the most recently used."""
        found = self._tenants.pop(history.tenant, None) or _OfTenant()
        self._tenants[history.tenant] = found
        found.histories[history] = None
        found.size_bytes += history.size_bytes
        self._size_bytes += history.size_bytes

    def drop(self, history: KeptConversation) -> None:
        self.hold(history)
        history.conversation, history.size_bytes = None, 0
        history.reservation.close()

    # -- called by the memory of bodies

    def bytes_of(self, tenant: str) -> int:
        """The bytes of a tenant's conversations that may be dropped."""
        found = self._tenants.get(tenant)
        return 0 if found is None else found.size_bytes

    def bytes_of_others(self, tenant: str) -> int:
        """The bytes of all other tenants' conversations that may be dropped."""
        return self._size_bytes - self.bytes_of(tenant)

    def give(self, tenant: str) -> None:
        """Drop one conversation: of this tenant if it has one, else of another tenant."""
        found = self._tenants.get(tenant) or next(iter(self._tenants.values()))
        self.drop(next(iter(found.histories)))


log = logging.getLogger(__name__)

MAX_RUNNING: Final = 16
MAX_STREAMS: Final = 32
MAX_WAITING: Final = 64
MAX_REFUSED: Final = 64
SWITCHED: Final = 101


class _Asked(NamedTuple):
    """A turn that waits."""

    event: ClientEvent
    raw: bytes
    began_s: float
    reservation: BodyReservation


class _Stream:
    """One stream of turns."""

    __slots__ = ("continues", "history", "last_id", "lineage", "name", "running", "waiting")

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.waiting: deque[_Asked] = deque()
        self.running: TurnExchange | None = None
        self.continues: KeptConversation | None = None  # the conversation that the running turn continues
        self.last_id = ""  # the id of the last response
        self.history: KeptConversation | None = None  # the conversation up to the last response
        self.lineage: int | None = None  # identifies the conversation branch of the last turn


class ResponsesSockets:
    """Opens the WebSockets of `/v1/responses`."""

    def __init__(self, terms: Callable[[TenantConfig], Terms], open_conversations: OpenConversations) -> None:
        """`terms`: gives what the translation of a tenant's requests depends on."""
        self._terms = terms
        self._open_conversations = open_conversations
        self._kept_conversations: KeptConversations | None = None

    def open(self, request: Request, exchange: Exchange) -> None:
        if names.IDEMPOTENCY in request.headers:
            problem = "Idempotency-Key would name all turns: send `idempotency_key` in each response.create"
            raise Refusal(400, problem, code="invalid_idempotency_key")
        status, head = handshake(request)
        if status != SWITCHED:
            raise Refusal(400, "the offer of a WebSocket is not valid: see RFC 6455, 4.1", code="bad_request")
        exchange.switch(head, lambda connections: self._socket(connections, request))

    def _socket(self, connections: OpenConnections, request: Request) -> WebSocket:
        if self._kept_conversations is None:
            self._kept_conversations = KeptConversations(connections.memory)
        conversations = self._kept_conversations, self._open_conversations
        return WebSocket(
            connections, request.tenant, lambda socket: ResponsesSocket(socket, request, *conversations, self._terms)
        )


class ResponsesSocket:
    """Runs the turns of one connection."""

    def __init__(
        self,
        socket: WebSocket,
        request: Request,
        kept_conversations: KeptConversations,
        open_conversations: OpenConversations,
        terms: Callable[[TenantConfig], Terms],
    ) -> None:
        self._socket = socket
        self._headers = turn_headers(request.headers)
        self._kept_conversations = kept_conversations
        self._open_conversations = open_conversations
        self._terms = terms
        self._streams: dict[str | None, _Stream] = {None: _Stream(None)}
        self._last_responses: dict[str, _Stream] = {}  # by the id of the stream's last response, if it is kept
        self._running = 0
        self._waiting = 0
        self._refused = 0
        self._paused = False
        self._starting = False
        self._is_gone = False

    @property
    def busy(self) -> bool:
        return bool(self._running or self._waiting)

    # -- called by the connection

    def message(self, raw: bytes, began_s: float, reservation: BodyReservation) -> None:
        stream = None
        if has_surrogate(raw):
            raw = whole_pairs(raw)
        try:
            event = client_event(raw)
            stream = event.stream_id
            if event.type == CREATE:
                self._wait(_Asked(event, raw, began_s, reservation))
            elif event.type == CANCEL:
                self._cancel(event)
            elif event.type == INTERRUPT:
                self._interrupt(event)
            elif event.type == STEER:
                self._socket.send([steer_failed(event)])
                self._socket.release(reservation)  # not needed any more: the answer has a copy of the whole input
                self._count_refused()
            elif event.type != PROCESSED:
                raise Refusal(400, f"the event type must be {CREATE} or {CANCEL}", code="invalid_value", param="type")
        except BadRequest as error:
            self._refuse(Refusal(400, str(error), code="invalid_value", param=error.path), stream)
        except InvalidStream:
            self._refuse(_invalid_stream(), stream)
        except Refusal as refusal:
            self._refuse(refusal, stream)

    def _refuse(self, refusal: Refusal, stream: str | None) -> None:
        self.refused(refusal, stream)
        self._count_refused()

    def _count_refused(self) -> None:
        self._refused += 1
        if self._refused > MAX_REFUSED:
            self._socket.close(CloseCode.POLICY_VIOLATION, "too many events that cannot be taken")

    def refused(self, refusal: Refusal, stream: str | None = None) -> None:
        request = Request(0.0, "POST", RESPONSES)
        exchange = TurnExchange(request, TurnDialect(), stream, self._socket.send, _nothing)
        exchange.on_status = self._socket.on_status
        exchange.refuse(refusal)

    def expired(self) -> None:
        """Tell the client to connect again, by an error code that clients know."""
        self.refused(_expired())

    def pause(self, paused: bool) -> None:
        """The client reads too slowly (`paused`) or has caught up. No turn begins while it is too slow."""
        self._paused = paused
        for stream in self._streams.values():
            if stream.running is not None:
                stream.running.pause(paused)
        if not paused:
            self._start_turns()

    def gone(self, *, by_client: bool) -> None:
        """The connection is closed: stop its turns and drop its conversations. A client that closes the connection
        between two turns has ended its conversations; a client that breaks off a turn may go on with them.
        """
        over = by_client and not self.busy
        self._is_gone = True
        for stream in self._streams.values():
            if stream.lineage is not None:
                self._open_conversations.closed(stream.lineage, stream, over=over)
            stream.waiting.clear()
            running, stream.running = stream.running, None  # breaks a cycle: no need for the garbage collector
            if running is not None:
                running.leave()
            if stream.history is not None:
                self._kept_conversations.drop(stream.history)
        self._streams.clear()
        self._last_responses.clear()

    # -- turns

    def _wait(self, asked: _Asked) -> None:
        """Queue a turn after the others of its stream. Raises: Refusal."""
        if self._waiting >= MAX_WAITING:
            problem = f"more than {MAX_WAITING} turns wait on this connection: wait for the answers"
            raise Refusal(429, problem, code="too_many_requests")
        name = asked.event.stream_id
        stream = self._streams.get(name)
        if stream is None:
            if len(self._streams) > MAX_STREAMS:
                raise _too_many_streams()
            stream = self._streams[name] = _Stream(name)
        stream.waiting.append(asked)
        self._waiting += 1
        self._start_turns()

    def _cancel(self, event: ClientEvent) -> None:
        """Cancel the running turn of a stream, otherwise its first waiting turn. An event that names another response
        has come too late, and cancels nothing.
        """
        stream, response_id = self._streams.get(event.stream_id), event.response_id
        if stream is None:
            return
        if stream.running is not None:
            if response_id is None or response_id == stream.running.dialect.response_id:
                stream.running.cancel()
        elif stream.waiting and response_id is None:
            stream.waiting.popleft()
            self._waiting -= 1
            self.refused(Refusal(CANCELLED, "the client has cancelled the turn", code="cancelled"), stream.name)
            self._start_turns()

    def _interrupt(self, event: ClientEvent) -> None:
        """Interrupt the running response that the event names, of whichever stream. If none runs, the event is late."""
        for stream in self._streams.values():
            running = stream.running
            if running is not None and event.response_id and event.response_id == running.dialect.response_id:
                running.interrupt()
                return

    def _start_turns(self) -> None:
        """Begin waiting turns, one at a time in each stream. It loops, since a turn may end before `_start` returns."""
        if self._starting:
            return
        self._starting = True
        try:
            while self._waiting and self._running < MAX_RUNNING and not self._paused and not self._is_gone:
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
        key = asked.event.idempotency_key
        headers = self._headers if key is None else {**self._headers, names.IDEMPOTENCY: key}
        request = Request(asked.began_s, "POST", RESPONSES, headers)
        request.body, request.length, request.body_reservation = asked.raw, len(asked.raw), asked.reservation
        previous = asked.event.previous_response_id or ""
        before = partial(self._before, stream, previous, len(asked.raw), asked.reservation)
        request.dialect = dialect = TurnDialect(asked.event, before, partial(self._begins, stream))
        exchange = TurnExchange(request, dialect, stream.name, self._socket.send, partial(self._ended, stream))
        exchange.on_status = self._socket.on_status
        stream.running = exchange
        self._running += 1
        try:
            if self._socket.ending:
                raise _expired()
            self._socket.check(request)
            self._socket.handle(request, exchange)
        except Refusal as refusal:
            exchange.refuse(refusal)
        except Exception as error:
            log.error("a turn failed: %s", type(error).__name__)
            exchange.fail()

    def _before(
        self, stream: _Stream, previous: str, more_bytes: int, reservation: BodyReservation
    ) -> ResponsesConversation | None:
        """The conversation that a turn of `more_bytes` continues: that of its own stream, which is held until the turn
        ends, or a copy of another stream's. The conversation's bytes are also reserved for the turn, since the body of
        the chat contains them. Raises: Refusal.
        """
        if not previous:
            return None
        other = stream if previous == stream.last_id else self._last_responses.get(previous)
        history = None if other is None else other.history
        conversation = None if history is None else history.conversation
        if history is None or conversation is None:
            raise not_found(previous)
        if not conversation.is_light:  # every turn that continues it is refused, so no turn uses it now
            self._kept_conversations.drop(history)
            raise not_found(previous)
        if history.size_bytes + more_bytes > self._socket.body_bytes:
            problem = f"the turn and its history exceed {self._socket.body_bytes} bytes"
            raise Refusal(413, problem, code="request_too_large")
        if other is not stream:
            reservation.add_body(history.size_bytes)
            return conversation.copy()
        self._kept_conversations.hold(history)
        stream.continues = history
        reservation.add_body(history.size_bytes)
        return conversation

    def _begins(self, stream: _Stream, lineage: int) -> None:
        """A turn was read. Until it ends, reserve memory for what it adds to its conversation, and for the copy if it
        continues another stream's conversation: the body's own reservation ends earlier. Raises: Refusal, without
        memory.
        """
        turn = stream.running
        if self._is_gone or turn is None:
            return
        if (more := turn.dialect.more) is not None:
            copied = 0 if stream.continues is not None else more.before.size_bytes
            turn.dialect.hold(self._kept_conversations.reserve(turn.request.tenant, more.size_bytes + copied))
        if stream.lineage not in (None, lineage):
            self._open_conversations.closed(stream.lineage, stream, over=False)
        stream.lineage = lineage
        self._open_conversations.opened(lineage, stream)

    def _ended(self, stream: _Stream, exchange: TurnExchange) -> None:
        if self._is_gone:
            return
        held, stream.continues = stream.continues, None
        if exchange.dialect.is_whole and stream.lineage is not None:
            self._open_conversations.answered(stream.lineage)
        try:
            answered = exchange.dialect.answered()
        except Exception as error:  # the turn has ended, whatever goes wrong here
            log.error("the conversation of an answer cannot be kept: %s", type(error).__name__)
            answered = None
        exchange.dialect.let_go()
        if answered is not None:
            self._keep(stream, held, exchange.request.tenant, *answered)
        elif held is not None:
            self._kept_conversations.release(held)
        stream.running = None
        if exchange.request.body_reservation is not None:
            self._socket.release(exchange.request.body_reservation)
        self._running -= 1
        self._start_turns()

    def _keep(
        self,
        stream: _Stream,
        held: KeptConversation | None,
        tenant: str,
        response_id: str,
        conversation: ResponsesConversation,
    ) -> None:
        if stream.history is not None and stream.history is not held:
            self._kept_conversations.drop(stream.history)
        if self._last_responses.get(stream.last_id) is stream:  # not so after two turns with one idempotency key
            del self._last_responses[stream.last_id]
        stream.history = self._kept_conversations.keep(held, tenant, conversation)
        stream.last_id = response_id
        if stream.history is not None:
            self._last_responses[response_id] = stream


def _nothing(exchange: TurnExchange) -> None:
    """Do nothing: the end of a refusal does not end a turn."""


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
