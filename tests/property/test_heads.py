"""A message that is taken whole is what the parser makes of it; what is not plain is left to the parser."""

import httptools
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.http.heads import MAX_HEADS, MAX_LINES, Heads, whole_answer
from warmroute_proxy.server.http.http1 import Connection
from warmroute_proxy.server.http.listener import Listener

PATH = "/v1/chat/completions"
FIRST = f"POST {PATH} HTTP/1.1".encode()


def whole_request(
    data: bytes, max_head_bytes: int, max_headers: int, heads: Heads | None = None
) -> tuple[str, dict[str, str], bytes] | None:
    """Path, headers without the length and body, where all of it is there; it is kept where there are `heads`."""
    heads = heads or Heads(max_head_bytes, max_headers)
    found = heads.find(data)
    if found is None:
        return None
    head, length, body = found
    heads.keep(head)
    return (head.path, head.headers, body) if length == len(body) else None


class Parsed:
    """What httptools finds."""

    def __init__(self) -> None:
        self.headers: list[tuple[str, str]] = []
        self.body = b""
        self.messages = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode("latin-1").lower(), value.decode("latin-1").rstrip(" \t")))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.messages += 1


def parsed(data: bytes) -> Parsed:
    found = Parsed()
    parser = httptools.HttpRequestParser(found)
    parser.feed_data(data)
    assert parser.should_keep_alive()
    return found


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


@given(lines, st.binary(max_size=8), st.booleans())
@example([("host", ": ", "x"), ("content-length", ":", "5")], b"hello", True)
@example([("Idempotency-Key", ": ", "5 ")], b"hello", True)
def test_whatever_is_taken_whole_is_what_the_parser_finds(
    given_lines: list[tuple[str, str, str]], body: bytes, sound: bool
) -> None:
    head = [f"{name}{colon}{value}".encode() for name, colon, value in given_lines]
    if sound:
        head += [b"host: x", b"content-length: %d" % len(body)]
    data = b"\r\n".join([FIRST, *head, b"", body])
    heads = Heads(10_000, 100)
    found = whole_request(data, 0, 0, heads)
    assert whole_request(data, 0, 0, heads) in (found, None)  # as a whole head that is known, or for the parser
    if found is None:
        return
    path, headers, rest = found
    expected = parsed(data)
    assert expected.messages == 1
    said = [(name, value) for name, value in expected.headers if name != "content-length"]
    assert len(said) == len(expected.headers) - 1
    assert (path, list(headers.items()), rest) == (PATH, said, expected.body)


@given(lines, lines, st.integers(0, 6), st.sampled_from(["5", "05", "+5", "5 ", "", "1_0", "\u0665", "6", "4"]))
def test_a_known_head_takes_nothing_that_its_lines_would_not(
    given_lines: list[tuple[str, str, str]], other_lines: list[tuple[str, str, str]], at: int, length: str
) -> None:
    """The same lines with another length, or with its line elsewhere, beside another one, or missing."""
    heads = Heads(10_000, 100)
    head = [f"{name}{colon}{value}".encode() for name, colon, value in given_lines] + [b"host: x"]
    whole_request(b"\r\n".join([FIRST, *head, b"Content-Length: 5", b"", b"hello"]), 0, 0, heads)
    other = [f"{name}{colon}{value}".encode() for name, colon, value in other_lines[:1]]
    again = [*head[:at], f"Content-Length: {length}".encode(), *head[at:], *other]
    data = b"\r\n".join([FIRST, *again, b"", b"hello"])
    assert whole_request(data, 0, 0, heads) in (whole_request(data, 10_000, 100), None)


calls = st.sampled_from(
    ["", "a1", "b2", "a-b", "a b", "\u00e9", "a" * 300, "a1\r\nidempotency-key: b2", "a1\r\nhost: y"]
)


@given(lines, calls, calls, st.integers(0, 4), st.integers(0, 4), st.booleans())
def test_a_known_head_of_another_call_is_that_of_its_lines(
    given_lines: list[tuple[str, str, str]], first: str, second: str, at: int, then: int, keyed: bool
) -> None:
    heads = Heads(10_000, 100)
    head = [b"host: x", *[f"{name}{colon}{value}".encode() for name, colon, value in given_lines]]
    found = []
    for call, place in ((first, at), (second, at), (second, then)):
        line = [f"idempotency-key: {call}".encode()] if keyed or call != first else []
        data = b"\r\n".join([FIRST, *head[:place], *line, *head[place:], b"Content-Length: 2", b"", b"hi"])
        assert whole_request(data, 0, 0, heads) == whole_request(data, 10_000, 100)
        found.append(data)
    for data in found:
        assert whole_request(data, 0, 0, heads) == whole_request(data, 10_000, 100)


