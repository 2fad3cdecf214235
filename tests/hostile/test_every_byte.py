"""Whatever waits in memory for a client is reserved: RSS beside what is reserved stays small, in each way to wait."""

import contextlib
import json
import selectors
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from websockets.frames import Frame, Opcode

from tests.subjects.processes import chat, until
from tests.subjects.scripted import Handler, delta, whole

from .test_memory import MIB, Held, Scene, Served, resident_mib, serving

pytestmark = pytest.mark.full

CLIENTS = 150
SOCKETS = 60
BESIDE_MIB = 150
"""What the process may take beside what is reserved, or was at most before: the allocator keeps that. Up to 109 were
seen: connections, parsers, bounded tables, and what an event of 1 MB takes while it is written.
"""

BODY_BYTES = 8 * MIB
LIMITS = f"body_bytes = {BODY_BYTES}\nresponse_bytes = {BODY_BYTES}\nkept_prompt_bytes = 0\n"
LIMITS += "head_timeout_s = 600\nbody_timeout_s = 600"
LINES = "".join(f"a{number:02}: {'b' * 600}\r\n" for number in range(90))
SMALL_LINES = "".join(f"ab: cd{number}\r\n" for number in range(7000))
POST = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
GO_ON = [{"role": "user", "content": "go on"}]


GATHERED: list[dict[str, Any]] = [
    {"id": "x", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": each, "finish_reason": None}]}
    for each in (
        *[{"reasoning_content": "y" * 20_000}] * 10,
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"a":"'}}]},
        *[{"tool_calls": [{"index": 0, "function": {"arguments": "z" * 20_000}}]}] * 70,
    )
]
"""What translators keep until an answer ends: 200 KB of thoughts and 1.4 MB of a call."""


class Flood(NamedTuple):
    """What each client sends. `by_websocket`: after the upgrade; `reads`: whether it reads all answers."""

    sent: bytes
    by_websocket: bool = False
    reads: bool = False


def message(kind: str, **more: object) -> bytes:
    return Frame(Opcode.TEXT, json.dumps({"type": kind, **more}).encode()).serialize(mask=True)


def fragments(size: int) -> bytes:
    """A message of many frames, without its end."""
    first = Frame(Opcode.TEXT, b'"' + b"x" * 30_000, fin=False).serialize(mask=True)
    return first + Frame(Opcode.CONT, b"x" * 30_000, fin=False).serialize(mask=True) * (size // 30_000)


def request(key: str, body: dict[str, object], *lines: str, begins: str = POST) -> bytes:
    raw = json.dumps(body).encode()
    given = [f"authorization: Bearer {key}", f"content-length: {len(raw)}", *lines]
    return (begins + "".join(f"{line}\r\n" for line in given) + "\r\n").encode() + raw


def post(path: str, key: str, **body: object) -> bytes:
    return request(key, body, begins=POST.replace("/v1/chat/completions", path))


def get(path: str, key: str = "", lines: str = "") -> bytes:
    named = f"authorization: Bearer {key}\r\n" if key else ""
    return f"GET {path} HTTP/1.1\r\nhost: x\r\n{named}{lines}\r\n".encode()


def floods(key: str) -> dict[str, Flood]:
    large = "i" * 3_500_000
    held, ended = chat("hold this"), chat("quick")
    created = {"model": "kimi-k2.5", "input": "quick", "instructions": large}
    return {
        "half a head of small lines": Flood((POST + SMALL_LINES[:60_000]).encode()),
        "half a head": Flood((POST + LINES).encode()[:-20]),
        "half a head, after a turn": Flood(request(key, ended) + (POST + LINES).encode()[:-20]),
        "trailers of small lines": Flood(
            (POST + f"authorization: Bearer {key}\r\ntransfer-encoding: chunked\r\n\r\n0\r\n").encode()
            + SMALL_LINES[:60_000].encode()
        ),
        "large heads of turns under way": Flood(request(key, held, LINES[:-2])),
        "large heads behind a turn": Flood(request(key, held) + get("/v1/models", key, LINES) * 3),
        "large heads, then idle": Flood(request(key, ended, LINES[:-2]), reads=True),
        "bodies, then idle": Flood(request(key, chat("x" * 1_000_000 + "quick")), reads=True),
        "a document that nobody reads": Flood(get("/openapi.json") * 16),
        "views that nobody reads": Flood(get("/v1/models", key) * 16),
        "streams that nobody reads": Flood(request(key, chat("stream", stream=True))),
        "answers of 60 KB that nobody reads": Flood(request(key, chat("60 KB")) * 16),
        "websocket, a turn that prepares": Flood(
            message("response.create", generate=False, **created), by_websocket=True, reads=True
        ),
        "websocket, an event of no type": Flood(message("none", input=large), by_websocket=True, reads=True),
        "websocket, processed": Flood(message("response.processed", input=large), by_websocket=True, reads=True),
        "websocket, cancelled": Flood(message("response.cancel", input=large), by_websocket=True, reads=True),
        "websocket, no JSON": Flood(
            Frame(Opcode.TEXT, b"x" * 3_500_000).serialize(mask=True), by_websocket=True, reads=True
        ),
        # From here on, floods reserve much: the allocator keeps most of what was freed.
        "websocket, pings": Flood(Frame(Opcode.PING, b"x" * 125).serialize(mask=True) * 20_000, by_websocket=True),
        "websocket, small turns and unread": Flood(
            b"".join(
                message("response.create", model="kimi-k2.5", input="stream", stream_id=f"s{number}")
                for number in range(3)
            ),
            by_websocket=True,
        ),
        "messages that go on": Flood(
            post("/v1/messages", key, model="kimi-k2.5", stream=True, max_tokens=9, messages=GO_ON), reads=True
        ),
        "contents that go on": Flood(
            post("/v1beta/models/kimi-k2.5:streamGenerateContent", key, contents=[{"parts": [{"text": "go on"}]}]),
            reads=True,
        ),
        "websocket, turns that go on": Flood(
            message("response.create", model="kimi-k2.5", input="go on"), by_websocket=True, reads=True
        ),
        "responses that go on": Flood(
            post("/v1/responses", key, model="kimi-k2.5", stream=True, input="go on"), reads=True
        ),
        "websocket, a turn": Flood(message("response.create", **created), by_websocket=True, reads=True),
        "websocket, half a message": Flood(message("response.create", **created)[:-1], by_websocket=True),
        "websocket, fragments": Flood(fragments(3_500_000), by_websocket=True),
        "websocket, steered and unread": Flood(message("response.steer", input=large) * 4, by_websocket=True),
    }


class Asked(Held):
    """What the engine is asked for decides: it streams, answers at length, holds, or answers."""

    def script(self, handler: Handler) -> None:
        end = handler.engine.bodies[-1][-400:]
        if b'"go on"' in end:
            handler.engine.bodies.pop()
            with contextlib.suppress(OSError):
                handler.stream(*GATHERED, end=False)
            self.may_end.wait()
        elif b'"stream"' in end and b"quick" not in end:
            handler.engine.bodies.pop()
            with contextlib.suppress(OSError):  # the client is gone
                handler.stream(*[delta("x" * 2000)] * 500)
        elif b"60 KB" in end:
            handler.engine.bodies.pop()
            handler.reply(200, whole({"prompt_tokens": 5, "completion_tokens": 1}, more="x" * 60_000))
        else:
            super().script(handler)


class SmallScene(Scene):
    """Its clients' systems take little that nobody reads."""

    def socket_to(self, host: str, port: int) -> socket.socket:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, port))
        return client

    def settle(self) -> float:
        """Wait until the proxy has nothing to do any more. Returns the most that it reserves meanwhile, MiB."""
        before, reserved = -1.0, [self.reserved_mib()]
        while (now := self.cpu_s()) - before > 0.05:
            before = now
            time.sleep(0.5)
            reserved.append(self.reserved_mib())
        return max(reserved)

    def reserved_mib(self) -> float:
        return self.proxy.metric("warmroute_body_memory_bytes ") / MIB

    def cpu_s(self) -> float:
        return self.proxy.metric("warmroute_cpu_seconds ")


