"""The workloads: what is sent, over how many connections, and which figure is measured."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Final, Literal

from bench.bodies import Body, agents, as_messages, growing, renamed, small
from bench.engines import Plan
from bench.load import MESSAGES, request

Figure = Literal["us a request", "ms a request", "us a chunk", "KB a stream", "ms added", "p99 / p50", "ms late at p99"]


@dataclass(frozen=True)
class Workload:
    """Connections that send requests for `seconds`, or for `streams_each` streams each."""

    name: str
    title: str
    figure: Figure
    connections: int
    seconds: float = 0.0
    streams_each: int = 0
    plan: Plan = field(default=Plan())
    ramp_s: float = 0.0  # the time over which connections open evenly
    agent_bytes: int = 0  # above 0: agents' turns of this size instead of chats of 2 KB
    new: bool = False  # whether each agent's turn is in a session that the proxy has not seen
    sessions: bool = False  # whether whole, growing sessions of agents are sent, each body once
    as_messages: bool = False  # whether requests go to Anthropic's Messages route
    pd: bool = False  # whether the proxy has a prefill and a decode engine
    beside: int = 0  # streams that run already when the connections open
    pause_s: float = 0.0  # between an answer and the next request of a connection

    @property
    def streams(self) -> bool:
        """Whether answers are streams."""
        return self.streams_each > 0 or (self.sessions and self.plan.interval_ms > 0)

    @property
    def stamped(self) -> bool:
        """Whether chunks have the time of their sending."""
        return self.streams_each > 0 and self.plan.interval_ms > 0

    @property
    def at_once(self) -> bool:
        """Whether all connections come at once and are measured from their first request on, without a warm-up."""
        return self.figure in {"p99 / p50", "ms late at p99"}

    def stream(self, number: int, port: int) -> Iterator[bytes]:
        """The requests of one of the streams that run `beside` the connections."""
        return itertools.repeat(_sent(port, small(10_000 + number, stream=True)))

    def without_proxy(self, number: int) -> "Workload":
        """The workload as chats, the only API of the mock engines. Bodies of round `number` are made before it."""
        if self.as_messages:
            _growing_messages(number)
            return replace(self, as_messages=False)
        return self

    @property
    def fresh(self) -> bool:
        """Whether each round starts the proxy again, which is needed to measure memory."""
        return self.figure == "KB a stream"

    def requests(self, connection: int, port: int, number: int) -> Iterator[bytes]:
        """The requests that one connection sends in round `number`, one after the other."""
        if self.sessions:
            sent = _message if self.as_messages else _request
            return (sent(port, body) for body in self._sessions(connection, number))
        if self.agent_bytes:
            turns = _turns(self.agent_bytes, number if self.new else None)
            sent = _request if self.new else _sent
            return (sent(port, body) for body in itertools.islice(turns, connection, None, self.connections))
        chats = itertools.repeat(_sent(port, small(connection, self.streams)))
        return itertools.islice(chats, self.streams_each) if self.streams else chats

    def _sessions(self, connection: int, number: int) -> Iterator[Body]:
        sessions = _growing_messages(number) if self.as_messages else _growing(number, self.streams)
        return itertools.chain.from_iterable(sessions[connection :: self.connections])


@lru_cache(maxsize=1)
def _growing(number: int, stream: bool) -> list[list[Body]]:
    return growing(number, stream)


@lru_cache(maxsize=1)
def _growing_messages(number: int) -> list[list[Body]]:
    """The bodies of growing sessions. They are made before the load, since the mock engines cannot answer meanwhile."""
    return [[as_messages(body) for body in bodies] for bodies in _growing(number, False)]


def _turns(size: int, number: int | None) -> Iterator[Body]:
    """Endless turns of agents: a fixed set again and again, or, with the `number` of a round, new sessions."""
    bodies = _turn_by_turn(size)
    if number is None:
        return itertools.cycle(bodies)
    generations = itertools.count(number * 1_000_000)
    return (renamed(body, generation) for generation in generations for body in bodies)


@cache
def _turn_by_turn(size: int) -> list[Body]:
    """The first turns of all sessions, then the second turns, and so on."""
    many = size < 500_000
    sessions = agents(size, sessions=8 if many else 6, turns=4 if many else 2)
    return [body for turn in zip(*sessions, strict=True) for body in turn]


def _request(port: int, body: Body) -> bytes:
    return request(port, body.data, body.session)


def _message(port: int, body: Body) -> bytes:
    return request(port, body.data, body.session, path=MESSAGES)


_sent: Final = cache(_request)


def _agents(name: str, size: int, seconds: float, *, pd: bool = False, new: bool = False) -> Workload:
    what = f"agents' turns of {size // 1000:,} KB, 4 connections" + (", prefill and decode" if pd else "")
    what += ", each body once" if new else ""
    return Workload(name, what, "ms a request", 4, seconds, agent_bytes=size, pd=pd, new=new)


_PACED: Final = Plan(chunks=200, interval_ms=20)
ALL: Final = [
    Workload("w1", "2 KB in, 1 KB out, 32 connections", "us a request", 32, 1.6),
    Workload("w2", "100 streams, a chunk each 20 ms", "us a chunk", 100, streams_each=1, plan=_PACED, ramp_s=1.0),
    Workload(
        "w2sync",
        "100 streams, a chunk each 20 ms, all in the same step",
        "us a chunk",
        100,
        streams_each=1,
        plan=Plan(chunks=200, interval_ms=20, same_step=True),
        ramp_s=0.2,
    ),
    Workload("w2burst", "32 connections, 200 chunks in one write", "us a chunk", 32, streams_each=8),
    _agents("w3-200k", 190_000, 2.0),
    _agents("w3-1m", 1_000_000, 2.5),
    _agents("w3new-200k", 190_000, 2.0, new=True),
    _agents("w3new-1m", 1_000_000, 2.5, new=True),
    _agents("w3pd-200k", 190_000, 2.0, pd=True),
    _agents("w3pd-1m", 1_000_000, 2.5, pd=True),
    Workload(
        "w4",
        "1,000 open streams, a chunk each 100 ms",
        "KB a stream",
        1000,
        streams_each=1,
        plan=Plan(chunks=60, interval_ms=100),
        ramp_s=2.0,
    ),
    Workload("w5", "agents' sessions of 24 turns, 30 to 160 KB, each body once", "ms a request", 8, sessions=True),
    Workload("w5m", "the same as Anthropic's messages", "ms a request", 8, sessions=True, as_messages=True),
    Workload(
        "w5s",
        "the same, streamed in 100 chunks, one each 2 ms",
        "ms a request",
        8,
        plan=Plan(chunks=100, interval_ms=2),
        sessions=True,
    ),
    Workload(
        "turns50",
        "the sessions of w5, one a connection, 50 turns a second",
        "ms added",
        32,
        sessions=True,
        ramp_s=32 / 50,
        pause_s=32 / 50,
    ),
    Workload("w6-256", "256 new connections at once, 2 KB in, 1 KB out", "p99 / p50", 256, 10.0),
    Workload("w6-1024", "1,024 new connections at once, 2 KB in, 1 KB out", "p99 / p50", 1024, 10.0),
    Workload(
        "w6s",
        "50 streams, a chunk each 20 ms, while 256 connections pour in",
        "ms late at p99",
        256,
        6.0,
        plan=_PACED,
        beside=50,
    ),
]


def named(names: list[str]) -> list[Workload]:
    """Workloads by name. `w3` means all workloads with agents' turns of one size, `w6` all with connections at once."""
    known = {workload.name for workload in ALL} | {"w3", "w6"}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no workload {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    groups = tuple({"w3", "w6"} & set(names))
    return [each for each in ALL if each.name in names or each.name.startswith(groups)]
