"""The client side of the proxy over real sockets: limits, framing, order, and what happens to those who leave."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable

import pytest

from tests.machine import seconds
from tests.subjects.body_memory import plenty
from warmroute_proxy.core.queue.fair_budget import FairBudget
from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.loop_lag import LoopLag
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.http.http1 import MAX_PIPELINED
from warmroute_proxy.server.http.listener import Listener

READS_MANY_PIECES = """
import time, tracemalloc
from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.http.request_reader import RequestReader

class Sink:
    received = b""
    def request_begun(self, request): pass
    def head_received(self, request): pass
    def request_received(self, request): self.received = request.body

sink = Sink()
reader = RequestReader(sink, Limits(), time.monotonic)
reader.feed(b"POST / HTTP/1.1\\r\\nhost: x\\r\\ncontent-length: 32000\\r\\n\\r\\n")
tracemalloc.start()
for piece in range(16_000):
    reader.feed(b"ab")
assert sink.received == b"ab" * 16_000
print(tracemalloc.get_traced_memory()[1])
"""
CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
LIMITS = Limits(body_bytes=100_000, header_bytes=2_000, header_count=20, connections=50)


class Echo:
    """Answers with the request's path and body; `/held` waits for its release, `/secret` is refused by its head."""

    def __init__(self) -> None:
        self.held: list[Exchange] = []
        self.gone = asyncio.Event()
        self.paused: list[bool] = []
        self.arrived = asyncio.Event()

    def on_head(self, request: Request) -> None:
        if request.path == "/secret":
            raise Refusal(401, "no", code="invalid_api_key")
        if request.path == "/held":
            request.tenant = "tenant"

    def handle(self, request: Request, exchange: Exchange) -> None:
        exchange.on_gone = self.gone.set
        exchange.on_pause = self.paused.append
        if request.path in {"/held", "/stream"}:
            self.held.append(exchange)
            self.arrived.set()
            return
        body = request.path.encode() + b" " + request.body
        exchange.respond(200, [("content-type", "text/plain"), ("x-seen", " ".join(request.headers))], body)

    def in_shape(self, request: Request, refusal: Refusal) -> Refusal:
        return refusal

    def on_status(self, request: Request, status: int) -> None:
        pass


class Server:
    def __init__(self, listener: Listener, endpoint: Echo, port: int) -> None:
        self.listener = listener
        self.endpoint = endpoint
        self.port = port
        self._clients: list[Client] = []

    @classmethod
    async def start(
        cls, limits: Limits = LIMITS, clock: Callable[[], float] = time.monotonic, memory_bytes: int = 2**30
    ) -> "Server":
        endpoint = Echo()
        listener = Listener(endpoint, limits, clock, plenty(memory_bytes), LoopLag(Metrics(), clock))
        return cls(listener, endpoint, await listener.listen("127.0.0.1", 0))

    async def stop(self) -> None:
        await self.listener.close(0.0)
        for client in self._clients:
            client.writer.transport.abort()
            await asyncio.gather(client.writer.wait_closed(), return_exceptions=True)

    @property
    def memory(self) -> FairBudget:
        return self.listener.connections.memory.budget

    async def gave_memory_back(self) -> None:
        """Wait until no memory is reserved. A sweep, as the proxy makes them, frees that of answers which the client
        has read only after their end."""
        while self.memory.used:
            self.listener.sweep()
            await asyncio.sleep(0)

    async def connect(self) -> "Client":
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, limit=2**20))
        self._clients.append(client)
        return client

    async def asked(self, raw: bytes) -> tuple["Client", Exchange]:
        """A client whose request is held, and its exchange."""
        self.endpoint.arrived.clear()
        client = await self.connect()
        client.send(raw)
        await self.endpoint.arrived.wait()
        return client, self.endpoint.held[-1]

    async def ask(self, raw: bytes) -> bytes:
        """All that comes back until the server closes."""
        client = await self.connect()
        client.send(raw)
        return await client.rest()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, raw: bytes) -> None:
        self.writer.write(raw)

    async def until(self, marker: bytes) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(marker), seconds(10))

    async def rest(self) -> bytes:
        data = await asyncio.wait_for(self.reader.read(), seconds(10))
        self.writer.close()
        return data


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    started = await Server.start()
    yield started
    await started.stop()


