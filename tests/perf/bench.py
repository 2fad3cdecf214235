"""One measurement: a workload against a proxy that runs, and what its processes used meanwhile."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from tests.perf.engines import Engine, Plan
from tests.perf.load import Client, Tally
from tests.perf.loop import Loop
from tests.perf.process import Cpu, cpu, memory_kb
from tests.perf.proxies import Fleet, Running
from tests.perf.workloads import Workload

WARM_UP: Final = 0.25  # of the time of a workload, before it counts
LIMIT_S: Final = 60.0  # for what has begun to end
_READY_EVERY_S: Final = 0.2
_WARM: Final = Workload("warm", "one chat", "us a request", 1, seconds=0.01)


class NotReady(Exception):
    """A proxy that does not answer; the message says why, as far as it said so."""


@dataclass
class Sample:
    """What one round of one workload gave."""

    workload: str
    proxy: str
    figure: float  # in the workload's unit
    user_share: float  # of the processor's time
    per_s: float  # requests or chunks
    busy: float  # share of a core that the proxy used
    load_busy: float  # and that the load and the mock engines used
    bad: int
    reasons: dict[str, int]
    answers: int
    chunks: int
    upstream_chats: int  # that the mock engines saw; of a pair, each leg
    took_ms: dict[str, float] = field(default_factory=dict)  # p50 and p99 of answers
    delay_ms: dict[str, float] = field(default_factory=dict)  # and of chunks, from the engine's write to here
    memory_kb: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def quantiles_ms(times_ns: list[int]) -> dict[str, float]:
    """p50 and p99."""
    if not times_ns:
        return {}
    ordered = sorted(times_ns)
    return {f"p{q}": ordered[min(len(ordered) - 1, len(ordered) * q // 100)] / 1e6 for q in (50, 99)}


class Bench:
    """The mock engines, the load, and the loop that runs both."""

    def __init__(self) -> None:
        self.loop = Loop()
        engines = [Engine(self.loop) for _ in range(4)]
        self.fleet = Fleet((engines[0], engines[1]), engines[2], engines[3])

    def start(self, running: Running) -> None:
        """Wait until a started proxy answers a chat; the mock engines serve it meanwhile."""
        self._follow(Plan())
        answered = False
        while not answered:
            if not running.process.running():
                raise NotReady(f"ended: {running.process.last_words()}")
            if time.monotonic() > running.give_up_s:
                raise NotReady(f"does not answer: {running.process.last_words()}")
            self.loop.run(lambda: False, _READY_EVERY_S)
            tally = self._load(running.port, _WARM)[0]
            answered = tally.answers > 0 and not tally.bad

    def close(self) -> None:
        """Close the mock engines."""
        self.loop.close()

    def measure(self, running: Running, workload: Workload) -> Sample:
        """Run a workload once."""
        if workload.fresh:  # what a first request imports and allocates is not a stream's
            self._load(running.port, replace(_WARM, connections=8, seconds=0.3))
        self._follow(workload.plan)
        tally, window = self._load(running.port, workload, running.process.pid)
        return self._sample(workload, running.proxy.name, tally, window)

    def direct(self, workload: Workload) -> Sample:
        """Run it without a proxy: what the load and the mock engines can do, and how long an answer takes them."""
        self._follow(workload.plan)
        tally, window = self._load(self.fleet.aggregated[0].port, workload)
        return self._sample(workload, "none", tally, window)

    def _follow(self, plan: Plan) -> None:
        for engine in self.fleet.engines:
            engine.follow(plan)
        self.fleet.prefill.follow(replace(plan, chunks=1, interval_ms=0))  # answers once, early

    def _sample(self, workload: Workload, proxy: str, tally: Tally, window: "_Window") -> Sample:
        used, done = window.used, window.chunks if workload.streams else window.answers
        each_us = used.total_s * 1e6 / max(1, done)
        took_ms = quantiles_ms(tally.took_ns[window.answers_before :])
        figure = {
            "us a request": each_us,
            "us a chunk": each_us,
            "ms a request": each_us / 1000,
            "KB a stream": (window.open_kb - window.idle_kb) / workload.connections,
            "ms added": took_ms.get("p50", 0.0),  # the caller takes off what an answer takes without a proxy
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
            delay_ms=quantiles_ms(tally.delays_ns),
            memory_kb=window.open_kb,
        )

    def _load(self, port: int, workload: Workload, pid: int | None = None) -> "tuple[Tally, _Window]":
        """Open the connections of a workload and run until they have ended."""
        tally = Tally(chunks_each=workload.plan.chunks if workload.streams else None, stamped=workload.stamped)
        clients: list[Client] = []
        ended = 0

        def one_ended() -> None:
            nonlocal ended
            ended += 1

        def connect(number: int) -> Callable[[], None]:
            def open_one() -> None:
                try:
                    clients.append(Client(self.loop, port, workload.requests(number, port), tally, one_ended))
                except OSError as error:
                    tally.failed(type(error).__name__)
                    one_ended()

            return open_one

        window = _Window(tally, pid)
        if workload.streams:
            window.begin()
            for number in range(workload.connections):
                self.loop.after(workload.ramp_s * number / workload.connections, connect(number))
            lasts_s = workload.plan.chunks * workload.plan.interval_ms / 1000
            if workload.fresh:
                self.loop.after((workload.ramp_s + lasts_s) / 2, window.see_memory)
        else:
            for number in range(workload.connections):
                connect(number)()
            self.loop.run(lambda: ended == workload.connections, workload.seconds * WARM_UP)
            window.begin()
            self.loop.run(lambda: ended == workload.connections, workload.seconds)
            window.end()
            for client in clients:
                client.stopping = True
        if not self.loop.run(lambda: ended == workload.connections, LIMIT_S):
            for client in clients:
                if client.open:
                    client.close()
                    tally.failed("still open")
        if workload.streams:
            window.end()
        return tally, window


class _Window:
    """The time that counts: what was done before it, and what the proxy and the load used in it."""

    def __init__(self, tally: Tally, pid: int | None) -> None:
        self._tally = tally
        self._pid = pid
        self.open_kb = self.idle_kb = 0

    def begin(self) -> None:
        self.answers_before = self._tally.answers
        self._chunks_before = self._tally.chunks
        if self._pid is not None:
            self.idle_kb = self.open_kb = memory_kb(self._pid)
        self._at_s, self._load_at_s = time.monotonic(), time.process_time()
        self._at = self._cpu()

    def see_memory(self) -> None:
        if self._pid is not None:
            self.open_kb = memory_kb(self._pid)

    def end(self) -> None:
        self.used = self._cpu() - self._at
        self.answers = self._tally.answers - self.answers_before
        self.chunks = self._tally.chunks - self._chunks_before
        self.wall_s, self.load_s = time.monotonic() - self._at_s, time.process_time() - self._load_at_s

    def _cpu(self) -> Cpu:
        return Cpu(0.0, 0.0) if self._pid is None else cpu(self._pid)
