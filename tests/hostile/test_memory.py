"""Memory has one budget: whatever way bodies come in, the process stays within it, and other tenants are served."""

import json
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from websockets.frames import Frame, Opcode

from tests.integration.proxy.test_tls import SecureProxy
from tests.subjects.processes import ProxyProcess, chat, until
from tests.subjects.scripted import Handler, ScriptedEngine, whole
from warmroute_proxy.server.http.frames import MAX_MESSAGE_BYTES

MIB = 2**20
BUDGET_MIB = 96
BESIDE_MIB = 240
"""What a process may take beside the budget; it takes up to 142."""

BODY_BYTES = 8 * MIB
CLIENTS = 64
STALLED_S = 0.3
"""Clients that can send nothing for so long have sent all that the proxy takes."""

LIMITS = f"body_memory_bytes = {BUDGET_MIB * MIB}\nbody_bytes = {BODY_BYTES}\nresponse_bytes = {BODY_BYTES}"

SMALL = json.dumps(chat("hold this")).encode()
LARGE = json.dumps(chat("x" * (BODY_BYTES - 4000) + "hold this")).encode()
LONG_ANSWER = json.dumps(chat("long answer")).encode()


def created(text: str, **more: object) -> bytes:
    """A turn, as the message of a WebSocket."""
    asked = {"type": "response.create", "model": "kimi-k2.5", "input": text, **more}
    return Frame(Opcode.TEXT, json.dumps(asked).encode()).serialize(mask=True)


class Held:
    """The requests that the engine holds until the end of a test."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = threading.Event()

    def script(self, handler: Handler) -> None:
        body = handler.engine.bodies.pop()
        end = body[-400:]
        if b"hold this" in end:
            self.begun += 1
            self.may_end.wait()
            answered(handler)
        elif b"long answer" in end:
            handler.reply(200, whole({"prompt_tokens": 5, "completion_tokens": 1}, more="x" * (BODY_BYTES - 2000)))
        else:
            answered(handler)


def answered(handler: Handler) -> None:
    handler.reply(200, whole({"prompt_tokens": 5, "completion_tokens": 1}))


class Served(NamedTuple):
    """What lives through all tests."""

    proxy: ProxyProcess
    engine: ScriptedEngine


class Scene:
    """One attack."""

    def __init__(self, proxy: ProxyProcess, held: Held) -> None:
        self.proxy = proxy
        self.held = held
        self.clients: list[socket.socket] = []
        self.heads: dict[socket.socket, bytes] = {}
        self.tls = proxy.trusting if isinstance(proxy, SecureProxy) else None

    def head(self, *lines: str, length: int | None) -> bytes:
        framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
        all_lines = ["host: x", f"authorization: Bearer {self.proxy.keys[0]}", framing, *lines]
        return ("POST /v1/chat/completions HTTP/1.1\r\n" + "\r\n".join(all_lines) + "\r\n\r\n").encode()

    def flood(self, requests: list[bytes], connect: Callable[[], socket.socket] | None = None) -> None:
        """Send each over a connection of its own, as far as the proxy takes them; nothing is read."""
        with selectors.DefaultSelector() as selector:
            for request in requests:
                client = (connect or self.connect)()
                selector.register(client, selectors.EVENT_WRITE, memoryview(request))
            while ready := selector.select(STALLED_S):
                for key, _ in ready:
                    client = key.fileobj  # type: ignore[assignment]
                    try:
                        left = key.data[client.send(key.data[:MIB]) :]
                    except OSError:
                        left = b""
                    if left:
                        selector.modify(client, selectors.EVENT_WRITE, left)
                    else:
                        selector.unregister(client)

    def connect(self) -> socket.socket:
        host, _, port = self.proxy.url.partition("//")[2].partition(":")
        client = self.socket_to(host, int(port))
        if self.tls is not None:
            client = self.tls.wrap_socket(client, server_hostname=host)
        client.setblocking(False)
        self.clients.append(client)
        return client

    def socket_to(self, host: str, port: int) -> socket.socket:
        return socket.create_connection((host, port))

    def websocket(self) -> socket.socket:
        """A connection that has become a WebSocket."""
        client = self.connect()
        client.setblocking(True)
        lines = ["connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13"]
        lines += ["host: x", f"authorization: Bearer {self.proxy.keys[0]}", f"sec-websocket-key: {'A' * 22}=="]
        client.sendall(("GET /v1/responses HTTP/1.1\r\n" + "\r\n".join(lines) + "\r\n\r\n").encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 101 ")
        client.setblocking(False)
        return client

    def refused(self) -> int:
        """How many clients were answered with a 503 that says when to come again."""
        for client in self.clients:
            with suppress(OSError):  # nothing has come yet, or the connection was reset
                self.heads[client] = self.heads.get(client) or client.recv(65536)
        heads = self.heads.values()
        return sum(head.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1\r\n" in head for head in heads)

    def check(self) -> None:
        """The process has stayed within its budget, and another tenant is served."""
        with self.proxy.client(1) as client:
            answer = until(lambda: asked(client), "the engine answers its probes")
        assert answer.status_code == 200, answer.text
        assert resident_mib(self.proxy, "VmHWM") < BUDGET_MIB + BESIDE_MIB, "at its peak"
        assert self.proxy.metric("warmroute_body_memory_bytes ") <= BUDGET_MIB * MIB

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.held.may_end.set()

    def end(self) -> None:
        """All clients leave; then nothing is held."""
        self.close()
        until(
            lambda: self.proxy.metric("warmroute_body_memory_bytes ") < MIB,
            "all is given back, but what is kept for retries",
        )


def asked(client: httpx.Client) -> httpx.Response | None:
    """The answer; None while the engine, which is a thread of this busy process, is too slow for the proxy's probes."""
    found = client.post("/v1/chat/completions", json=chat("of another tenant"))
    return None if found.status_code == 503 and found.json()["error"]["code"] == "no_worker" else found


