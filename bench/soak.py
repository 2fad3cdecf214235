"""`python -m bench soak`: sends steady traffic of all sorts, and checks whether memory or open files grow with it.

A leak is counted in bytes a request. The smallest thing that can be kept of each request, one entry of a dict, has
about 100 bytes, and the limit is less than half of that. When the warm-up ends, memory that grows for other reasons has
settled: bounded maps are small (`small_limits.py`) and full, and the allocator has its arenas. From then on, resident
memory is read once a second, and judged by its trend without steps (`growth.py`).

Other programs may run beside the soak. They make requests slow, so the lengths of the run and of its warm-up are
numbers of requests, not seconds. They may also raise what the proxy holds at once, which is a step. If the rate of
requests rises for minutes, what is held at once rises, too: 27 bytes a request were seen, which is below the limit.
"""

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.machine import seconds

from bench.bench import Bench, NotReady
from bench.bodies import small
from bench.engines import Plan
from bench.growth import Growth, Point, growth
from bench.load import Client, Tally, request
from bench.process import Cpu, cpu, open_files, resident_kb
from bench.proxies import OURS, SOURCES, Fleet, Place, Running, Start, write_config
from warmroute_cli.processes import stopping_on_signals

MAX_BYTES_A_REQUEST: Final = 40.0
MAX_MORE_FILES: Final = 10  # growth of open files by their trend, and from before the first to after the last request
REQUESTS_A_MINUTE: Final = 20_000  # the rate of a machine with two cores and nothing else to do
MAX_WARM_UP: Final = 40_000  # requests, but at most a third of all: caches fill, and the heap finds its size
MAX_STRETCH: Final = 10  # a run that takes this many times the requested time fails: the machine is too slow
SETTLE_S: Final = 20.0  # for files to close after the last request; idle connections to engines close after 3 s

_PLAN: Final = Plan(chunks=20, interval_ms=10)
_A_CONNECTION: Final = 25  # requests of a connection, before it is replaced
_PAUSE_S: Final = 0.03
_KEYED_REPLAY_S: Final = 2.0  # much longer than `_PAUSE_S`
_LEAVES_WITHIN_S: Final = 0.25
_LIMITS: Final = """
[limits]
keyed_replay_s = {keyed_replay_s:.1f}
keyed_outlive_s = 1
keyed_total_bytes = 1048576
keyed_answer_bytes = 65536
prompt_parts_bytes = 1048576
kept_prompt_bytes = 1048576
"""


@dataclass(frozen=True)
class Sort:
    """One sort of request: how many connections send it, and how its answers must end."""

    name: str
    connections: int
    status: int  # the status that all answers must have
    stream: bool = False
    leaves: bool = False  # whether the client leaves before the answer ends
    spoil: Callable[[bytes], bytes] = lambda body: body
    api_key: str | None = None
    keyed: bool = False  # with idempotency keys: each second request repeats the one before


SORTS: Final = [
    Sort("whole", 6, 200),
    Sort("stream", 6, 200, stream=True),
    Sort("keyed", 2, 200, keyed=True),
    Sort("leaves", 4, 200, stream=True, leaves=True),
    Sort("leaves a key", 1, 200, stream=True, leaves=True, keyed=True),
    Sort("not JSON", 1, 400, spoil=lambda body: body[:-1]),
    Sort("wrong key", 1, 401, api_key="sk-other"),
    Sort("wrong model", 1, 404, spoil=lambda body: body.replace(b"bench-model", b"other-model")),
    Sort("refused", 1, 400, spoil=lambda body: body[:-1] + b', "user": "refused"}'),
]


def _small_limits(place: Place, fleet: Fleet) -> Start:
    config = write_config(place, fleet, False, _LIMITS.format(keyed_replay_s=seconds(_KEYED_REPLAY_S)))
    script = str(Path(__file__).with_name("small_limits.py"))
    return Start([sys.executable, script, "proxy", "--config", str(config)], {"PYTHONPATH": SOURCES})


