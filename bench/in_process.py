"""A whole proxy in one process without sockets, under callgrind: `python in_process.py FOLDER`.

The proxy is started as its users start it. Its event loop gives it transports that end in this file: a client's, whose
requests are in `plan.json`, and an engine's, which answers with the bytes of that file. So the tree that is measured is
the one that `PYTHONPATH` names, whatever its modules are called. Instructions are counted from the end of the warm-up
to the last answer; `switch.so` tells callgrind so.
"""

import asyncio
import base64
import ctypes
import gc
import json
import os
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, cast

import uvloop

from warmroute_cli.main import main

READ_BYTES: Final = 65_536
"""What comes of a request at once."""

SLOWER: Final = 50.0
NEVER: Final = 1e6
"""While requests count: how many timers come then is a matter of the machine."""

_CHAT: Final = b"/chat/completions "
_BEGINS: Final = (b"HTTP/1.1 200", b"HTTP/1.1 101", b"\x81")
_SWITCHED: Final = b"HTTP/1.1 101"
_MESSAGE: Final = (_SWITCHED, b"\x81")
_ID: Final = b"resp_"
_TAIL_BYTES: Final = 8192
"""Of a write, in which an answer may end."""


class Plan:
    """What is sent and answered: requests of the warm-up and those that count, for each connection."""

    def __init__(self, folder: Path) -> None:
        said = json.loads((folder / "plan.json").read_text())
        self.warm = [[base64.b64decode(each) for each in requests] for requests in said["warm"]]
        self.counted = [[base64.b64decode(each) for each in requests] for requests in said["counted"]]
        self.reads = [base64.b64decode(each) for each in said["reads"]]
        self.last, self.bare_bytes = base64.b64decode(said["last"]), said["bare_bytes"]
        self.information = {path.encode(): base64.b64decode(each) for path, each in said["information"].items()}
        self.nothing_here = base64.b64decode(said["nothing_here"])
        self.last_id = said["last_id"].encode()
        self.answer_tokens = said["answer_tokens"]
        self.bytes_per_token, self.uncached_tokens = said["bytes_per_token"], said["uncached_tokens"]
        self.answer_ends = base64.b64decode(said["answer_ends"])

    def answer(self, request_bytes: int) -> Iterator[bytes]:
        """The reads of an answer; the last one has places for its length and the tokens of the prompt."""
        prompt = request_bytes // self.bytes_per_token
        counts = prompt, prompt + self.answer_tokens, max(0, prompt - self.uncached_tokens)
        yield from self.reads
        yield self.last % (self.bare_bytes + len(b"%d%d%d" % counts), *counts)


class Transport:
    """A connection that is always open and takes all that is written."""

    def __init__(self) -> None:
        self.closed = False

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = write_eof = close

    def pause_reading(self) -> None: ...

    resume_reading = pause_reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default


class EngineTransport(Transport):
    """To an engine: each request is sent in one call, and answered in the next rounds of the loop."""

    def __init__(self, loop: "InProcessLoop", protocol: Any) -> None:
        super().__init__()
        self._loop = loop
        self.protocol = protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def write(self, data: bytes) -> None:
        self.writelines([data])

    def writelines(self, parts: list[bytes]) -> None:
        line = bytes(parts[0][: parts[0].index(b"\r\n")])
        if _CHAT in line:
            self._loop.answers.append((self, self._loop.plan.answer(sum(map(len, parts)))))
            self._loop.wake()
        else:
            reply = self._loop.plan.information.get(line.split(b" ")[1], self._loop.plan.nothing_here)
            self._loop.call_soon(self.receive, reply)

    def receive(self, data: bytes) -> None:
        """Bytes of an answer."""
        if not self.closed:
            self.protocol.data_received(data)


