"""`python -m bench`: runs the workloads against warmroute and the routers that are installed, and prints tables."""

import argparse
import gc
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from bench import budget, floods, instructions, page, peers, rows, sizing, soak, stores, table
from bench.bench import Bench, NotReady, Sample
from bench.proxies import ALL, COMPILED, OURS, OURS_COMPILED, OURS_PD, Proxy, Running
from bench.workloads import ALL as ALL_WORKLOADS
from bench.workloads import Workload, named
from warmroute_cli.processes import stopping_on_signals

_ALSO: Final = (
    "Also `soak`: whether memory grows; `instructions`: by callgrind; `budget`: those against the base; `page`: the"
    " figures of the docs; `floods`: the latency of another tenant; `--stores`: with PostgreSQL and Redis; `rows`: how"
    " fast rows reach the database;"
    " `sizing`: what a proxy of some processes needs."
)
QUIET_LOAD: Final = 0.5
"""The load average above which the report says that the machine is not quiet."""


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog=_ALSO,
    )
    every = ",".join(workload.name for workload in ALL_WORKLOADS)
    parser.add_argument("--workloads", default=every, help=f"of {every}; w3 and w6 are all of theirs")
    parser.add_argument("--peers", default="auto", help="auto (all that are there), none, or names, with commas")
    parser.add_argument("--install", action="store_true", help=f"install peers under {peers.cache_folder()}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples there")
    return parser.parse_args()


def machine() -> dict[str, Any]:
    """Facts about this machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }


OTHERS: Final = frozenset({"compiled", "floor", "nginx"})
"""Proxies that are not packages of others: warmroute as C extensions, a loop that only relays, and nginx."""


def _asked_as(proxy: Proxy) -> str:
    """The name of a proxy in `--peers`."""
    return "compiled" if proxy is OURS_COMPILED else proxy.package or proxy.name


def chosen(asked: str, install: bool) -> tuple[list[Proxy], dict[str, peers.Peer], dict[str, str], dict[str, str]]:
    """The proxies to measure, the packages' environments and versions, and the proxies left out, with reasons."""
    packages = {proxy.package for proxy in ALL if proxy.package}
    wanted = packages | OTHERS if asked == "auto" else set() if asked == "none" else set(asked.split(","))
    unknown = wanted - packages - OTHERS
    if unknown:
        known = ", ".join(sorted(packages | OTHERS))
        raise ValueError(f"no peer {', '.join(sorted(unknown))}; there are {known}")
    found: dict[str, peers.Peer] = {}
    left_out: dict[str, str] = {}
    versions = {"warmroute": version("warmroute")}
    for package in sorted(wanted - {"floor"}):
        try:
            if package == "compiled":
                if not COMPILED.is_dir():
                    left_out[package] = "is not built (scripts/compile.py does it)"
                continue
            if package == "nginx":
                versions[package] = peers.nginx_version()
                continue
            if install:
                print(f"installing {peers.PINNED[package]}", file=sys.stderr)
                peers.install(package)
            found[package] = peers.find(package)
            versions[package] = found[package].version
        except peers.PeerError as error:
            left_out[package] = str(error)
    use = [p for p in ALL if p in (OURS, OURS_PD) or (_asked_as(p) in wanted and _asked_as(p) not in left_out)]
    return use, found, versions, left_out