def get(path: str, *lines: str, version: str = "1.1") -> bytes:
    return "\r\n".join([f"GET {path} HTTP/{version}", "host: x", *lines, "", ""]).encode()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def test_a_body_larger_than_a_head_may_be_is_no_head(server: Server) -> None:
    client = await server.connect()
    for _ in range(2):
        client.send(b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 50000\r\n\r\n" + b"x" * 50_000)
        assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await client.reader.readexactly(50_003)
    client.send(get("/b", "connection: close"))
    assert (await client.rest()).endswith(b"/b ")


async def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    client, held = await server.asked(get("/held") + get("/1") + get("/2", "connection: close"))
    held.respond(200, [], b"first")
    answer = await client.rest()
    assert answer.index(b"first") < answer.index(b"/1 ") < answer.index(b"/2 ")


async def test_too_many_pipelined_requests_end_the_connection_after_those_taken(server: Server) -> None:
    client, held = await server.asked(get("/held") + get("/n") * (MAX_PIPELINED + 5))
    held.respond(200, [], b"first")
    answer = await client.rest()
    assert answer.count(b"/n ") == MAX_PIPELINED
    assert answer.count(b"HTTP/1.1 429 ") == 1


async def test_requests_before_one_that_is_refused_are_answered_first(server: Server) -> None:
    client, held = await server.asked(get("/held") + get("/held") + b"nonsense\r\n\r\n")
    held.respond(200, [], b"first")
    while len(server.endpoint.held) < 2:
        await asyncio.sleep(0)
    server.endpoint.held[1].respond(200, [], b"second")
    answer = await client.rest()
    assert answer.index(b"first") < answer.index(b"second") < answer.index(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3, 4\r\n\r\nabcd", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
        (b"GET http: HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET /a#b HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)), 400),  # TLS
        (get("/" + "p" * 9_000), 414),
        (get("/", *[f"h{i}: v" for i in range(30)]), 431),
        (get("/", "h: " + "v" * 3_000), 431),
        (b"GET / HTTP/1.1\r\nhost: x\r\nh: " + b"v" * 70_000, 431),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100001\r\n\r\n", 413),
        (CHUNKED + b"186a1\r\n" + b"x" * 100_001 + b"\r\n0\r\n\r\n", 413),
    ],
)  # fmt: skip
async def test_what_could_be_read_in_two_ways_or_is_too_large_is_refused(
    server: Server, raw: bytes, status: int
) -> None:
    answer = await server.ask(raw)
    assert status_of(answer) == status, answer[:200]
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b'"error"' in answer


async def test_a_head_that_arrives_in_pieces_is_limited_too(server: Server) -> None:
    client = await server.connect()
    client.send(b"GET / HTTP/1.1\r\nhost: x\r\nh: ")
    for _ in range(40):
        client.send(b"v" * 100)
        await asyncio.sleep(0)
    assert status_of(await client.rest()) == 431


@pytest.mark.parametrize("begun", [b"0\r\nx: ", b"0\r\n", b"1;a=", b"1\r\nx\r\n2;"])
async def test_what_stands_between_and_behind_the_chunks_of_a_body_is_limited_too(server: Server, begun: bytes) -> None:
    """Such as a trailer that does not end: nothing of it is kept for long."""
    client = await server.connect()
    client.send(CHUNKED + begun)
    for _ in range(40):
        client.send(b"y" * 100 if begun != b"0\r\n" else b"x: %b\r\n" % (b"y" * 100))
        await asyncio.sleep(0)
    assert status_of(await client.rest()) == 431


async def test_a_trailer_is_no_header(server: Server) -> None:
    trailers = b"x-session-affinity: a\r\nhost: y\r\nauthorization: Bearer z\r\n"
    answer = await server.ask(CHUNKED + b"2\r\nhi\r\n0\r\n" + trailers + b"\r\n" + get("/next", "connection: close"))
    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert b"x-seen: host transfer-encoding\r\n" in answer


def test_a_body_in_very_many_pieces_takes_its_bytes_and_not_many_times_them() -> None:
    """Read in another process: threads that earlier tests left behind allocate in this one."""
    done = subprocess.run([sys.executable, "-c", READS_MANY_PIECES], stdout=subprocess.PIPE, check=True)
    assert int(done.stdout) < 10 * 32_000


LENGTH = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "begun", "rest"),
    [
        (LENGTH, b"x" * 40_000, b"x" * 20_000),
        (CHUNKED, b"ea60\r\n" + b"x" * 40_000, b"x" * 20_000 + b"\r\n0\r\n\r\n"),
    ],
    ids=["length", "chunked"],
)
async def test_a_body_that_finds_no_memory_is_refused_and_those_before_it_are_not(
    head: bytes, begun: bytes, rest: bytes
) -> None:
    server = await Server.start(memory_bytes=250_000)  # a body of 60 kB takes 120 kB
    memory = server.memory
    first = await server.connect()
    first.send(head + begun)
    while memory.used < 80_000:
        await asyncio.sleep(0)
    other = await server.connect()
    other.send(head + begun)
    if head is LENGTH:
        other.send(rest)  # so small a body is read all the same, and the connection is kept
    refused = await other.until(b"\r\n\r\n")
    assert status_of(refused) == 503
    assert b"retry-after: 1\r\n" in refused
    first.send(rest)
    assert status_of(await first.until(b"x" * 60_000)) == 200
    await server.gave_memory_back()
    second = await server.connect()
    second.send(head + begun + rest)
    assert status_of(await second.until(b"x" * 60_000)) == 200
    await server.stop()


