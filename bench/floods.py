"""`python -m bench floods`: measures a tenant's latency while another tenant floods the proxy.

A flood is compared with chats that the flooding tenant sends over as many connections. Before and after each flood, the
latency without a flood is measured, and then the latency during the chats. So all figures of a row come from the same
minutes.

On a machine that others use, times say little. So the table has a second ratio, of processor time: how much the
proxy's process uses between a request of the other tenant and its answer. While a flood keeps the proxy busy, this time
is the latency that the request would have if the proxy had a core for itself.
"""

import argparse
import contextlib
import gc
import itertools
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from socket import SO_RCVBUF, SOL_SOCKET, socket
from typing import Any, Final, NamedTuple

import httpx
from tests.hostile.conftest import HOSTILE, INNOCENT
from tests.hostile.one_loop import request_of
from tests.hostile.test_every_byte import POST, Flood, get, post, request
from tests.hostile.test_every_byte import floods as every_byte
from tests.hostile.test_without_a_key import NOBODYS
from tests.hostile.worst_bodies import PLACES, SIZE, body, fillings
from tests.subjects.processes import EngineProcess, ProxyProcess, chat

from bench.bench import quantiles_ms
from bench.load import Client, Tally
from bench.loop import Loop, Wire
from warmroute_cli.processes import stop_all, stopping_on_signals

CONNECTIONS: Final = 64
MEASURING: Final = 8
"""Connections of the measured tenant. Each sends a request, waits `PAUSE_S` after the answer, and sends the next."""

PAUSE_S: Final = 0.02
HELD_S: Final = 0.5
"""The time after which a connection whose client reads nothing is replaced."""

SETTLED_S: Final = 1.0
MODEL: Final = "kimi-k2.5"
_SAID: Final = [{"role": "user", "content": "go on"}]
_OFFER: Final = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
_OFFER_KEY: Final = f"sec-websocket-key: {'A' * 22}==\r\n"
_OF_ONE_LOOP: Final = (
    "a chat without a key", "no route", "no messages", "no model", "models", "an unknown receipt", "usage",
    "a session that waits", "ready", "openapi",
)  # fmt: skip
_OF_NOBODY: Final = ("nothing", "half a head", "answers that nobody reads")
_OF_EVERY_BYTE: Final = {
    "unread streams": "streams that nobody reads",
    "unread views": "views that nobody reads",
    "events of no type": "websocket, an event of no type",
    "pings": "websocket, pings",
    "steered and unread": "websocket, steered and unread",
}
"""Name of a flood -> its name in `test_every_byte`."""


def chats(key: str, number: int = 0) -> bytes:
    return request(key, chat(f"chat {number}", max_tokens=1))


def floods(key: str) -> dict[str, Flood]:
    """All kinds of floods, by name."""
    dense = next(place for place in PLACES if place.name == "messages")
    deep = f'{{"model":"{MODEL}","messages":{"[" * 200_000}'.encode()
    asked = {
        **{kind: request_of(kind, key) for kind in _OF_ONE_LOOP},
        "a wrong key": chats("wr-wrong"),
        "large bodies": request(key, chat("x" * 1_000_000, max_tokens=1)),
        "bodies that are too large": _body(key, b"", length=99_999_999),
        "deep bodies": _body(key, deep),
        "dense bodies": _body(key, body(dense, fillings(dense)[0], SIZE)),
        "sums by session": get("/v1/usage?by=session", key),
        "receipts": get("/v1/usage/receipts?limit=200", key),
        "responses": post("/v1/responses", key, model=MODEL, stream=True, input="go on", max_output_tokens=16),
        "messages": post("/v1/messages", key, model=MODEL, stream=True, messages=_SAID, max_tokens=16),
        "contents": post(f"/v1beta/models/{MODEL}:streamGenerateContent", key, contents=[{"parts": [{"text": "a"}]}]),
        "prompts in a list": post("/v1/completions", key, model=MODEL, prompt=["go on"] * 32, max_tokens=1),
        "counted tokens": post("/v1/messages/count_tokens", key, model=MODEL, messages=_SAID),
        "metrics without a key": get("/metrics"),
        "the page": get("/admin/", key),
    }
    unread = every_byte(key)
    return (
        {name: Flood(sent, reads=True) for name, sent in asked.items()}
        | {name: Flood(NOBODYS[name]) for name in _OF_NOBODY}
        | {name: unread[there] for name, there in _OF_EVERY_BYTE.items()}
    )


