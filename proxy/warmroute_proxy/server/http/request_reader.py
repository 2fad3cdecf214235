"""Parses the bytes of one client connection into requests: httptools does the framing, this module applies the limits.

The reader knows no routes and writes no answers. It reports each head and each whole request to its connection, and
stops with a `Refusal` at the first bytes that are not a valid request.

Framing is strict: the parser refuses bytes that could be read in two ways, and `Host` must be given exactly once.
"""

from collections.abc import Callable
from itertools import chain
from typing import Any, Final, Protocol

import httptools

from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.http.body_memory import UNNAMED
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.http.header_lines import Line, decode, decode_each
from warmroute_proxy.server.http.incoming_body import IncomingBody
from warmroute_proxy.server.http.shared_bytes import SharedBytes

MAX_TARGET_BYTES: Final = 8192
MAX_CHUNKS: Final = 2048
BYTES_PER_CHUNK: Final = 256
"""A chunked body may have `MAX_CHUNKS` chunks, and one more for each `BYTES_PER_CHUNK` bytes. The number is limited,
because a chunk takes 2 us of the event loop, and one read may bring all chunks.
"""

HELD_HEAD_BYTES: Final = 8_192
"""A head up to this size is not counted in the memory budget for bodies."""

LINE_BYTES: Final = 128  # memory that a header takes besides its text

PLAIN_TARGETS: Final = {target.encode(): target for target in ("/v1/chat/completions", "/v1/completions")}  # not parsed


class RequestSink(Protocol):
    """The connection that takes the requests. All methods but `request_begun` may raise `Refusal`."""

    def request_begun(self, request: Request) -> None:
        """Handle that the first byte of a request was read."""

    def head_received(self, request: Request) -> None:
        """Take the complete head of a request, whose body may follow."""

    def head_held(self, size_bytes: int) -> None:
        """Handle that `size_bytes` of a head that has not ended are in memory."""

    def head_kept(self, request: Request, size_bytes: int) -> None:
        """Handle that a large head stays in memory until its request ends."""

    def request_received(self, request: Request) -> None:
        """Take a complete request."""


