"""HTTP/1.1 connections to one engine or proxy, pooled.

A `Leg` is one request to one engine, and gets the callbacks for its answer. A connection carries one leg at a time, and
returns to the pool when the answer is complete. The proxy closes idle connections before the engine's own keep-alive
limit (5 s in SGLang) can close them while a request is on its way.

An engine whose process was held up checks its timers before it reads. So it may close a connection as idle while a
request waits there to be read. The request of a turn is then sent once more over a new connection, if the last answer
on the closed connection ended more than `IDLE_S` before. If the new connection fails, too, the request counts as broken
off, because the engine's process has probably ended.
"""

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httptools

from warmroute_proxy.core.load.blame import Cause
from warmroute_proxy.server.base.patience import Patience
from warmroute_proxy.server.base.turns import Turns
from warmroute_proxy.server.engines.leg import Leg
from warmroute_proxy.server.engines.passthrough import Passthrough
from warmroute_proxy.server.engines.portions import PORTION_BYTES, TURN_BYTES, Portions
from warmroute_proxy.server.engines.tunnel import Tunnel
from warmroute_proxy.server.http.authorities import authorities
from warmroute_proxy.server.http.header_lines import Line, decode

log = logging.getLogger(__name__)

IDLE_S: Final = 3.0
CLOSE_AFTER_LAST_BYTES_S: Final = 2.0  # the other side's time to read the last bytes
MAX_HEAD_BYTES: Final = 262_144  # how much of an answer is read before its head must have ended
OWN_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL})
MAX_IDLE: Final = 256  # connections kept open to one engine
UNANSWERED: Final = "the engine closed without an answer"

Parts = Sequence[bytes | memoryview]