@pytest.fixture(scope="module", params=["http", pytest.param("https", marks=pytest.mark.nightly)])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(request.param, tmp_path_factory.mktemp("every_byte"), LIMITS) as found:
        yield found


@pytest.fixture
def scene(served: Served) -> Iterator[SmallScene]:
    made = SmallScene(served.proxy, Asked())
    served.engine.script = made.held.script
    try:
        yield made
    finally:
        made.close()


class Seen:
    """What was seen of the process before: what it took at first, and the most that was reserved."""

    def __init__(self, before_mib: float) -> None:
        self.before_mib = before_mib
        self.most_reserved_mib = 0.0


@pytest.fixture(scope="module")
def seen(served: Served) -> Seen:
    return Seen(resident_mib(served.proxy))


@pytest.mark.parametrize("name", floods("key"))
def test_what_waits_is_reserved(scene: SmallScene, seen: Seen, name: str) -> None:
    flood = floods(scene.proxy.keys[0])[name]
    if flood.by_websocket:
        scene.flood([flood.sent] * SOCKETS, scene.websocket)
    else:
        scene.flood([flood.sent] * CLIENTS)
    if flood.reads:
        read_all(scene.clients)
    seen.most_reserved_mib = max(seen.most_reserved_mib, scene.settle())
    resident, reserved = resident_mib(scene.proxy), scene.reserved_mib()
    allowed = seen.before_mib + seen.most_reserved_mib + BESIDE_MIB
    assert resident <= allowed, f"{resident:.0f} MiB, {reserved:.0f} of them reserved"
    scene.close()
    until(lambda: scene.reserved_mib() < 1, "all is given back")


def read_all(clients: list[socket.socket]) -> None:
    """Read what comes, until nothing does for a while."""
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client, selectors.EVENT_READ)
        while ready := selector.select(1.0):
            for key, _ in ready:
                sock: socket.socket = key.fileobj  # type: ignore[assignment]
                with contextlib.suppress(ssl.SSLWantReadError, BlockingIOError):
                    if not sock.recv(262_144):
                        selector.unregister(sock)