class _Leaver(Client):
    """A client that leaves before its answer ends. Its answers never count as bad."""

    def leave(self) -> None:
        if self.open:
            self.close()
            self._ended()

    def _fail(self, reason: str) -> None:
        del reason
        self.leave()


class Traffic:
    """All sorts of requests at once. A connection that has ended is replaced."""

    def __init__(self, bench: Bench, port: int, seed: int) -> None:
        self.tallies = {
            sort.name: Tally(_PLAN.chunks if sort.stream else None, _PLAN.interval_ms > 0) for sort in SORTS
        }
        self.begun = dict.fromkeys(self.tallies, 0)
        self._bench = bench
        self._port = port
        self._draw = random.Random(seed)
        self._numbers = itertools.count()
        self._bodies = {stream: small(0, stream).data for stream in (False, True)}
        self._open = 0
        self._stopping = False

    @property
    def requests(self) -> int:
        """The number of requests sent so far."""
        return sum(self.begun.values())

    def begin(self) -> None:
        """Open all connections."""
        for sort in SORTS:
            for _ in range(sort.connections):
                self._connect(sort)

    def stop(self) -> bool:
        """Let running requests end. False if one of them does not end."""
        self._stopping = True
        return self._bench.loop.run(lambda: self._open == 0, seconds(30.0))

    def _connect(self, sort: Sort) -> None:
        if self._stopping:
            return
        self._open += 1
        of_class = _Leaver if sort.leaves else Client
        many = 1 if sort.leaves else _A_CONNECTION
        loop, tally = self._bench.loop, self.tallies[sort.name]
        client = of_class(loop, self._port, self._requests(sort, many), tally, lambda: self._ended(sort), _PAUSE_S)
        client.begin()
        if isinstance(client, _Leaver):
            loop.after(self._draw.random() * _LEAVES_WITHIN_S, client.leave)

    def _ended(self, sort: Sort) -> None:
        self._open -= 1
        self._bench.loop.after(_PAUSE_S, lambda: self._connect(sort))

    def _requests(self, sort: Sort, many: int) -> Iterator[bytes]:
        """Requests with new sessions and prompts. If the sort is `keyed`, each second one repeats the one before."""
        for turn in range(many):
            if self._stopping:
                return
            if not (sort.keyed and turn % 2):
                number = next(self._numbers)
            body = sort.spoil(self._bodies[sort.stream].replace(b"assistant 0000", b"assistant %08d" % number))
            more = f"Idempotency-Key: key-{number}\r\n" if sort.keyed else ""
            self.begun[sort.name] += 1
            yield request(
                self._port, body, f"soak-{number}", **({"api_key": sort.api_key} if sort.api_key else {}), more=more
            )

    def wrong(self) -> dict[str, int]:
        """Answers that a sort must not have, by sort and reason."""
        found = {}
        for sort in SORTS:
            allowed = {"connection closed"} if sort.status == 200 else {f"status {sort.status}", "connection closed"}
            for reason, many in self.tallies[sort.name].reasons.items():
                if reason not in allowed:
                    found[f"{sort.name}: {reason}"] = many
        return found


@dataclass(frozen=True)
class Sample:
    """The readings of one second."""

    at_s: float
    requests: int
    resident_kb: int
    files: int


@dataclass(frozen=True)
class Result:
    """What the soak found."""

    memory: Growth  # of resident memory, in bytes
    files: Growth
    requests: int
    seconds: float
    samples: list[Sample]
    begun: dict[str, int]  # requests of each sort
    wrong: dict[str, int]
    used: Cpu
    load_s: float

    @property
    def faults(self) -> list[str]:
        """Why the soak fails; empty if it passes."""
        found = [f"{many} x {what}" for what, many in self.wrong.items()]
        if self.memory.each > MAX_BYTES_A_REQUEST:
            found.append(f"memory grows by {self.memory.each:.0f} bytes a request; at most {MAX_BYTES_A_REQUEST:.0f}")
        if self.files.total > MAX_MORE_FILES:
            found.append(f"{self.files.total:.0f} more open files; at most {MAX_MORE_FILES}")
        return found