def _body(key: str, sent: bytes, length: int | None = None) -> bytes:
    """A chat with these bytes as its body. `length`: the length that its head states, if it is not the true one."""
    size = len(sent) if length is None else length
    return f"{POST}authorization: Bearer {key}\r\ncontent-length: {size}\r\n\r\n".encode() + sent


AT_ADMIN: Final = frozenset({"metrics without a key", "the page"})
CHATS: Final = "chats"


class Measuring(Client):
    """A connection of the measured tenant. `used_ns`: the proxy's processor time from each request to its answer."""

    used_ns: list[int]
    clock: int

    def send(self, data: bytes) -> None:
        self._at_ns = time.clock_gettime_ns(self.clock)
        super().send(data)

    def on_message_complete(self) -> None:
        self.used_ns.append(time.clock_gettime_ns(self.clock) - self._at_ns)
        super().on_message_complete()


class Holding(Wire):
    """A connection of a flood. Its client sends and reads nothing, or (over a WebSocket) reads and sends again."""

    def __init__(self, loop: Loop, port: int, flood: Flood, key: str) -> None:
        sock = socket()
        if not flood.reads:
            sock.setsockopt(SOL_SOCKET, SO_RCVBUF, 4096)
        super().__init__(loop, sock)
        sock.connect(("127.0.0.1", port))
        self.answers = 0
        self._flood = flood
        self.begin()
        if flood.by_websocket:
            self.send(get("/v1/responses", key, _OFFER + _OFFER_KEY))
        else:
            self._hold()

    def _hold(self) -> None:
        sock = self._sock
        self.send(self._flood.sent)
        if self.open and not self._flood.reads:
            self.open = False
            self.loop.forget(sock)

    def received(self, data: bytes) -> None:
        self.answers += 1
        self._hold()

    def end(self) -> None:
        self.close()
        self._sock.close()


class Flooding:
    """The connections of one flood, in a separate process."""

    def __init__(self, port: int, name: str, key: str, connections: int) -> None:
        self._loop, self._port, self._key = Loop(), port, key
        self._flood = floods(key)[name] if name != CHATS else Flood(b"", reads=True)
        self._numbers = itertools.count()
        self.tally = Tally()
        self.held: list[Holding] = []
        for _ in range(connections):
            self._open()

    def _open(self) -> None:
        try:
            if self._flood.reads and not self._flood.by_websocket:
                Client(self._loop, self._port, self._requests(), self.tally, self._again).begin()
            else:
                self.held.append(Holding(self._loop, self._port, self._flood, self._key))
                if not self._flood.reads:
                    self._loop.after(HELD_S, self._renew)
        except OSError:
            self._again()

    def _requests(self) -> Iterator[bytes]:
        if self._flood.sent:
            return itertools.repeat(self._flood.sent)
        return (chats(self._key, number) for number in self._numbers)

    def _again(self) -> None:
        self._loop.after(0.001, self._open)

    def _renew(self) -> None:
        self.held.pop(0).end()
        self._open()

    def run(self, stops: Event) -> int:
        """Flood until `stops` is set. Returns the number of answers."""
        self._loop.run(stops.is_set, 3600.0)
        return self.tally.answers + sum(each.answers for each in self.held)


def _flood(port: int, name: str, key: str, connections: int, stops: Event, answers: Any) -> None:
    gc.disable()
    answers.put(Flooding(port, name, key, connections).run(stops))


class Seen(NamedTuple):
    """The measured tenant's latency in one phase, and the number of answers to the flood."""

    p99_ms: float
    used_p99_ms: float
    bad: int
    answers: int = 0


