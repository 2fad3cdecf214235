"""One measurement: runs a workload against a proxy, and measures what the proxy's processes use meanwhile."""

import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from tests.machine import seconds

from bench.engines import Engine, Plan
from bench.loop import Loop
from bench.proxies import START_TIMEOUT_S, Fleet, Running
from bench.round import Round
from bench.workloads import Workload

_READY_EVERY_S: Final = 0.2
_WARM: Final = Workload("warm", "one chat", "us a request", 1, seconds=0.01)


class NotReady(Exception):
    """A proxy that does not answer. The message has the proxy's last line of output."""


@dataclass
class Sample:
    """The result of one round of one workload."""

    workload: str
    proxy: str
    figure: float  # in the workload's unit
    user_share: float  # user time as a share of the processor time
    per_s: float  # requests or chunks a second
    busy: float  # share of a core that the proxy used
    load_busy: float  # share of a core that the load and the mock engines used
    bad: int
    reasons: dict[str, int]
    answers: int
    chunks: int
    upstream_chats: int  # chats at the mock engines; each leg of a pair counts
    took_ms: dict[str, float] = field(default_factory=dict)  # times of answers: p50, p99 and the longest
    delay_ms: dict[str, float] = field(default_factory=dict)  # times of chunks from the engine's write to the client
    memory_kb: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The sample as an object for JSON."""
        return asdict(self)


def quantiles_ms(times_ns: list[int]) -> dict[str, float]:
    """p50, p99 and the longest of some times."""
    if not times_ns:
        return {}
    ordered = sorted(times_ns)
    quantiles = {f"p{q}": ordered[min(len(ordered) - 1, len(ordered) * q // 100)] / 1e6 for q in (50, 99)}
    return quantiles | {"longest": ordered[-1] / 1e6}


class Bench:
    """The mock engines, the load, and the event loop that runs both."""

    def __init__(self) -> None:
        self.loop = Loop()
        engines = [Engine(self.loop) for _ in range(4)]
        self.fleet = Fleet((engines[0], engines[1]), engines[2], engines[3])

    def start(self, running: Running, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until a started proxy answers a chat, and run the mock engines meanwhile."""
        give_up_s = time.monotonic() + seconds(timeout_s)
        self.follow(Plan())
        answered = False
        while not answered:
            if not running.process.running():
                raise NotReady(f"ended: {running.process.last_words()}")
            if time.monotonic() > give_up_s:
                raise NotReady(f"does not answer: {running.process.last_words()}")
            self.loop.run(lambda: False, _READY_EVERY_S)
            tally = self._load(running.port, _WARM, 0).tally
            answered = tally.answers > 0 and not tally.bad

    def close(self) -> None:
        """Close the mock engines."""
        self.loop.close()

    def measure(self, running: Running, workload: Workload, number: int) -> Sample:
        """Run round `number` of a workload. First wait for the proxy, since engines do not answer between rounds."""
        self.start(running)
        if workload.fresh:  # so that imports and allocations of the first request do not count as a stream's memory
            self._load(running.port, replace(_WARM, connections=8, seconds=0.3), 0)
        self.follow(workload.plan)
        return self._sample(
            workload, running.proxy.name, self._load(running.port, workload, number, running.process.pid)
        )

    def direct(self, workload: Workload, number: int) -> Sample:
        """Run a round without a proxy: the limit of the load and the mock engines, and the time of their answers."""
        self.follow(workload.plan)
        return self._sample(workload, "none", self._load(self.fleet.aggregated[0].port, workload, number))

    def follow(self, plan: Plan) -> None:
        """Make all mock engines answer by a plan."""
        for engine in self.fleet.engines:
            engine.follow(plan)
        self.fleet.prefill.follow(replace(plan, chunks=1, interval_ms=0))  # a prefill engine sends one chunk, at once

    def _sample(self, workload: Workload, proxy: str, measured: Round) -> Sample:
        tally, window = measured.tally, measured.window
        used, done = window.used, window.chunks if workload.figure == "us a chunk" else window.answers
        each_us = used.total_s * 1e6 / max(1, done)
        took_ms = quantiles_ms(tally.took_ns[window.answers_before :])
        delay_ms = quantiles_ms(measured.delays_ns)
        figure = {
            "us a request": each_us,
            "us a chunk": each_us,
            "ms a request": each_us / 1000,
            "KB a stream": (window.open_kb - window.idle_kb) / workload.connections,
            "ms added": took_ms.get("p50", 0.0),  # the caller subtracts the time without a proxy
            "p99 / p50": took_ms.get("p99", 0.0) / took_ms.get("p50", 1.0),
            "ms late at p99": delay_ms.get("p99", 0.0),
        }[workload.figure]
        return Sample(
            workload=workload.name,
            proxy=proxy,
            figure=figure,
            user_share=used.user_s / used.total_s if used.total_s else 0.0,
            per_s=done / window.wall_s,
            busy=used.total_s / window.wall_s,
            load_busy=window.load_s / window.wall_s,
            bad=tally.bad,
            reasons=tally.reasons,
            answers=tally.answers,
            chunks=tally.chunks,
            upstream_chats=sum(engine.chats for engine in self.fleet.engines),
            took_ms=took_ms,
            delay_ms=delay_ms,
            memory_kb=window.open_kb,
        )

    def _load(self, port: int, workload: Workload, number: int, pid: int | None = None) -> Round:
        """Run a round of a workload against a port."""
        done = Round(self.loop, port, workload, number, pid)
        done.run()
        return done
