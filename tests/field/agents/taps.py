"""Relays in front of the engines that keep the bodies of chats: what an engine reads, after all that the proxy does.

Bytes pass unchanged in both directions; those towards an engine are parsed beside it. One thread runs all of them.
"""

import asyncio
import json
import threading
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import httptools
from tests.machine import seconds

CHAT: Final = b"/v1/chat/completions"
CHUNK_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Tapped:
    """One chat as its engine got it."""

    rid: str
    body: dict[str, Any]


class Taps:
    """All relays. `chats`: what has passed, in order; a request of two legs is there once."""

    def __init__(self) -> None:
        self.chats: dict[str, Tapped] = {}
        self._stopped = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=[self._run()])
        self._thread.start()
        self._running.wait()

    def before(self, url: str) -> str:
        """The address of a relay in front of this engine."""
        assert self._loop is not None
        parts = urlsplit(url)
        port = asyncio.run_coroutine_threadsafe(self._listen(str(parts.hostname), parts.port or 80), self._loop)
        return f"http://127.0.0.1:{port.result(seconds(10))}"

    def listener(self) -> Any:
        """What the parser of a connection calls."""
        return _Requests(self.chats)

    def stop(self) -> None:
        """End them."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._running.set()
        await self._stopped.wait()
        for server in self._servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for writer in list(self._writers):
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    async def _listen(self, host: str, port: int) -> int:
        server = await asyncio.start_server(partial(self._relay, host, port), "127.0.0.1", 0)
        self._servers.append(server)
        port_here: int = server.sockets[0].getsockname()[1]
        return port_here

    async def _relay(self, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, here = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, here}
        parser = httptools.HttpRequestParser(self.listener())
        await asyncio.gather(_pump(reader, here, parser), _pump(there, writer, None))
        self._writers -= {writer, here}


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parser: "httptools.HttpRequestParser | None"
) -> None:
    try:
        while data := await reader.read(CHUNK_BYTES):
            if parser is not None:
                try:
                    parser.feed_data(data)
                except httptools.HttpParserUpgrade:  # frames follow
                    parser = None
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


class _Requests:
    """What the parser calls."""

    def __init__(self, chats: dict[str, Tapped]) -> None:
        self._chats = chats
        self._url = b""
        self._body = b""

    def on_message_begin(self) -> None:
        self._url = self._body = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._url == CHAT:
            body = json.loads(self._body)
            self._chats.setdefault(body["rid"], Tapped(body["rid"], body))