class Upstream:
    def __init__(self, url: str, connect_timeout_s: float, clock: Callable[[], float], http_proxy: str = "") -> None:
        parts = urlsplit(url)
        self.url = url
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.netloc = parts.netloc
        self.base_path = parts.path.rstrip("/")
        self._tls = parts.scheme == "https"
        self._tunnel = Tunnel(http_proxy) if http_proxy else None
        self._connect_timeout_s = connect_timeout_s
        self.clock = clock
        self._idle: deque[_Connection] = deque()  # at most MAX_IDLE, the longest idle first
        self.connecting: set[asyncio.Task[None]] = set()  # at most two for each turn; each ends by its timeout
        self.open = 0
        self.turns: Turns | None = None
        """The turns in which large reads are handled. None: all reads are handled at once."""

        self._unreachable = False
        self._closed = False

    def send(self, method: str, path: str, headers: str, body: Parts, leg: Leg) -> None:
        """Send a request. `headers`: a block of `name: value\\r\\n` lines. The leg gets the answer."""
        self._send(self.head(method, path, headers), body, leg, anew=False)

    def head(self, method: str, path: str, headers: str) -> bytes:
        line = f"{method} {self.base_path}{path} HTTP/1.1\r\nhost: {self.netloc}\r\n"
        return f"{line}{headers}content-length: ".encode("latin-1")

    def send_with(self, head: bytes, body: Parts, leg: Leg) -> None:
        """Send the request of a turn, and again if the engine closes the connection as idle. `head`: from
        `self.head`."""
        self._send(head, body, leg, anew=True)

    def send_anew(self, leg: Leg, head: bytes, body: Parts) -> None:
        """Send a request again, over a new connection, and drop all idle connections.

        The engine has closed one connection as idle, so it has probably closed the other idle connections, too.
        """
        leg.connection = None
        while self._idle:
            self._idle.popleft().drop()
        self._connect(leg, head, body, UNANSWERED)

    def _send(self, head: bytes, body: Parts, leg: Leg, *, anew: bool) -> None:
        head = b"%b%d\r\n\r\n" % (head, sum(map(len, body)))
        connection = self._take_idle()
        if connection is not None:
            connection.start(leg, head, body, anew=anew)
        else:
            self._connect(leg, head, body)

    def _connect(self, leg: Leg, head: bytes, body: Parts, before: str = "") -> None:
        """`before`: how the request failed over another connection; empty if it was not sent yet."""
        task = asyncio.get_running_loop().create_task(self._connect_and_start(leg, head, body, before))
        self.connecting.add(task)
        task.add_done_callback(self.connecting.discard)

    def give_back(self, connection: "_Connection", now_s: float) -> None:
        """Return a connection to the pool after a complete answer."""
        if self._closed or len(self._idle) >= MAX_IDLE:
            connection.drop()
            return
        connection.idle_since_s = now_s
        self._idle.append(connection)

    def forget(self, connection: "_Connection") -> None:
        self.open -= 1
        try:
            self._idle.remove(connection)
        except ValueError:
            pass

    def sweep(self) -> None:
        """Close connections that have been idle for too long. Called several times a second."""
        limit = self.clock() - IDLE_S
        while self._idle and self._idle[0].idle_since_s < limit:
            self._idle.popleft().drop()

    def close(self) -> None:
        """Stop connecting. Idle connections are closed now, busy connections when their answers end."""
        self._closed = True
        for task in self.connecting:
            task.cancel()
        while self._idle:
            self._idle.popleft().drop()

    def _take_idle(self) -> "_Connection | None":
        limit = self.clock() - IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable() and connection.idle_since_s >= limit:
                return connection
            connection.drop()
        return None

    async def _connect_and_start(self, leg: Leg, head: bytes, body: Parts, before: str) -> None:
        try:
            async with Patience(self._connect_timeout_s):
                connection = _Connection(self)
                await self.open_transport(lambda: connection)
        except (OSError, TimeoutError) as error:
            if not self._unreachable:  # log this once, not with each probe
                self._unreachable = True
                log.warning("cannot connect to %s: %s", self.netloc, str(error) or type(error).__name__)
            if isinstance(error, OSError) and error.errno in OWN_ERRORS:
                leg.fail(Cause.OURS, "the proxy has no file descriptor or memory left for a connection to an engine")
            elif before:
                leg.fail(Cause.BROKEN, before)
            else:
                leg.fail(Cause.UNREACHABLE, "cannot connect to the engine")  # clients read this, so without its address
            return
        self._unreachable = False
        if leg.done:
            self.give_back(connection, self.clock())
        else:
            connection.start(leg, head, body, anew=False)

    async def open_transport(self, make: Callable[[], asyncio.Protocol]) -> asyncio.BaseTransport:
        """Open a connection for the protocol that `make` returns. Raises: OSError."""
        tls = authorities.context() if self._tls else None
        if self._tunnel is None or tls is None:
            loop = asyncio.get_running_loop()
            return (await loop.create_connection(make, self.host, self.port, ssl=tls))[0]
        transport = await self._tunnel.connect(self.host, self.port, tls)
        protocol = make()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        return transport


