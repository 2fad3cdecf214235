"""Publishes KV events over ZeroMQ as SGLang does: a PUB socket per rank, and a ROUTER socket that replays.

A message is three frames: topic, sequence number (8 bytes, big endian, from 0 for each rank of each process), and the
batch as msgpack. Rank r publishes on the endpoint's port + r, and replays on the replay endpoint's port + r. A
subscriber that missed a batch sends ["", first wanted sequence number] to the replay socket, and gets
["", topic, sequence, batch] for each batch from that number on that is still in the buffer, then ["", "", -1, ""].

The publisher binds an endpoint with a wildcard host and connects to any other, unless `bind` says otherwise. With port
0 the system chooses consecutive ports for the ranks; `/server_info` has them.

`max_queue_size` is accepted but has no effect: the publisher has no queue.

Bounds: the newest `buffer_steps` batches are kept for replay; a subscriber with more than `hwm` unsent batches loses
some.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import zmq

from warmroute_lab.engine.events.kv_events import Batch, Event

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
MAX_BUFFER_STEPS = 1_000_000
MAX_HWM = 1_000_000
MAX_PORT = 65_535
BIND_ATTEMPTS = 20
_TCP = re.compile(r"tcp://(?P<host>\[[0-9a-fA-F:.]+\]|[^:\[\]]+):(?P<port>\d{1,5})")
_WILDCARDS = ("*", "0.0.0.0", "[::]")
_encode = msgspec.msgpack.Encoder().encode


class KvEventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value of `--kv-events-config`. Sockets other than TCP, and the format "dynamo", are not modelled."""

    publisher: Literal["zmq", "null"] = "null"
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    topic: str = ""
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    format: Literal["default"] = "default"
    bind: bool | None = None


def read_config(text: str) -> KvEventsConfig | None:
    """The configuration in a JSON text; None if its publisher is "null".

    Raises: ValueError.
    """
    try:
        config = msgspec.json.decode(text, type=KvEventsConfig)
    except msgspec.MsgspecError as error:
        raise ValueError(f"the KV events configuration is not usable: {error}") from None
    for endpoint in (config.endpoint, config.replay_endpoint):
        if endpoint is not None:
            _host_and_port(endpoint)
    if not 1 <= config.buffer_steps <= MAX_BUFFER_STEPS:
        raise ValueError(f"buffer_steps must be between 1 and {MAX_BUFFER_STEPS}, got {config.buffer_steps}")
    if not 1 <= config.hwm <= MAX_HWM:  # to ZeroMQ, 0 means no limit
        raise ValueError(f"hwm must be between 1 and {MAX_HWM}, got {config.hwm}")
    return None if config.publisher == "null" else config


