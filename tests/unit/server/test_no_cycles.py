"""What a turn leaves behind when it has ended: nothing that waits for the garbage collector.

The proxy lets it run seldom, and what is alive when it runs is looked at again only after tens of thousands of turns:
cycles are memory that grows with the load.
"""

import asyncio
import gc
import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.machine import seconds
from tests.subjects.processes import ProxyProcess, chat
from tests.subjects.scripted import Handler, ScriptedEngine, delta, whole
from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol

from warmroute_proxy.server.base.config_file import load_config
from warmroute_proxy.server.build import build
from warmroute_proxy.server.dialects.responses_socket import ResponsesSocket
from warmroute_proxy.server.engines.leg import Leg
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.http.http1 import Connection
from warmroute_proxy.server.http.listener import Listener
from warmroute_proxy.server.http.shared_bytes import LARGE_BYTES
from warmroute_proxy.server.http.websocket import WebSocket
from warmroute_proxy.server.request.attempt import Attempt
from warmroute_proxy.server.request.inference_request import InferenceRequest

pytestmark = pytest.mark.full

TURNS = 5
OURS = (InferenceRequest, Attempt, Leg, Exchange, Request, Connection, WebSocket, ResponsesSocket, ServerProtocol)
LAST = b'"param":"input"'
USAGE = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}


def answers(handler: Handler) -> None:
    """Streamed or whole, as was asked; a request for `fails` is refused, one for `breaks` is broken off."""
    asked = json.loads(handler.engine.bodies[-1])
    wish = asked["messages"][-1]["content"].split()[0]
    if wish == "leaves":
        handler.rfile.read(1)  # until the proxy has left, too
    elif wish == "fails":
        handler.reply(400, b'{"message":"no"}')
    elif not asked.get("stream"):
        handler.reply(200, whole(USAGE))
    elif wish == "breaks":
        handler.stream(delta("hi"), end=False)
    else:
        handler.stream(delta("hi"), delta(finish="stop"), {"choices": [], "usage": USAGE}, "[DONE]")


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine("e", answers) as found:
        yield found


@pytest.mark.parametrize(
    ("wish", "stream"),
    [
        ("whole", False),
        ("whole", True),
        ("fails", False),
        ("fails", True),
        ("breaks", True),
        ("large", True),
        ("refused and large", True),
        ("whole to messages", True),
        ("whole to responses", True),
        ("whole to gemini", True),
        ("breaks to messages", True),
        ("breaks to responses", True),
        ("breaks to gemini", True),
        ("leaves", False),
        ("leaves", True),
        ("leaves within its body", True),
        ("whole on a WebSocket", True),
        ("fails on a WebSocket", True),
        ("whole then leaves within the next message on a WebSocket", True),
    ],
)
async def test_a_turn_is_freed_when_it_has_ended(
    tmp_path: Path, engine: ScriptedEngine, wish: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "warmroute_proxy.server.engines.engine.ABORT_TIMEOUT_S", 0.5
    )  # its timer holds what is waited for here
    process = ProxyProcess(tmp_path, [engine.toml()])
    proxy = await build(load_config(process.write_config()), None)
    endpoint = proxy.public_endpoint(None, InferenceRequest)  # type: ignore[arg-type]
    listener = Listener(endpoint, proxy.config.limits, proxy.clock, proxy.body_memory, proxy.loop_lag)
    port = await listener.listen("127.0.0.1", 0)
    text = wish + " " * LARGE_BYTES if "large" in wish else wish
    path, asked = _request(wish, text, stream)
    body = json.dumps(asked).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {process.keys[0]}\r\n"
    head += f"content-type: application/json\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    request, messages = head.encode() + body, b""
    if "WebSocket" in wish:
        request, messages = _offer(process.keys[0]), _turns(wish)
    if wish == "leaves within its body":
        request = request[:-1]

    async def ask(request: bytes) -> None:
        begun = len(engine.bodies)
        if wish.startswith("leaves"):
            await _leave(port, request, lambda: "body" in wish or len(engine.bodies) > begun)
        else:
            await _ask(port, request, messages)

    await ask(request.replace(b"breaks", b"whole "))  # a break closes the engine to others for a while
    gc.collect()
    gc.disable()
    gc.freeze()  # what other tests have left in this process is not walked at each look
    try:
        for _ in range(TURNS):
            await ask(request)
        async with asyncio.timeout(seconds(20)):  # connections of both sides close, and a trailer's timer ends
            while _alive():
                await asyncio.sleep(0.05)
        assert _left() == {}
    except TimeoutError:
        pytest.fail(f"{TURNS} turns left {dict(_alive())}")
    finally:
        gc.unfreeze()
        gc.enable()
        await listener.close(1.0)
        proxy.close()


def _request(wish: str, text: str, stream: bool) -> tuple[str, dict[str, Any]]:
    """A path, and the body for it."""
    if "messages" in wish:
        return "/v1/messages", chat(text, stream=stream, max_tokens=100)
    if "responses" in wish:
        return "/v1/responses", {"model": "kimi-k2.5", "input": text, "stream": stream}
    if "gemini" in wish:
        asked = {"contents": [{"role": "user", "parts": [{"text": text}]}]}
        return "/v1beta/models/kimi-k2.5:streamGenerateContent?alt=sse", asked
    return "/v1/chat/completions", chat(text, stream=stream, n="two" if "refused" in wish else 1)


async def _ask(port: int, request: bytes, messages: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, family=socket.AF_INET)
    writer.write(request)
    if messages:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        writer.write(messages)
        assert await reader.readuntil(LAST)
    else:
        answer = await reader.read()
        refused = any(wish in request for wish in (b"fails", b"refused", b"breaks"))
        assert answer.startswith(b"HTTP/1.1 " if refused else b"HTTP/1.1 200 ")
    writer.close()


async def _leave(port: int, request: bytes, begun: Callable[[], bool]) -> None:
    """Ask, and close the connection once the engine computes."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, family=socket.AF_INET)
    writer.write(request)
    while not begun():
        await asyncio.sleep(0.01)
    writer.close()


def _offer(key: str) -> bytes:
    lines = ["host: x", f"authorization: Bearer {key}", "connection: upgrade", "upgrade: websocket"]
    lines += ["sec-websocket-version: 13", f"sec-websocket-key: {'A' * 22}=="]
    return ("GET /v1/responses HTTP/1.1\r\n" + "\r\n".join(lines) + "\r\n\r\n").encode()


def _turns(wish: str) -> bytes:
    """Two turns that are asked, and one that cannot be read, which is answered last; or one more that does not end."""
    asked = json.dumps({"type": "response.create", "model": "kimi-k2.5", "input": wish}).encode()
    last = json.dumps({"type": "response.create", "model": "kimi-k2.5", "input": []}).encode()
    frames = [Frame(Opcode.TEXT, each).serialize(mask=True) for each in (asked, asked, last, asked)]
    return b"".join(frames[:3]) + (frames[3][:-1] if "leaves" in wish else b"")


def _left() -> Counter[str]:
    """What only the garbage collector can free, of ours."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return Counter(type(thing).__name__ for thing in gc.garbage if type(thing).__module__.startswith("warmroute"))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def _alive() -> Counter[str]:
    return Counter(type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, OURS))
