"""A whole proxy in this process, between a client and engines that play what a case gives them; there are no sockets.

The proxy is the product's own, from the connection of a client to the connection of an engine. Both ends are transports
of this module, so a test says which bytes come in one read.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

from tests.machine import seconds
from tests.subjects.processes import ProxyProcess
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.base.config_file import load_config
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.build import Proxy, build
from warmroute_proxy.server.engines import probing as templates
from warmroute_proxy.server.http.http1 import Connection
from warmroute_proxy.server.http.open_connections import OpenConnections
from warmroute_proxy.server.http.request_starts import RequestStarts
from warmroute_proxy.server.ledger.ledger import read_rows
from warmroute_proxy.server.request.inference_request import InferenceRequest

KEY: Final = "wr-" + "1" * 32
OTHER_KEY: Final = "wr-" + "2" * 32
WAIT_S: Final = 20.0

_FIRST_PORT: Final = 1
_INFORMATION: Final = {b"/server_info": b'{"page_size":1,"dp_size":1,"start_time":1}', b"/v1/loads": b"{}"}
_WHOLE: Final = b"HTTP/1.1 %d X\r\ncontent-type: %b\r\n%bcontent-length: %d\r\n\r\n"
_STREAM: Final = b"HTTP/1.1 %d X\r\ncontent-type: %b\r\n%btransfer-encoding: chunked\r\n\r\n"


@dataclass
class Said:
    """What an engine answers: in `pieces` of a stream, each a chunk of HTTP in a read of its own, or as a whole."""

    body: bytes
    status: int = 200
    media: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    pieces: list[bytes] | None = None
    cut: bool = False
    """Whether the connection ends without the end of the answer."""

    def reads(self) -> Iterator[bytes]:
        """The bytes of each read."""
        more = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items()).encode()
        if self.pieces is None:
            yield _WHOLE % (self.status, self.media.encode(), more, len(self.body)) + self.body
            return
        yield _STREAM % (self.status, self.media.encode(), more)
        for piece in self.pieces:
            yield b"%x\r\n%b\r\n" % (len(piece), piece)
        if not self.cut:
            yield b"0\r\n\r\n"


def completion(said: Mapping[str, Any], usage: object, *, stream: bool = False, reason: str = "stop") -> Said:
    """A chat completion, whole or as a stream in which all is said at once."""
    choice = {"index": 0, "delta" if stream else "message": {"role": "assistant", **said}, "finish_reason": reason}
    if not stream:
        return Said(json.dumps({"id": "x", "choices": [choice], "usage": usage}).encode())
    return streamed({"choices": [choice]}, {"choices": [], "usage": usage}, "[DONE]")


def streamed(*events: Mapping[str, Any] | str, cut: bool = False) -> Said:
    """A stream of events, each in a read of its own."""
    data = [f"data: {each if isinstance(each, str) else json.dumps(each)}\n\n".encode() for each in events]
    return Said(b"", media="text/event-stream", pieces=data, cut=cut)


TEMPLATE: Final = templates.PATH.encode()
"""Where a proxy asks for an engine's template, before any client has asked."""


@dataclass
class Answered:
    """What the client has got, what its row says, and what engines were sent."""

    status: int
    headers: dict[str, str]
    body: bytes
    row: dict[str, Any] | None
    sent: list[tuple[int, Any]]
    """Which engine, counted from 0, and the body; in their order."""

    whole: bool
    """Whether the answer ended as its framing says."""

    @property
    def receipt_id(self) -> str:
        return self.headers.get("x-warmroute-receipt", "")


