"""Ten million bytes of a stream through a real proxy, cut anywhere: the client gets them to the byte."""

import asyncio
import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from tests.machine import seconds
from tests.subjects.processes import ProxyProcess, chat

STREAM_BYTES = 10_000_000
INFO = b'{"page_size":64,"dp_size":1,"start_time":1}'
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
ALPHABET = 'abc "usage": [DONE] {"error":1} \\ \n é ☃ \U0001f600 "finish_reason":null data: \r'


def content(chance: random.Random) -> Iterator[bytes]:
    """Events of all lengths; their text holds everything that the proxy looks for in a stream."""
    sent = 0
    while sent < STREAM_BYTES:
        text = "".join(chance.choices(ALPHABET, k=chance.choice((1, 3, 20, 300, 5_000))))
        chunk = {"id": "x", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
        raw = json.dumps(chunk, ensure_ascii=bool(chance.getrandbits(1)), separators=(",", ":")).encode()
        event = b": comment\n\n" if chance.random() < 0.02 else b"data: %b\n\n" % raw
        sent += len(event)
        yield event


class Engine:
    """A mock of an engine, for framing that no engine chooses: chunks and writes of random sizes."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.sent = hashlib.sha256()
        self.port = 0

    async def __aenter__(self) -> "Engine":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = next((line for line in head.split("\r\n") if line.startswith("content-length:")), ":0")
                await reader.readexactly(int(length.partition(":")[2]))
                if head.startswith("post /v1/chat"):
                    await self._stream(writer)
                else:
                    body = INFO if head.startswith("get /server_info") else b"{}"
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        chance = random.Random(self.seed)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        parts: list[bytes] = []
        for event in content(chance):
            self.sent.update(event)
            parts.append(event)
            if len(parts) >= chance.choice((1, 1, 5, 60)):
                await _send(writer, b"".join(parts), chance)
                parts.clear()
        last = {"id": "x", "choices": [], "usage": USAGE}
        end = b"".join(parts) + b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(last).encode()
        await _send(writer, end, chance)
        writer.write(b"0\r\n\r\n")
        await writer.drain()


async def _send(writer: asyncio.StreamWriter, data: bytes, chance: random.Random) -> None:
    """As chunks of random sizes, written in pieces of other random sizes."""
    framed, at = b"", 0
    while at < len(data):
        size = chance.choice((1, 7, 100, 3_000, 100_000))
        piece = data[at : at + size]
        framed += b"%x\r\n%b\r\n" % (len(piece), piece)
        at += size
    at = 0
    while at < len(framed):
        size = chance.choice((1, 50, 1_000, 70_000))
        writer.write(framed[at : at + size])
        at += size
        if chance.random() < 0.1:
            await writer.drain()


async def test_ten_million_bytes_come_through_to_the_byte(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    async with Engine(seed) as engine:
        toml = f'[[engine]]\nid = "mock"\nurl = "http://127.0.0.1:{engine.port}"\nregion = "east"\nrole = "aggregated"'
        proxy = ProxyProcess(tmp_path, [toml])
        await asyncio.to_thread(proxy.start)
        try:
            got, tail = hashlib.sha256(), b""
            body: dict[str, Any] = chat(stream=True)
            client = httpx.AsyncClient(headers={"authorization": f"Bearer {proxy.keys[0]}"}, timeout=seconds(30))
            async with client, client.stream("POST", f"{proxy.base_url}/chat/completions", json=body) as answer:
                async for piece in answer.aiter_raw():
                    held = tail + piece
                    got.update(held[:-14])
                    tail = held[-14:]
        finally:
            await asyncio.to_thread(proxy.stop)
    assert tail == b"data: [DONE]\n\n", f"seed {seed}"
    assert got.digest() == engine.sent.digest(), f"seed {seed}"
