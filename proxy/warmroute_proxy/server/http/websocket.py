"""A client's connection after its upgrade to a WebSocket: frames in, whole messages out, texts back.

The frames are read and written by `websockets`, without its I/O. The socket, its limits and its deadlines are as those
of HTTP (`http1`): it is one of the `OpenConnections`, and an `Application` is told of its messages. It knows no events.

What keeps this safe:
- a message has `MAX_MESSAGE_BYTES` at most, since it is taken from its frame in one piece, and arrives within
  `body_timeout_s`. After each read its bytes count for the tenant of the connection;
- one read may hold `MAX_FRAMES` frames, since each takes some us of the loop. Of its messages, `AT_ONCE` are taken in
  one iteration; the rest waits in the lines of `ReadSlices`, as large bodies do, and nothing is read meanwhile;
- a client that does not read is not read either, so that what answers its pings cannot pile up;
- after the server's own close frame, `MAX_LATE_BYTES` are read to find the client's; others are dropped;
- a connection is open for `MAX_OPEN_S`, then it is closed behind what it is busy with. Where there are too many, the
  one that was idle longest is closed, as over HTTP.

A ping goes to a client that is silent, so that what is between knows of the connection. Nothing is concluded from a
pong that does not come: a program may read nothing while it runs a tool.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, cast

from websockets.datastructures import Headers
from websockets.exceptions import PayloadTooBig
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request as Handshake
from websockets.protocol import State
from websockets.server import ServerProtocol

from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.http.body_memory import Reservation
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.http.http1 import LINGER_S, PIECE_BYTES, STALLED_WRITE_S, WRITE_HIGH_BYTES
from warmroute_proxy.server.http.open_connections import BUSY, OpenConnections
from warmroute_proxy.server.http.read_slices import COUNTED_BYTES

MAX_OPEN_S: Final = 3_600.0
PING_S: Final = 30.0
MAX_FRAMES: Final = 1_024
MAX_MESSAGE_BYTES: Final = 4_194_304  # a body of this size takes as long as one that is read in slices
AT_ONCE: Final = 8
SLICE_BYTES: Final = 4096  # that frames are read from at once
MAX_LATE_BYTES: Final = 16_384

_SHORT: Final = 125
_MIDDLE: Final = 65_535
_CONTINUED: Final = (Opcode.TEXT, Opcode.CONT)
_log: Final = logging.getLogger(__name__ + ".frames")
_log.setLevel(logging.ERROR)  # the library would log what is in the frames
_own_log: Final = logging.getLogger(__name__)


class Application(Protocol):
    """What a connection is for."""

    @property
    def busy(self) -> bool:
        """Whether it answers a message."""

    def message(self, raw: bytes, began_s: float, reservation: Reservation) -> None:
        """A message has come. `began_s`: when its first byte did; `reservation`: the memory of it."""

    def refused(self, refusal: Refusal) -> None:
        """A message cannot be taken; the connection is closed behind what is sent now."""

    def expired(self) -> None:
        """The connection is to end: say so, if there is something to say."""

    def pause(self, paused: bool) -> None:
        """The client reads too slowly, or has caught up."""

    def gone(self) -> None:
        """The client has left."""


class _Gone:
    """In the place of an application whose client has left: it knew the connection, and neither may wait for the
    garbage collector.
    """

    busy = False

    def message(self, raw: bytes, began_s: float, reservation: Reservation) -> None:
        """It is read by nobody."""

    def refused(self, refusal: Refusal) -> None:
        """Nobody is told."""

    def expired(self) -> None:
        """Nobody is told."""

    def pause(self, paused: bool) -> None:
        """Nobody writes."""

    def gone(self) -> None:
        """It is known."""


_GONE: Final = _Gone()


def handshake(request: Request) -> tuple[int, bytes]:
    """The status and the head of the answer to an offer of a WebSocket. No extension is taken: deflate costs more CPU
    than a proxy near its clients saves in bytes, and lets small frames become large messages.
    """
    names = ("connection", "upgrade", "sec-websocket-key", "sec-websocket-version", "origin")
    headers = Headers([(name, request.headers[name]) for name in names if name in request.headers])
    response = ServerProtocol(logger=_log).accept(Handshake(request.path, headers, method=request.method))
    return response.status_code, response.serialize()


def text_frame(text: bytes) -> bytes:
    """The frame of a message, as `Frame` of the library writes it in ten times as long: each delta is one."""
    size = len(text)
    if size <= _SHORT:
        return b"\x81%c%b" % (size, text)
    if size <= _MIDDLE:
        return b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), text)
    return b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), text)


class WebSocket:
    """One connection: an `asyncio.BufferedProtocol`, though not by type, as `Connection` is."""

    def __init__(
        self, shared: OpenConnections, tenant: str, application_of: Callable[["WebSocket"], Application]
    ) -> None:
        """`tenant`: whose messages come."""
        self._shared = shared
        self._tenant = tenant
        self._max_bytes = min(shared.limits.body_bytes, MAX_MESSAGE_BYTES)
        self._protocol = ServerProtocol(state=State.OPEN, max_size=self._max_bytes, logger=_log)
        self._transport: asyncio.Transport | None = None
        self._read = b""  # what was read
        self._parsed = 0  # bytes of it
        self._frames_read = 0  # of the last read
        self._frames: deque[Frame] = deque()  # that were read, at most `MAX_FRAMES`
        self._waits = False  # in the lines of `ReadSlices`
        self._late_bytes = 0  # that came after the end
        self._unread: list[Reservation] = []  # of answers that the client has not read
        self._parts = bytearray()  # of the message that is being read
        self._reservation: Reservation | None = None  # of that message
        self._unfinished = 0  # bytes of a message that has not ended
        now_s = shared.clock()
        self._began_s = now_s  # when the message that is being read did
        self._active_s = now_s
        self._pinged_s = now_s
        self._ends_s = now_s + MAX_OPEN_S
        self._paused = False
        self._written = 0  # bytes in all
        self._drained = 0  # of them, when it was last looked at while paused
        self._ending = False  # behind what it is busy with
        self._closing = False
        self._application: Application = application_of(self)
        self.deadline_s = now_s + PING_S

    # -- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._shared.members.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._shared.members.discard(self)
        self._shared.unread.discard(self)
        self._transport = None
        self._reservation = None
        self._unread.clear()
        self._drop()
        application, self._application = self._application, _GONE
        application.gone()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._paused = True
        self._drained = self._written - self._unsent_bytes()
        self.deadline_s = self._shared.clock() + STALLED_WRITE_S
        self.pause_reading()
        self._application.pause(True)

    def resume_writing(self) -> None:
        self._paused = False
        self._began_s = self._shared.clock()  # it was not read
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
        """Read on."""
        if self._closing:
            self._read_late(data)
            return
        self._active_s = self._shared.clock()
        if not self._unfinished:
            self._began_s = self._active_s
        self._read, self._parsed = self._read[self._parsed :] + data, 0
        self._frames_read = 0
        self._go_on()
        if len(data) >= COUNTED_BYTES and not self._waits and not self._closing:
            self._shared.reads.read(self, len(data), self._tenant)

    def _read_late(self, data: bytes) -> None:
        """Look for the client's own end; it may stand behind a message that nobody waits for."""
        data = data[: MAX_LATE_BYTES - self._late_bytes]
        self._late_bytes += len(data)
        if data and not self._protocol.eof_sent:
            self._protocol.receive_data(data)
            self._protocol.events_received()
            self._flush()

    def _go_on(self) -> None:
        """Take some of what was read. No exception may leave: those who call this call others, too."""
        try:
            taken = 0
            while taken < AT_ONCE and not self._paused and not self._closing and self._transport is not None:
                if self._frames:
                    taken += self._take(self._frames.popleft())
                elif self._protocol.parser_exc is not None:
                    self._broken(self._protocol.parser_exc)
                elif self._parsed < len(self._read):
                    self._parse()
                else:
                    break
            if self._closing or not self._frames:  # an end of the client's stands behind them
                self._flush()
            if self._closing or self._transport is None:
                self._drop()
                return
            self._count()
            self._set_deadline()
            if (self._read or self._frames) and not self._waits and not self._paused and not self._closing:
                self._waits = True
                self._shared.reads.wait(self, self._tenant)
        except Exception as error:
            _own_log.error("a WebSocket failed: %s", type(error).__name__)
            self.abort()

    def _parse(self) -> None:
        """Find the frames in a slice; the protocol answers those that only control."""
        data = self._read[self._parsed : self._parsed + SLICE_BYTES]
        self._parsed += len(data)
        if self._parsed == len(self._read):
            self._read, self._parsed = b"", 0
        self._protocol.receive_data(data)
        self._frames.extend([event for event in self._protocol.events_received() if isinstance(event, Frame)])
        self._frames_read += len(self._frames)
        if self._frames_read > MAX_FRAMES:
            self._fail(CloseCode.POLICY_VIOLATION, "too many small frames")

    def _broken(self, error: Exception) -> None:
        """No more frames can be found; the protocol has written why."""
        if isinstance(error, PayloadTooBig):
            problem = f"a message has more than {self._max_bytes} bytes: send the turn by POST"
            self._application.refused(Refusal(413, problem, code="request_too_large"))
        self._closing = True

    def _drop(self) -> None:
        """Nothing more is taken."""
        self._read, self._parsed, self._parts = b"", 0, bytearray()
        self._frames.clear()

    # -- called by `ReadSlices`

    def pause_reading(self) -> None:
        """Read no more in this iteration of the loop."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take more of what was read, then read on, unless the client does not read."""
        self._waits = False
        if self._read or self._frames:
            self._go_on()
        if self._transport is not None and not self._transport.is_closing() and not self._paused and not self._waits:
            self._transport.resume_reading()

    # -- messages

    def _take(self, frame: Frame) -> bool:
        """Take a frame that is whole. Returns whether it ends a message."""
        if frame.opcode is Opcode.BINARY:
            self._fail(CloseCode.UNSUPPORTED_DATA, "events are texts")
        elif frame.opcode in _CONTINUED:
            whole = bytes(frame.data) if frame.fin and not self._parts else None
            if whole is None:
                self._parts += frame.data
            if frame.fin:
                raw, self._parts = bytes(self._parts) if whole is None else whole, bytearray()
                self._received(raw)
                return True
        return False

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
        """Count the bytes of what has not been taken."""
        pending = len(self._read) - self._parsed + sum([len(frame.data) for frame in self._frames])
        self._unfinished = pending + len(self._parts) + len(self._protocol.reader.buffer)
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
        """Send messages; they are dropped when the client is gone."""
        if self._closing or self._transport is None:
            return
        self._write(b"".join(map(text_frame, texts)))

    def _write(self, data: bytes) -> None:
        transport = self._transport
        if transport is None:
            return
        self._written += len(data)
        for at in range(0, len(data), PIECE_BYTES):  # as HTTP's answers
            transport.write(data[at : at + PIECE_BYTES])

    def release(self, request: Request) -> None:
        """It is answered: give its memory back, once the client has read most of what was written."""
        reservation = request.reservation
        if reservation is None:
            return
        if self._unsent_bytes() > WRITE_HIGH_BYTES:
            self._unread.append(reservation)
            self._shared.unread.add(self)
        else:
            reservation.close()

    def close(self, code: int, reason: str) -> None:
        """Say why, and close once the client has said so too."""
        if not self._closing:
            self._closing = True
            self._protocol.send_close(code, reason)
            self.deadline_s = self._shared.clock() + LINGER_S
            self._flush()
            self._drop()

    def on_status(self, request: Request, status: int) -> None:
        """Report the status of an answer, for the metrics."""
        self._shared.endpoint.on_status(request, status)

    def check(self, request: Request) -> None:
        """Let the endpoint look at the head of a request that came in a message. Raises: Refusal."""
        self._shared.endpoint.on_head(request)

    def handle(self, request: Request, exchange: Exchange) -> None:
        """Let the endpoint answer it."""
        self._shared.handle(request, exchange)

    @property
    def body_bytes(self) -> int:
        """The most that a turn may have with what it continues."""
        return self._shared.limits.body_bytes

    @property
    def ending(self) -> bool:
        """Whether nothing may begin on it any more."""
        return self._ending or self._closing or self._shared.closing

    def idle(self) -> None:
        """The application has answered all that was asked."""
        self._active_s = self._shared.clock()
        if self.ending:
            self._end()

    def _fail(self, code: int, reason: str) -> None:
        """End what is no WebSocket as it is served here."""
        if not self._closing:
            self._closing = True
            self._protocol.fail(code, reason)

    def _flush(self) -> None:
        pieces = self._protocol.data_to_send()
        if not pieces:
            return
        if data := b"".join(pieces):
            self._write(data)
        if pieces[-1] or self._transport is None:
            return
        # The end. What the client still sends is dropped for a moment: a reset would destroy what was written.
        self._closing = True
        self.deadline_s = self._shared.clock() + LINGER_S
        try:
            self._transport.write_eof()
        except (OSError, RuntimeError, NotImplementedError):
            self._transport.close()

    # -- called by the listener

    @property
    def idle_since_s(self) -> float:
        """Since when nothing was asked; `BUSY` while something is."""
        return BUSY if self._application.busy or self._unfinished or self._closing or self._paused else self._active_s

    def check_read(self) -> None:
        """Give the memory of answers back, if the client has read them."""
        if self._unread and self._unsent_bytes() <= WRITE_HIGH_BYTES:
            for reservation in self._unread:
                reservation.close()
            self._unread.clear()
            self._shared.unread.discard(self)

    def close_when_idle(self) -> None:
        """Shutdown: end with the answers that run. The client is told to connect again."""
        self._ending = True
        if not self._application.busy:
            self._end()

    def close_after_flush(self) -> None:
        """Close, in favour of another connection. No sweep looks at this one any more, so that nothing is awaited."""
        self._end()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close without waiting."""
        if self._transport is not None:
            self._transport.abort()

    def on_deadline(self) -> None:
        """Ping, end what was open for long, or give up a client that is too slow."""
        now_s = self._shared.clock()
        if self._closing:
            self.abort()
        elif self._paused:
            drained = self._written - self._unsent_bytes()  # other turns may have written meanwhile
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
