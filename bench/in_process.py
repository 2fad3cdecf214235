"""Runs a whole proxy in one process without sockets, under callgrind: `python in_process.py FOLDER...`.

Each folder holds a workload, for which a process is forked, so that the interpreter starts once.

The proxy is started as its users start it. Its event loop gives it transports that end in this file: transports of
clients, whose requests are in `plan.json`, and transports of engines, which answer with the bytes of `plan.json`. This
file does not depend on the proxy's modules, so `PYTHONPATH` may name any tree to measure. Instructions are counted from
the end of the warm-up to the last answer: `switch.so` turns callgrind's counting on and off.
"""

import asyncio
import base64
import ctypes
import gc
import importlib
import itertools
import json
import os
import socket
import sys
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, cast

import uvloop

from warmroute_cli.main import main

READ_BYTES: Final = 65_536
"""The most bytes of a request that come in one read."""

SLOWER: Final = 50.0
NEVER: Final = 1e6
"""The factor for timers while instructions are counted: none may fire, since their number depends on the machine."""

TICK_S: Final = 1e-5
"""How far the proxy's clock goes each time it is read. The proxy counts seconds: an iteration of its loop takes steps
for 4 ms. With a real clock, callgrind would fill that with a single step, and a slower machine would count more.
"""

_CHAT: Final = b"/chat/completions "
_BEGINS: Final = (b"HTTP/1.1 200", b"HTTP/1.1 101", b"\x81")
_SWITCHED: Final = b"HTTP/1.1 101"
_MESSAGE: Final = (_SWITCHED, b"\x81")
_ID: Final = b"resp_"
_TAIL_BYTES: Final = 8192
"""The last bytes of a write, in which the end of an answer is looked for."""


class Plan:
    """The requests of each connection, those of the warm-up and those that count, and the answers to them."""

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
        """The reads of an answer. The last read has its length and the tokens of the prompt filled in."""
        prompt = request_bytes // self.bytes_per_token
        counts = prompt, prompt + self.answer_tokens, max(0, prompt - self.uncached_tokens)
        yield from self.reads
        yield self.last % (self.bare_bytes + len(b"%d%d%d" % counts), *counts)


class Transport:
    """A connection that accepts all that is written to it."""

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
    """A connection to an engine. Each request is written in one call, and answered in the loop's next iterations."""

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
        """Give the proxy bytes of an answer."""
        if not self.closed:
            self.protocol.data_received(data)


class ClientTransport(Transport):
    """A connection to a client, which reads an answer and then sends its next request."""

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
        """Send the requests, each after the answer to the one before."""
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
        """Whether an answer ends in a WebSocket's messages; also notes the id of the last response in them."""
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
    """uvloop's event loop, in which all connections end in this process."""

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
        self._timers: weakref.WeakSet[asyncio.TimerHandle] = weakref.WeakSet()

    def add_reader(self, fd: Any, callback: Any, *arguments: Any) -> None:  # type: ignore[override]
        """Note the listening sockets: the first is for clients, the second for operators."""
        super().add_reader(fd, callback, *arguments)
        if isinstance(fd, socket.socket) and fd.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            self._listening.append(fd)
            if len(self._listening) == 2:
                self._driver = self.create_task(self._drive())

    def connect_accepted_socket(self, factory: Callable[[], Any], sock: Any, **_options: object) -> Awaitable[Any]:  # type: ignore[override]
        """Close an accepted connection, and put a client of this process in its place."""
        sock.close()
        client = ClientTransport(self, factory)
        self._clients.append(client)
        return _given((client, None))

    def create_server(self, factory: Callable[[], Any], *_places: object, **_options: object) -> Awaitable[Any]:  # type: ignore[override]
        """Note how to make connections of clients, in a tree that lets the loop make listening sockets."""
        self._connects.append(factory)
        if len(self._connects) == 2:
            self._driver = self.create_task(self._drive())
        return _given(_Server())

    def create_connection(self, factory: Callable[[], Any], *_places: object, **_options: object) -> Awaitable[Any]:  # type: ignore[override]
        """Connect to an engine, since all connections of the proxy go to engines."""
        protocol = factory()
        transport = EngineTransport(self, protocol)
        protocol.connection_made(transport)
        return _given((transport, protocol))

    def call_later(self, delay: float, *arguments: Any, **options: Any) -> Any:  # type: ignore[override]
        """Slow timers down as callgrind slows all else, or health checks would count as late."""
        timer = super().call_later(delay * self._slower, *arguments, **options)
        self._timers.add(timer)
        return timer

    def wake(self) -> None:
        """Schedule `_step`, since there is something to answer."""
        if self._asleep:
            self._asleep = False
            self.call_soon(self._step)

    def ended(self) -> None:
        """Note that a client has sent all its requests."""
        self._asking -= 1
        if not self._asking and self._all_ended is not None:
            self._all_ended.set_result(None)

    def _step(self) -> None:
        """Give the proxy one read of each answer that is under way."""
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
        await asyncio.sleep(0.5)  # wait for health checks
        self._slower = SLOWER
        try:
            clients = await self._connected()
            await self._ask(clients, self.plan.warm)
            gc.disable()  # a single collection would change the result of a run this short
            self._slower = NEVER
            for timer in list(self._timers):
                timer.cancel()
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


def _serve(folder: Path) -> int:
    """Start the proxy of a workload. Its event loop ends the process."""
    os.chdir(folder)
    (folder / "pid").write_text(str(os.getpid()))
    InProcessLoop.plan = Plan(folder)
    InProcessLoop.switch = ctypes.CDLL(str(folder / "switch.so"))
    return main(["proxy", "--config", str(folder / "warmroute.toml")])


if __name__ == "__main__":
    time.monotonic = itertools.count(time.monotonic(), TICK_S).__next__
    cast("Any", uvloop).run = _run
    importlib.import_module("warmroute_proxy.server.build")  # before the forks
    for each in sys.argv[1:]:
        if not (child := os.fork()):
            sys.exit(_serve(Path(each)))
        if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            sys.exit(f"{Path(each).name} failed with status {code}")
