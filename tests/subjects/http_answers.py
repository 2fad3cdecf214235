"""A server of a few lines, whose connections have all been closed at its end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from tests.machine import seconds

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def said(body: bytes = b"{}", status: int = 200) -> bytes:
    """An answer, behind which the connection is closed."""
    head = f"HTTP/1.1 {status} Said\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def answering(say: Callable[[str], bytes]) -> Answer:
    """Answers a request with what `say` makes of its head."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(say((await reader.readuntil(b"\r\n\r\n")).decode()))

    return answer


@asynccontextmanager
async def listening(answer: Answer) -> AsyncIterator[str]:
    """Its url. `answer` answers the request of one connection."""
    under_way: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        finally:
            writer.close()
            await writer.wait_closed()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        under_way.add(asyncio.create_task(serve(reader, writer)))

    async with await asyncio.start_server(begin, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with asyncio.timeout(seconds(10)):
            await asyncio.gather(*under_way, return_exceptions=True)