async def test_a_body_of_a_client_that_has_left_takes_no_memory(server: Server) -> None:
    gone = await server.connect()
    gone.send(LENGTH + b"x" * 40_000)
    while not server.memory.used:
        await asyncio.sleep(0)
    gone.writer.close()
    await server.gave_memory_back()


async def test_what_comes_behind_a_running_answer_waits_at_the_client(server: Server) -> None:
    """Hundreds of megabytes are sent behind it, and the server holds what one read brings at most."""
    body = b"POST /next HTTP/1.1\r\nhost: x\r\ncontent-length: 90000\r\n\r\n" + b"x" * 90_000
    client, held = await server.asked(get("/held"))
    for _ in range(300):
        client.send(body)
    left = -1
    while left != client.writer.transport.get_write_buffer_size():
        left = client.writer.transport.get_write_buffer_size()
        for _ in range(1000):
            await asyncio.sleep(0)
    assert 0 < server.memory.used < 1_000_000 < left
    held.respond(200, [], b"")
    for _ in range(300):
        assert (await client.until(b"/next " + b"x" * 90_000)).count(b"HTTP/1.1 200") >= 1
    await server.gave_memory_back()


async def test_a_refusal_by_the_head_keeps_the_connection_when_the_body_is_small(server: Server) -> None:
    client = await server.connect()
    client.send(b"POST /secret HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi" + get("/next", "connection: close"))
    answer = await client.rest()
    assert status_of(answer) == 401
    assert answer.endswith(b"/next ")


async def test_a_refusal_by_the_head_reaches_a_client_that_is_still_sending(server: Server) -> None:
    client = await server.connect()
    client.send(b"POST /secret HTTP/1.1\r\nhost: x\r\ncontent-length: 99000\r\n\r\n" + b"x" * 50_000)
    assert status_of(await client.until(b"\r\n\r\n")) == 401


async def test_expect_continue_is_answered_before_the_body_is_sent(server: Server) -> None:
    client = await server.connect()
    client.send(
        b"POST /a HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\nconnection: close\r\n\r\n"
    )
    assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(b"hi")
    assert (await client.rest()).endswith(b"/a hi")


