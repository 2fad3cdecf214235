"""One request of a client, and its answer, as an `Endpoint` gets them.

`Endpoint.handle` gets a complete `Request`. An `Exchange` writes the answer, and reports when the client has left or
reads too slowly.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from warmroute_proxy.core.base.compiled import mypyc_attr
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.http.body_memory import UNNAMED, BodyReservation
from warmroute_proxy.server.http.shared_bytes import SharedBytes

log = logging.getLogger(__name__)

LEFT_TARGET: Final = "/v1/forward/left"
"""The path of the request that a proxy sends on the connection of a forwarded request, if the client has left."""

Problem = str | Refusal
"""Why an answer cannot be translated: an error in the answer (str), or something that the proxy lacks (Refusal)."""

_REASONS: Final = {
    200: "OK", 202: "Accepted", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
    405: "Method Not Allowed", 408: "Request Timeout", 409: "Conflict", 413: "Content Too Large", 414: "URI Too Long",
    415: "Unsupported Media Type", 422: "Unprocessable Content", 426: "Upgrade Required", 429: "Too Many Requests",
    431: "Request Header Fields Too Large", 500: "Internal Server Error", 502: "Bad Gateway",
    503: "Service Unavailable", 504: "Gateway Timeout",
}  # fmt: skip
_STATUS_LINES: Final = {status: f"HTTP/1.1 {status} {reason}" for status, reason in _REASONS.items()}


class Request:
    """One request. `headers` has the first value of each header, by lower-case name.

    `length`: the length of the body; None if the body is chunked. `shared`: a large body, in memory that another
    process can read. `refusal`: the answer, if the head was refused. When the head is complete, the endpoint may set
    the sender (`caller`) and the `tenant` for which the body counts. `body_reservation`: the memory of the body and of
    a gathered answer; None if nothing is reserved.
    """

    # These members are seldom set or read. As defaults of the class they make construction cheap, but reads slower.
    query = b""
    version = "1.1"
    body: bytes | memoryview = b""
    shared: SharedBytes | None = None
    length: int | None = None
    keep_alive = True
    caller: object | None = None
    tenant = UNNAMED
    body_reservation: BodyReservation | None = None
    dialect: Any = None
    """The API dialect of the request, if its path does not determine the dialect. Only the endpoint uses it."""

    deployment = ""
    """The name in an Azure path with a deployment. A body without a model gets this name as its model."""

    more_lines = b""
    """Header lines for any answer to the request, each with its line end."""

    carrier: object | None = None
    """The gateway that carries the request to an engine (`engines.carrier`); None: the proxy's own connections do."""

    def __init__(
        self, received_s: float, method: str = "", path: str = "", headers: dict[str, str] | None = None
    ) -> None:
        self.received_s = received_s
        self.method = method
        self.path = path
        self.headers = {} if headers is None else headers
        self.refusal: Refusal | None = None

    def release(self) -> None:
        """Give all memory of the request back at its end, even if something still refers to the request."""
        if self.body_reservation is not None:
            self.body_reservation.close()

    def body_sha256(self) -> str:
        """The digest of the body. If another process has read a large body, it has computed the digest, too."""
        if self.shared is not None and self.shared.sha256 is not None:
            return self.shared.sha256
        return hashlib.sha256(self.body).hexdigest()

    def drop_body(self) -> None:
        if self.body_reservation is not None:
            self.body_reservation.drop_body()
        self.body, self.shared = b"", None


class NextProtocol(Protocol):
    """The protocol of a connection after an upgrade."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket over."""


