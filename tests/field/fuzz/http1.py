"""Fuzz target: what a client's connection makes of any bytes.

What must hold:
- no exception leaves the connection, and everything that was taken is answered, in order;
- the same bytes in other pieces are the same requests and get the same statuses (what is said of bytes that are wrong
  in two ways depends on which was seen first);
- where h11, a second parser, reads the same bytes without complaint, it reads the same requests: a difference is what
  request smuggling is made of.
"""

import itertools
import random
import re
from typing import Any, NamedTuple

import h11
from tests.subjects.body_memory import plenty
from tests.subjects.reading import receive

from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.http.http1 import Connection
from warmroute_proxy.server.http.open_connections import BUSY, OpenConnections

LIMITS = Limits(body_bytes=5_000, header_bytes=1_000_000, header_count=50)
"""Heads without a limit that a piece of them could be at: where it strikes depends on the pieces, as it should."""
REFUSED = b"by its head"
STATUS = re.compile(rb"HTTP/1\.1 (\d+) [A-Z][A-Za-z -]*\r\n")


class Read(NamedTuple):
    """A request as it was understood."""

    method: str
    target: str
    body: bytes


class Echo:
    """Answers each request at once, with what it was."""

    def __init__(self) -> None:
        self.read: list[Read] = []

    def on_head(self, request: Request) -> None:
        if request.path == "/secret":
            self.read.append(Read(request.method, _target(request), REFUSED))
            raise Refusal(401, "no", code="invalid_api_key")
        request.tenant = request.path[:2]

    def handle(self, request: Request, exchange: Exchange) -> None:
        self.read.append(Read(request.method, _target(request), bytes(request.body)))
        exchange.respond(200, [("content-type", "text/plain")], repr(self.read[-1]).encode())

    def in_shape(self, request: Request, refusal: Refusal) -> Refusal:
        return refusal

    def on_status(self, request: Request, status: int) -> None:
        pass


def _target(request: Request) -> str:
    return (request.path + "?" + request.query.decode("latin-1")).removesuffix("?")


class Transport:
    """Keeps what is written. A mock, for speed: the tests of `http1` run over real sockets."""

    def __init__(self) -> None:
        self.written = b""
        self.open = True

    def write(self, data: bytes) -> None:
        if self.open:
            self.written += data

    def close(self) -> None:
        self.open = False

    write_eof = abort = close

    def get_extra_info(self, _name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def is_closing(self) -> bool:
        return not self.open

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


def run(pieces: list[bytes], connections: OpenConnections | None = None) -> tuple[list[Read], list[bytes]]:
    """The requests that were read, and the statuses of the answers."""
    echo, transport = Echo(), Transport()
    connections = connections or OpenConnections(echo, LIMITS, lambda: 0.0, plenty())
    connections.endpoint, connections.handle = echo, echo.handle
    connection = Connection(connections)
    connection.connection_made(transport)  # type: ignore[arg-type]
    for piece in pieces:
        if transport.open:
            receive(connection, piece)
        assert connections.in_use.used <= (connection.idle_since_s == BUSY)
    connection.connection_lost(None)
    del connection
    assert connections.memory.budget.used == connections.in_use.used == 0
    return echo.read, STATUS.findall(transport.written)


def check(data: bytes) -> None:
    """Raise `AssertionError` where the connection breaks a rule over `data`."""
    connections = OpenConnections(Echo(), LIMITS, lambda: 0.0, plenty())
    whole = run([data], connections)
    assert run([data], connections) == whole, data
    chance = random.Random(data[:64])
    cuts = [chance.randrange(len(data) + 1) for _ in range(chance.randrange(1, 8))]
    if chance.random() < 0.5:
        cuts += [end.end() for end in re.finditer(b"\r\n\r\n", data)]  # many clients write a head, then a body
    edges = [0, *sorted(cuts), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(edges) if start < end]
    assert run(pieces) == whole, (data, pieces)
    assert run(pieces, connections) == whole, (data, pieces)
    read, statuses = whole
    assert statuses.count(b"200") == sum(one.body is not REFUSED for one in read)
    for ours, theirs in zip(read, read_by_h11(data), strict=False):
        if theirs.target.startswith("/"):  # an absolute one is taken apart, and its authority ignored
            body = REFUSED if ours.body is REFUSED else theirs.body
            assert ours == Read(theirs.method, theirs.target.removesuffix("?"), body), data


def read_by_h11(data: bytes) -> list[Read]:
    """The requests that h11 finds up to its first complaint."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1_000_000)
    connection.receive_data(data)
    found: list[Read] = []
    request: Any = None
    body = b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                request, body = event, b""
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                found.append(Read(request.method.decode(), request.target.decode(), body))
                if connection.client_is_waiting_for_100_continue or connection.their_state is not h11.DONE:
                    return found
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is not h11.DONE:
                    return found
                connection.start_next_cycle()
            else:
                return found
    except (h11.ProtocolError, UnicodeDecodeError):
        return found