def test_a_head_is_known_whatever_call_it_is_of() -> None:
    heads = Heads(1_000, 10)
    for number in range(3):
        call = f"{number:032x}"
        head = b"%b\r\nhost: x\r\nidempotency-key: %b\r\nContent-Length: 2" % (FIRST, call.encode())
        found = whole_request(head + b"\r\n\r\nhi", 0, 0, heads)
        assert found == (PATH, {"host": "x", "idempotency-key": call}, b"hi")
    assert len(heads._kept) == 1


def test_a_plain_request_is_taken_whole() -> None:
    data = FIRST + b"\r\nHost: x\r\nAuthorization:Bearer k \r\ncontent-length: 2\r\n\r\nhi"
    expected = {"host": "x", "authorization": "Bearer k"}
    for _ in range(2):
        assert whole_request(data, 1_000, 10) == (PATH, expected, b"hi")
    assert whole_request(data, 1_000, 2) is None
    assert whole_request(data, 60, 10) is None


@pytest.mark.parametrize(
    "head",
    [
        b"host: x\r\ncontent-length: 2\r\ncontent-length: 2",
        b"host: x\r\nhost: x\r\ncontent-length: 2",
        b"host: x\r\ncontent-length: 02",
        b"host: x\r\ncontent-length: +2",
        b"host: x\r\ncontent-length: 2\r\ntransfer-encoding: chunked",
        b"host: x\r\ncontent-length: 2\r\nconnection: close",
        b"host: x\r\ncontent-length: 2\r\nexpect: 100-continue",
        b"host: x\r\ncontent-length: 2\r\nx : y",
        b"host: x\r\ncontent-length: 2\r\n folded",
        b"host: x\r\ncontent-length: 2\nx: y",
        b"content-length: 2",
        b"host: x",
        b"host: x\r\ncontent-length: 3",
        b"host: x\r\ncontent-length: 1",
    ],
)
def test_what_is_not_plain_is_left_to_the_parser(head: bytes) -> None:
    assert whole_request(b"%b\r\n%b\r\n\r\nhi" % (FIRST, head), 1_000, 10) is None


def test_lines_of_many_clients_do_not_pile_up() -> None:
    from warmroute_proxy.server.http import heads

    for number in range(MAX_LINES + 10):
        data = b"%b\r\nhost: x\r\nx-session-id: s%d\r\ncontent-length: 0\r\n\r\n" % (FIRST, number)
        found = whole_request(data, 1_000, 10)
        assert found is not None
        assert found[1]["x-session-id"] == f"s{number}"
    assert len(heads._LINES) <= MAX_LINES


def test_heads_of_many_clients_do_not_pile_up() -> None:
    heads = Heads(1_000, 10)
    for number in range(MAX_HEADS + 10):
        data = b"%b\r\nhost: x\r\nx-session-id: s%d\r\nContent-Length: 0\r\n\r\n" % (FIRST, number)
        found = whole_request(data, 0, 0, heads)
        assert found is not None
        assert found[1]["x-session-id"] == f"s{number}"
    assert len(heads._kept) <= MAX_HEADS


def test_a_client_that_says_that_it_keeps_the_connection_is_plain() -> None:
    data = FIRST + b"\r\nHost: x\r\nConnection: keep-alive\r\ncontent-length: 2\r\n\r\nhi"
    assert whole_request(data, 1_000, 10) == (PATH, {"host": "x", "connection": "keep-alive"}, b"hi")


def test_an_answer() -> None:
    data = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-length: 2\r\n\r\nhi"
    assert whole_answer(data) == ({"server": "uvicorn"}, b"hi")
    for other in (data + b"x", data[:-1], data.replace(b"200", b"500"), data.replace(b"server", b"connection")):
        assert whole_answer(other) is None


def test_a_value_is_the_same_whether_its_head_came_whole_or_in_pieces() -> None:
    """An idempotency key that ends with a space stands for one call, however it was cut on its way."""
    asked: list[Request] = []

    class Asked:
        def on_head(self, request: Request) -> None:
            asked.append(request)

        def handle(self, request: Request, exchange: Exchange) -> None: ...

        def on_status(self, request: Request, status: int) -> None: ...

    data = FIRST + b"\r\nhost: x\r\nidempotency-key: a1 \t\r\ncontent-length: 2\r\n\r\nhi"
    for cut in (len(data), 50):
        connection = Connection(Listener(Asked(), Limits(), lambda: 0.0))
        connection.data_received(data[:cut])
        connection.data_received(data[cut:])
    assert [each.headers["idempotency-key"] for each in asked] == ["a1", "a1"]
