"""A request's head is read the same however it is cut, and what could be read in two ways is refused."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.field.fuzz import http1
from tests.subjects.body_memory import plenty
from tests.subjects.reading import receive

from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.http.http1 import Connection
from warmroute_proxy.server.http.open_connections import OpenConnections

FIRST = b"POST /v1/chat/completions HTTP/1.1"

names = st.sampled_from(
    [
        "host",
        "Host",
        "Content-Length",
        "content-length",
        "X-A",
        "x-b",
        "connection",
        "Transfer-Encoding",
        "Idempotency-Key",
        "x a",
        "",
        "é",
    ]
)
values = st.one_of(
    st.sampled_from(["5", "05", "+5", "5 ", "", "chunked", "close", "\ta", "x\x00y", "x\ry", "x\ny", "ü", "5,5"]),
    st.text(max_size=8),
)
lines = st.lists(st.tuples(names, st.sampled_from([":", ": ", " :", ":\t", ""]), values), max_size=6)


def head_of(given_lines: list[tuple[str, str, str]]) -> list[bytes]:
    return [f"{name}{colon}{value}".encode() for name, colon, value in given_lines]


@given(lines, st.binary(max_size=8), st.booleans())
@example([("host", ": ", "x"), ("content-length", ":", "5")], b"hello", True)
@example([("Idempotency-Key", ": ", "5 ")], b"hello", True)
def test_a_head_is_read_the_same_in_pieces_and_by_another_parser(
    given_lines: list[tuple[str, str, str]], body: bytes, sound: bool
) -> None:
    head = head_of(given_lines)
    if sound:
        head += [b"host: x", b"content-length: %d" % len(body)]
    http1.check(b"\r\n".join([FIRST, *head, b"", body]))


@given(lines, lines, st.integers(0, 6), st.sampled_from(["5", "05", "+5", "5 ", "", "1_0", "\u0665", "6", "4"]))
def test_a_head_is_read_for_itself_whatever_came_before(
    given_lines: list[tuple[str, str, str]], other_lines: list[tuple[str, str, str]], at: int, length: str
) -> None:
    """The same lines with another length, or with its line elsewhere, beside another one, or missing."""
    connections = OpenConnections(http1.Echo(), http1.LIMITS, lambda: 0.0, plenty())
    head = [*head_of(given_lines), b"host: x"]
    http1.run([b"\r\n".join([FIRST, *head, b"Content-Length: 5", b"", b"hello"])], connections)
    again = [*head[:at], f"Content-Length: {length}".encode(), *head[at:], *head_of(other_lines[:1])]
    data = b"\r\n".join([FIRST, *again, b"", b"hello"])
    assert http1.run([data], connections) == http1.run([data])


@pytest.mark.parametrize(
    ("head", "statuses"),
    [
        (b"host: x\r\ncontent-length: 2\r\ncontent-length: 2", [400]),
        (b"host: x\r\nhost: x\r\ncontent-length: 2", [400]),
        (b"host: x\r\ncontent-length: +2", [400]),
        (b"host: x\r\ncontent-length: 2\r\ntransfer-encoding: chunked", [400]),
        (b"host: x\r\ncontent-length: 2\r\nconnection: close", [200]),
        (b"host: x\r\ncontent-length: 2\r\nexpect: 100-continue", [100, 200]),
        (b"host: x\r\ncontent-length: 2\r\nx : y", [400]),
        (b"host: x\r\ncontent-length: 2\r\n folded", [400]),
        (b"host: x\r\ncontent-length: 2\nx: y", [400]),
        (b"content-length: 2", [400]),
        (b"host: x", [200, 400]),
        (b"host: x\r\ncontent-length: 3", []),
        (b"host: x\r\ncontent-length: 1", [200, 400]),
    ],
)
def test_a_head_that_could_be_read_in_two_ways_is_refused(head: bytes, statuses: list[int]) -> None:
    _, found = http1.run([b"%b\r\n%b\r\n\r\nhi" % (FIRST, head)])
    assert [int(status) for status in found] == statuses


class Asked:
    """Keeps the heads of requests."""

    def __init__(self) -> None:
        self.heads: list[Request] = []

    def on_head(self, request: Request) -> None:
        self.heads.append(request)

    def handle(self, request: Request, exchange: Exchange) -> None: ...

    def in_shape(self, request: Request, refusal: Refusal) -> Refusal:
        return refusal

    def on_status(self, request: Request, status: int) -> None: ...


def test_a_plain_head_is_read() -> None:
    """Names in lower case, values without the space around them, and nothing of a client's kept connection."""
    endpoint = Asked()
    head = b"Host: x\r\nAuthorization:Bearer k \r\nConnection: keep-alive\r\ncontent-length: 2"
    connection = Connection(OpenConnections(endpoint, Limits(), lambda: 0.0, plenty()))
    receive(connection, b"%b\r\n%b\r\n\r\nhi" % (FIRST, head))
    (request,) = endpoint.heads
    assert (request.method, request.path, request.length) == ("POST", "/v1/chat/completions", 2)
    assert request.headers == {
        "host": "x",
        "authorization": "Bearer k",
        "connection": "keep-alive",
        "content-length": "2",
    }


def test_a_value_is_the_same_whether_its_head_came_whole_or_in_pieces() -> None:
    """An idempotency key that ends with a space stands for one call, however it was cut on its way."""
    endpoint = Asked()
    data = FIRST + b"\r\nhost: x\r\nidempotency-key: a1 \t\r\ncontent-length: 2\r\n\r\nhi"
    for cut in (len(data), 50):
        connection = Connection(OpenConnections(endpoint, Limits(), lambda: 0.0, plenty()))
        receive(connection, data[:cut])
        receive(connection, data[cut:])
    assert [each.headers["idempotency-key"] for each in endpoint.heads] == ["a1", "a1"]