class RequestReader:
    """Parses one connection's bytes. `open` is False once it takes no more requests."""

    def __init__(self, connection: RequestSink, limits: Limits, clock: Callable[[], float]) -> None:
        self._connection: RequestSink | None = connection
        self._limits = limits
        self._max_lines = limits.header_count
        self._clock = clock
        self._parser: Any = httptools.HttpRequestParser(self)
        self._url = b""
        self._lines: list[Line] = []  # header lines of the head, then of the trailers
        self._counted = False  # whether the bytes of a head that has not ended were counted
        self._read_bytes = 0  # total size of the reads that contained some of this request
        self._unparsed_bytes = 0
        self._begun = 0  # how many requests have begun
        self._in_head = True
        self._body = IncomingBody()
        self._body_bytes = 0
        self._chunks = 0
        self._offered: Request | None = None  # the request whose head offered an upgrade, and whose body comes next
        self.request: Request | None = None  # the request that is being read
        self.refusal: Refusal | None = None  # the reason why reading ended
        self.open = True

    @property
    def tenant(self) -> str:
        """The tenant whose request is being read. `UNNAMED` between requests and until a head has ended."""
        return UNNAMED if self.request is None else self.request.tenant

    def feed(self, data: bytes | memoryview) -> Refusal | None:
        """Parse the next bytes. Returns the reason if the connection must stop reading."""
        size = len(data)
        self._read_bytes = size if self.request is None else self._read_bytes + size
        begun = self._begun + (self._in_head and self.request is None)
        in_head, body_bytes = self._in_head, self._body_bytes
        try:
            self._parse(data)
        except httptools.HttpParserError:
            return self.refusal or Refusal(400, "the request is not valid HTTP/1.1", code="bad_request")
        if self.request is None:
            return None
        if len(self._lines) > self._max_lines:  # do not wait for the head's end: a header takes more than its text
            return _head_too_large(self._limits)
        if self._in_head and (refusal := self._count_head()) is not None:
            return refusal
        if self._in_head != in_head or self._begun != begun:
            return None
        if not in_head and self._body_bytes != body_bytes:
            self._unparsed_bytes = 0
            return None
        # All of `data` belongs to one head that has not ended, or to chunk extensions and trailers of a body. The
        # parser reports a header only once it has ended, so count the bytes that the parser was given.
        self._unparsed_bytes += size
        return _head_too_large(self._limits) if self._unparsed_bytes > self._limits.header_bytes else None

    def _count_head(self) -> Refusal | None:
        """Count the bytes of a head that has not ended. Returns a refusal if there is no memory for them."""
        if self._read_bytes <= HELD_HEAD_BYTES or self._connection is None:
            return None
        self._counted = True
        try:
            self._connection.head_held(min(self._read_bytes, self._limits.header_bytes))
        except Refusal as refusal:
            return refusal
        return None

    def stop(self, refusal: Refusal) -> Request:
        """Take no more requests. Returns the request that gets `refusal` as its answer."""
        self.open = False
        self.refusal = refusal
        request = self.request or Request(self._clock())
        request.refusal = refusal.with_traceback(None)  # the traceback refers to the request, so it makes a cycle
        request.keep_alive = False
        request.body_reservation = None
        self.request = None
        self._lines = []
        self._body.drop()
        return request

    def close(self) -> None:
        """End the cycles of references with parser and connection, when the connection is gone."""
        self.open = False
        self._parser = None
        self._connection = None
        self.request = self._offered = None
        self._body.drop()

    def _parse(self, data: bytes | memoryview) -> None:
        while data and self.open:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # Some clients (Java's) offer an upgrade to HTTP/2 with every request. It is declined by ignoring it.
                # The parser treats a head with an offer as a whole message, so a body after it gets another parser.
                if self._connection is None:  # the upgrade was accepted, and another protocol has the connection
                    return
                data = data[int(upgrade.args[0]) :]
                self._parser = httptools.HttpRequestParser(self)
                if self._offered is not None:
                    self._parser.feed_data(_bare_head(self._offered))
            else:
                return

    def _fail(self, refusal: Refusal) -> None:
        """Leave the parser by an exception. httptools raises its own error instead, and `feed` returns `refusal`."""
        self.refusal = refusal
        raise refusal

    # -- called by the parser

    def on_message_begin(self) -> None:
        if self._offered is not None:
            return
        self._begun += 1
        request = self.request = Request(self._clock())
        self._url = b""
        self._lines = []
        self._unparsed_bytes = 0
        self._in_head = True
        self._body_bytes = self._chunks = 0
        connection = self._connection
        assert connection is not None
        connection.request_begun(request)

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > MAX_TARGET_BYTES:
            self._fail(Refusal(414, f"the request target is longer than {MAX_TARGET_BYTES} bytes", code="uri_too_long"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._lines.append((name, value))

    def _check_size(self) -> None:
        """Refuse too many header lines, or too many bytes in them. `feed` bounds what is read before this check."""
        size = sum(map(len, chain.from_iterable(self._lines))) + 4 * len(self._lines)
        if len(self._lines) > self._max_lines or size > self._limits.header_bytes:
            self._fail(_head_too_large(self._limits))

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._offered is not None:
            self._offered = None
            return
        request, connection = self.request, self._connection
        assert request is not None
        assert connection is not None
        parser = self._parser
        method = parser.get_method()
        request.method = "POST" if method == b"POST" else method.decode("latin-1")
        request.keep_alive = parser.should_keep_alive()
        if len(self._lines) > self._max_lines or self._read_bytes > self._limits.header_bytes:
            self._check_size()
        try:
            headers = request.headers = _headers(self._lines)
            if not request.keep_alive or "connection" in headers:  # else it is 1.1: 1.0 needs the header for keep-alive
                request.version = parser.get_http_version()
            if "host" not in headers and request.version == "1.1":
                raise _host_refusal()
            _set_target(request, self._url)
            _set_length(request, self._limits)
            connection.head_received(request)
            # A small head is not counted. All other bytes belong to the body, whose memory is reserved.
            if self._counted or self._read_bytes - (request.length or 0) > HELD_HEAD_BYTES:
                self._counted = False
                connection.head_kept(request, head_bytes(request))
                self._lines = []
        except Refusal as refusal:
            self._fail(refusal)

    def on_body(self, body: bytes) -> None:
        request = self.request
        assert request is not None
        self._body_bytes += len(body)
        if request.length is None:
            self._chunks += 1
            if self._chunks - MAX_CHUNKS > self._body_bytes // BYTES_PER_CHUNK:
                self._fail(chunks_too_small())
        if request.refusal is not None:
            return  # the rest of this body is read and dropped, to keep the connection open
        if self._body_bytes > self._limits.body_bytes:
            self._fail(_body_too_large(self._limits))
        reservation = request.body_reservation
        if reservation is not None and reservation.body_bytes < self._body_bytes:
            try:
                reservation.add_body(self._body_bytes - reservation.body_bytes)
            except Refusal as refusal:
                self._fail(refusal)
        if len(body) == request.length:  # the whole body came in one read
            request.body = body
        else:
            try:
                self._body.add(body, request.tenant)
            except OSError:
                self._fail(_no_place())

    def on_message_complete(self) -> None:
        request, connection = self.request, self._connection
        assert request is not None
        if request.length != 0 and not self._body_bytes and self._parser.should_upgrade():
            self._offered = request
            return
        if request.length is None:
            self._check_size()  # trailers are counted, then dropped, since they must not override the head
        self.request = None
        if not request.body:
            body = self._body.take()
            if isinstance(body, SharedBytes):
                try:
                    request.shared, request.body = body, body.view()
                except OSError:
                    self._fail(_no_place())
            else:
                request.body = body
        self._in_head = True
        if not self.open:
            return
        assert connection is not None
        try:
            connection.request_received(request)
        except Refusal as refusal:
            self._fail(refusal)


def head_bytes(request: Request) -> int:
    return sum(map(len, chain.from_iterable(request.headers.items()))) + len(request.headers) * LINE_BYTES


def _headers(lines: list[Line]) -> dict[str, str]:
    """The headers of a request. Raises: Refusal."""
    headers = decode(lines)
    if len(headers) < len(lines):  # a name is given several times
        headers = {}
        for name, value in decode_each(lines):
            if name not in headers:
                headers[name] = value
            elif name == "host":
                raise _host_refusal()
            elif name == "content-length":
                raise Refusal(400, "the request has two content-length headers", code="bad_request")
    return headers


def _set_target(request: Request, url: bytes) -> None:
    if url in PLAIN_TARGETS:
        request.path = PLAIN_TARGETS[url]
        return
    if url.startswith(b"//"):  # a client joined its path to a base_url that ends with a slash
        url = b"/" + url.lstrip(b"/")
    try:
        parsed: Any = httptools.parse_url(url)  # its members may be None, which the type stubs omit
        request.path = (parsed.path or b"").decode("ascii")
        request.query = parsed.query or b""
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
        raise Refusal(400, "the request target is not a valid URL", code="bad_request") from None
    if not request.path.startswith("/") or b"#" in url:
        raise Refusal(400, "the request target must be a path, with a query at most", code="bad_request")


def _set_length(request: Request, limits: Limits) -> None:
    """Set the length of the body; None for a chunked body. Raises: Refusal."""
    headers = request.headers
    if "transfer-encoding" in headers:
        if "content-length" in headers or headers["transfer-encoding"].strip().lower() != "chunked":
            raise Refusal(400, "the request's framing is ambiguous", code="bad_request")
        return
    request.length = int(headers.get("content-length") or 0)
    if request.length > limits.body_bytes:
        raise _body_too_large(limits)


def _bare_head(request: Request) -> bytes:
    """A minimal head that frames the body as the request's head does."""
    framing = "transfer-encoding: chunked" if request.length is None else f"content-length: {request.length}"
    return f"POST / HTTP/1.1\r\n{framing}\r\n\r\n".encode()


def _host_refusal() -> Refusal:
    return Refusal(400, "exactly one Host header is required", code="bad_request")


def _head_too_large(limits: Limits) -> Refusal:
    return Refusal(
        431,
        f"the request head exceeds {limits.header_bytes} bytes or {limits.header_count} headers",
        code="headers_too_large",
    )


def chunks_too_small() -> Refusal:
    """The refusal of a body in chunks so small that a chunk costs more than its bytes."""
    problem = f"the request body comes in too many small chunks: send chunks of {BYTES_PER_CHUNK} bytes or more"
    return Refusal(400, problem, code="bad_request")


def _no_place() -> Refusal:
    problem = "the system has no memory or descriptor for the request body; try again in 1 s"
    return Refusal(503, problem, code="overloaded", retry_after_s=1)


def _body_too_large(limits: Limits) -> Refusal:
    return Refusal(413, f"the request body exceeds {limits.body_bytes} bytes", code="request_too_large")
