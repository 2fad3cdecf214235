"""HTTP/1.1 on the client's side. A `Connection` for each socket turns bytes into requests, and answers them in order.

The connection knows no routes. An `Endpoint` refuses a request by its head, before the body is read, or handles the
whole request. The endpoint answers through an `Exchange`.

What keeps this safe:
- header bytes, header count, target length, body bytes, pipelined requests and open connections have limits; each
  phase (head, body, keep-alive, a client that does not read) has a deadline, which is checked once a second;
- `RequestReader` parses every byte with one parser, and refuses ambiguous framing;
- requests of one connection are answered in order, one at a time. The socket is also read during an answer, because
  otherwise the proxy would not notice that a client has left. Bytes that arrive during an answer are parsed after the
  answer, and count for its tenant. Beyond `READ_AHEAD_BYTES` the socket is not read until the answer ends;
- the memory of all bodies has one budget (`body_memory`). An answer counts there until its client has read it;
- if a request is refused before its body was read, the rest of the body is read and dropped for a moment after the
  answer, so that a reset does not destroy the answer.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from warmroute.contract import headers as names
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.http.body_memory import UNNAMED, BodyReservation
from warmroute_proxy.server.http.exchange import LEFT_TARGET, Exchange, NextProtocol, Request
from warmroute_proxy.server.http.open_connections import BUSY, OpenConnection, OpenConnections
from warmroute_proxy.server.http.read_ahead import READ_AHEAD_BYTES, ReadAhead
from warmroute_proxy.server.http.read_slices import COUNTED_BYTES
from warmroute_proxy.server.http.request_reader import RequestReader, head_bytes
from warmroute_proxy.server.http.tls_buffers import Buffers, is_tls

MAX_PIPELINED: Final = 16  # how many requests may wait until earlier requests are answered
LINGER_S: Final = 2.0
IDLE_GRACE_S: Final = 1.0  # at shutdown, an idle connection stays open this long, to refuse a late request
LINGER_BODY_BYTES: Final = 65536  # bodies of refused requests up to this size are read, to keep the connection
STALLED_WRITE_S: Final = 60.0  # a client that reads nothing for this long is gone
WRITE_HIGH_BYTES: Final = 65536
UNREAD_BYTES: Final = 8_192  # how much of a complete answer may wait for the client without being counted
PIECE_BYTES: Final = 262_144  # how much of an answer is written at once
UNSENT_BYTES: Final = WRITE_HIGH_BYTES + PIECE_BYTES
"""How many unsent bytes of a slow client's stream are counted. There are not many more, since the engine is not read
meanwhile. An answer that is not streamed has its own reservation.
"""


_LEFT_LINE: Final = f"POST {LEFT_TARGET} ".encode()


class Connection:
    """One client connection: an `asyncio.BufferedProtocol`, but not by type, since compiled classes cannot inherit it.

    All connections read into one shared buffer, which saves a copy of each body.
    """

    def __init__(self, shared: OpenConnections, arrival: OpenConnection | None = None) -> None:
        """`arrival`: a member of `shared` that stood for this socket until now; this connection takes its place."""
        self._shared = shared
        self._arrival = arrival
        self._limits = shared.limits
        self._read_into = shared.read_into
        self._reader = RequestReader(self, shared.limits, shared.clock)
        self._transport: asyncio.Transport | None = None
        self._active: Exchange | None = None
        self._waiting: deque[Request] = deque()  # at most MAX_PIPELINED
        self._ahead: ReadAhead | None = None
        self._unread: BodyReservation | None = None  # memory of an answer that the client has not read
        self._unsent_hold: BodyReservation | None = None  # memory of a stream that the client reads slowly
        self._buffers: Buffers | None = None  # memory of the TLS buffers, once they are large
        self._head_hold: BodyReservation | None = None  # memory of a head that has not ended
        self.owner = UNNAMED
        self._user = UNNAMED  # tenant for which the connection counts, from a request's head until the answer is read
        self._expects = False  # whether the client waits for `100 Continue`
        self._starting = self._is_tls = False
        self._paused = False
        self._unsent = 0  # bytes in the transport's buffer at the last check
        self._asked_s = shared.clock()  # when the connection was made, or its last answer ended
        self.deadline_s = self._asked_s + self._limits.head_timeout_s

    # -- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not inherit from this class
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self._is_tls = is_tls(self._transport)
        arrival, self._arrival = self._arrival, None
        if arrival is not None:
            self._shared.discard(arrival)
        if not self._shared.admit(self):
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._shared.discard(self)
        self._leave()
        self._transport = None
        self._reader.close()
        self._waiting.clear()
        self._ahead = self._unsent_hold = self._head_hold = self._buffers = None
        self._give_back()
        exchange, self._active = self._active, None
        if exchange is not None and not exchange.ended:
            exchange.ended = True
            on_gone, exchange.on_gone, exchange.on_pause = exchange.on_gone, None, None
            if on_gone is not None:
                on_gone()

    def eof_received(self) -> bool:
        return False  # a client that has half-closed counts as gone: asyncio closes, and calls connection_lost

    def pause_writing(self) -> None:
        self._paused = True
        self._unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        self._set_deadline(STALLED_WRITE_S)
        hold = self._unsent_hold = self._shared.memory.reserve(self._user, 0)
        if not hold.cover(min(self._unsent, UNSENT_BYTES)):
            self.abort()
        elif self._active is not None and self._active.on_pause is not None:
            self._active.on_pause(True)

    def resume_writing(self) -> None:
        self._paused = False
        self._unsent_hold = None
        self.check_read()
        if not self._reader.open:
            self._set_deadline(LINGER_S)
        elif self._active is None:
            self._set_deadline(self._limits.keepalive_s)
            self._leave_if_idle()
            self._start_next()
            self._read_on()
        else:
            self.deadline_s = float("inf")
            if self._active.on_pause is not None:
                self._active.on_pause(False)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._read_into

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(self._read_into[:nbytes])

    def data_received(self, data: bytes | memoryview) -> None:
        """Handle a read. Nothing refers to `data` afterwards, since its memory is used again."""
        if not self._reader.open:
            return
        if self._active is not None or self._waiting or self._ahead is not None:
            self._read_ahead(data)
        elif (refusal := self._reader.feed(data)) is not None:
            self.stop_reading(refusal)
        if len(data) >= COUNTED_BYTES:
            if self._is_tls:
                self._count_buffers()
            self._shared.reads.read(self, len(data), self._reader.tenant)

    # -- called by `ReadSlices`

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on, unless too many bytes wait until the current request is answered."""
        full = self._ahead is not None and self._ahead.full
        if self._transport is not None and not self._transport.is_closing() and not full:
            self._transport.resume_reading()

    def _read_ahead(self, data: bytes | memoryview) -> None:
        """Keep bytes that come during an answer. Stop reading if the bytes are too many or find no memory."""
        ahead, active, transport = self._ahead, self._active, self._transport
        if ahead is None:
            tenant = active.request.tenant if active is not None else UNNAMED
            ahead = self._ahead = ReadAhead(self._shared.memory.reserve(tenant, 0))
        if not ahead.reservation.grow(len(data)):
            self.stop_reading(ahead.reservation.refusal())
            return
        ahead.data += data
        if active is not None and names.FORWARD in active.request.headers and ahead.data.startswith(_LEFT_LINE):
            active.client_left = True
            self.abort()
        elif len(ahead.data) > READ_AHEAD_BYTES and not ahead.full and transport is not None:
            ahead.full = True
            transport.pause_reading()

    def _read_on(self) -> None:
        """Parse the bytes that came during an answer, unless another answer has begun."""
        while self._ahead is not None and self._active is None and not self._waiting and not self._paused:
            data = bytes(self._ahead.data)
            self._drop_ahead()
            refusal = self._reader.feed(data)
            if refusal is not None:
                self.stop_reading(refusal)

    def _drop_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.full and self._transport is not None:
            self._transport.resume_reading()

    # -- called by the reader

    def request_begun(self, request: Request) -> None:
        """Set the deadline for the rest of the request's head."""
        if self._active is None:
            self.deadline_s = request.received_s + self._limits.head_timeout_s

    def head_received(self, request: Request) -> None:
        """Let the endpoint refuse the request by its head. A refused request's body is read only if it is small."""
        if self._shared.closing:
            request.keep_alive = False
        self.deadline_s = max(self.deadline_s, self._shared.clock() + self._limits.body_timeout_s)
        try:
            self._shared.endpoint.on_head(request)
            if request.tenant and not self._user:  # else the connection counts for this tenant once the request begins
                self._count_for(request.tenant)
            if request.length != 0:
                # The body of a request that waits for another one is not read yet, so no memory is reserved for it.
                first = self._active is None and not self._waiting
                size_bytes = request.length or 0 if first else 0
                request.body_reservation = self._shared.memory.reserve(request.tenant, size_bytes)
        except Refusal as refusal:
            if request.length is None or request.length > LINGER_BODY_BYTES:
                raise
            request.refusal = refusal.with_traceback(None)  # the traceback refers to the request, so it makes a cycle
        headers = request.headers
        if "expect" in headers and headers["expect"].lower() == "100-continue" and request.length != 0:
            self._expects = True
            self._continue()

    def head_held(self, size_bytes: int) -> None:
        """Count the bytes of an unfinished head for the connection's tenant. Raises: Refusal."""
        hold = self._head_hold = self._head_hold or self._shared.memory.reserve(self.owner, 0)
        if not hold.cover(size_bytes):
            raise hold.refusal()

    def head_kept(self, request: Request, size_bytes: int) -> None:
        """Count a head that stays in memory as long as its request. Raises: Refusal."""
        self._head_hold = None
        if request.body_reservation is None:
            request.body_reservation = self._shared.memory.reserve(request.tenant, 0)
        if not request.body_reservation.grow(size_bytes):
            raise request.body_reservation.refusal()

    def request_received(self, request: Request) -> None:
        """Answer a request after the requests before it. Raises: Refusal, if too many requests wait."""
        self._expects = False
        active = self._active
        if request.path == LEFT_TARGET and active is not None and names.FORWARD in active.request.headers:
            active.client_left = True
            self.abort()
            return
        if len(self._waiting) >= MAX_PIPELINED:
            problem = f"more than {MAX_PIPELINED} requests came at once behind one that is being answered"
            raise Refusal(429, problem, code="too_many_requests")
        if self._active is None and not self._waiting and not self._paused and self._transport is not None:
            self._start(request)
        else:
            self.head_kept(request, head_bytes(request))
            self._waiting.append(request)

    def stop_reading(self, refusal: Refusal) -> None:
        """Answer the requests that were read, then send `refusal` and close. Bytes that follow are ignored."""
        if self._reader.open:
            self._waiting.append(self._reader.stop(refusal))
            self._drop_ahead()
            self._start_next()

    # -- answering in order

    def _start_next(self) -> None:
        """Start the requests that wait, as long as no request is active. This is a loop, because an answer may end at
        once."""
        if self._starting:
            return
        self._starting = True
        try:
            # No request starts while the client does not read, or its answers would pile up here.
            while self._waiting and self._active is None and self._transport is not None and not self._paused:
                self._start(self._waiting.popleft())
        finally:
            self._starting = False

    def _start(self, request: Request) -> None:
        """Begin to answer a request, the first of those that wait."""
        exchange = self._active = Exchange(self, request)
        self.deadline_s = float("inf")
        if request.refusal is None and request.tenant != self._user:
            try:
                self._count_for(request.tenant)
            except Refusal as refusal:
                request.refusal = refusal.with_traceback(None)
        if request.refusal is not None:
            refuse = self._shared.reads.refuse
            if refuse is None:
                exchange.refuse(self._shared.endpoint.in_shape(request, request.refusal))
            else:
                refuse(request, exchange)
        else:
            self._shared.handle(request, exchange)

    def _continue(self) -> None:
        if self._expects and self._active is None and not self._waiting:
            self._expects = False
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    # -- called by the exchange

    def on_status(self, request: Request, status: int) -> None:
        self._shared.endpoint.on_status(request, status)

    def write(self, data: bytes) -> None:
        """Send bytes to the client. They are dropped if the client is gone."""
        transport = self._transport
        if transport is None:
            return
        if len(data) < COUNTED_BYTES:
            transport.write(data)
            return
        if self._is_tls:
            self._count_buffers()
        # Write in pieces: over TLS, the unsent bytes of the write that fills the socket are not counted, only those of
        # later writes.
        for at in range(0, len(data), PIECE_BYTES):
            transport.write(data[at : at + PIECE_BYTES])

    def passthrough_target(self) -> Callable[[bytes], None] | None:
        return None if self._transport is None else self._transport.write

    def switch(self, head: bytes, protocol_of: Callable[[OpenConnections], NextProtocol]) -> None:
        """Send `head` and go on with another protocol. Bytes that the client sent before it could read `head` are
        dropped.
        """
        transport, self._transport, self._active, self._ahead = self._transport, None, None, None
        assert transport is not None
        self._shared.discard(self)
        self._user = UNNAMED  # from now on the other protocol counts for the tenant
        self._waiting.clear()
        self._reader.close()
        other = protocol_of(self._shared)
        transport.write(head)
        transport.set_protocol(cast("asyncio.BaseProtocol", other))
        transport.resume_reading()
        other.connection_made(transport)

    def exchange_ended(self, exchange: Exchange) -> None:
        """Start the next request after a complete answer, or close."""
        self._active = None
        reservation = exchange.request.body_reservation
        if self._unsent_bytes() > UNREAD_BYTES:
            self._hold_answer(reservation or self._shared.memory.reserve(exchange.request.tenant, 0))
        elif reservation is not None:
            reservation.close()
        self._leave_if_idle()
        if not exchange.request.keep_alive:
            self.close_after_flush()
            return
        if not self._paused:
            self._asked_s = now_s = self._shared.clock()
            self.deadline_s = now_s + self._limits.keepalive_s
        if self._waiting:
            self._start_next()
        if self._ahead is not None:
            self._read_on()
        if self._expects:
            self._continue()
        if not self._reader.open or self._shared.closing:
            self._close_if_idle()

    def _count_for(self, tenant: str) -> None:
        """Count this connection for a tenant. Raises: Refusal, if the tenant uses too many connections."""
        if self._user:
            self._leave()
        if tenant:
            self._shared.use(tenant)
            self._user = tenant
            if tenant is not self.owner:
                self.owner = tenant
                self._shared.known(self)

    def _leave_if_idle(self) -> None:
        """Stop counting for the tenant, unless a request has begun or waits, or the last answer is unread."""
        if self._user and not self._paused and not self._waiting and self._reader.request is None:
            self._leave()

    def _leave(self) -> None:
        user, self._user = self._user, UNNAMED
        if user:
            self._shared.leave(user)

    def _close_if_idle(self) -> None:
        # A separate method: compiled code of a method that has set `_active` to None assumes that it is still None.
        if self._active is None and not self._waiting:
            self.close_after_flush()

    def close_after_flush(self) -> None:
        """Close when all bytes are sent. If the client may still be sending, its bytes are read and dropped for a
        moment, because a reset would destroy the answer.
        """
        reader = self._reader
        reader.open = False
        self._waiting.clear()
        more_comes = self._ahead is not None
        self._drop_ahead()
        transport = self._transport
        if transport is None:
            return
        if self._active is not None and self._active.ended:
            self._active = None
        self._unsent = transport.get_write_buffer_size()
        self._set_deadline(STALLED_WRITE_S if self._paused else LINGER_S)
        if reader.request is None and reader.refusal is None and not more_comes:
            transport.close()  # first sends the bytes in its buffer
            return
        try:
            transport.write_eof()
        except (OSError, RuntimeError):
            transport.close()

    # -- called by the listener

    @property
    def idle_since_s(self) -> float:
        """Since when the connection counts for no tenant; `BUSY` if it counts for a tenant. It counts for no tenant
        while a request's head is incomplete."""
        return BUSY if self._user else self._asked_s

    def make_way(self) -> None:
        """Close in favour of another connection. A request that has begun is broken off: it has not shown a key yet."""
        is_idle = self._active is None and self._reader.request is None and self._reader.open
        if is_idle and not self._waiting and not self._unsent_bytes():
            self.close_after_flush()
        else:
            self.abort()

    def check_read(self) -> None:
        if self._unread is not None and self._unsent_bytes() <= UNREAD_BYTES:
            self._give_back()

    def close_when_idle(self) -> None:
        """Close at shutdown, after the current answer. An idle connection stays open briefly, to refuse a request."""
        if self._active is not None:
            self._active.request.keep_alive = False
        elif self._reader.request is not None:
            self._reader.request.keep_alive = False
        else:
            self.deadline_s = min(self.deadline_s, self._shared.clock() + IDLE_GRACE_S)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def on_deadline(self) -> None:
        """Handle a deadline that has passed: wait on for a slow reader, refuse a slow request, or close."""
        unsent = self._unsent_bytes()
        if 0 < unsent < self._unsent:  # the client reads slowly, but it reads
            self._unsent = unsent
            self._set_deadline(STALLED_WRITE_S)
        elif self._reader.open and self._reader.request is not None and self._active is None:
            self.stop_reading(Refusal(408, "the request did not arrive in time", code="request_timeout"))
        else:
            if self._active is not None:
                self._active.client_left = True
            self.abort()

    def _hold_answer(self, reservation: BodyReservation) -> None:
        """Keep the reservation of an answer until the client has read it."""
        self._give_back()
        self._unread = reservation
        self._shared.unread.add(self)
        if not reservation.cover(min(self._unsent_bytes(), WRITE_HIGH_BYTES)):
            self.abort()

    def _count_buffers(self) -> None:
        """Count the buffers that TLS keeps after a large read or write. If there is no room, close after the answer."""
        if self._buffers is not None:
            return
        self._buffers = self._shared.tls_buffers.reserve(self.owner)
        request = self._reader.request if self._active is None else self._active.request
        if self._buffers is None and request is not None:
            request.keep_alive = False

    def _give_back(self) -> None:
        """Give back the memory of an answer that the client has read or will never read."""
        unread, self._unread = self._unread, None
        if unread is not None:
            unread.close()
            self._shared.unread.discard(self)

    def _unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def _set_deadline(self, seconds: float) -> None:
        self.deadline_s = self._shared.clock() + seconds
