"""A client's connection after its upgrade to a WebSocket: turns frames into messages, and sends texts back.

Socket, limits and deadlines are as in HTTP (`http1`): a `WebSocket` is one of the `OpenConnections`. It passes its
messages to an `Application`, and does not know their contents.

What keeps this safe:
- a message has a size limit (`frames`), and must arrive within `body_timeout_s`. After each read, the bytes that are
  not taken as messages count for the tenant of the connection;
- in one iteration, a connection takes `AT_ONCE` messages at most, in about `FRAMES_AT_ONCE` frames. If more were read,
  the connection waits for its turn in `ReadSlices`, as with large bodies, and is not read meanwhile. While a connection
  of a tenant waits, messages that were read on the tenant's other connections wait, too;
- if a client does not read, the proxy does not read from it, so answers to its pings cannot pile up. Its messages keep
  their memory reservations, and memory is also reserved for the bytes that its socket does not take;
- after the server's close frame, a few bytes are read to find the client's close frame, and the rest is dropped;
- after `MAX_OPEN_S`, a connection is closed when it is not busy. If there are too many connections, the connection
  that was idle longest is closed, as over HTTP.

A silent client gets pings, so that middleboxes keep the connection open. A missing pong has no consequence, since a
program may read nothing while it runs a tool.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol, cast

from websockets.frames import CloseCode

from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.http.body_memory import BodyReservation
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.http.frames import Messages, text_frame
from warmroute_proxy.server.http.http1 import LINGER_S, PIECE_BYTES, STALLED_WRITE_S, UNREAD_BYTES
from warmroute_proxy.server.http.open_connections import BUSY, OpenConnections
from warmroute_proxy.server.http.read_slices import COUNTED_BYTES
from warmroute_proxy.server.http.tls_buffers import Buffers, is_tls

MAX_OPEN_S: Final = 3_600.0
PING_S: Final = 30.0
AT_ONCE: Final = 8
FRAMES_AT_ONCE: Final = 32  # with the frames of one more slice, they take about 0.7 ms

log = logging.getLogger(__name__)


class Application(Protocol):
    """The receiver of a connection's messages."""

    @property
    def busy(self) -> bool:
        """Whether a message is being answered."""

    def message(self, raw: bytes, began_s: float, reservation: BodyReservation) -> None:
        """Handle a message. `began_s`: when its first byte came. `reservation`: the message's memory."""

    def refused(self, refusal: Refusal) -> None:
        """Tell the client that a message cannot be taken, before the connection is closed."""

    def expired(self) -> None:
        """Tell the client, if necessary, that the connection will be closed."""

    def pause(self, paused: bool) -> None:
        """Handle that the client reads too slowly, or has caught up."""

    def gone(self, *, by_client: bool) -> None:
        """Handle the end of the connection. `by_client`: the client has closed it, not the proxy or an error."""


class _Gone:
    """Replaces the application after the client has left, so that no cycle of references remains."""

    busy = False

    def message(self, *_: object, **__: object) -> None:
        """Do nothing."""

    refused = expired = pause = gone = message


_GONE: Final = _Gone()