class Publisher:
    """All ranks of one engine: their sockets, sequence numbers and replay buffers."""

    def __init__(self, config: KvEventsConfig, ranks: int) -> None:
        """Raises: OSError, if a port is not available."""
        self._config = config
        self._topic = config.topic.encode()
        self._context = zmq.Context()
        self._next = [0] * ranks
        self._recent: list[deque[tuple[int, bytes]]] = [deque(maxlen=config.buffer_steps) for _ in range(ranks)]
        try:
            self._pubs, self.port = self._sockets(zmq.PUB, config.endpoint, ranks, config.hwm)
            self._routers: list[zmq.Socket[bytes]] = []
            self.replay_port: int | None = None
            if config.replay_endpoint is not None:
                # A ROUTER drops messages above its high-water mark. It learns what was read only after each half of
                # the mark. So a whole replay, with its end message, must fit into half of the mark.
                hwm = 2 * (config.buffer_steps + 2)
                self._routers, self.replay_port = self._sockets(zmq.ROUTER, config.replay_endpoint, ranks, hwm)
        except OSError:
            self._context.destroy(linger=0)
            raise

    def serve_replays(self) -> None:
        loop = asyncio.get_running_loop()
        for rank, router in enumerate(self._routers):
            loop.add_reader(_option(router, zmq.FD), self._replay, rank)
            loop.call_soon(self._replay, rank)  # for earlier requests: the descriptor signals only later ones

    def publish(self, rank: int, events: list[Event]) -> None:
        """Send `events` as one batch, unless it is empty."""
        if not events:
            return
        number, self._next[rank] = self._next[rank], self._next[rank] + 1
        batch = _encode(Batch(time.time(), events, rank))
        self._recent[rank].append((number, batch))
        self._pubs[rank].send_multipart((self._topic, number.to_bytes(8, "big"), batch))
        if self._routers:
            self._replay(rank)

    def describe(self, block_size: int) -> dict[str, Any]:
        """The member `kv_events` of `/server_info`: where to subscribe."""
        host, _ = _host_and_port(self._config.endpoint)
        facts = {
            "publisher": self._config.publisher,
            "endpoint_host": host,
            "endpoint_port_base": self.port,
            "topic": self._config.topic,
            "block_size": block_size,
            "dp_size": len(self._pubs),
        }
        return facts if self.replay_port is None else {**facts, "replay_endpoint_port_base": self.replay_port}

    def close(self) -> None:
        for router in self._routers:
            asyncio.get_running_loop().remove_reader(_option(router, zmq.FD))
        self._context.destroy(linger=0)

    def _replay(self, rank: int) -> None:
        router = self._routers[rank]
        while _option(router, zmq.EVENTS) & zmq.POLLIN:
            frames = router.recv_multipart()
            if len(frames) != 3:
                continue  # SGLang does not answer such requests either
            client, _, wanted = frames
            first = int.from_bytes(wanted, "big")
            for number, batch in self._recent[rank]:
                if number >= first:
                    router.send_multipart((client, b"", self._topic, number.to_bytes(8, "big"), batch))
            router.send_multipart((client, b"", b"", END_OF_REPLAY, b""))

    def _sockets(self, kind: int, endpoint: str, ranks: int, hwm: int) -> tuple[list["zmq.Socket[bytes]"], int]:
        """One socket per rank on consecutive ports, and the first port."""
        host, port = _host_and_port(endpoint)
        bind = self._config.bind if kind == zmq.PUB else True
        if bind is None:
            bind = host in _WILDCARDS
        if port + ranks - 1 > MAX_PORT or not (bind or port):
            raise OSError(f"KV events of {ranks} ranks need as many ports from that of {endpoint} on")
        for attempt in range(BIND_ATTEMPTS):
            sockets: list[zmq.Socket[bytes]] = [self._context.socket(kind) for _ in range(ranks)]
            for socket in sockets:
                socket.setsockopt(zmq.SNDHWM, hwm)
                socket.setsockopt(zmq.IPV6, host.startswith("["))
            try:
                return sockets, _attach(sockets, host, port, bind=bind)
            except zmq.ZMQError as error:
                for socket in sockets:
                    socket.close(linger=0)
                if port or attempt + 1 == BIND_ATTEMPTS:
                    reason = zmq.strerror(error.errno or 0)
                    raise OSError(f"KV events cannot be published on {endpoint}: {reason}") from None
        raise AssertionError  # the loop returns or raises


def _attach(sockets: Sequence["zmq.Socket[bytes]"], host: str, port: int, *, bind: bool) -> int:
    for rank, socket in enumerate(sockets):
        if not bind:
            socket.connect(f"tcp://{host}:{port + rank}")
        elif port:
            socket.bind(f"tcp://{host}:{port + rank}")
        else:
            socket.bind(f"tcp://{host}:*")
            port = int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
    return port


def _option(socket: "zmq.Socket[bytes]", name: int) -> int:
    return int(socket.getsockopt(name))


def _host_and_port(endpoint: str) -> tuple[str, int]:
    match = _TCP.fullmatch(endpoint)
    if match is None or int(match["port"]) > MAX_PORT:
        raise ValueError(f"an endpoint must be tcp://host:port with a port up to {MAX_PORT}, got {endpoint!r}")
    return match["host"], int(match["port"])
