"""Relays in front of the engines that keep the bodies of chats: what an engine reads, after all that the proxy does.

Bytes pass unchanged in both directions; those towards an engine are parsed beside it. One thread runs all of them.
"""

import asyncio
import json
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import httptools

CHAT: Final = b"/v1/chat/completions"
CHUNK_BYTES: Final = 1 << 16
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tapped:
    """One chat as its engine got it."""

    rid: str
    body: dict[str, Any]


class Taps:
    """All relays. `chats`: what has passed, in order; a request of two legs is there once."""

    def __init__(self) -> None:
        self.chats: dict[str, Tapped] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def before(self, url: str) -> str:
        """The address of a relay in front of this engine."""
        parts = urlsplit(url)
        port = self._wait(self._listen(str(parts.hostname), parts.port or 80))
        return f"http://127.0.0.1:{port}"

    def stop(self) -> None:
        """End them."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self, host: str, port: int) -> int:
        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                there, here = await asyncio.open_connection(host, port)
            except OSError:
                writer.close()
                return
            parser = httptools.HttpRequestParser(_Requests(self.chats))
            await asyncio.gather(_pump(reader, here, parser), _pump(there, writer, None))

        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        port_here: int = server.sockets[0].getsockname()[1]
        return port_here


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parser: "httptools.HttpRequestParser | None"
) -> None:
    try:
        while data := await reader.read(CHUNK_BYTES):
            if parser is not None:
                parser.feed_data(data)
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
