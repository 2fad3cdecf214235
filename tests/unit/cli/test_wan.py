"""The wide area: everything arrives, in order, late by the delay, in both directions."""

import asyncio
import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from tests.machine import seconds

DELAY_S = 0.05

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Relay:
    """A relay process with one link."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process = process
        self._port = port

    def lead_to(self, port: int) -> None:
        """Say where connections go."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"west": f"http://127.0.0.1:{port}"}).encode() + b"\n")

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection through the link."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            yield reader, writer
        finally:
            await close(writer)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    command = [sys.executable, "-m", "warmroute_lab.wan", "--delay-ms", str(DELAY_S * 1000), "--link", "west"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    line = json.loads(await process.stdout.readline())
    yield Relay(process, int(line["urls"]["west"].rpartition(":")[2]))
    process.stdin.close()
    assert await asyncio.wait_for(process.wait(), seconds(10)) == 0, "the end of its input ends the relay"


@asynccontextmanager
async def far_server(handler: Handler) -> AsyncIterator[int]:
    """A server on the far side; its connections are over when the block ends."""
    handled: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handled.add(task)
        try:
            await handler(reader, writer)
        finally:
            await close(writer)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.wait_for(asyncio.gather(*handled), seconds(10))


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def test_bytes_come_back_in_order_after_a_round_trip(relay: Relay) -> None:
    async with far_server(echo) as port:
        relay.lead_to(port)
        async with relay.connection() as (reader, writer):
            began = time.monotonic()
            writer.write(b"x" * 10)
            assert await reader.readexactly(10) == b"x" * 10
            assert time.monotonic() - began >= 2 * DELAY_S
            sent = bytes(range(256)) * 20_000  # more than may be pending at once
            writer.write(sent)
            writer.write_eof()
            assert await reader.read() == sent


async def test_a_connection_made_early_waits_for_its_target(relay: Relay) -> None:
    async with far_server(echo) as port, relay.connection() as (reader, writer):
        writer.write(b"early")
        relay.lead_to(port)
        assert await reader.readexactly(5) == b"early"
        writer.write_eof()
        assert await reader.read() == b""


async def test_a_half_closed_connection_still_answers(relay: Relay) -> None:
    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(str(len(await reader.read())).encode())

    async with far_server(count) as port:
        relay.lead_to(port)
        async with relay.connection() as (reader, writer):
            writer.write(b"x" * 1234)
            writer.write_eof()
            assert await reader.read() == b"1234"


async def test_a_client_that_drops_its_connection_is_noticed_on_the_far_side(relay: Relay) -> None:
    arrived, noticed = asyncio.Event(), asyncio.Event()

    async def wait(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(1) == b"x"
        arrived.set()
        with suppress(ConnectionError):
            assert await reader.read() == b""
        noticed.set()

    async with far_server(wait) as port:
        relay.lead_to(port)
        async with relay.connection() as (_, writer):
            writer.write(b"x")
            await asyncio.wait_for(arrived.wait(), seconds(10))
            writer.transport.abort()
            await asyncio.wait_for(noticed.wait(), seconds(10))


async def test_a_server_that_is_not_there_ends_the_connection(relay: Relay) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        relay.lead_to(free.getsockname()[1])
    async with relay.connection() as (reader, _):
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), seconds(10)) == b""