class ClientTransport(Transport):
    """To a client, which reads an answer and then sends its next request."""

    def __init__(self, loop: "InProcessLoop", connect: Callable[[], Any]) -> None:
        super().__init__()
        self._loop = loop
        self._plan = loop.plan
        self._requests: Iterator[bytes] = iter(())
        self._began = False
        self._last_id = b""
        self._protocol = connect()
        self._protocol.connection_made(self)

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def ask(self, requests: list[bytes]) -> None:
        """Send these, one after the other."""
        self._requests = iter(requests)
        self._next()

    def write(self, data: bytes) -> None:
        if not self._began:
            self._began = True
            if not data.startswith(_BEGINS):
                raise SystemExit(f"a bad answer: {bytes(data[:400])!r}")
        if self._in_messages(data) if data.startswith(_MESSAGE) else data.endswith(self._plan.answer_ends):
            self._loop.answered += 1
            self._began = False
            self._loop.call_soon(self._next)

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def _in_messages(self, data: bytes) -> bool:
        """Whether an answer ends in messages of a WebSocket, whose id is that of the last response."""
        if data.startswith(_SWITCHED):
            return True
        at = data.rfind(_ID, 0, len(data) - len(self._plan.last_id))
        if at >= 0:
            self._last_id = data[at : at + len(self._plan.last_id)]
        return self._plan.answer_ends in data[-_TAIL_BYTES:]

    def _next(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self._loop.ended()
            return
        if self._last_id:
            request = request.replace(self._plan.last_id, self._last_id)
        for at in range(0, len(request), READ_BYTES):
            self._protocol.data_received(request[at : at + READ_BYTES])


class _Socket:
    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 1


class _Server:
    sockets: Final = (_Socket(),)

    def close(self) -> None: ...


class InProcessLoop(uvloop.Loop):
    """uvloop's, but no connection leaves it."""

    plan: Plan
    switch: ctypes.CDLL

    def __init__(self) -> None:
        super().__init__()
        self.answers: deque[tuple[EngineTransport, Iterator[bytes]]] = deque()
        self.answered = 0
        self._asleep = True
        self._slower = 1.0
        self._asking = 0
        self._all_ended: asyncio.Future[None] | None = None
        self._connects: list[Callable[[], Any]] = []
        self._listening: list[socket.socket] = []
        self._clients: list[ClientTransport] = []
        self._driver: asyncio.Task[None] | None = None

    def add_reader(self, fd: Any, callback: Any, *arguments: Any) -> None:  # type: ignore[override]
        """The first listening socket is that of the clients, the second one the operators'."""
        super().add_reader(fd, callback, *arguments)
        if isinstance(fd, socket.socket) and fd.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            self._listening.append(fd)
            if len(self._listening) == 2:
                self._driver = self.create_task(self._drive())

    def connect_accepted_socket(self, factory: Callable[[], Any], sock: Any, **_options: object) -> Awaitable[Any]:  # type: ignore[override]
        """An accepted connection is closed: its client is in this process."""
        sock.close()
        client = ClientTransport(self, factory)
        self._clients.append(client)
        return _given((client, None))

    def create_server(self, factory: Callable[[], Any], *_places: object, **_options: object) -> Awaitable[Any]:  # type: ignore[override]
        """For a tree that has its sockets made by the loop; likewise."""
        self._connects.append(factory)
        if len(self._connects) == 2:
            self._driver = self.create_task(self._drive())
        return _given(_Server())

    def create_connection(self, factory: Callable[[], Any], *_places: object, **_options: object) -> Awaitable[Any]:  # type: ignore[override]
        """All connections are to engines."""
        protocol = factory()
        transport = EngineTransport(self, protocol)
        protocol.connection_made(transport)
        return _given((transport, protocol))

    def call_later(self, delay: float, *arguments: Any, **options: Any) -> Any:  # type: ignore[override]
        """Timers are as slow as all else under callgrind: or health checks would be late."""
        return super().call_later(delay * self._slower, *arguments, **options)

    def wake(self) -> None:
        """There is something to answer."""
        if self._asleep:
            self._asleep = False
            self.call_soon(self._step)

    def ended(self) -> None:
        """A client has sent all that it has."""
        self._asking -= 1
        if not self._asking and self._all_ended is not None:
            self._all_ended.set_result(None)

    def _step(self) -> None:
        """One read of each answer under way."""
        for _ in range(len(self.answers)):
            transport, reads = self.answers.popleft()
            read = next(reads, None)
            if read is not None:
                self.answers.append((transport, reads))
                transport.receive(read)
        self._asleep = not self.answers
        if self.answers:
            self.call_soon(self._step)

    async def _drive(self) -> None:
        await asyncio.sleep(0.5)  # health checks first
        self._slower = SLOWER
        try:
            clients = await self._connected()
            await self._ask(clients, self.plan.warm)
            gc.disable()  # one collection in a window this short would decide the ratio
            self._slower = NEVER
            self.switch.start_counting()
            await self._ask(clients, self.plan.counted)
            self.switch.stop_counting()
        except (Exception, SystemExit) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)

    async def _connected(self) -> list[ClientTransport]:
        if self._connects:
            return [ClientTransport(self, self._connects[0]) for _ in self.plan.counted]
        for _ in self.plan.counted:
            socket.create_connection(self._listening[0].getsockname()).close()
        while len(self._clients) < len(self.plan.counted):
            await asyncio.sleep(0)
        return self._clients

    async def _ask(self, clients: list[ClientTransport], requests: list[list[bytes]]) -> None:
        self._asking = len(clients)
        self._all_ended = self.create_future()
        before = self.answered
        for client, each in zip(clients, requests, strict=True):
            client.ask(each)
        await self._all_ended
        if self.answered - before != sum(map(len, requests)):
            raise SystemExit("an answer is missing")


async def _given(value: object) -> object:
    return value


def _run(coroutine: Any) -> Any:
    with asyncio.Runner(loop_factory=InProcessLoop) as runner:
        return runner.run(coroutine)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    InProcessLoop.plan = Plan(folder)
    InProcessLoop.switch = ctypes.CDLL(str(folder / "switch.so"))
    cast("Any", uvloop).run = _run
    sys.exit(main(["proxy", "--config", str(folder / "warmroute.toml")]))
