"""One request of a client and its answer, apart from the connection that they share.

What a handler of requests sees: `Request` came whole, `Exchange` writes the answer and says when nobody reads it.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from warmroute_proxy.core.base.mypyc import mypyc_attr
from warmroute_proxy.server.base.errors import Refusal

if TYPE_CHECKING:
    from warmroute_proxy.server.http.http1 import Connection
    from warmroute_proxy.server.intake.caller import Caller

_REASONS: Final = {
    200: "OK", 202: "Accepted", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
    405: "Method Not Allowed", 408: "Request Timeout", 409: "Conflict", 413: "Content Too Large", 414: "URI Too Long",
    415: "Unsupported Media Type", 422: "Unprocessable Content", 429: "Too Many Requests",
    431: "Request Header Fields Too Large", 500: "Internal Server Error", 502: "Bad Gateway",
    503: "Service Unavailable", 504: "Gateway Timeout",
}  # fmt: skip
_STATUS_LINES: Final = {status: f"HTTP/1.1 {status} {reason}" for status, reason in _REASONS.items()}


class Request:
    """One request; header names are lower case, `headers` keeps the first value of each name.

    Requests may share their headers, which are only read. `caller` is what an endpoint knows of who asks.
    """

    # What most requests are: read from the class, not set in each.
    query = b""
    version = "1.1"
    body = b""
    length: int | None = None
    keep_alive = True
    refusal: Refusal | None = None
    caller: "Caller | None" = None

    def __init__(
        self, received_s: float, method: str = "", path: str = "", headers: dict[str, str] | None = None
    ) -> None:
        self.received_s = received_s
        self.method = method
        self.path = path
        self.headers = {} if headers is None else headers


@mypyc_attr(allow_interpreted_subclasses=True)
class Exchange:
    """One request's answer. `on_gone` is called once if the client leaves before the answer ended."""

    # What an answer begins with: read from the class, not set in each.
    started = False
    ended = False
    on_gone: Callable[[], None] | None = None
    on_pause: Callable[[bool], None] | None = None
    client_left = False
    """Of one that is gone: whether the client is known to have left. Of a forwarded request its proxy says so."""
    _chunked = False

    def __init__(self, connection: "Connection", request: Request) -> None:
        self._connection = connection
        self.request = request

    def respond(self, status: int, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        """The whole answer at once."""
        if self.ended:
            return
        self.started = self.ended = True
        head = self._head(status, headers)
        sent = b"" if self.request.method == "HEAD" else body
        self.on_gone = self.on_pause = None  # who answers knows the exchange: no cycle is left to the garbage collector
        self._connection.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), sent))
        self._connection.answered(self)

    def answer(self, lines: bytes, body: bytes) -> None:
        """A whole 200 to a POST at once. `lines` are its headers, each with its end."""
        if self.ended:
            return
        self.started = self.ended = True
        self.on_gone = self.on_pause = None
        connection, request = self._connection, self.request
        connection.listener.endpoint.on_status(request, 200)
        if not request.keep_alive:
            lines += b"connection: close\r\n"
        connection.write(b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n%b" % (lines, len(body), body))
        connection.answered(self)

    def refuse(self, refusal: Refusal, extra: Iterable[tuple[str, str]] = ()) -> None:
        """Answer with an error object."""
        headers = [*((n, v) for n, v in extra if n != "content-type"), ("content-type", "application/json")]
        if refusal.retry_after_s is not None:
            headers.append(("retry-after", str(refusal.retry_after_s)))
        headers += refusal.headers
        if refusal.status == 401:
            headers.append(("www-authenticate", "Bearer"))
        self.respond(refusal.status, headers, refusal.body())

    def fail(self) -> None:
        """Something is wrong with us: say so if that is still possible, else break off."""
        if self.started:
            self.abort()
        else:
            self.refuse(Refusal(500, "internal error", code="internal_error"))

    def start(self, status: int, headers: Iterable[tuple[str, str]], data: bytes = b"") -> None:
        """The head of a streamed answer, and its first bytes where they are known, in one write."""
        self.started = True
        self._chunked = self.request.version == "1.1"
        if not self._chunked:
            self.request.keep_alive = False
        framing = b"transfer-encoding: chunked\r\n\r\n" if self._chunked else b"\r\n"
        first = b"%x\r\n%b\r\n" % (len(data), data) if data and self._chunked else data
        self._connection.write(b"%b%b%b" % (self._head(status, headers), framing, first))

    def write(self, data: bytes) -> None:
        """Some bytes of a streamed answer."""
        if data and not self.ended:
            self._connection.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def passthrough_target(self) -> Callable[[bytes], None] | None:
        """Where the next bytes of a streamed answer may go as whole chunks of HTTP, until it ends or the client leaves;
        None where they may not.
        """
        return self._connection.passthrough_target() if self._chunked and not self.ended else None

    def end(self, data: bytes = b"") -> None:
        """The last bytes of a streamed answer that is complete."""
        if self.ended:
            return
        self.ended = True
        self.on_gone = self.on_pause = None
        if self._chunked:
            chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
            self._connection.write(chunk)
        else:
            self._connection.write(data)
        self._connection.answered(self)

    def abort(self, data: bytes = b"") -> None:
        """End a streamed answer that is not complete: without the terminating chunk, which would make it look whole."""
        if self.ended:
            return
        self.write(data)
        self.ended = True
        self.on_gone = self.on_pause = None
        self._connection.close_after_flush()

    def _head(self, status: int, headers: Iterable[tuple[str, str]]) -> bytes:
        self._connection.listener.endpoint.on_status(self.request, status)
        head = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} Status"
        lines = "\r\n".join(
            [head, *map(": ".join, headers), "" if self.request.keep_alive else "connection: close\r\n"]
        )
        return lines.encode("latin-1", "replace")