def resident_mib(proxy: ProxyProcess, measure: str = "VmRSS") -> float:
    """The memory that its process has."""
    assert proxy.child is not None
    lines = Path(f"/proc/{proxy.child.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{measure}:"))


@contextmanager
def serving(scheme: str, folder: Path, limits: str) -> Iterator[Served]:
    """A proxy that lives through all attacks, and its engine."""
    make = SecureProxy if scheme == "https" else ProxyProcess
    with ScriptedEngine("e0", answered) as engine, make(folder / "p", [engine.toml()], limits=limits) as proxy:
        yield Served(proxy, engine)


@pytest.fixture(scope="module", params=["http", "https"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(request.param, tmp_path_factory.mktemp("memory"), LIMITS) as found:
        yield found


@pytest.fixture
def scene(served: Served) -> Iterator[Scene]:
    made = Scene(served.proxy, Held())
    served.engine.script = made.held.script
    try:
        yield made
    finally:
        made.close()


def test_pipelines(scene: Scene) -> None:
    """Large requests behind a running answer: most of them stay at their clients."""
    large = scene.head(length=len(LARGE)) + LARGE
    scene.flood([scene.head(length=len(SMALL)) + SMALL + large] * CLIENTS)
    until(lambda: scene.held.begun == CLIENTS, "the first request of each is under way")
    assert not scene.refused()
    scene.check()
    scene.end()


@pytest.mark.parametrize("chunked", [False, True], ids=["slow", "chunked"])
def test_bodies_that_do_not_end(scene: Scene, chunked: bool) -> None:
    if chunked:
        request = scene.head(length=None) + b"%x\r\n" % len(LARGE) + LARGE
    else:
        request = scene.head(length=len(LARGE)) + LARGE[:-1]
    scene.flood([request] * CLIENTS)
    scene.check()
    until(lambda: scene.refused() >= CLIENTS * 3 // 4, "most are refused")
    scene.end()


@pytest.mark.parametrize("whole", [False, True], ids=["slow", "whole"])
def test_messages_of_websockets(scene: Scene, whole: bool) -> None:
    message = created("x" * (MAX_MESSAGE_BYTES - 4000))
    scene.flood([message if whole else message[:-1]] * CLIENTS, scene.websocket)
    scene.check()
    scene.end()


def test_conversations_of_websockets(scene: Scene) -> None:
    """Free turns that prepare 32 conversations on each of many connections."""
    turns = [created("x" * 400_000, generate=False, stream_id=f"s{number}") for number in range(32)]
    scene.flood([b"".join(turns)] * CLIENTS, scene.websocket)
    scene.check()
    scene.end()


@pytest.mark.parametrize("key", ["", "idempotency-key: a"], ids=["under way", "one key"])
def test_bodies_that_came_whole(scene: Scene, key: str) -> None:
    """Their engine has not begun to answer, so they are kept for a retry."""
    lines = [key] if key else []
    scene.flood([scene.head(*lines, length=len(LARGE)) + LARGE] * CLIENTS)
    scene.check()
    until(lambda: scene.held.begun >= 1, "one is under way")
    scene.end()


def test_answers_that_nobody_reads(scene: Scene) -> None:
    request = scene.head(length=len(LONG_ANSWER)) + LONG_ANSWER
    scene.flood([request] * 24)
    until(lambda: scene.refused() >= 4, "some are refused")
    scene.check()
    scene.end()


def test_answers_that_are_kept_for_retries(scene: Scene) -> None:
    head = [scene.head(f"idempotency-key: {number}", length=len(LONG_ANSWER)) for number in range(24)]
    scene.flood([each + LONG_ANSWER for each in head])
    scene.check()
