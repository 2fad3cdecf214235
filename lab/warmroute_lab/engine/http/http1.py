"""A lean HTTP/1.1 server protocol: httptools parses, a callback answers, and `on_leave` reports a disconnect.

One `EngineExchange` is one request and its answer. Answers go out in the order of the requests; a pipelined request
waits. An answer is either whole (`respond`) or a stream (`start_stream`, `send`, `end`). If the connection closes while
an answer is due, `on_leave` is called at once, even if no byte of the answer was sent.

Limits: `MAX_BODY_BYTES` (413), `MAX_HEADER_BYTES` (431). A connection is closed beyond `MAX_CONNECTIONS`,
`MAX_PIPELINED` requests or `MAX_UNSENT_BYTES` of answer. As in SGLang, a connection is also closed after `KEEP_ALIVE_S`
without traffic.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import httptools

KEEP_ALIVE_S = 5.0
READ_FIRST_S = 0.01  # time to read a request that has arrived before an idle connection is closed
MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_HEADER_BYTES = 64 * 1024
MAX_PIPELINED = 16
MAX_CONNECTIONS = 8192
MAX_UNSENT_BYTES = 64 * 1024 * 1024

_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)


class EngineExchange:
    """One request, and the methods to answer it."""

    __slots__ = ("_protocol", "body", "closed", "headers", "method", "on_leave", "path", "query")

    def __init__(self, protocol: "HttpProtocol", method: bytes, target: bytes, headers: dict[bytes, bytes]) -> None:
        path, _, query = target.partition(b"?")
        self._protocol = protocol
        self.method = method.decode("latin-1")
        self.path = path.decode("latin-1")
        self.query = query.decode("latin-1")
        self.headers = headers
        self.body = b""
        self.closed = False
        self.on_leave: Callable[[], None] | None = None

    def respond(self, status: int, body: bytes, content_type: bytes = b"application/json") -> None:
        """Send a whole answer. Has no effect if the client has left or an answer has ended."""
        if self.closed:
            return
        self._protocol.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"
            % (
                status,
                _PHRASES.get(status, b"Unknown"),
                content_type,
                len(body),
                b"" if self.method == "HEAD" else body,
            )
        )
        self._close()

    def start_stream(self) -> None:
        if not self.closed:
            self._protocol.write(_STREAM_HEAD)

    def send(self, data: bytes) -> None:
        """Send a piece of the stream as one HTTP chunk."""
        if not self.closed:
            self._protocol.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        if not self.closed:
            self._protocol.write(b"0\r\n\r\n")
            self._close()

    def _close(self) -> None:
        self.closed = True
        self.on_leave = None
        self._protocol.answered()

    def left(self) -> None:
        self.closed = True
        on_leave, self.on_leave = self.on_leave, None
        if on_leave is not None:
            on_leave()


class HttpProtocol(asyncio.Protocol):
    __slots__ = (
        "_body",
        "_body_bytes",
        "_connections",
        "_current",
        "_exchange",
        "_handle",
        "_header_bytes",
        "_headers",
        "_idle",
        "_keep",
        "_parser",
        "_queue",
        "_target",
        "_transport",
    )

    def __init__(self, handle: Callable[[EngineExchange], None], connections: set["HttpProtocol"]) -> None:
        self._handle = handle
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[tuple[EngineExchange, bool]] = deque()
        self._current: EngineExchange | None = None
        self._exchange: EngineExchange | None = None
        self._keep = True
        self._idle: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self.on_message_begin()

    # --- connection ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if len(self._connections) >= MAX_CONNECTIONS:
            transport.abort()
            return
        self._connections.add(self)
        transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        self._start_idle()

    def pause_writing(self) -> None:
        """Close the connection: the client does not read, and unsent bytes are bounded."""
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._connections.discard(self)
        self._transport = None
        self._stop_idle()
        self._queue.clear()
        if self._current is not None:
            current, self._current = self._current, None
            current.left()

    def data_received(self, data: bytes) -> None:
        self._stop_idle()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The request itself is answered. The bytes after it belong to another protocol, which is not known here.
            self._keep = False
            if self._current is None and self._transport is not None:
                self._transport.close()
        except httptools.HttpParserError:
            self._refuse(400, b"malformed HTTP request")
        if self._current is None and self._transport is not None and self._idle is None:
            self._start_idle()  # a request that stops halfway expires too

    def close_if_idle(self) -> None:
        """Close the connection unless an answer is due. The server calls this when it stops."""
        if self._current is None and self._transport is not None:
            self._transport.close()
        self._keep = False

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- parser --------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._target += url
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_header(len(name) + len(value))
        name = name.lower()
        self._headers[name] = value
        if name == b"expect" and value.lower() == b"100-continue" and self._current is None:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_headers_complete(self) -> None:
        self._exchange = EngineExchange(self, self._parser.get_method(), self._target, self._headers)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > MAX_BODY_BYTES:
            self._refuse(413, b"the request body is too large")
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        exchange = self._exchange
        if exchange is None or self._transport is None:
            return
        self._exchange = None
        exchange.body = b"".join(self._body)
        self._body = []
        if len(self._queue) >= MAX_PIPELINED:
            self.abort()
            return
        self._queue.append((exchange, self._parser.should_keep_alive()))
        if self._current is None:
            self._next()

    # --- answers -------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def answered(self) -> None:
        """The current exchange has its answer: go on with the next request, or close."""
        self._current = None
        if self._transport is None:
            return
        if not self._keep:
            self._transport.close()
        elif self._queue:
            asyncio.get_running_loop().call_soon(self._next)
        else:
            self._start_idle()

    def _next(self) -> None:
        if self._current is None and self._queue:
            self._current, keep = self._queue.popleft()
            self._keep = self._keep and keep
            self._handle(self._current)

    def _refuse(self, status: int, message: bytes) -> None:
        if self._transport is not None:
            if self._current is not None:  # an answer is under way: no other may be mixed into it
                self._transport.abort()
                return
            self.write(
                b"HTTP/1.1 %d %b\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
                % (status, _PHRASES[status], len(message), message)
            )
            self._transport.close()
            self._transport = None

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(431, b"the request head is too large")

    def _start_idle(self) -> None:
        self._idle = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._expire)

    def _stop_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _expire(self) -> None:
        """Close the idle connection, but not at once: if the process stood still, a request may wait to be read."""
        self._idle = asyncio.get_running_loop().call_later(READ_FIRST_S, self._close_idle)

    def _close_idle(self) -> None:
        if self._current is None and self._transport is not None:
            self._transport.close()