def soak(folder: Path, minutes: float, seed: int) -> Result:
    """Run the soak for about this time."""
    bench = Bench()
    running = Running(replace(OURS, start=_small_limits), bench.fleet, folder / "warmroute", None, None)
    try:
        bench.start(running)
        for engine in bench.fleet.engines:
            engine.follow(_PLAN)
        return _watch(bench, running, minutes, seed)
    finally:
        running.process.stop()
        bench.close()


def _watch(bench: Bench, running: Running, minutes: float, seed: int) -> Result:
    wanted, longest_s = minutes * REQUESTS_A_MINUTE, minutes * 60 * MAX_STRETCH
    pid, began_s, load_s = running.process.pid, time.monotonic(), time.process_time()
    traffic = Traffic(bench, running.port, seed)
    samples: list[Sample] = []

    def sample() -> None:
        if running.process.running():
            now = Sample(time.monotonic() - began_s, traffic.requests, resident_kb(pid), open_files(pid))
            samples.append(now)
            bench.loop.after(1.0, sample)

    files_at_rest = open_files(pid)
    traffic.begin()
    bench.loop.after(1.0, sample)
    bench.loop.run(lambda: not running.process.running() or traffic.requests >= wanted, longest_s)
    taken, run_s = list(samples), time.monotonic() - began_s
    all_ended = traffic.stop()
    wrong = traffic.wrong()
    if not all_ended:
        wrong["connections that did not end"] = 1
    elif not bench.loop.run(lambda: open_files(pid) <= files_at_rest + MAX_MORE_FILES, seconds(SETTLE_S)):
        wrong[f"files are open, with no traffic, of {open_files(pid)}"] = open_files(pid) - files_at_rest
    if not running.process.running():
        wrong[f"the proxy ended: {running.process.last_words()}"] = 1
    elif traffic.requests < wanted:
        wrong[f"requests too few in {run_s:.0f} s, of {wanted:.0f}"] = int(wanted - traffic.requests)
    counted = [each for each in taken if each.requests >= min(MAX_WARM_UP, wanted / 3)]
    memory = growth([Point(each.requests, each.resident_kb * 1024) for each in counted])
    files = growth([Point(each.requests, each.files) for each in counted])
    used, load_s = cpu(pid), time.process_time() - load_s
    return Result(memory, files, traffic.requests, run_s, taken, traffic.begun, wrong, used, load_s)


def _say(result: Result) -> None:
    step = max(1, len(result.samples) // 12)
    for sample in result.samples[::step]:
        print(f"{sample.at_s:6.0f} s {sample.requests:8,} requests {sample.resident_kb:8,} kB {sample.files:5} files")
    print(
        f"{result.requests:,} requests in {result.seconds:.0f} s; {result.memory.each:+.1f} bytes a request, "
        f"{result.files.total:+.0f} open files; CPU: proxy {result.used.total_s:.1f} s, load {result.load_s:.1f} s"
    )
    memory = result.memory
    steps = ", ".join(f"{step / 1024:+,.0f} kB" for step in memory.steps) or "none"
    print(
        f"judged by the least of three, in bytes a request: {memory.without_steps:+.1f} without the largest steps "
        f"({steps}), {memory.median_slope:+.1f} the median slope, {memory.second_half:+.1f} the second half; "
        f"at most {MAX_BYTES_A_REQUEST:.0f}, over {memory.requests:,.0f} requests"
    )
    for fault in result.faults:
        print(f"FAILED: {fault}")


def main(words: list[str]) -> int:
    """Run the command. Returns 1 if memory or files grow, or if an answer was not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m bench soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=6.0, help=f"of {REQUESTS_A_MINUTE:,} requests each")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(words)
    with stopping_on_signals(), tempfile.TemporaryDirectory(prefix="warmroute-soak-") as folder:
        try:
            result = soak(Path(folder), asked.minutes, asked.seed)
        except NotReady as error:
            print(f"FAILED: warmroute {error}")
            return 1
    _say(result)
    return int(bool(result.faults))
