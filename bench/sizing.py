"""`python -m bench sizing`: prints a table of what a proxy needs, by number of processes, bodies and streams.

A proxy with 1, 2, ... processes is started in front of mock engines. CPU time is counted for its process tree, so the
load on other cores does not change it. The table also shows what a number of cores can serve if each is 60 % busy.
"""

import argparse
import gc
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench.bench import Bench, Sample
from bench.proxies import COMPILED, SOURCES, Fleet, Place, Proxy, Running, Start, ours, write_config
from bench.workloads import Workload, named
from warmroute_cli.processes import stopping_on_signals

WORKLOADS: Final = ("w1", "w5", "w3new-200k", "w3new-1m", "w2", "w4")
WHAT: Final = {
    "w1": "2 KB in, 1 KB out",
    "w5": "an agent's turn, 30 to 160 KB in",
    "w3new-200k": "a new session, 190 KB in",
    "w3new-1m": "a new session, 1 MB in",
    "w2": "a chunk of 100 streams",
    "w4": "1,000 open streams",
}
BUSY: Final = 0.6
"""The share of a core that sizing may use: a core that is busier makes requests wait."""

_HEAD: Final = (
    "| processes | load | CPU | a second for a busy core | a second on all cores, 60 % busy | memory, MB |",
    "|---:|---|---:|---:|---:|---:|",
)


@dataclass(frozen=True)
class Sized:
    """One row of the table."""

    processes: int
    sample: Sample

    def row(self) -> str:
        """The row in Markdown."""
        sample = self.sample
        memory = f"{sample.memory_kb / 1024:,.0f}"
        what = WHAT[sample.workload]
        if sample.workload == "w4":
            return f"| {self.processes} | {what} | {sample.figure:.1f} KB each | | | {memory} |"
        each_us = sample.figure * (1000 if named([sample.workload])[0].figure == "ms a request" else 1)
        rate = 1e6 / each_us
        rates = f"{rate:,.0f} | {BUSY * self.processes * rate:,.0f}"
        return f"| {self.processes} | {what} | {each_us:,.0f} us | {rates} | {memory} |"


def proxy_of(processes: int, *, compiled: bool) -> Proxy:
    """A proxy with this number of processes."""
    path = str(COMPILED) if compiled else SOURCES

    def start(place: Place, fleet: Fleet) -> Start:
        return ours(write_config(place, fleet, False, processes=processes), path)

    return Proxy(f"warmroute, {processes} processes", "", "ours", start)


def measure(bench: Bench, folder: Path, processes: int, workload: Workload, *, compiled: bool) -> Sized:
    """Run a round of a workload against a newly started proxy."""
    running = Running(proxy_of(processes, compiled=compiled), bench.fleet, folder, None, None)
    try:
        return Sized(processes, bench.measure(running, workload, 0))
    finally:
        running.process.stop()


def main(argv: list[str], where: str) -> int:
    """Measure and print. Returns 1 if an answer was bad. `where`: a line about the machine."""
    parser = argparse.ArgumentParser(prog="python -m bench sizing", description=__doc__)
    parser.add_argument("--processes", default="1,2", help="numbers of processes (%(default)s)")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="of %(default)s")
    parser.add_argument("--compiled", action="store_true", help="build/compiled, where scripts/compile.py puts it")
    asked = parser.parse_args(argv)
    workloads = named(asked.workloads.split(","))
    numbers = [int(each) for each in asked.processes.split(",")]
    gc.disable()  # a garbage collection of the load would look like a delay of the proxy
    rows: list[Sized] = []
    with stopping_on_signals(), tempfile.TemporaryDirectory(prefix="warmroute-sizing-") as folder:
        bench = Bench()
        one = partial(measure, bench, compiled=asked.compiled)
        try:
            for processes in numbers:
                for workload in workloads:
                    rows.append(one(Path(folder) / f"{processes}-{workload.name}", processes, workload))
                    print(rows[-1].row(), file=sys.stderr)
                    gc.collect()
        finally:
            bench.close()
    print("\n".join((where, "", *_HEAD, *(row.row() for row in rows))))
    return int(any(row.sample.bad for row in rows))
