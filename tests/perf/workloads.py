"""The workloads: what is sent, how much at once, and what counts as the figure."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Final, Literal

from tests.perf.bodies import Body, agents, small
from tests.perf.engines import Plan
from tests.perf.load import request

Figure = Literal["us a request", "ms a request", "us a chunk", "KB a stream", "ms added"]


@dataclass(frozen=True)
class Workload:
    """Connections that ask for some seconds, or for so many streams each."""

    name: str
    title: str
    figure: Figure
    connections: int
    seconds: float = 0.0
    streams_each: int = 0
    plan: Plan = field(default=Plan())
    ramp_s: float = 0.0  # connections open evenly in this time
    agent_bytes: int = 0  # agents' turns of this size instead of chats of 2 KB
    pd: bool = False  # in front of a prefill and a decode engine

    @property
    def streams(self) -> bool:
        """Whether answers are streams."""
        return self.streams_each > 0

    @property
    def stamped(self) -> bool:
        """Whether chunks say when they were sent."""
        return self.plan.interval_ms > 0

    @property
    def fresh(self) -> bool:
        """Whether each round starts the proxy again: memory is what this one measures."""
        return self.figure == "KB a stream"

    def requests(self, connection: int, port: int) -> Iterator[bytes]:
        """What one connection sends, one after the other."""
        if self.agent_bytes:
            bodies = _turn_by_turn(self.agent_bytes)
            ordered: Iterator[Body] = itertools.islice(itertools.cycle(bodies), connection, None, self.connections)
        else:
            ordered = itertools.repeat(small(connection, self.streams))
        if self.streams:
            ordered = itertools.islice(ordered, self.streams_each)
        return (_sent(port, body) for body in ordered)


@cache
def _turn_by_turn(size: int) -> list[Body]:
    """The first turns of all sessions, then the second ones."""
    many = size < 500_000
    sessions = agents(size, sessions=8 if many else 6, turns=4 if many else 2)
    return [body for turn in zip(*sessions, strict=True) for body in turn]


@cache
def _sent(port: int, body: Body) -> bytes:
    return request(port, body.data, body.session)


def _agents(name: str, size: int, seconds: float, pd: bool) -> Workload:
    what = f"agents' turns of {size // 1000:,} KB, 4 connections" + (", prefill and decode" if pd else "")
    return Workload(name, what, "ms a request", 4, seconds, agent_bytes=size, pd=pd)


_PACED: Final = Plan(chunks=200, interval_ms=20)
ALL: Final = [
    Workload("latency", "added latency of a chat of 2 KB, 1 connection", "ms added", 1, 1.5),
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
    _agents("w3-200k", 190_000, 2.0, pd=False),
    _agents("w3-1m", 1_000_000, 2.5, pd=False),
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
]


def named(names: list[str]) -> list[Workload]:
    """Workloads by name; `w3` is all of agents' turns."""
    known = {workload.name for workload in ALL} | {"w3"}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no workload {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    return [each for each in ALL if each.name in names or ("w3" in names and each.name.startswith("w3"))]
