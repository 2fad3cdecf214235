"""The least that a proxy in Python costs (the floor): it only passes bytes on, with uvloop, and httptools for framing.

It has no retries, limits, timeouts or back-pressure, and does not read bodies. It accepts connections in batches, since
uvloop accepts only one in each iteration of its loop. It is started as a process:
`python floor.py PORT HOST:PORT [HOST:PORT ...]`.
"""

import asyncio
import itertools
import socket
import sys
from collections.abc import Iterator
from typing import Final, cast

import httptools
import uvloop

_BATCH: Final = 64  # connections that are accepted in one iteration
_OWN_HEADERS: Final = (b"host", b"connection", b"content-length", b"transfer-encoding")


class Upstream(asyncio.Protocol):
    """A connection to an engine. It returns to the pool when an answer is complete."""

    def __init__(self, pool: "list[Upstream]") -> None:
        self._pool = pool
        self.client: Client | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's own class is not one by type

    def ask(self, client: "Client", request: bytes) -> None:
        self.client, self._complete = client, False
        self._parser = httptools.HttpResponseParser(self)
        self.transport.write(request)

    def on_message_complete(self) -> None:
        self._complete = True

    def data_received(self, data: bytes) -> None:
        if self.client is None:
            self.transport.close()
            return
        self._parser.feed_data(data)
        self.client.transport.write(data)
        if self._complete:
            self.client.upstream = None
            self.client = None
            self._pool.append(self)

    def connection_lost(self, _error: Exception | None) -> None:
        if self.client is not None:
            self.client.transport.close()
        elif self in self._pool:
            self._pool.remove(self)


class Client(asyncio.Protocol):
    """A connection from a client."""

    def __init__(self, engines: "Iterator[tuple[str, list[Upstream]]]") -> None:
        self._engines = engines
        self.upstream: Upstream | None = None
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's own class is not one by type

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._headers: list[bytes] = []
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() not in _OWN_HEADERS:
            self._headers.append(name + b": " + value)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        address, pool = next(self._engines)
        self._headers.append(b"content-length: %d" % len(body))
        head = b"POST %b HTTP/1.1\r\nhost: %b\r\n%b\r\n\r\n" % (
            self._url,
            address.encode(),
            b"\r\n".join(self._headers),
        )
        if pool:
            self.upstream = pool.pop()
            self.upstream.ask(self, head + body)
        else:
            self._opening = asyncio.ensure_future(self._open(address, pool, head + body))

    async def _open(self, address: str, pool: list[Upstream], request: bytes) -> None:
        host, _, port = address.partition(":")
        _, self.upstream = await asyncio.get_running_loop().create_connection(lambda: Upstream(pool), host, int(port))
        self.upstream.ask(self, request)

    def connection_lost(self, _error: Exception | None) -> None:
        if self.upstream is not None:
            self.upstream.client = None
            self.upstream.transport.abort()


async def main(port: int, engines: list[str]) -> None:
    """Serve until killed."""
    pools: list[tuple[str, list[Upstream]]] = [(engine, []) for engine in engines]
    turns = itertools.cycle(pools)
    loop = asyncio.get_running_loop()
    listener = socket.create_server(("127.0.0.1", port), backlog=4096)
    listener.setblocking(False)
    opening: set[asyncio.Task[object]] = set()

    def accept() -> None:
        for _ in range(_BATCH):
            try:
                accepted, _ = listener.accept()
            except BlockingIOError:
                return
            task = loop.create_task(loop.connect_accepted_socket(lambda: Client(turns), accepted))
            opening.add(task)
            task.add_done_callback(opening.discard)

    loop.add_reader(listener, accept)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2:]))