class Client:
    """The transport of a client's connection: it takes what is written."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = False
        self.on_write: Callable[[], None] | None = None

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def write(self, data: bytes) -> None:
        self.written += data
        if self.on_write is not None:
            self.on_write()

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.write(b"".join(parts))

    def set_protocol(self, _protocol: object) -> None: ...

    def pause_reading(self) -> None: ...

    resume_reading = pause_reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, _name: str, default: object = None) -> object:
        return default


class Engine:
    """The transport of a connection to an engine, which answers each request as the scene has it."""

    def __init__(self, scene: "Scene", number: int, protocol: Any) -> None:
        self._scene = scene
        self._number = number
        self.protocol = protocol
        self.closed = False

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self._lost)

    abort = close

    def _lost(self) -> None:
        self.protocol.connection_lost(None)

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None: ...

    resume_reading = pause_reading

    def write(self, data: bytes) -> None:
        self.writelines([data])

    def writelines(self, parts: Iterable[bytes]) -> None:
        head, _, body = b"".join(parts).partition(b"\r\n\r\n")
        path = head.split(b" ", 2)[1]
        if path.startswith(b"/v1/") and path != TEMPLATE and head.startswith(b"POST"):
            said = self._scene.answer(self._number, json.loads(body))
        else:
            if path == b"/abort_request":
                self._scene.aborted.append(json.loads(body)["rid"])
            found = _INFORMATION.get(path)
            said = Said(found or b"{}", 200 if found or path == b"/abort_request" else 404)
        self._scene.tasks.append(asyncio.get_running_loop().create_task(self._say(said)))

    async def _say(self, said: Said) -> None:
        for read in said.reads():
            await asyncio.sleep(0)
            if self.closed:
                return
            self.protocol.data_received(read)
        if said.cut:
            self.close()


class Loop(asyncio.SelectorEventLoop):
    """A loop whose connections lead to the engines of a scene."""

    scene: "Scene"

    async def create_connection(self, factory: Any, _host: Any = None, port: Any = None, **_: Any) -> Any:  # type: ignore[override]
        protocol = factory()
        transport = Engine(self.scene, port - _FIRST_PORT, protocol)
        protocol.connection_made(transport)
        return transport, protocol


class Scene:
    """A proxy with its engines: `says` has what each of the next requests gets, whichever engine it reaches."""

    def __init__(
        self,
        folder: Path,
        says: list[Said],
        *,
        engines: str = "",
        kind: str = "openai",
        extra: str = "",
        engine_count: int = 0,
    ) -> None:
        """`engines`: more lines of each; `extra`: more of the configuration's model; `engine_count`: 0: one for each
        answer.
        """
        tables = [
            f'[[engine]]\nid = "e{number}"\nurl = "http://127.0.0.1:{_FIRST_PORT + number}"\nregion = "east"\n'
            f'kind = "{kind}"\n{engines}'
            for number in range(engine_count or len(says))
        ]
        self._process = ProxyProcess(folder, tables, keys=(KEY, OTHER_KEY), model=extra)
        self._says = list(says)
        self.sent: list[tuple[int, Any]] = []
        self.aborted: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.metrics = Metrics()
        """Of the proxy, once it has been asked."""
        self.router: Router | None = None

    def answer(self, number: int, body: Any) -> Said:
        """What the next request gets."""
        self.sent.append((number, body))
        return self._says.pop(0)

    def play(self, path: str, body: bytes, *, leaves_at: bytes = b"") -> Answered:
        """Ask once, and read all of the answer, or leave once the answer has `leaves_at`."""
        return self.play_turns(path, [lambda _: body], leaves_at)[0]

    def play_turns(
        self, path: str, turns: list[Callable[[list[Answered]], bytes]], leaves_at: bytes = b""
    ) -> list[Answered]:
        """Ask several times, of one proxy. `turns`: make a body of the answers before."""
        with asyncio.Runner(loop_factory=Loop) as runner:
            cast("Loop", runner.get_loop()).scene = self
            return runner.run(self._play(path, turns, leaves_at))

    async def _play(
        self, path: str, turns: list[Callable[[list[Answered]], bytes]], leaves_at: bytes
    ) -> list[Answered]:
        proxy = await build(load_config(self._process.write_config()), None)
        self.metrics, self.router = proxy.metrics, proxy.router
        found: list[Answered] = []
        try:
            for turn in turns:
                wire = await self._ask(proxy, path, turn(found), leaves_at)
                found.append(_read(wire, self.sent))
        finally:
            proxy.close()
        rows = {row["id"]: row for row in read_rows(proxy.config.proxy.state_dir / "ledger.sqlite")}
        return [
            replace(each, row=rows.get(each.headers.get("x-warmroute-receipt", "")) or _last(rows)) for each in found
        ]

    async def _ask(self, proxy: Proxy, path: str, body: bytes, leaves_at: bytes) -> bytes:
        client = Client()
        connection = _connected(proxy, client)
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n"
        connection.data_received(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        async with asyncio.timeout(seconds(WAIT_S)):
            while not client.closed:
                if leaves_at and leaves_at in client.written:
                    client.closed = True
                    connection.connection_lost(None)
                await asyncio.sleep(0)
            while proxy.open_requests.live or proxy.ledger._under_way:
                await asyncio.sleep(0.001)
        await asyncio.gather(*self.tasks)
        return bytes(client.written)


def _last(rows: dict[str, Any]) -> Any:
    return next(reversed(rows.values()), None)


def _connected(proxy: Proxy, client: Client) -> Connection:
    """A connection of a client, as a listener makes it."""
    endpoint: Any = proxy.public_endpoint(None, InferenceRequest)  # type: ignore[arg-type]
    connections = OpenConnections(endpoint, proxy.config.limits, proxy.clock, proxy.body_memory)
    connections.handle = RequestStarts(endpoint, asyncio.get_running_loop(), proxy.clock, proxy.loop_lag).handle
    connection = Connection(connections)
    connection.connection_made(cast("Any", client))
    return connection


def _read(wire: bytes, sent: list[tuple[int, Any]]) -> Answered:
    """The answer as a client of HTTP reads it."""
    head, _, rest = wire.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    status = int(lines[0].split()[1]) if head else 0
    if headers.get("transfer-encoding") == "chunked":
        body, whole = _unchunked(rest)
    else:
        body, whole = rest, len(rest) == int(headers.get("content-length", -1))
    return Answered(status, headers, body, None, sent, whole)


def _unchunked(wire: bytes) -> tuple[bytes, bool]:
    body, at = b"", 0
    while found := re.compile(rb"([0-9a-fA-F]+)\r\n").match(wire, at):
        size = int(found[1], 16)
        if not size:
            return body, True
        body += wire[found.end() : found.end() + size]
        at = found.end() + size + 2
    return body, False
