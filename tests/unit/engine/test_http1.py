"""The server protocol on a real socket: keep-alive, limits, order, and clients that leave."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from warmroute_lab.engine.http import http1
from warmroute_lab.engine.http.http1 import EngineExchange, HttpProtocol

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
GET = b"GET /hi HTTP/1.1\r\nhost: x\r\n\r\n"


def echo(exchange: EngineExchange) -> None:
    exchange.respond(200, exchange.path.encode() + exchange.body)


@asynccontextmanager
async def connected(handle: Callable[[EngineExchange], None]) -> AsyncIterator[Connection]:
    connections: set[HttpProtocol] = set()
    server = await asyncio.get_running_loop().create_server(lambda: HttpProtocol(handle, connections), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        server.close()
        for connection in list(connections):
            connection.abort()
        await asyncio.sleep(0)  # lets the transports of the server close


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(length)


async def test_a_connection_serves_several_requests_until_it_idles(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(echo) as (reader, writer):
        writer.write(GET)
        assert await read_answer(reader) == (200, b"/hi")
        monkeypatch.setattr(http1, "KEEP_ALIVE_S", 0.05)  # from the next answer on
        writer.write(GET)
        assert await read_answer(reader) == (200, b"/hi")
        assert await reader.read() == b""


async def test_a_request_that_stops_half_way_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "KEEP_ALIVE_S", 0.05)
    async with connected(echo) as (reader, writer):
        writer.write(GET[:-2])
        with suppress(ConnectionResetError):  # where it came after the server had closed
            assert await reader.read() == b""


async def test_a_request_that_came_while_the_process_stood_still_is_answered() -> None:
    """The loop that engines run on then finds that the connection was idle for too long, before it reads."""
    protocols: list[HttpProtocol] = []

    def noted(exchange: EngineExchange) -> None:
        protocols.append(exchange._protocol)
        echo(exchange)

    async with connected(noted) as (reader, writer):
        for _ in range(2):
            writer.write(GET)
            for protocol in protocols:
                protocol._expire()
            assert await read_answer(reader) == (200, b"/hi")


async def test_a_slow_answer_is_not_idleness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "KEEP_ALIVE_S", 0.5)

    def later(exchange: EngineExchange) -> None:
        asyncio.get_running_loop().call_later(0.8, echo, exchange)

    async with connected(later) as (reader, writer):
        writer.write(GET)
        assert await read_answer(reader) == (200, b"/hi")


@pytest.mark.parametrize("heads", [b"connection: close", b"connection: upgrade\r\nupgrade: h2c"])
async def test_a_request_that_ends_its_connection_is_answered_first(heads: bytes) -> None:
    async with connected(echo) as (reader, writer):
        writer.write(b"GET /hi HTTP/1.1\r\nhost: x\r\n" + heads + b"\r\n\r\n")
        assert await read_answer(reader) == (200, b"/hi")
        assert await reader.read() == b""


async def test_a_client_that_waits_for_100_continue_gets_it() -> None:
    async with connected(echo) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"ok")
        assert await read_answer(reader) == (200, b"/ok")


async def test_a_body_over_the_limit_is_a_413(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "MAX_BODY_BYTES", 10)
    async with connected(echo) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 20\r\n\r\n" + b"x" * 20)
        assert (await read_answer(reader))[0] == 413
        assert await reader.read() == b""


async def test_too_many_pipelined_requests_close_the_connection() -> None:
    left = asyncio.Event()

    def never(exchange: EngineExchange) -> None:
        exchange.on_leave = left.set

    async with connected(never) as (_, writer):
        writer.write(GET * (http1.MAX_PIPELINED + 2))
        await left.wait()


async def test_a_client_that_leaves_is_told_once_and_later_writes_are_harmless() -> None:
    exchanges: asyncio.Queue[EngineExchange] = asyncio.Queue()
    async with connected(exchanges.put_nowait) as (_, writer):
        writer.write(GET)
        exchange = await exchanges.get()
        left: asyncio.Queue[str] = asyncio.Queue()
        exchange.on_leave = lambda: left.put_nowait("left")
        writer.close()
        assert await left.get() == "left"
        exchange.respond(200, b"too late")
        assert exchange.closed
        assert left.empty()


async def test_a_client_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "MAX_UNSENT_BYTES", 100_000)
    left = asyncio.Event()

    def flood(exchange: EngineExchange) -> None:
        exchange.on_leave = left.set
        exchange.start_stream()
        for _ in range(400):
            exchange.send(b"x" * 100_000)

    async with connected(flood) as (_, writer):
        writer.write(GET)
        await left.wait()
