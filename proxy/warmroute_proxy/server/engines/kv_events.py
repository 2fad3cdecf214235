"""Subscribes to the KV events of engines, from which the prefix index learns what was evicted.

An engine publishes over ZeroMQ: on a PUB socket for each DP rank, and perhaps on a ROUTER socket that replays batches.
`/server_info` gives the addresses, under `kv_events`. A message has three frames: topic, number (8 bytes, big endian,
from 0), batch. A replay is requested by `["", first number]`; its answers are `["", topic, number, batch]`, and the
last answer has the number -1. `kv_feed` applies the batches.

Everything runs in the event loop, in small portions. One portion has at most `MAX_BATCHES_AT_ONCE` batches, and ends
after `MAX_BYTES_AT_ONCE`; then other callbacks run. `kv_feed` divides a long batch. If more events of an engine wait,
the next portion begins after a pause, which is `REST` times as long as the portion took. So the events of one rank take
at most a fifth of the loop's time. All ranks of an engine, which may be 64, share one queue in the loop's turns
(`base.turns`), and so take no more time than one tenant. They also share `BYTES_A_SECOND`. If an engine sends more, its
events come late; other engines' do not. At 20,000 tokens a second, pages of 64 tokens cost 0.1 % of a core, and pages
of one token 4 %.

Limits: ZeroMQ keeps `RECEIVE_QUEUE` batches for each socket, and `REPLAY_QUEUE` of a replay. Further batches wait at
the engine, which drops some if too many wait; `kv_feed` finds that as a gap. A frame of a message has at most
`MAX_MESSAGE_BYTES`. A replay is given up after `REPLAY_TIMEOUT_S`. At most `MAX_SOCKETS` sockets are open, two for each
worker.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import zmq

from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.base.turns import Turns
from warmroute_proxy.server.engines.kv_feed import MAX_BATCH_BYTES, KvFeed
from warmroute_proxy.server.http.body_memory import BodyReservation

log = logging.getLogger(__name__)

MAX_BATCHES_AT_ONCE: Final = 32
MAX_BYTES_AT_ONCE: Final = 65_536
REPLAY_TIMEOUT_S: Final = 2.0
RECEIVE_QUEUE: Final = 8
REPLAY_QUEUE: Final = 1_000
"""As many answers of a replay as an engine's socket keeps: it drops further ones, and the end of the replay with them
(`sglang/srt/disaggregation/kv_events.py`, a ROUTER with ZeroMQ's default)."""

BYTES_A_SECOND: Final = 16 * 2**20
"""How much is read from an engine in a second: 100,000 blocks, each in an event of its own."""

BURST_S: Final = 0.25
"""How much is read at once, in seconds of `BYTES_A_SECOND`: a batch of the largest size."""

MAX_MESSAGE_BYTES: Final = MAX_BATCH_BYTES
REST: Final = 4.0
REST_OF_REPLAY: Final = 1.0
HEARTBEAT_MS: Final = 5_000
MAX_SOCKETS: Final = 8_192

NUMBER_BYTES: Final = 8
_END_OF_REPLAY: Final = (-1).to_bytes(NUMBER_BYTES, "big", signed=True)
_WILDCARDS: Final = frozenset({"*", "0.0.0.0", "[::]", "::", ""})


@dataclass(frozen=True, slots=True)
class KvSource:
    """Where an engine publishes its KV events. Rank r uses `port` + r and `replay_port` + r."""

    host: str
    port: int
    replay_port: int | None
    topic: str
    block_size: int


def kv_source(info: dict[str, Any], engine_host: str) -> KvSource | None:
    """The source of KV events in `/server_info`; None if the engine publishes no events, or not over TCP."""
    report = info.get("kv_events")
    if not isinstance(report, dict):
        return None
    host, topic = report.get("endpoint_host"), report.get("topic")
    port, replay_port = _port(report.get("endpoint_port_base")), _port(report.get("replay_endpoint_port_base"))
    block_size = report.get("block_size")
    if not isinstance(host, str) or port is None or type(block_size) is not int or block_size < 1:
        return None
    host = engine_host if host in _WILDCARDS else host
    return KvSource(host, port, replay_port, topic if isinstance(topic, str) else "", block_size)


class KvEvents:
    """The subscriptions of a proxy, at most one for each worker."""

    def __init__(
        self,
        metrics: Metrics,
        unix_clock: Callable[[], float],
        apply_peer_updates: Callable[[], None] | None = None,
        memory_of: Callable[[str], BodyReservation | None] | None = None,
    ) -> None:
        """`apply_peer_updates` is called before events are applied. It applies the tags of prompts that other processes
        of this proxy sent, since the events may name these tags. `memory_of`: makes the reservation for the batches of
        an engine that wait.
        """
        self.apply_peer_updates = apply_peer_updates or _nothing
        self._memory_of = memory_of
        self._allowed_s: dict[str, float] = {}  # by engine: when its bytes read so far are within `BYTES_A_SECOND`
        self._metrics = metrics
        self.unix_clock = unix_clock
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None  # made for the first engine that publishes
        self._subscriptions: dict[str, _Subscription] = {}
        self._unusable: dict[str, KvSource] = {}  # sources whose address is not valid
        self.turns: Turns | None = None
        """The turns in which events are read. None: events are read at once."""

    def follow(self, worker: Worker, source: KvSource | None, router: Router) -> None:
        """Subscribe to a worker unless this is done already. Unsubscribe if `source` is None."""
        known = self._subscriptions.get(worker.id)
        if known is not None and (known.dp_rank, known.source) == (worker.dp_rank, source):
            return
        if source is not None and self._unusable.get(worker.id) == source:
            return
        self.leave(worker.id)
        if source is None:
            return
        if self._context is None:
            self._context = zmq.Context()
            self._context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        feed = KvFeed(
            worker,
            router,
            self._metrics,
            block_size=source.block_size,
            can_replay=source.replay_port is not None,
            memory=None if self._memory_of is None else self._memory_of(f"@{worker.engine}"),
        )
        try:
            made = _Subscription(self, self._context, feed, worker, source)
        except (zmq.ZMQError, ValueError) as error:
            self._unusable[worker.id] = source
            log.warning("KV events of worker %s cannot be followed at %r: %s", worker.id, source.host, error)
        else:
            self._subscriptions[worker.id] = made

    def rest_s(self, line: str, size_bytes: int) -> float:
        """Count bytes that were read from an engine. Returns for how long no more of its bytes may be read."""
        now_s = time.monotonic()
        allowed_s = self._allowed_s[line] = max(self._allowed_s.get(line, 0.0), now_s) + size_bytes / BYTES_A_SECOND
        return max(0.0, allowed_s - now_s - BURST_S)

    def engine_restarted(self, workers: Iterable[Worker]) -> None:
        """Begin the feeds of these workers anew, because their engine has restarted."""
        for worker in workers:
            if worker.id in self._subscriptions:
                self._subscriptions[worker.id].feed.engine_restarted()

    def leave(self, worker_id: str) -> None:
        self._unusable.pop(worker_id, None)
        known = self._subscriptions.pop(worker_id, None)
        if known is not None:
            known.close()
            self._allowed_s.pop(known.line, None)

    def feed(self, worker_id: str) -> KvFeed | None:
        """The feed of a worker; None if this proxy is not subscribed to it."""
        known = self._subscriptions.get(worker_id)
        return known.feed if known is not None else None

    def feeds(self) -> dict[str, KvFeed]:
        return {worker_id: known.feed for worker_id, known in self._subscriptions.items()}

    def close(self) -> None:
        for worker_id in list(self._subscriptions):
            self.leave(worker_id)
        if self._context is not None:
            self._context.destroy(linger=0)


def _nothing() -> None:
    pass


class _Subscription:
    """The sockets of one worker's feed."""

    def __init__(
        self,
        owner: KvEvents,
        context: "zmq.Context[zmq.Socket[bytes]]",
        feed: KvFeed,
        worker: Worker,
        source: KvSource,
    ) -> None:
        self.feed = feed
        self._owner = owner
        self.line = f"@{worker.engine}"
        self.dp_rank = dp_rank = worker.dp_rank
        self.source = source
        self._loop = asyncio.get_running_loop()
        self._timeout: asyncio.TimerHandle | None = None
        self._closed = False
        self._rest: asyncio.TimerHandle | None = None  # runs between two portions
        self._rest_of_replay: asyncio.TimerHandle | None = None
        self._awaits_turn: set[Callable[[], None]] = set()
        self._sub = _connected(context, zmq.SUB, source.host, source.port + dp_rank)
        self._sub.setsockopt(zmq.SUBSCRIBE, source.topic.encode())
        self._context = context
        self._dealer: zmq.Socket[bytes] | None = None
        self._awaits_end = False  # of a replay
        self._listen(self._sub, self._read_live)
        if source.replay_port is not None:
            self._connect_dealer(source.replay_port + dp_rank)

    def _listen(self, socket: "zmq.Socket[bytes]", read: Callable[[], None]) -> None:
        self._loop.add_reader(_number(socket, zmq.FD), read)
        self._loop.call_soon(read)  # the descriptor signals only messages that arrive from now on

    def _connect_dealer(self, port: int) -> None:
        """Connect to the engine's replay socket. The answers to an earlier connection's request do not arrive."""
        if self._dealer is not None:
            self._loop.remove_reader(_number(self._dealer, zmq.FD))
            self._dealer.close(linger=0)
        self._awaits_end = False
        self._dealer = _connected(self._context, zmq.DEALER, self.source.host, port)
        self._listen(self._dealer, self._read_replay)

    def close(self) -> None:
        self._closed = True
        self._loop.call_soon(self.feed.close)  # not now: a step of the feed may be running
        if self._timeout is not None:
            self._timeout.cancel()
        for rest in (self._rest, self._rest_of_replay):
            if rest is not None:
                rest.cancel()
        for socket in (self._sub, self._dealer):
            if socket is not None:
                self._loop.remove_reader(_number(socket, zmq.FD))
                socket.close(linger=0)

    def _in_turn(self, step: Callable[[], None]) -> None:
        """Run a step when it is the engine's turn, unless the step is already waiting."""
        if self._owner.turns is None:
            step()
        elif step not in self._awaits_turn:
            self._awaits_turn.add(step)
            self._owner.turns.take(self.line, partial(self._turn_comes, step))

    def _turn_comes(self, step: Callable[[], None]) -> None:
        self._awaits_turn.discard(step)
        if not self._closed:
            step()

    def _read_live(self) -> None:
        if self._rest is None:
            self._in_turn(self._take_live)

    def _read_replay(self) -> None:
        if self._rest_of_replay is None:
            self._in_turn(self._take_replay)

    def _take_live(self) -> None:
        if self._rest is not None:
            return
        began_s = time.perf_counter()
        self._owner.apply_peer_updates()
        if self.feed.is_behind:
            self.feed.go_on()
        found, more, rest_s = self._received(self._sub)
        for frames in found:
            if len(frames) != 3:
                continue
            _topic, number, batch = frames
            if len(number) == NUMBER_BYTES:
                first_missing = self.feed.live(int.from_bytes(number, "big"), batch, self._owner.unix_clock())
                if first_missing is not None:
                    self._request_replay(first_missing)
        if (more or rest_s or self.feed.is_behind) and not self._closed and self._rest is None:
            rest_s = max(rest_s, REST * (time.perf_counter() - began_s))
            self._rest = self._loop.call_later(rest_s, self._rested)

    def _rested(self) -> None:
        self._rest = None
        self._read_live()

    def _request_replay(self, first: int) -> None:
        assert self._dealer is not None
        assert self.source.replay_port is not None
        if self._timeout is not None:
            self._timeout.cancel()  # the timeout of an earlier replay that the feed has given up
        if self._awaits_end:  # that replay's end must not end this one
            self._connect_dealer(self.source.replay_port + self.dp_rank)
        self._timeout = self._loop.call_later(REPLAY_TIMEOUT_S, self._replay_over)
        try:
            self._dealer.send_multipart([b"", first.to_bytes(NUMBER_BYTES, "big")], zmq.NOBLOCK)
        except zmq.Again:
            return  # the engine is not connected, so the timeout will end the replay
        self._awaits_end = True
        self._loop.call_soon(self._read_replay)  # sending may have consumed the descriptor's signal

    def _take_replay(self) -> None:
        if self._rest_of_replay is not None:
            return
        assert self._dealer is not None
        began_s = time.perf_counter()
        found, more, rest_s = self._received(self._dealer)
        for frames in found:
            if len(frames) != 4:
                continue
            _empty, _topic, number, batch = frames
            if number == _END_OF_REPLAY:
                self._awaits_end = False
                self._replay_over()
            elif len(number) == NUMBER_BYTES:
                self.feed.replayed(int.from_bytes(number, "big"), batch, self._owner.unix_clock())
        if (more or rest_s) and not self._closed:
            rest_s = max(rest_s, REST_OF_REPLAY * (time.perf_counter() - began_s))
            self._rest_of_replay = self._loop.call_later(rest_s, self._replay_rested)
        if self.feed.is_behind and not self._closed and self._rest is None:
            self._rest = self._loop.call_later(REST * (time.perf_counter() - began_s), self._rested)

    def _replay_rested(self) -> None:
        self._rest_of_replay = None
        self._read_replay()

    def _replay_over(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
        if self.feed.replaying:
            self.feed.replay_ended(self._owner.unix_clock())

    def _received(self, socket: "zmq.Socket[bytes]") -> tuple[list[list[bytes]], bool, float]:
        """Some of the messages that have arrived, whether more may wait, and for how long to read no more. If as many
        have arrived as ZeroMQ keeps, more may wait at the engine.
        """
        found: list[list[bytes]] = []
        size = 0
        while not self._closed and _number(socket, zmq.EVENTS) & zmq.POLLIN:
            if len(found) == MAX_BATCHES_AT_ONCE or size > MAX_BYTES_AT_ONCE:
                return found, True, self._owner.rest_s(self.line, size)
            found.append(socket.recv_multipart(zmq.NOBLOCK))
            size += sum(map(len, found[-1]))
        return found, len(found) >= RECEIVE_QUEUE, self._owner.rest_s(self.line, size)


def _connected(context: "zmq.Context[zmq.Socket[bytes]]", kind: int, host: str, port: int) -> "zmq.Socket[bytes]":
    """A socket that connects to an address, and reconnects for as long as it is open."""
    socket = context.socket(kind)
    for option, value in (
        (zmq.RCVHWM, REPLAY_QUEUE if kind == zmq.DEALER else RECEIVE_QUEUE),
        (zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES),
        (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
        (zmq.LINGER, 0),
        (zmq.IPV6, int(":" in host)),
    ):
        socket.setsockopt(option, value)
    socket.connect(f"tcp://[{host}]:{port}" if ":" in host and not host.startswith("[") else f"tcp://{host}:{port}")
    return socket


def _number(socket: "zmq.Socket[bytes]", option: int) -> int:
    return int(socket.getsockopt(option))


def _port(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 65_536 else None