class Scene:
    """A proxy with an engine, the measured tenant, and one flood after the other."""

    def __init__(self, proxy: ProxyProcess, connections: int, seconds: float) -> None:
        assert proxy.child is not None
        self._proxy, self._connections, self._seconds = proxy, connections, seconds
        self._clock = ~proxy.child.pid << 3 | 2  # the proxy's processor time, as `clock_getcpuclockid` encodes it
        self._chats = itertools.count()

    def alone(self) -> Seen:
        """The measured tenant's latency now."""
        loop, tally, used_ns = Loop(), Tally(), list[int]()
        key, port = self._proxy.keys[INNOCENT], _port(self._proxy.url)

        def begin() -> None:
            sent = (chats(key, number) for number in self._chats)
            client = Measuring(loop, port, sent, tally, lambda: loop.after(PAUSE_S, begin), PAUSE_S)
            client.used_ns, client.clock = used_ns, self._clock
            client.begin()

        for _ in range(MEASURING):
            begin()
        loop.run(lambda: False, self._seconds)
        loop.close()
        return Seen(_p99(tally.took_ns), _p99(used_ns), tally.bad)

    def beside(self, name: str) -> Seen:
        """The measured tenant's latency during a flood."""
        context = multiprocessing.get_context("fork")
        stops, answers = context.Event(), context.SimpleQueue()
        port = _port(str(self._proxy.line["admin_url"]) if name in AT_ADMIN else self._proxy.url)
        given = port, name, self._proxy.keys[HOSTILE], self._connections, stops, answers
        process = context.Process(target=_flood, args=given)
        process.start()
        try:
            time.sleep(SETTLED_S)
            seen = self.alone()
        finally:
            stops.set()
        found = seen._replace(answers=answers.get())
        process.join()
        time.sleep(SETTLED_S)
        return found


def _p99(times_ns: list[int]) -> float:
    return quantiles_ms(times_ns).get("p99", float("nan"))


def _port(url: str) -> int:
    return httpx.URL(url).port or 80


def table(scene: Scene, names: list[str]) -> Iterator[str]:
    """The rows of the table, one for each flood."""
    yield "| flood | before, p99 ms | during | after | beside chats | ratio | of processor time | flood's answers |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    before = scene.alone()
    for name in names:
        during, compared, after = scene.beside(name), scene.beside(CHATS), scene.alone()
        times = " | ".join(f"{seen.p99_ms:.0f}" for seen in (before, during, after, compared))
        ratios = f"{during.p99_ms / compared.p99_ms:.2f} | {during.used_p99_ms / compared.used_p99_ms:.2f}"
        bad = f" ({during.bad} bad)" if during.bad else ""
        yield f"| {name}{bad} | {times} | {ratios} | {during.answers:,} |"
        before = after


def main(given: list[str]) -> int:
    """Print the table."""
    every = list(floods(""))
    parser = argparse.ArgumentParser(
        prog="python -m bench floods", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of each flood (default: %(default)s)")
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="of each flood (default: %(default)s)")
    parser.add_argument("--floods", default=",".join(every), help="names, with commas (default: %(default)s)")
    asked = parser.parse_args(given)
    names = asked.floods.split(",")
    if unknown := [name for name in names if name not in every]:
        parser.error(f"no flood {', '.join(unknown)}; there are {', '.join(every)}")
    with contextlib.ExitStack() as stack:
        stack.enter_context(stopping_on_signals())
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="warmroute-floods-"))
        engine = EngineProcess(Path(name), "e0", "aggregated", speed=200.0)
        stack.callback(stop_all, [engine.child], 5.0)
        proxy = ProxyProcess(Path(name) / "p", [engine.listening().toml("east")], fresh=True)
        stack.callback(proxy.stop)
        scene = Scene(proxy.start(), asked.connections, asked.seconds)
        for line in table(scene, names):
            print(line, flush=True)
    return 0