async def test_offers_to_upgrade_are_declined_by_answering_them_like_any_pipeline(server: Server) -> None:
    offer = "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk"
    client = await server.connect()
    last = f"POST /body HTTP/1.1\r\nhost: x\r\n{offer}\r\ncontent-length: 2\r\n\r\nhi".encode()
    client.send(get("/n", offer) * MAX_PIPELINED + last)
    answer = await client.until(b"/body hi")
    assert (answer.count(b"/n "), answer.count(b"HTTP/1.1 200")) == (MAX_PIPELINED, MAX_PIPELINED + 1)


async def test_a_path_that_begins_with_two_slashes_names_no_host(server: Server) -> None:
    """Clients join a base_url that ends with a slash to their own path."""
    client = await server.connect()
    client.send(get("//plain"))
    assert (await client.until(b"/plain ")).startswith(b"HTTP/1.1 200")


async def test_http_1_0_gets_an_answer_without_chunks_and_a_close(server: Server) -> None:
    client, exchange = await server.asked(b"GET /stream HTTP/1.0\r\n\r\n")
    exchange.start(200, [])
    exchange.write(b"one")
    exchange.end(b"two")
    assert (await client.rest()).endswith(b"\r\n\r\nonetwo")


async def test_a_whole_stream_has_its_last_chunk_and_a_broken_one_does_not(server: Server) -> None:
    for broken in (False, True):
        client, exchange = await server.asked(get("/stream", "connection: close"))
        exchange.start(200, [("content-type", "text/event-stream")])
        exchange.write(b"data: 1\n\n")
        if broken:
            exchange.abort(b"data: error\n\n")
        else:
            exchange.end(b"data: 2\n\n")
        answer = await client.rest()
        assert answer.endswith(b"0\r\n\r\n") != broken


@pytest.mark.parametrize("leave", ["close", "half-close", "reset"])
async def test_a_client_that_leaves_is_noticed_at_once(server: Server, leave: str) -> None:
    client, held = await server.asked(get("/held"))
    if leave == "half-close":
        client.writer.write_eof()
    elif leave == "reset":
        client.writer.transport.abort()
    else:
        client.writer.close()
    await asyncio.wait_for(server.endpoint.gone.wait(), seconds(10))
    held.respond(200, [], b"too late")  # must not fail


async def test_a_client_that_does_not_read_pauses_the_answer(server: Server) -> None:
    client, exchange = await server.asked(get("/stream"))
    exchange.start(200, [])
    written = 0
    while not server.endpoint.paused:
        exchange.write(b"x" * 65_536)
        written += 65_536
        await asyncio.sleep(0)
        assert written < 200_000_000
    got = 0
    while got < written:
        data = await asyncio.wait_for(client.reader.read(1_000_000), seconds(10))
        assert data
        got += len(data)
    assert server.endpoint.paused == [True, False]


async def test_deadlines_end_slow_heads_and_idle_connections() -> None:
    now = 0.0
    server = await Server.start(clock=lambda: now)
    listener = server.listener
    slow = await server.connect()
    slow.send(b"GET / HTTP/1.1\r\nhost: x\r\n")
    idle = await server.connect()
    idle.send(get("/a"))
    await idle.until(b"/a ")
    now = LIMITS.head_timeout_s + 1
    listener.sweep()
    assert status_of(await slow.rest()) == 408
    now = LIMITS.keepalive_s + 2
    listener.sweep()
    assert await idle.rest() == b""
    await server.stop()


async def test_a_slow_reader_gets_all_of_its_answer_before_it_is_closed_or_asked_again(server: Server) -> None:
    client, _ = await server.asked(get("/stream") + get("/stream", "connection: close"))
    for number in range(2):
        server.endpoint.held[number].respond(200, [], b"x" * 20_000_000)
        assert len(server.endpoint.held) == number + 1
        got = len(await client.until(b"\r\n\r\n"))
        while got < 20_000_000:
            data = await asyncio.wait_for(client.reader.read(1_000_000), seconds(10))
            assert data, got
            got += len(data)
            server.listener.sweep()
        while len(server.endpoint.held) == 1:
            await asyncio.sleep(0)