class WebSocket:
    """One connection. Like `http1.Connection`, it is an `asyncio.BufferedProtocol` without inheriting from it."""

    def __init__(
        self, shared: OpenConnections, tenant: str, application_of: Callable[["WebSocket"], Application]
    ) -> None:
        """`tenant`: the owner of the connection and its messages. The request for the upgrade has already counted the
        connection for it.
        """
        self._shared = shared
        self._tenant = self.owner = tenant
        self._messages = Messages(shared.limits.body_bytes)
        self._protocol = self._messages.protocol
        self._transport: asyncio.Transport | None = None
        self._waits = False  # whether the connection waits for its turn in `ReadSlices`
        self._unread: list[BodyReservation] = []  # memory of messages whose answers the client has not read
        self._unsent: BodyReservation | None = None  # memory of bytes that were written and not sent
        self._reservation: BodyReservation | None = None  # memory of bytes that were read and not taken as messages
        self._unfinished = 0  # how many bytes were read and not taken
        now_s = shared.clock()
        self._began_s = now_s  # when the first byte of the unfinished message came
        self._active_s = now_s
        self._pinged_s = now_s
        self._ends_s = now_s + MAX_OPEN_S
        self._paused = False
        self._written = 0  # how many bytes were written since the start
        self._drained = 0  # how many bytes were sent when writing paused, or at the last deadline since then
        self._buffers: Buffers | None = None  # memory of the TLS buffers, once they are large
        self._closes = False  # whether to close when the connection is idle
        self._ending = False  # whether to end after the current answers
        self._closing = False
        self._application: Application = application_of(self)
        self.deadline_s = now_s + PING_S

    # -- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._shared.members.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.discard(self)
        self._shared.leave(self._tenant)
        self._shared.unread.discard(self)
        self._transport = None
        self._reservation = self._unsent = self._buffers = None
        self._unread.clear()
        application, self._application = self._application, _GONE
        application.gone(by_client=exc is None and not self._ending and self._messages.is_left)
        self._messages.end()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._paused = True
        self._drained = self._written - self._unsent_bytes()
        self.deadline_s = self._shared.clock() + STALLED_WRITE_S
        self.pause_reading()
        self._hold_unsent()
        self._application.pause(True)

    def resume_writing(self) -> None:
        self._paused = False
        self._began_s = self._shared.clock()  # the socket was not read meanwhile
        self._set_deadline()
        self.check_read()
        self._application.pause(False)
        if not self._waits:
            self.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._shared.read_into

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._shared.read_into[:nbytes]))

    def data_received(self, data: bytes) -> None:
        if self._closing:
            self._messages.read_late(data)
            self._flush()
            return
        self._active_s = self._shared.clock()
        if not self._unfinished:
            self._began_s = self._active_s
        self._messages.read(data)
        self._go_on(takes=not self._shared.reads.waits(self._tenant))
        if len(data) >= COUNTED_BYTES:
            self._count_buffers()
            if not self._waits and not self._closing:
                self._shared.reads.read(self, len(data), self._tenant)

    def _count_buffers(self) -> None:
        """Count the buffers that TLS keeps after a large read. If there is no room, close after the current answers."""
        if self._buffers is None and not self._closes and is_tls(self._transport):
            self._buffers = self._shared.tls_buffers.reserve(self._tenant)
            self._closes = self._buffers is None

    def _go_on(self, *, takes: bool = True) -> None:
        """Take some of the messages that were read, if `takes`, and wait for a turn with the rest. Raises nothing: the
        callers go on with other connections.
        """
        messages = self._messages
        try:
            if takes:
                self._take()
            if self._closing or messages.may_flush:
                self._flush()
            if self._closing or self._transport is None:
                messages.drop()
                return
            self._count()
            self._set_deadline()
            if messages.wait and not self._waits and not self._paused and not self._closing:
                self._waits = True
                self._shared.reads.wait(self, self._tenant)
        except Exception as error:
            log.error("a WebSocket failed: %s", type(error).__name__)
            self.abort()

    def _take(self) -> None:
        """Take `AT_ONCE` messages at most, but no message while the client does not read."""
        most = self._messages.found + FRAMES_AT_ONCE
        for _ in range(AT_ONCE):
            if self._paused or self._closing or self._transport is None:
                return
            try:
                raw = self._messages.next(most)
            except Refusal as refusal:
                self._application.refused(refusal)
                self._closing = True
                return
            if raw is None:
                return
            self._received(raw)

    # -- called by `ReadSlices`

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take more messages that were read, then read on, unless the client does not read."""
        self._waits = False
        if self._messages.wait:
            self._go_on()
        if self._transport is not None and not self._transport.is_closing() and not self._paused and not self._waits:
            self._transport.resume_reading()

    # -- messages

    def _received(self, raw: bytes) -> None:
        reservation, self._reservation = self._reservation, None
        began_s, self._began_s = self._began_s, self._active_s
        try:
            reservation = reservation or self._shared.memory.reserve(self._tenant, 0)
            if reservation.body_bytes < len(raw):
                reservation.add_body(len(raw) - reservation.body_bytes)
        except Refusal as refusal:
            self._application.refused(refusal)
            return
        self._application.message(raw, began_s, reservation)

    def _count(self) -> None:
        """Reserve memory for the bytes that were read and not taken."""
        self._unfinished = self._messages.held_bytes
        if not self._unfinished:
            return
        try:
            reservation = self._reservation = self._reservation or self._shared.memory.reserve(self._tenant, 0)
            if reservation.body_bytes < self._unfinished:
                reservation.add_body(self._unfinished - reservation.body_bytes)
        except Refusal as refusal:
            self._application.refused(refusal)
            self.close(CloseCode.TRY_AGAIN_LATER, "no memory for the message")

    # -- called by the application

    def send(self, texts: list[bytes]) -> None:
        """Send messages. They are dropped if the client is gone."""
        if self._closing or self._transport is None:
            return
        self._write(b"".join(map(text_frame, texts)))

    def _write(self, data: bytes) -> None:
        transport = self._transport
        if transport is None:
            return
        self._written += len(data)
        for at in range(0, len(data), PIECE_BYTES):  # pieces, for the reason in `http1.Connection.write`
            transport.write(data[at : at + PIECE_BYTES])
        if self._paused:
            self._hold_unsent()

    def release(self, reservation: BodyReservation) -> None:
        """Give the memory of an answered message back, now or when the client has read most of the written bytes."""
        if self._unsent_bytes() <= UNREAD_BYTES:
            reservation.close()
            return
        self._unread.append(reservation)
        self._shared.unread.add(self)
        self._hold_unsent()

    def _hold_unsent(self) -> None:
        """Reserve memory for bytes that the socket does not take. Without memory, abort the connection."""
        hold = self._unsent = self._unsent or self._shared.memory.reserve(self._tenant, 0)
        if hold.cover(self._unsent_bytes()):
            self._shared.unread.add(self)
        else:
            self.abort()

    def close(self, code: int, reason: str) -> None:
        """Send a close frame with the reason, and close once the client's close frame has come."""
        if not self._closing:
            self._closing = True
            self._protocol.send_close(code, reason)
            self.deadline_s = self._shared.clock() + LINGER_S
            self._flush()
            self._messages.drop()

    def on_status(self, request: Request, status: int) -> None:
        self._shared.endpoint.on_status(request, status)

    def check(self, request: Request) -> None:
        """Let the endpoint check the head of a request that came in a message. Raises: Refusal."""
        self._shared.endpoint.on_head(request)

    def handle(self, request: Request, exchange: Exchange) -> None:
        self._shared.handle(request, exchange)

    @property
    def body_bytes(self) -> int:
        """How many bytes a turn may have, together with the turns that it continues."""
        return self._shared.limits.body_bytes

    @property
    def ending(self) -> bool:
        """Whether no answer may begin on the connection any more."""
        return self._ending or self._closing or self._shared.closing

    def idle(self) -> None:
        self._active_s = self._shared.clock()
        if self.ending or self._closes:
            self._end()

    def _flush(self) -> None:
        pieces = self._protocol.data_to_send()
        if not pieces:
            return
        if data := b"".join(pieces):
            self._write(data)
        if pieces[-1] or self._transport is None:
            return
        # The protocol has ended. Bytes of the client are read and dropped for a moment, because a reset would destroy
        # the written bytes.
        self._closing = True
        self.deadline_s = self._shared.clock() + LINGER_S
        try:
            self._transport.write_eof()
        except (OSError, RuntimeError, NotImplementedError):
            self._transport.close()

    # -- called by the listener

    @property
    def idle_since_s(self) -> float:
        """When bytes last came or an answer ended; `BUSY` while the connection is in use."""
        return BUSY if self._application.busy or self._unfinished or self._closing or self._paused else self._active_s

    def check_read(self) -> None:
        if self._unsent_bytes() <= UNREAD_BYTES:
            for reservation in self._unread:
                reservation.close()
            self._unread.clear()
            self._unsent = None
            self._shared.unread.discard(self)

    def close_when_idle(self) -> None:
        """Close after the current answers. The client is told to connect again."""
        self._ending = True
        if not self._application.busy:
            self._end()

    def make_way(self) -> None:
        """Close in favour of another connection. Do not wait, since nothing checks `deadline_s` any more."""
        if self._unsent_bytes():
            self.abort()
            return
        self._end()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._ending = self._ending or not self._closing
        if self._transport is not None:
            self._transport.abort()

    def on_deadline(self) -> None:
        """Send a ping, end a connection that has been open for too long, or abort if the client is too slow."""
        now_s = self._shared.clock()
        if self._closing:
            self.abort()
        elif self._paused:
            drained = self._written - self._unsent_bytes()  # not the unsent bytes, since new writes add to them
            if drained <= self._drained:
                self.abort()
            self._drained = drained
            self.deadline_s = now_s + STALLED_WRITE_S
        elif self._unfinished and now_s >= self._began_s + self._shared.limits.body_timeout_s:
            self.close(CloseCode.POLICY_VIOLATION, "the message did not arrive in time")
        elif now_s >= self._ends_s:
            self.close_when_idle()
            self._ends_s = BUSY
        else:
            if now_s - max(self._active_s, self._pinged_s) >= PING_S:
                self._pinged_s = now_s
                self._protocol.send_ping(b"")
                self._flush()
            self._set_deadline()

    def _end(self) -> None:
        if not self._closing:
            self._application.expired()
            self.close(CloseCode.GOING_AWAY, "connect again")

    def _set_deadline(self) -> None:
        if self._paused or self._closing:
            return
        deadline_s = min(max(self._active_s, self._pinged_s) + PING_S, self._ends_s)
        if self._unfinished:
            deadline_s = min(deadline_s, self._began_s + self._shared.limits.body_timeout_s)
        self.deadline_s = deadline_s

    def _unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0