def divide_cores() -> int | None:
    """Pin this process (the load and the mock engines) to the second core. The first core is for the proxies."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return None
    os.sched_setaffinity(0, {cores[1]})
    return cores[0]


class Run:
    """The running proxies, and the samples of all rounds."""

    def __init__(
        self, folder: Path, core: int | None, environments: dict[str, peers.Peer], left_out: dict[str, str]
    ) -> None:
        self.samples: list[Sample] = []
        self.direct: list[Sample] = []
        self.left_out = left_out
        self._bench = Bench()
        self._folder = folder
        self._environments = environments
        self._running: dict[str, Running] = {}
        self._started = 0
        self._core = core

    def workload(self, workload: Workload, proxies: list[Proxy], rounds: int) -> None:
        """Run all rounds of one workload. The proxies take turns."""
        for number in range(rounds):
            if not (workload.pd or workload.stamped or workload.at_once):
                self.direct.append(self._bench.direct(workload.without_proxy(number), number))
            for proxy in proxies:
                running = self._ready(proxy, workload.fresh)
                if running is not None:
                    sample = self._bench.measure(running, workload, number)
                    if workload.figure == "ms added":
                        sample.figure -= self.direct[-1].took_ms["p50"]
                    self.samples.append(sample)
                    print(
                        f"{workload.name} {number + 1}/{rounds} {proxy.name}: {sample.figure:.2f} {workload.figure}, "
                        f"{sample.per_s:,.0f} a second, {sample.bad} bad {sample.reasons or ''}",
                        file=sys.stderr,
                    )

    def end(self) -> None:
        """End the proxies and the mock engines."""
        for running in self._running.values():
            running.process.stop()
        self._bench.close()

    def _ready(self, proxy: Proxy, fresh: bool) -> Running | None:
        if proxy.name in self.left_out:
            return None
        running = self._running.get(proxy.name)
        if running is not None and not fresh and running.process.running():
            return running
        if running is not None:
            self._running.pop(proxy.name).process.stop()
        self._started += 1
        peer = self._environments.get(proxy.package)
        folder = self._folder / str(self._started)
        running = Running(proxy, self._bench.fleet, folder, peer.environment if peer else None, self._core)
        self._running[proxy.name] = running
        try:
            self._bench.start(running)
        except NotReady as error:
            self._running.pop(proxy.name).process.stop()
            self.left_out[proxy.name] = str(error)
            return None
        return running


def _where(facts: dict[str, Any]) -> str:
    """A line about the machine."""
    where = f"{facts['processor']}, {facts['cores']} cores, Linux {facts['kernel']}, Python {facts['python']}"
    return f"{where}; load average {facts['load_average']:.1f} at the start."


def report(run: Run, workloads: list[Workload], facts: dict[str, Any], versions: dict[str, str]) -> list[str]:
    """The whole report, in Markdown."""
    said = [_where(facts), ""]
    if facts["load_average"] > QUIET_LOAD:
        said += ["**This machine was not quiet**: compare within a table only.", ""]
    said += ["Versions: " + ", ".join(f"{name} {number}" for name, number in versions.items()) + ".", ""]
    said += [f"- {name}: {why}" for name, why in run.left_out.items()]
    for workload in workloads:
        rows = [
            table.ProcessReport(proxy, samples)
            for proxy in ALL
            if (samples := [s for s in run.samples if (s.workload, s.proxy) == (workload.name, proxy.name)])
        ]
        direct = [sample for sample in run.direct if sample.workload == workload.name]
        said += ["", *table.workload_table(workload, rows, direct)]
    return said


COMMANDS: Final[dict[str, Callable[[list[str]], int]]] = {
    "soak": soak.main, "instructions": instructions.main, "budget": budget.main, "page": page.main,
    "floods": floods.main, "rows": rows.main,
}  # fmt: skip


def main() -> int:
    """Measure and print. Returns 1 if an answer of warmroute was bad."""
    if sys.argv[1:] and sys.argv[1] in COMMANDS:
        return COMMANDS[sys.argv[1]](sys.argv[2:])
    if sys.argv[1:2] == ["sizing"]:
        return sizing.main(sys.argv[2:], _where(machine()))
    if sys.argv[1:2] == ["--stores"]:
        return stores.main(sys.argv[2:], divide_cores())
    asked = arguments()
    try:
        workloads = named(asked.workloads.split(","))
        proxies, environments, versions, left_out = chosen(asked.peers, asked.install)
    except ValueError as error:
        print(f"python -m bench: {error}", file=sys.stderr)
        return 2
    facts = machine()
    gc.disable()  # a garbage collection of the load would look like a delay of the proxy
    with stopping_on_signals(), tempfile.TemporaryDirectory(prefix="warmroute-perf-") as folder:
        run = Run(Path(folder), divide_cores(), environments, left_out)
        try:
            for workload in workloads:
                able = [p for p in proxies if p.pd == workload.pd and (p.takes_messages or not workload.as_messages)]
                run.workload(workload, able, asked.rounds)
                gc.collect()
        finally:
            run.end()
    if asked.json:
        samples = [sample.as_dict() for sample in run.samples + run.direct]
        asked.json.write_text(
            json.dumps({"machine": facts, "versions": versions, "left_out": left_out, "samples": samples})
        )
    print("\n".join(report(run, workloads, facts, versions)))
    return int(any(sample.bad for sample in run.samples if sample.proxy.startswith("warmroute")))


if __name__ == "__main__":
    sys.exit(main())
