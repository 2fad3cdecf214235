"""`python -m bench --stores`: measures the workloads w1 and w5 with PostgreSQL and Redis, and without them.

Three proxies take turns in each round: one with defaults, one that has a budget and a limit by the minute in its own
process, and one that keeps ledger rows, budget and limit in PostgreSQL and Redis. A ratio compares the processor time
of all threads of two proxies for a request, in one round. PostgreSQL and Redis run on the cores of the load; their
time is shown separately.
"""

import argparse
import gc
import tempfile
from pathlib import Path
from statistics import median
from typing import Final

from tests.subjects.stores import Postgres, Redis

from bench.bench import Bench, Sample
from bench.process import cpu
from bench.proxies import BUDGET, MINUTE, Fleet, Place, Proxy, Running, Start, ours, write_config
from bench.workloads import named
from warmroute_cli.processes import stopping_on_signals
from warmroute_proxy.server.stores.migrate import migrate

WORKLOADS: Final = ["w1", "w5"]
PLAIN, LIMITED, SHARED = "defaults", "embedded, budget and limit", "PostgreSQL and Redis, budget and limit"


def proxies(dsn: str, redis_url: str) -> list[Proxy]:
    """The three proxies."""
    return [
        Proxy(PLAIN, "", "ours", lambda place, fleet: _start(place, fleet, "")),
        Proxy(LIMITED, "", "ours", lambda place, fleet: _start(place, fleet, BUDGET)),
        Proxy(SHARED, "", "ours", lambda place, fleet: _start(place, fleet, _shared(place, dsn, redis_url))),
    ]


def _start(place: Place, fleet: Fleet, more: str) -> Start:
    return ours(write_config(place, fleet, pd=False, more=more, of_tenant=MINUTE if more else ""))


def _shared(place: Place, dsn: str, redis_url: str) -> str:
    for name, text in (("ledger.dsn", dsn), ("redis.url", redis_url)):
        file = place.folder / name
        file.touch(0o600)
        file.write_text(text)
    return f'[ledger]\ndsn_file = "ledger.dsn"\n[redis]\nurl_file = "redis.url"\n{BUDGET}'


class Rounds:
    """The proxies, started once, and the samples of all rounds."""

    def __init__(self, folder: Path, core: int | None, postgres: Postgres, redis: Redis) -> None:
        self.samples: dict[tuple[str, str], list[Sample]] = {}
        self.servers_us: dict[str, list[float]] = {}
        """Workload -> processor time of PostgreSQL and Redis for a request, in each round."""

        self._servers = [server.process.pid for server in (postgres, redis) if server.process is not None]
        self._bench = Bench()
        dsn = postgres.new_database()
        migrate(dsn)
        self._running = [
            Running(proxy, self._bench.fleet, folder / str(number), None, core)
            for number, proxy in enumerate(proxies(dsn, redis.url))
        ]
        for running in self._running:
            self._bench.start(running)

    def measure(self, rounds: int) -> None:
        """Run each workload in `rounds` rounds. The proxies take turns, in an order that is reversed each round."""
        for workload in named(WORKLOADS):
            for number in range(rounds):
                for running in self._running[:: 1 if number % 2 else -1]:
                    before = sum(cpu(pid).total_s for pid in self._servers)
                    sample = self._bench.measure(running, workload, number)
                    if running.proxy.name == SHARED:
                        used_s = sum(cpu(pid).total_s for pid in self._servers) - before
                        self.servers_us.setdefault(workload.name, []).append(used_s * 1e6 / max(1, sample.answers))
                    self.samples.setdefault((workload.name, running.proxy.name), []).append(sample)
            gc.collect()

    def end(self) -> None:
        """End the proxies."""
        for running in self._running:
            running.process.stop()
        self._bench.close()

    def ratios(self, workload: str, base: str) -> list[float]:
        """For each round: the processor time of the proxy with stores over that of the proxy `base`."""
        both = zip(self.samples[workload, SHARED], self.samples[workload, base], strict=True)
        return [shared.figure / other.figure for shared, other in both]

    @property
    def bad(self) -> int:
        """The number of bad answers."""
        return sum(sample.bad for samples in self.samples.values() for sample in samples)


def report(rounds: Rounds) -> list[str]:
    """The table, in Markdown."""
    ratio = "CPU with PostgreSQL and Redis / CPU of this proxy: median of the rounds (range)"
    said = [f"| workload | proxy | CPU of the proxy | {ratio} |", "|---|---|---:|---:|"]
    for workload in named(WORKLOADS):
        for name in (PLAIN, LIMITED, SHARED):
            figure = median(sample.figure for sample in rounds.samples[workload.name, name])
            cell = ""
            if name != SHARED:
                ratios = rounds.ratios(workload.name, name)
                cell = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            said.append(f"| {workload.name} | {name} | {figure:.2f} {workload.figure} | {cell} |")
        servers = median(rounds.servers_us[workload.name])
        said.append(f"| {workload.name} | CPU of PostgreSQL and Redis themselves | {servers:.0f} us a request | |")
    return said


def main(arguments: list[str], core: int | None) -> int:
    """Measure and print. Returns 1 if an answer was bad."""
    parser = argparse.ArgumentParser(prog="python -m bench --stores", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args(arguments)
    gc.disable()
    postgres, redis = Postgres(syncs=True), Redis()
    with stopping_on_signals(), tempfile.TemporaryDirectory(prefix="warmroute-perf-") as folder:
        try:
            postgres.start()
            redis.start()
            rounds = Rounds(Path(folder), core, postgres, redis)
            try:
                rounds.measure(asked.rounds)
            finally:
                rounds.end()
        finally:
            redis.stop()
            postgres.stop()
    print("\n".join(report(rounds)))
    return int(rounds.bad > 0)
