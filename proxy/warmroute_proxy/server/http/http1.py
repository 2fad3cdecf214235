"""HTTP/1.1 on the client's side: bytes in, whole requests out, answers in order.

One `Connection` per socket, over httptools' parser. It knows nothing of routes: an `Endpoint` refuses a request by
its head (before the body is read) or handles it whole, through the `Exchange` that writes its answer.

What keeps this safe:
- header bytes, header count, target length, body bytes, pipelined requests and open connections have limits; each
  phase (head, body, keep-alive, a client that does not read) has a deadline, checked by one sweep a second;
- framing is strict: the parser refuses what could be read in two ways, `Host` must stand exactly once;
- requests of one connection are answered in order, one at a time; the socket is read meanwhile, because only a
  reader notices that a client has left. What arrives early waits in a bounded queue;
- a request that is refused before its body was read is answered, then the rest is read and dropped for a moment, so
  that the answer is not lost to a reset.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

import httptools

from warmroute.contract import headers as names
from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.http.header_names import KEPT, lower_name
from warmroute_proxy.server.http.incoming_body import IncomingBody

if TYPE_CHECKING:
    from warmroute_proxy.server.http.listener import Listener

MAX_PIPELINED: Final = 16
MAX_TARGET_BYTES: Final = 8192
LINGER_S: Final = 2.0
IDLE_GRACE_S: Final = 1.0  # at the shutdown, how long an idle connection may still bring a request, to be refused
LINGER_BODY_BYTES: Final = 65536  # up to this much of a refused body is read, so that the connection can be kept
STALLED_WRITE_S: Final = 60.0  # a client that reads nothing for this long is gone
WRITE_HIGH_BYTES: Final = 65536
LEFT_TARGET: Final = "/v1/forward/left"  # what a proxy sends behind a request that it forwarded, once its client left
PLAIN_TARGETS: Final = {target.encode(): target for target in ("/v1/chat/completions", "/v1/completions")}  # not parsed


class Connection:
    """One client connection, an `asyncio.Protocol` that is none by type: compiled classes have no base of a library."""

    def __init__(self, listener: "Listener") -> None:
        self.listener = listener
        self._limits = listener.limits
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._request: Request | None = None  # being read
        self._url = b""
        self._head_bytes = 0
        self._head_count = 0
        self._unparsed_bytes = 0
        self._began = 0  # messages
        self._in_head = True
        self._refusal: Refusal | None = None
        self._body = IncomingBody(listener.bodies)
        self._body_bytes = 0
        self._missing = 0  # bytes of a body whose head was looked up, not parsed
        self._active: Exchange | None = None
        self._waiting: deque[Request] = deque()  # at most MAX_PIPELINED
        self._reading = True  # False once no further request will be taken from this connection
        self._expects = False
        self._offered: Request | None = None  # its head offered an upgrade, and its body comes next
        self._starting = False
        self._paused = False
        self._unsent = 0  # bytes in the transport's buffer when it was last looked at
        self.deadline_s = listener.clock() + self._limits.head_timeout_s

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's do not inherit from it
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        if len(self.listener.connections) >= self._limits.connections or self.listener.closing:
            transport.close()
            return
        self.listener.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.listener.connections.discard(self)
        self._transport = None
        self._reading = False
        self._parser = None  # it knows us: no cycle is left to the garbage collector
        self._waiting.clear()
        self._body.drop()
        exchange, self._active = self._active, None
        if exchange is not None and not exchange.ended:
            exchange.ended = True
            on_gone, exchange.on_gone, exchange.on_pause = exchange.on_gone, None, None
            if on_gone is not None:
                on_gone()

    def eof_received(self) -> bool:
        return False  # a client that has half-closed is gone: asyncio closes, connection_lost follows

    def pause_writing(self) -> None:
        self._paused = True
        self._unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        self.deadline_s = self.listener.clock() + STALLED_WRITE_S
        if self._active is not None and self._active.on_pause is not None:
            self._active.on_pause(True)

    def resume_writing(self) -> None:
        self._paused = False
        if not self._reading:
            self.deadline_s = self.listener.clock() + LINGER_S
        elif self._active is None:
            self.deadline_s = self.listener.clock() + self._limits.keepalive_s
            self._start_next()
        else:
            self.deadline_s = float("inf")
            if self._active.on_pause is not None:
                self._active.on_pause(False)

    def data_received(self, data: bytes) -> None:
        if not self._reading:
            return
        if self._missing:
            self._collect(data)
            return
        if self._request is None and self._active is None and self._take(data):
            return
        began = self._began + (self._in_head and self._request is None)
        in_head, body_bytes = self._in_head, self._body_bytes
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.stop_reading(self._refusal or Refusal(400, "the request is not valid HTTP/1.1", code="bad_request"))
            return
        if self._request is None or self._in_head != in_head or self._began != began:
            return
        if not in_head and self._body_bytes != body_bytes:
            self._unparsed_bytes = 0
            return
        # All of `data` went into one head that has not ended, or into what stands between and behind the chunks of a
        # body, and the parser does not report a header before its end: count what was fed into it.
        self._unparsed_bytes += len(data)
        if self._unparsed_bytes > self._limits.header_bytes:
            self.stop_reading(_too_large(self._limits))

    def _take(self, data: bytes) -> bool:
        """A request whose head came in one read, while nothing else is under way: most do, and spare the parser."""
        if self._offered is not None or self._waiting:
            return False
        listener = self.listener
        found = listener.heads.find(data)
        if found is None:
            return False
        head, length, body = found
        missing = length - len(body)
        if missing < 0 or length > self._limits.body_bytes:
            return False
        request = Request(listener.clock(), "POST", head.path, head.headers)
        request.length = length
        if listener.closing:
            request.keep_alive = False
        request.caller = head.caller
        if head.caller is None:
            try:
                listener.endpoint.on_head(request)
            except Refusal as refusal:
                if length > LINGER_BODY_BYTES:
                    return False
                request.refusal = refusal.with_traceback(None)  # which knows the request
            if request.caller is not None:
                head.caller = request.caller
                listener.heads.keep(head)
        if missing:
            self._begin_body(request, body, missing)
        else:
            request.body = body
            self._start(request)
        return True

    def _begin_body(self, request: Request, data: bytes, missing: int) -> None:
        """The head came, the body goes on."""
        self._request = request
        self._in_head = False
        self._missing = missing
        if data:
            self._body.add(data, self)
        limits = self._limits
        self.deadline_s = request.received_s + max(limits.head_timeout_s, limits.body_timeout_s)

    def _collect(self, data: bytes) -> None:
        """More of a body whose head was looked up."""
        missing = self._missing - len(data)
        if missing > 0:
            self._missing = missing
            try:
                self._body.add(data, self)
            except Refusal as refusal:
                self.stop_reading(refusal)
            return
        request = self._request
        assert request is not None
        self._missing = 0
        self._request = None
        self._in_head = True
        request.body = self._body.take(data[:missing] if missing else data)
        self._start(request)
        if missing and self._reading:
            self.data_received(data[missing:])

    def _start(self, request: Request) -> None:
        """Begin to answer a request that nothing is before."""
        if self._paused or self._transport is None:
            self._waiting.append(request)
            return
        exchange = self._active = Exchange(self, request)
        self.deadline_s = float("inf")
        if request.refusal is not None:
            exchange.refuse(request.refusal)
        else:
            self.listener.endpoint.handle(request, exchange)

    def _feed(self, data: bytes) -> None:
        while data and self._reading:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # Some clients (Java's) offer an upgrade to HTTP/2 with every request: it is declined by ignoring it.
                # The parser takes such a head for a whole message, so a body that follows gets a parser of its own.
                data = data[int(upgrade.args[0]) :]
                self._parser = httptools.HttpRequestParser(self)
                if self._offered is not None:
                    self._parser.feed_data(_bare_head(self._offered))
            else:
                return

    # -- the parser's side

    def on_message_begin(self) -> None:
        if self._offered is not None:
            return
        self._began += 1
        self._request = Request(self.listener.clock())
        self._url = b""
        self._head_count = 0
        self._head_bytes = 0
        self._unparsed_bytes = 0
        self._in_head = True
        self._body_bytes = 0
        if self._active is None:
            self.deadline_s = self._request.received_s + self._limits.head_timeout_s

    def on_url(self, url: bytes) -> None:
        if self._offered is not None:
            return
        self._url += url
        if len(self._url) > MAX_TARGET_BYTES:
            self._fail(Refusal(414, f"the request target is longer than {MAX_TARGET_BYTES} bytes", code="uri_too_long"))

    def on_header(self, name: bytes, value: bytes | None) -> None:
        request = self._request
        if self._offered is not None:
            return
        assert request is not None
        if value is None:
            value = b""
        self._head_count += 1
        self._head_bytes += len(name) + len(value) + 4
        if self._head_count > self._limits.header_count or self._head_bytes > self._limits.header_bytes:
            self._fail(_too_large(self._limits))
        if not self._in_head:
            return  # a trailer: who asks, and for what, was decided by the head
        text = KEPT.get(name) or lower_name(name)
        headers = request.headers
        if text not in headers:
            headers[text] = value.decode("latin-1").rstrip(" \t")  # no part of it, and the parser leaves it there
        elif text == "host":
            self._fail(Refusal(400, "exactly one Host header is required", code="bad_request"))
        elif text == "content-length":
            self._fail(Refusal(400, "content-length stands twice", code="bad_request"))

    def on_headers_complete(self) -> None:
        if self._offered is not None:
            self._in_head = False
            self._offered = None
            return
        request = self._request
        assert request is not None
        self._in_head = False
        parser, headers = self._parser, request.headers
        method = parser.get_method()
        request.method = "POST" if method == b"POST" else method.decode("latin-1")
        request.version = parser.get_http_version()
        request.keep_alive = parser.should_keep_alive() and not self.listener.closing
        if "host" not in headers and request.version == "1.1":
            self._fail(Refusal(400, "exactly one Host header is required", code="bad_request"))
        self._take_target(request)
        self._take_length(request)
        self.deadline_s = max(self.deadline_s, self.listener.clock() + self._limits.body_timeout_s)
        try:
            self.listener.endpoint.on_head(request)
        except Refusal as refusal:
            if request.length is None or request.length > LINGER_BODY_BYTES:
                self._fail(refusal)
            request.refusal = refusal.with_traceback(None)  # which knows the request
        if "expect" in headers and headers["expect"].lower() == "100-continue" and request.length != 0:
            self._expects = True
            self._continue()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.body_bytes:
            self._fail(_body_too_large(self._limits))
        try:
            self._body.add(body, self)
        except Refusal as refusal:
            self._fail(refusal)

    def on_message_complete(self) -> None:
        request = self._request
        assert request is not None
        if request.length != 0 and not self._body_bytes and self._parser.should_upgrade():
            self._offered = request
            return
        self._request = None
        self._expects = False
        request.body = self._body.take()
        self._in_head = True
        if not self._reading:
            return
        active = self._active
        if request.path == LEFT_TARGET and active is not None and names.FORWARD in active.request.headers:
            active.client_left = True
            self.cut()
            return
        if self._waiting and self._too_many_wait(len(request.body)):
            problem = f"more than {MAX_PIPELINED} requests, or than the bytes of one, wait on one connection"
            self._fail(Refusal(429, problem, code="too_many_requests"))
        self._waiting.append(request)
        self._start_next()

    def _too_many_wait(self, more_bytes: int) -> bool:
        """Whether one more request is too much for what is read ahead."""
        for request in self._waiting:
            more_bytes += len(request.body)
        return len(self._waiting) >= MAX_PIPELINED or more_bytes > self._limits.body_bytes

    def _take_target(self, request: Request) -> None:
        if self._url in PLAIN_TARGETS:
            request.path = PLAIN_TARGETS[self._url]
            return
        try:
            parsed: Any = httptools.parse_url(self._url)  # whose types know no None
            request.path = (parsed.path or b"").decode("ascii")
            request.query = parsed.query or b""
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
            self._fail(Refusal(400, "the request target is not a valid URL", code="bad_request"))
        if not request.path.startswith("/") or b"#" in self._url:
            self._fail(Refusal(400, "the request target must be a path, with a query at most", code="bad_request"))

    def _take_length(self, request: Request) -> None:
        headers = request.headers
        if "transfer-encoding" in headers:
            if "content-length" in headers or headers["transfer-encoding"].strip().lower() != "chunked":
                self._fail(Refusal(400, "the request's framing is ambiguous", code="bad_request"))
            return
        request.length = int(headers.get("content-length") or 0)
        if request.length > self._limits.body_bytes:
            self._fail(_body_too_large(self._limits))

    def _fail(self, refusal: Refusal) -> None:
        """Leave the parser: httptools turns this into a parser error, which `data_received` answers."""
        self._refusal = refusal
        raise refusal

    # -- answering in order

    def _start_next(self) -> None:
        """Start waiting requests while none is active; a loop, because an answer may come at once."""
        if self._starting:
            return
        self._starting = True
        try:
            # Not while the client does not read what it already has: the answer would pile up here.
            while self._waiting and self._active is None and self._transport is not None and not self._paused:
                self._start(self._waiting.popleft())
        finally:
            self._starting = False

    def _continue(self) -> None:
        if self._expects and self._active is None and not self._waiting:
            self._expects = False
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def answered(self, exchange: Exchange) -> None:
        """An exchange ended in good order: on to the next request, or to the end."""
        self._active = None
        if not exchange.request.keep_alive:
            self.close_after_flush()
            return
        if not self._paused:
            self.deadline_s = self.listener.clock() + self._limits.keepalive_s
        if self._waiting:
            self._start_next()
        if self._expects:
            self._continue()
        if (not self._reading or self.listener.closing) and self._active is None and not self._waiting:
            self.close_after_flush()

    def stop_reading(self, refusal: Refusal) -> None:
        """Answer what was taken, then `refusal`, then close; nothing that follows is looked at."""
        if not self._reading:
            return
        self._reading = False
        self._refusal = refusal
        request = self._request or Request(self.listener.clock())
        request.refusal = refusal.with_traceback(None)
        request.keep_alive = False
        self._request = None
        self._body.drop()
        self._missing = 0
        self._waiting.append(request)
        self._start_next()

    # -- the transport

    def write(self, data: bytes) -> None:
        """Bytes to the client; dropped when it is gone."""
        if self._transport is not None:
            self._transport.write(data)

    def passthrough_target(self) -> Callable[[bytes], None] | None:
        """`write` without a look at the connection; None when it is gone."""
        return None if self._transport is None else self._transport.write

    def close_after_flush(self) -> None:
        """Nothing follows: close once all is sent. A client that may still be sending is read and dropped for a moment,
        because a reset would take the answer from it.
        """
        self._reading = False
        self._waiting.clear()
        transport = self._transport
        if transport is None:
            return
        if self._active is not None and self._active.ended:
            self._active = None
        self._unsent = transport.get_write_buffer_size()
        self.deadline_s = self.listener.clock() + (STALLED_WRITE_S if self._paused else LINGER_S)
        if self._request is None and self._refusal is None:
            transport.close()  # sends what is buffered first
            return
        try:
            transport.write_eof()
        except (OSError, RuntimeError):
            transport.close()

    def close_when_idle(self) -> None:
        """Shutdown: what is being answered is the last; a client that is about to ask again is told, for a moment."""
        if self._active is not None:
            self._active.request.keep_alive = False
        elif self._request is not None:
            self._request.keep_alive = False
        else:
            self.deadline_s = min(self.deadline_s, self.listener.clock() + IDLE_GRACE_S)

    def cut(self) -> None:
        """Close without waiting."""
        if self._transport is not None:
            self._transport.abort()

    def expired(self) -> None:
        """The sweep found this connection past its deadline."""
        unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        if 0 < unsent < self._unsent:  # a slow reader, but a reader
            self._unsent = unsent
            self.deadline_s = self.listener.clock() + STALLED_WRITE_S
        elif self._reading and self._request is not None and self._active is None:
            self.stop_reading(Refusal(408, "the request did not arrive in time", code="request_timeout"))
        else:
            if self._active is not None:
                self._active.client_left = True
            self.cut()


def _bare_head(request: Request) -> bytes:
    """A head that says of a request's body what its own head said."""
    framing = "transfer-encoding: chunked" if request.length is None else f"content-length: {request.length}"
    return f"POST / HTTP/1.1\r\n{framing}\r\n\r\n".encode()


def _too_large(limits: Limits) -> Refusal:
    return Refusal(
        431,
        f"the request head exceeds {limits.header_bytes} bytes or {limits.header_count} headers",
        code="headers_too_large",
    )


def _body_too_large(limits: Limits) -> Refusal:
    return Refusal(413, f"the request body exceeds {limits.body_bytes} bytes", code="request_too_large")
