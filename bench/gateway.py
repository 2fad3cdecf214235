"""Measures the cost of a gateway: Envoy alone, Envoy with warmroute's endpoint picker, and warmroute's proxy alone.

    .venv-gateway/bin/python -m bench.gateway [--rounds N] [--workloads w5,w5s] [--json FILE]

The environment is made by `scripts/gateway install`. All three get the same load and mock engines, which share one
core; what is measured has the other cores. CPU time is counted for each process and request. Latency is the time of an
answer, minus the time of an answer of the mock engines without a proxy.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from tests.subjects.gateway import Envoy, ext_proc
from tests.subjects.ports import free_port

from bench.bench import Bench, quantiles_ms
from bench.process import Process, cpu
from bench.proxies import SOURCES, Place, write_config
from bench.round import Round
from bench.workloads import Workload, named

Parts = dict[str, int]
"""The pids of processes, by name."""


@dataclass
class Figures:
    """The figures of one arrangement and one workload. Times are milliseconds."""

    cpu_ms: dict[str, float]
    p50_ms: float
    p99_ms: float
    per_s: float
    bad: int


class Arrangement(NamedTuple):
    """The programs between the load and the engines."""

    name: str
    start: Callable[[Bench, Path], tuple[int, Parts, list[Any]]]


def _ours(bench: Bench, folder: Path, command: str, processes: int = 1) -> tuple[Process, int]:
    folder.mkdir(parents=True)
    place = Place(free_port(), free_port(), folder, None)
    config = write_config(place, bench.fleet, False, processes=processes)
    words = [sys.executable, "-m", "warmroute_cli.main", command, "--config", str(config)]
    return Process(words, folder / "log", {"PYTHONPATH": SOURCES}, None), place.port


def proxy_alone(bench: Bench, folder: Path) -> tuple[int, Parts, list[Any]]:
    """`warmroute proxy`."""
    process, port = _ours(bench, folder / "proxy", "proxy")
    return port, {"proxy": process.pid}, [process]


def _envoy(bench: Bench, folder: Path, picker_port: int, change: Callable[[dict[str, Any]], None] | None) -> Envoy:
    urls = [engine.url for engine in bench.fleet.aggregated]
    return Envoy(folder / "envoy", f"grpc://127.0.0.1:{picker_port}", urls, change).listening()


def envoy_alone(bench: Bench, folder: Path) -> tuple[int, Parts, list[Any]]:
    """Envoy, which sends requests to engines in turn."""

    def change(config: dict[str, Any]) -> None:
        manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        del manager["http_filters"][0]

    envoy = _envoy(bench, folder, 1, change)
    return envoy.port, {"envoy": envoy.process.pid}, [envoy]


def picker(*, reads_answers: bool, processes: int = 1) -> Callable[[Bench, Path], tuple[int, Parts, list[Any]]]:
    """Envoy and warmroute's endpoint picker."""

    def change(config: dict[str, Any]) -> None:
        if not reads_answers:
            off = {"response_header_mode": "SKIP", "response_body_mode": "NONE", "response_trailer_mode": "SKIP"}
            ext_proc(config)["processing_mode"] |= off

    def start(bench: Bench, folder: Path) -> tuple[int, Parts, list[Any]]:
        process, port = _ours(bench, folder / "picker", "epp", processes)
        envoy = _envoy(bench, folder, port, change)
        return envoy.port, {"envoy": envoy.process.pid, "picker": process.pid}, [envoy, process]

    return start


ALL: Final = [
    Arrangement("proxy", proxy_alone),
    Arrangement("envoy", envoy_alone),
    Arrangement("envoy + picker", picker(reads_answers=True)),
    Arrangement("envoy + picker, answers unread", picker(reads_answers=False)),
]


_ALIVE: Final = SimpleNamespace(running=lambda: True, last_words=lambda: "see its log")
"""The process of a started arrangement, as far as `Bench.start` reads one."""


def measured(bench: Bench, arrangement: Arrangement, workloads: Sequence[Workload], rounds: int) -> dict[str, Figures]:
    """The figures of an arrangement, by workload."""
    found: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory() as folder:
        port, parts, started = arrangement.start(bench, Path(folder))
        try:
            for workload in workloads:
                found[workload.name] = _figures(bench, port, parts, workload, rounds)
        finally:
            for each in started:
                each.stop()
    return found


def _figures(bench: Bench, port: int, parts: Parts, workload: Workload, rounds: int) -> Figures:
    one = []
    for number in range(1, rounds + 1):
        workload.requests(0, port, number)  # made before the round: the engines cannot answer meanwhile
        bench.start(SimpleNamespace(port=port, process=_ALIVE))  # type: ignore[arg-type]
        bench.follow(workload.plan)
        before = {name: cpu(pid).total_s for name, pid in parts.items()}
        done = Round(bench.loop, port, workload, number, None)
        done.run()
        after = {name: cpu(pid).total_s for name, pid in parts.items()}
        tally, window = done.tally, done.window
        took = quantiles_ms(tally.took_ns)
        each_ms = {name: (after[name] - before[name]) * 1000 / max(1, tally.answers) for name in parts}
        per_s = window.answers / window.wall_s
        one.append(Figures(each_ms, took.get("p50", 0.0), took.get("p99", 0.0), per_s, tally.bad))
    median = statistics.median
    return Figures(
        {name: median([each.cpu_ms[name] for each in one]) for name in parts},
        median([each.p50_ms for each in one]),
        median([each.p99_ms for each in one]),
        median([each.per_s for each in one]),
        sum(each.bad for each in one),
    )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workloads", default="w5,w5s")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    workloads = named(arguments.workloads.split(","))
    bench, rows = Bench(), {}
    try:
        direct = Arrangement("none", lambda bench, _folder: (bench.fleet.aggregated[0].port, {}, []))
        rows["none"] = {each.name: _figures(bench, direct.start(bench, Path())[0], {}, each, 1) for each in workloads}
        for arrangement in ALL:
            rows[arrangement.name] = measured(bench, arrangement, workloads, arguments.rounds)
    finally:
        bench.close()
    for workload in workloads:
        base = rows["none"][workload.name]
        print(f"\n{workload.name}: {workload.title}; without anything p50 {base.p50_ms:.1f} ms")
        print(f"{'':32} {'CPU ms a request':>34} {'added p50':>10} {'added p99':>10} {'a second':>9} {'bad':>4}")
        for name, by_workload in rows.items():
            one = by_workload[workload.name]
            if name != "none":
                used = ", ".join(f"{part} {ms:.2f}" for part, ms in one.cpu_ms.items())
                added = f"{one.p50_ms - base.p50_ms:10.1f} {one.p99_ms - base.p99_ms:10.1f}"
                print(f"{name:32} {used:>34} {added} {one.per_s:9.0f} {one.bad:4}")
    if arguments.json:
        plain = {name: {key: vars(one) for key, one in by.items()} for name, by in rows.items()}
        arguments.json.write_text(json.dumps(plain, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
