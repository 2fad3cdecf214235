"""Floods of all kinds of requests: another tenant's chat waits for a few of them, and not for all that came before it.

The measure is how many answers the flood gets while a chat is under way, since times depend on the machine. Where each
iteration of the event loop answered all connections, a chat of a dozen iterations would wait for a dozen times as many.
The engine answers in the event loop of the flood. So while this process or the engine is not scheduled, each connection
of the flood gets one answer at most, and a chat passes this loop three times.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.hostile.conftest import HOSTILE, INNOCENT
from tests.subjects.processes import ProxyProcess, chat
from tests.subjects.scripted import whole

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]
CONNECTIONS: Final = 256
CHATS: Final = 12

JSON: Final = json.dumps
KINDS: Final[dict[str, tuple[str, str, bool, Any]]] = {
    "health": ("GET", "/health", False, None),
    "ready": ("GET", "/ready", False, None),
    "openapi": ("GET", "/openapi.json", False, None),
    "without a key": ("GET", "/v1/usage", False, None),
    "a chat without a key": ("POST", "/v1/chat/completions", False, {"model": "kimi-k2.5", "messages": []}),
    "no route": ("GET", "/v1/nothing", True, None),
    "no route, no key": ("GET", "/nothing", False, None),
    "another method": ("GET", "/v1/chat/completions", True, None),
    "models": ("GET", "/v1/models", True, None),
    "one model": ("GET", "/v1/models/kimi-k2.5", True, None),
    "models of Gemini": ("GET", "/v1beta/models", True, None),
    "an unknown receipt": ("GET", "/v1/usage/receipts/wr-0", True, None),
    "a session that waits": ("POST", "/v1/sessions/expect", True, None),
    "usage": ("GET", "/v1/usage", True, None),
    "no model": ("POST", "/v1/chat/completions", True, {"model": "none", "messages": []}),
    "no messages": ("POST", "/v1/chat/completions", True, {"model": "kimi-k2.5"}),
    "no JSON": ("POST", "/v1/chat/completions", True, "{"),
    "no messages of Anthropic": ("POST", "/v1/messages", True, {"model": "kimi-k2.5", "max_tokens": 1}),
    "no input of Responses": ("POST", "/v1/responses", True, {"model": "kimi-k2.5", "input": 1}),
    "counts": ("POST", "/v1/messages/count_tokens", True, {"model": "kimi-k2.5", "messages": []}),
}


class Flooding(asyncio.Protocol):
    """A connection that asks again as soon as it has an answer."""

    def __init__(self, request: bytes, answers: list[int]) -> None:
        self.request, self.answers = request, answers
        self.head, self.left = b"", -1
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if self.left < 0:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            lines = self.head[:end].lower().split(b"\r\n")
            size = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
            self.left, self.head = size - (len(self.head) - end - 4), b""
        else:
            self.left -= len(data)
        if self.left <= 0 and self.transport is not None:
            self.left = -1
            self.answers[0] += 1
            self.transport.write(self.request)


ANSWERS: Final = {
    b"POST /v1/chat/completions": whole({"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101}),
    b"GET /server_info": b'{"page_size":64,"dp_size":1,"start_time":1}',
}
"""Of the engine, by method and path; anything else is an empty object."""


class Answering(asyncio.Protocol):
    """A connection to the engine."""

    def __init__(self) -> None:
        self.asked = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.asked += data
        head, end, body = self.asked.partition(b"\r\n\r\n")
        size = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
        if end and len(body) >= size:
            self.asked = b""
            answer = ANSWERS.get(b" ".join(head.split(b" ", 2)[:2]), b"{}")
            length = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(answer)}\r\n\r\n"
            self.transport.write(length.encode() + answer)


class Place:
    """A proxy, and an engine in the event loop of the tests."""

    def __init__(self, folder: Path, runner: asyncio.Runner) -> None:
        self.run = runner.run
        loop = runner.get_loop()
        self.engine = self.run(loop.create_server(Answering, "127.0.0.1", 0))
        port = self.engine.sockets[0].getsockname()[1]
        table = f'[[engine]]\nid = "e0"\nurl = "http://127.0.0.1:{port}"\nregion = "east"\nrole = "aggregated"'
        self.proxy = ProxyProcess(folder / "p", [table])
        self.run(asyncio.to_thread(self.proxy.start))  # it probes the engine


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with asyncio.Runner() as runner:
        found = Place(Path(tmp_path_factory.mktemp("floods")), runner)
        try:
            yield found
        finally:
            found.run(asyncio.to_thread(found.proxy.stop))
            found.engine.close()


async def flooded(place: Place, kind: str) -> list[int]:
    """How many answers a flood got during each of some chats, few first."""
    method, path, has_key, body = KINDS[kind]
    url, text = (
        httpx.URL(place.proxy.url),
        b"" if body is None else (body if isinstance(body, str) else JSON(body)).encode(),
    )
    key = f"authorization: Bearer {place.proxy.keys[HOSTILE]}\r\n" if has_key else ""
    more = "x-session-affinity: s\r\nx-warmroute-expect: end\r\n" if path.endswith("expect") else ""
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\n{key}{more}content-type: application/json\r\n"
    length = f"content-length: {len(text)}\r\n" if method == "POST" else ""
    request, answers = f"{head}{length}\r\n".encode() + text, [0]
    loop = asyncio.get_running_loop()
    connections = [
        await loop.create_connection(lambda: Flooding(request, answers), url.host, url.port or 80)
        for _ in range(CONNECTIONS)
    ]
    found = []
    headers = {"authorization": f"Bearer {place.proxy.keys[INNOCENT]}"}
    async with httpx.AsyncClient(base_url=place.proxy.url, headers=headers, timeout=60) as client:
        for number in range(CHATS):
            before = answers[0]
            answer = await client.post("/v1/chat/completions", json=chat(f"{kind} {number}", max_tokens=1))
            assert answer.status_code == 200, answer.text
            found.append(answers[0] - before)
    for transport, _ in connections:
        transport.abort()
    assert answers[0] > CHATS
    return sorted(found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_waits_for_few_of_a_flood(place: Place, kind: str) -> None:
    found = place.run(flooded(place, kind))
    assert found[len(found) // 2] < 4 * CONNECTIONS, found