class _Connection(asyncio.Protocol):
    """One connection to an engine; carries one leg at a time."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._transport: asyncio.Transport | None = None
        self._begun = False  # whether some of the answer was read
        self._leg: Leg | None = None
        self._lines: list[Line] = []  # header lines of the head, then of the trailers
        self._head_lines: list[Line] = []
        self._head: int | None = None  # the status, until the leg has got it
        self._bodies: list[bytes] = []
        self.on_body = self._bodies.append  # called by the parser
        self._parser: Any = httptools.HttpResponseParser(self)
        self._framed = False
        self._unparsed_bytes = 0
        self.complete = False  # whether the answer was read to its end
        self._keep_alive = False
        self._paused = False
        self._passthrough: Passthrough | None = None
        self._portions = None if upstream.turns is None else Portions(self, upstream.turns, upstream.clock)
        self._most_at_once = PORTION_BYTES  # size of a read that is handled without waiting for a turn
        self._held = False  # whether the socket is not read, because some of the last read is left
        self._closing = False
        self.idle_since_s = 0.0
        self._anew: tuple[bytes, Parts] | None = None  # request to send again if the engine closes this as idle

    def is_usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def start(self, leg: Leg, head: bytes, body: Parts, *, anew: bool) -> None:
        """Send a request. `anew`: send it once more if the engine closes this connection as idle."""
        assert self._transport is not None
        self._leg = leg
        self._most_at_once = TURN_BYTES if leg.streamed else PORTION_BYTES
        self._anew = (head, body) if anew else None
        self._lines = []
        self._head = None
        self._begun = self.complete = False
        leg.connection = self
        leg.sent = True
        if leg.paused:
            self.pause(True)
        self._transport.writelines([head, *body])

    def pause(self, paused: bool) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._paused = paused
            if self._held:
                if not paused and self._portions is not None:
                    self._portions.go_on()
            elif paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # -- called by `Portions`

    def hold_reading(self, held: bool) -> None:
        self._held = held
        if self._transport is None or self._transport.is_closing() or self._paused:
            return
        if held:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def may_go_on(self) -> bool:
        return not self._paused

    def answers_for(self) -> str:
        """The tenant that gets the answer, or a name of the engine if the bytes belong to no tenant."""
        return (self._leg.tenant() if self._leg is not None else "") or f"@{self._upstream.netloc}"

    def count_waiting(self, size_bytes: int) -> None:
        if self._leg is not None:
            self._leg.holds(size_bytes)

    def take_portion(self, data: bytes) -> None:
        """Handle some of a read: in the passthrough if the answer has one by now, else here."""
        if self._passthrough is not None:
            self._passthrough.take(data)
        else:
            self._take(data)

    def parse_all(self) -> None:
        """Parse everything from now on: nothing passes through unparsed."""
        if self._passthrough is not None:
            self._passthrough.parse_all()

    def close_with(self, last_bytes: bytes) -> None:
        """Write last bytes, and wait for the other side to close.

        Until then the other side's bytes are read and dropped, because a reset could discard the last bytes before the
        other side has read them.
        """
        self._leg = self._anew = None
        self._end_passthrough()
        if self._transport is not None and not self._transport.is_closing():
            self._closing = True
            self.pause(False)
            self._transport.write(last_bytes)
            asyncio.get_running_loop().call_later(CLOSE_AFTER_LAST_BYTES_S, self.drop)

    def drop(self) -> None:
        self._leg = self._anew = None
        self._end_passthrough()
        if self._portions is not None:
            self._portions.drop()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not inherit from this class
        self._upstream.open += 1

    def connection_lost(self, exc: Exception | None) -> None:
        if self._held and self._portions is not None:
            self._portions.take_all()
        self._transport = self._passthrough = self._portions = None
        self._parser = None  # ends the cycle of references between parser and connection
        self._upstream.forget(self)
        leg, self._leg = self._leg, None
        anew, self._anew = self._anew, None
        if leg is None:
            return
        if anew is not None and self._upstream.clock() - self.idle_since_s > IDLE_S:
            self._upstream.send_anew(leg, *anew)
        elif exc is None and leg.head_seen and not self._framed:
            leg.end()  # an answer without a length ends with its connection
        else:
            leg.fail(Cause.BROKEN, "the connection to the engine broke" if leg.head_seen else UNANSWERED)

    def data_received(self, data: bytes) -> None:
        if len(data) > self._most_at_once and self._portions is not None:
            self._portions.add(data)
        else:
            self._take(data)

    def _take(self, data: bytes) -> None:
        leg = self._leg
        if leg is None:  # the engine sent bytes without a request
            if not self._closing:
                self.drop()
            return
        if self._begun:
            self.feed(data)
            return
        self._begun = True
        self._anew = None
        if leg.streamed:
            self._begin_stream(leg, data)
        else:
            self.feed(data)

    def read_much(self, data: bytes) -> bool:
        """Let a read of a passthrough wait for its turn. Returns False if reads do not wait for turns."""
        portions = self._portions
        if portions is None:
            return False
        portions.add(data)
        return True

    def _begin_stream(self, leg: Leg, data: bytes) -> None:
        """Read the first bytes of an expected stream. The bytes after its head may pass unparsed."""
        end = data.find(b"\r\n\r\n") + 4
        if data.find(b"chunked", 0, end) < 0:
            self.feed(data)
            return
        self.feed(data[:end])
        if self._leg is not leg:
            return
        stream = leg.streams()
        if stream is not None and decode(self._head_lines).get("transfer-encoding") == "chunked":
            assert self._transport is not None
            self._passthrough = Passthrough(self, stream)
            protocol: Any = self._passthrough  # `Any`, so that the class can be compiled
            self._transport.set_protocol(protocol)
            self._passthrough.take(data[end:])
        elif end < len(data):
            self.feed(data[end:])

    def feed(self, data: bytes) -> None:
        leg = self._leg
        if leg is None:
            self.drop()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.complete or isinstance(error, httptools.HttpParserUpgrade):
                self.drop()
                leg.fail(Cause.ERROR, "the engine's answer is not valid HTTP/1.1")
                return
            self._keep_alive = False  # the answer is whole, and the bytes after it belong to no request
        if self._bodies or self._head is not None or self.complete:
            self._unparsed_bytes = 0
        else:  # the read was part of a head, of a chunk's framing or of trailers
            self._unparsed_bytes += len(data)
            if self._unparsed_bytes > PORTION_BYTES:
                leg.holds(self._unparsed_bytes)
            if self._unparsed_bytes > MAX_HEAD_BYTES:
                self.drop()
                leg.fail(Cause.ERROR, f"the engine's answer has more than {MAX_HEAD_BYTES} bytes of headers")
                return
        try:
            if self._head is None and not self.complete and len(self._bodies) == 1:  # one chunk of a stream
                if not leg.done:
                    leg.body(self._bodies.pop())
                else:
                    self._bodies.clear()
            elif self._head == 200 and self.complete and not leg.streamed and not leg.done:
                self._deliver_whole(leg)
            else:
                self._deliver(leg)
        except Exception as error:
            leg.crash(error)

    def reads(self, passthrough: Passthrough) -> bool:
        return self._passthrough is passthrough

    def go_on(self, data: bytes) -> None:
        """End the passthrough. The parser gets the rest of the stream, which begins with `data`."""
        self._end_passthrough()
        if data:
            self.feed(data)  # not `data_received`, since the rest of this read comes before the next portion

    def _end_passthrough(self) -> None:
        if self._passthrough is not None:
            self._passthrough = None
            if self._transport is not None:
                self._transport.set_protocol(self)

    def _deliver(self, leg: Leg) -> None:
        """Give the leg what the parser found in one read: a head, some body, the end."""
        if self._head is not None and not leg.done:
            status, self._head = self._head, None
            headers = decode(self._head_lines)
            self._framed = "content-length" in headers or "transfer-encoding" in headers
            leg.head(status, headers)
        if self._bodies:
            body = self._bodies[0] if len(self._bodies) == 1 else b"".join(self._bodies)
            self._bodies.clear()
            if not leg.done:
                leg.body(body)
        if self.complete:
            self._finish(leg)

    def _deliver_whole(self, leg: Leg) -> None:
        """Give the leg a whole 200 answer that came in one read."""
        body = b"".join(self._bodies)
        self._head = None
        self._bodies.clear()
        now_s = self._upstream.clock()
        self._release(now_s)
        leg.whole(self._head_lines, body, now_s)

    def _finish(self, leg: Leg) -> None:
        if self._leg is not leg:
            return  # a callback of the leg has closed it
        self._release(self._upstream.clock())
        leg.end()

    def _release(self, now_s: float) -> None:
        """Return the connection to the pool after an answer was read to its end, or drop it if it cannot be kept."""
        self._leg = None
        if self._passthrough is not None:
            self._end_passthrough()
        if self._keep_alive and self.is_usable():
            if self._paused:
                self.pause(False)
            self._upstream.give_back(self, now_s)
        else:
            self.drop()

    # -- the parser's side

    def on_message_begin(self) -> None:
        if self.complete:
            raise ValueError("an answer without a request")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._lines.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:  # not an interim answer, such as 103
            self._head_lines, self._head = self._lines, status
        self._lines = []

    def on_message_complete(self) -> None:
        self._keep_alive = bool(self._parser.should_keep_alive())  # asked now, since the parser forgets it
        self.complete = self._head is not None or self._leg is None or self._leg.head_seen