class AnswerSink(Protocol):
    """The connection to which an answer is written."""

    def write(self, data: bytes) -> None:
        """Send bytes to the client."""

    def passthrough_target(self) -> Callable[[bytes], None] | None:
        """The fastest function that writes to the client; None if the client is gone."""

    def on_status(self, request: Request, status: int) -> None:
        """Report the status of an answer, for the metrics."""

    def exchange_ended(self, exchange: "Exchange") -> None:
        """Handle that an answer is complete."""

    def close_after_flush(self) -> None:
        """Close when all bytes are sent."""

    def switch(self, head: bytes, protocol_of: Callable[[Any], NextProtocol]) -> None:
        """Answer with `head`, and go on with another protocol."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Exchange:
    """The answer to one request.

    `on_gone` is called once if the client leaves before the answer has ended. `on_pause` is called with True when the
    client reads too slowly, and with False when it has caught up.
    """

    # These members are seldom set or read. As defaults of the class they make construction cheap, but reads slower.
    on_gone: Callable[[], None] | None = None
    on_pause: Callable[[bool], None] | None = None
    on_unreadable: Callable[[Problem], None] | None = None
    """Called with the problem if some of an answer cannot be translated, after the client has got an error."""
    takes_bare = False
    """Whether the exchange takes bytes without HTTP chunks."""
    translates = False
    """Whether the answer is translated. If so, `unreadable` is called before the answer is charged."""
    client_left = False
    """Whether the client is known to have left when `on_gone` is called. For a forwarded request, the proxy that
    forwarded it reports this.
    """
    _chunked = False

    def __init__(self, connection: AnswerSink, request: Request) -> None:
        self._connection = connection
        self.request = request
        self.started = False
        self.ended = False

    def respond(self, status: int, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        if self.ended:
            return
        self.started = self.ended = True
        head = self._head(status, headers)
        sent = b"" if self.request.method == "HEAD" else body
        self.on_gone = self.on_pause = None  # ends the cycle of references between the callbacks and the exchange
        self._connection.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), sent))
        self._connection.exchange_ended(self)

    def answer(self, lines: bytes, body: bytes) -> None:
        """Send a whole answer with status 200 to a POST. `lines`: the answer's headers, each with its line end."""
        if self.ended:
            return
        self.started = self.ended = True
        self.on_gone = self.on_pause = None
        connection, request = self._connection, self.request
        connection.on_status(request, 200)
        if not request.keep_alive:
            lines += b"connection: close\r\n"
        lines += request.more_lines
        connection.write(b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n%b" % (lines, len(body), body))
        connection.exchange_ended(self)

    def unreadable(self, answer: bytes | None) -> Problem | None:  # noqa: ARG002 - for those that translate
        """Why the client cannot get an answer; None if it can. `answer`: a whole answer; None: the stream until now."""
        return None

    def refuse(self, refusal: Refusal, extra: Iterable[tuple[str, str]] = ()) -> None:
        headers = [*((n, v) for n, v in extra if n != "content-type"), ("content-type", "application/json")]
        if refusal.retry_after_s is not None:
            headers.append(("retry-after", str(refusal.retry_after_s)))
        headers += refusal.headers
        if refusal.status == 401:
            headers.append(("www-authenticate", "Bearer"))
        self.respond(refusal.status, headers, refusal.body())

    def fail(self) -> None:
        """Answer after an error in the proxy: with a 500 if nothing was sent yet, else by an abort."""
        if self.started:
            self.abort()
        else:
            self.refuse(Refusal(500, "internal error", code="internal_error"))

    def start(self, status: int, headers: Iterable[tuple[str, str]], data: bytes = b"") -> None:
        """Send the head of a streamed answer, and its first bytes if they are known, in one write."""
        self.started = True
        self._chunked = self.request.version == "1.1"
        if not self._chunked:
            self.request.keep_alive = False
        framing = b"transfer-encoding: chunked\r\n\r\n" if self._chunked else b"\r\n"
        first = b"%x\r\n%b\r\n" % (len(data), data) if data and self._chunked else data
        self._connection.write(b"%b%b%b" % (self._head(status, headers), framing, first))

    def write(self, data: bytes) -> None:
        """Send some bytes of a streamed answer."""
        if data and not self.ended:
            self._connection.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def passthrough_target(self) -> Callable[[bytes], None] | None:
        """The function that writes whole HTTP chunks to the client, until the answer ends or the client leaves.

        None if the answer is not chunked or has ended.
        """
        return self._connection.passthrough_target() if self._chunked and not self.ended else None

    def end(self, data: bytes = b"") -> None:
        """Send the last bytes of a streamed answer that is complete."""
        if self.ended:
            return
        self.ended = True
        self.on_gone = self.on_pause = None
        if self._chunked:
            chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
            self._connection.write(chunk)
        else:
            self._connection.write(data)
        self._connection.exchange_ended(self)

    def switch(self, head: bytes, protocol_of: Callable[[Any], NextProtocol]) -> None:
        """Accept an upgrade to another protocol by `head`. `protocol_of`: makes the protocol from `OpenConnections`."""
        self.started = self.ended = True
        self.on_gone = self.on_pause = None
        self._connection.on_status(self.request, 101)
        self._connection.switch(head, protocol_of)

    def abort(self, data: bytes = b"") -> None:
        """End a streamed answer that is incomplete, without the terminating chunk that would make it look complete."""
        if self.ended:
            return
        self.write(data)
        self.ended = True
        self.on_gone = self.on_pause = None
        self._connection.close_after_flush()

    def _head(self, status: int, headers: Iterable[tuple[str, str]]) -> bytes:
        self._connection.on_status(self.request, status)
        head = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} Status"
        lines = "\r\n".join(
            [head, *map(": ".join, headers), "" if self.request.keep_alive else "connection: close\r\n"]
        )
        return lines.encode("latin-1", "replace") + self.request.more_lines


class Endpoint(Protocol):
    """The application behind a listener."""

    def on_head(self, request: Request) -> None:
        """Raise `Refusal` for a request that can be refused without its body."""

    def handle(self, request: Request, exchange: Exchange) -> None:
        """Start to answer. The endpoint must end `exchange` sooner or later, by `respond`, `end` or `abort`."""

    def in_shape(self, request: Request, refusal: Refusal) -> Refusal:
        """A refusal of the connection, in the form that clients of the request's route expect."""

    def on_status(self, request: Request, status: int) -> None:
        """Observe the status of an answer."""


def answer_error(request: Request, exchange: Exchange, error: Exception) -> None:
    """Answer after an exception: with the refusal if it is one, else with an error of the proxy."""
    if isinstance(error, Refusal):
        exchange.refuse(error)
    else:
        log.error("answering %s failed: %s", request.path[:100], type(error).__name__)
        exchange.fail()
