"""A proxy, its engine, a flood and a chat beside it in one loop: `python -m tests.hostile.one_loop FOLDER KIND...`.

So no count depends on which of their processes a busy machine lets run. Prints for each named kind of request how many
answers its flood gets during each of some chats of another tenant, as JSON.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import httpx
import uvloop

from tests.hostile.conftest import HOSTILE, INNOCENT
from tests.subjects import patience
from tests.subjects.ports import free_ports
from tests.subjects.processes import ProxyProcess, chat
from tests.subjects.scripted import whole
from warmroute_proxy.server import main
from warmroute_proxy.server.base.config_source import ConfigSource

CHATS: Final = 5

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
"""Method, path, whether it has a key, and the body."""

REFUSED: Final = frozenset({
    "another method", "no model", "no messages", "no JSON", "no messages of Anthropic", "no input of Responses",
    "counts",
})  # fmt: skip
"""What costs so little that a slice of the event loop answers many."""


def connections_of(kind: str) -> int:
    """How many connections a flood has: more than one slice answers, also on a machine several times as fast."""
    return 512 if kind in REFUSED else 64


ANSWERS: Final = {
    b"POST /v1/chat/completions": whole({"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101}),
    b"GET /server_info": b'{"page_size":64,"dp_size":1,"start_time":1}',
}
"""Of the engine, by method and path; anything else is an empty object."""


class Messages(asyncio.Protocol):
    """A connection of either end, which is told each whole message."""

    def __init__(self) -> None:
        self.head, self.left = b"", -1
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.left < 0:
            self.head += data
            head, end, body = self.head.partition(b"\r\n\r\n")
            if not end:
                return
            lines = head.lower().split(b"\r\n")
            size = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
            self.left = size - len(body)
        else:
            self.left -= len(data)
        if self.left <= 0:
            head, self.head, self.left = self.head, b"", -1
            self.message(head)

    def message(self, head: bytes) -> None: ...


class Answering(Messages):
    """A connection to the engine."""

    def message(self, head: bytes) -> None:
        assert self.transport is not None
        answer = ANSWERS.get(b" ".join(head.split(b" ", 2)[:2]), b"{}")
        length = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(answer)}\r\n\r\n"
        self.transport.write(length.encode() + answer)


class Flooding(Messages):
    """A connection that asks again as soon as it has an answer."""

    def __init__(self, request: bytes, answers: list[int]) -> None:
        super().__init__()
        self.request, self.answers = request, answers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.message(b"")
        self.answers[0] -= 1

    def message(self, head: bytes) -> None:
        assert self.transport is not None
        self.answers[0] += 1
        self.transport.write(self.request)


def request_of(kind: str, key: str) -> bytes:
    method, path, has_key, body = KINDS[kind]
    text = b"" if body is None else (body if isinstance(body, str) else JSON(body)).encode()
    key_line = f"authorization: Bearer {key}\r\n" if has_key else ""
    more = "x-session-affinity: s\r\nx-warmroute-expect: end\r\n" if path.endswith("expect") else ""
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\n{key_line}{more}content-type: application/json\r\n"
    length = f"content-length: {len(text)}\r\n" if method == "POST" else ""
    return f"{head}{length}\r\n".encode() + text


async def flooded(proxy: ProxyProcess, port: int, kind: str) -> list[int]:
    """How many answers a flood got during each of some chats, few first."""
    request, answers = request_of(kind, proxy.keys[HOSTILE]), [0]
    loop = asyncio.get_running_loop()
    connections = [
        await loop.create_connection(lambda: Flooding(request, answers), "127.0.0.1", port)
        for _ in range(connections_of(kind))
    ]
    found = []
    headers = {"authorization": f"Bearer {proxy.keys[INNOCENT]}"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=600) as client:
        for number in range(CHATS):
            before = answers[0]
            answer = await client.post("/v1/chat/completions", json=chat(f"{kind} {number}", max_tokens=1))
            assert answer.status_code == 200, answer.text
            found.append(answers[0] - before)
    for transport, _ in connections:
        transport.abort()
    return sorted(found)


async def run(folder: Path, kinds: Sequence[str]) -> dict[str, list[int]]:
    """The proxy is the product's own, as `warmroute proxy` runs it."""
    loop = asyncio.get_running_loop()
    engine = await loop.create_server(Answering, "127.0.0.1", 0)
    engine_port, port = engine.sockets[0].getsockname()[1], free_ports(1)[0]
    table = f'[[engine]]\nid = "e0"\nurl = "http://127.0.0.1:{engine_port}"\nregion = "east"\nrole = "aggregated"'
    proxy = ProxyProcess(folder, [table])
    source = ConfigSource(proxy.write_config(port), {})
    running = source.read()
    serving = loop.create_task(main._run(running.config, None, running, source))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=600) as client:
        while True:
            try:
                if (await client.get("/ready")).status_code == 200:
                    break
            except httpx.ConnectError:
                await asyncio.sleep(0.05)
    found = {kind: await flooded(proxy, port, kind) for kind in kinds}
    os.kill(os.getpid(), signal.SIGTERM)
    await serving
    engine.close()
    return found


if __name__ == "__main__":
    patience.wait()
    print(json.dumps(uvloop.run(run(Path(sys.argv[1]), sys.argv[2:]))))
