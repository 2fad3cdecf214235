"""`python -m bench page FILE...`: writes the figures of docs/benchmarks/relay.md from files of `--json`.

Samples of several runs are put together. A ratio compares proxies in one workload, all of which ran in the same run.
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.bench import Sample
from bench.proxies import ALL, ROOT
from bench.table import RUST, ProcessReport, cheapest, waits_table
from bench.workloads import ALL as WORKLOADS
from warmroute_lab.replay.plot import Bar, bars

PAGE: Final = ROOT / "docs" / "benchmarks" / "relay.md"
PLOT: Final = ROOT / "docs" / "benchmarks" / "relay" / "agents.svg"
BEGIN, END = "<!-- figures: python -m bench page -->", "<!-- end of figures -->"
ANSWER, ANSWER_END = "<!-- answer: python -m bench page -->", "<!-- end of answer -->"
PACED, TURN, MEMORY = "turns50", "w5", "w4"
AGENTS: Final = ("w5", "w5s")
AT_ONCE: Final = ("w6-256", "w6-1024")
OTHERS: Final = (
    "w1", "w2", "w2sync", "w2burst", "w3-200k", "w3new-200k", "w3-1m", "w3new-1m", "w4", "w6s",
)  # fmt: skip


class Figures:
    """All samples, by workload."""

    def __init__(self, files: Iterable[Path]) -> None:
        runs: list[dict[str, Any]] = [json.loads(file.read_text()) for file in files]
        self.machine = runs[0]["machine"]
        self.versions = {name: number for run in runs for name, number in run["versions"].items()}
        self._samples = [Sample(**sample) for run in runs for sample in run["samples"]]

    def rows(self, workload: str) -> list[ProcessReport]:
        """The medians of each proxy."""
        return [
            ProcessReport(proxy, samples)
            for proxy in ALL
            if (samples := [s for s in self._samples if (s.workload, s.proxy) == (workload, proxy.name)])
        ]

    def direct(self, workload: str) -> list[Sample]:
        """The samples without a proxy."""
        return [sample for sample in self._samples if (sample.workload, sample.proxy) == (workload, "none")]

    def names(self, workloads: Sequence[str]) -> list[str]:
        """The proxies that ran at least one of these workloads."""
        ran = {row.proxy.name for workload in workloads for row in self.rows(workload)}
        return [proxy.name for proxy in ALL if proxy.name in ran]


def _cell(rows: Sequence[ProcessReport], name: str, digits: int) -> tuple[str, str]:
    """A figure, and its ratio to the cheapest Rust router."""
    row = next((row for row in rows if row.proxy.name == name), None)
    if row is None:
        return "", ""
    rust = cheapest(rows, RUST)
    return f"{row.figure:.{digits}f}", f"{row.figure / rust.figure:.2f}" if rust is not None and rust.figure else "-"


def _agents(figures: Figures) -> list[str]:
    said = ["| proxy | w5, ms | of Rust | w5s, ms | of Rust |", "|---|---:|---:|---:|---:|"]
    for name in figures.names(AGENTS):
        cells = [cell for workload in AGENTS for cell in _cell(figures.rows(workload), name, 2)]
        said.append(f"| {name} | {' | '.join(cells)} |")
    return said


def _others(figures: Figures) -> list[str]:
    ran = [workload for workload in OTHERS if figures.rows(workload)]
    units = {workload.name: workload.figure for workload in WORKLOADS}
    said = [f"| proxy | {' | '.join(f'{each}, {units[each]}' for each in ran)} |", "|---|" + "---:|" * len(ran)]
    for name in figures.names(ran):
        digits = [2 if units[workload].startswith("ms") else 1 for workload in ran]
        cells = [_cell(figures.rows(each), name, digits[at]) for at, each in enumerate(ran)]
        said.append(f"| {name} | {' | '.join(f'{value} ({ratio})' if value else '' for value, ratio in cells)} |")
    return said


def _answer(figures: Figures) -> list[str]:
    """The table of what a user asks first: added latency, turns of agents for each core, memory of a stream."""
    paced = {row.proxy.name: row for row in figures.rows(PACED)}
    turns, memory = ({row.proxy.name: row for row in figures.rows(each)} for each in (TURN, MEMORY))
    direct = figures.direct(PACED)
    said = [
        "| proxy | added at p50, ms | at p99, ms | agents' turns a second and core | memory of an open stream, KB |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in (each for each in paced if each in turns and each in memory and each != "floor"):
        row = paced[name]
        late = [row.middle("took_ms", each) - median(s.took_ms[each] for s in direct) for each in ("p50", "p99")]
        cells = [f"{late[0]:.2f}", f"{late[1]:.2f}", f"{1000 / turns[name].figure:,.0f}", f"{memory[name].figure:.0f}"]
        said.append(f"| {name} | {' | '.join(cells)} |")
    return said


def _plot(figures: Figures) -> str:
    whole, streamed = (
        {row.proxy.name: row.figure for row in figures.rows(workload) if row.proxy.kind != "floor"}
        for workload in AGENTS
    )
    return agents_plot({name: (whole[name], streamed[name]) for name in whole if name in streamed})


def agents_plot(found: Mapping[str, Sequence[float]]) -> str:
    """A plot with bars for each proxy, the cheapest first. `found`: ms of a whole and of a streamed answer."""
    rows = [Bar(name, [round(ms, 2) for ms in both], name.startswith("warmroute")) for name, both in found.items()]
    rows.sort(key=lambda row: row.values[0])
    measures = ("whole answers (w5)", "streamed (w5s)")
    return bars("CPU of an agent's turn", rows, measures, "ms of CPU a request, logarithmic")


def put(text: str, begin: str, lines: Iterable[str], end: str) -> str:
    """The text with `lines` in place of those between two marks."""
    return f"{text.partition(begin)[0]}{begin}\n\n" + "\n".join(lines) + f"\n\n{end}{text.partition(end)[2]}"


def main(arguments: Sequence[str]) -> int:
    """Write the figures into the page."""
    parser = argparse.ArgumentParser(prog="python -m bench page", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    figures = Figures(parser.parse_args(arguments).files)
    machine = figures.machine
    versions = ", ".join(f"{name} {number}" for name, number in figures.versions.items())
    said = [f"{machine['processor']}, {machine['cores']} cores, Linux {machine['kernel']}, Python {machine['python']}."]
    said += [f"Versions: {versions}.", "", "### Agents' turns (w5 and w5s)", "", *_agents(figures), ""]
    said += [f"![CPU of an agent's turn](relay/{PLOT.name})", ""]
    for workload in (workload for workload in WORKLOADS if workload.name in AT_ONCE):
        rows = figures.rows(workload.name)
        said += waits_table(workload, rows) if rows else []
    if any(map(figures.rows, OTHERS)):
        said += _others(figures)
    text = put(PAGE.read_text(), BEGIN, said, END)
    if figures.rows(PACED):
        text = put(text, ANSWER, _answer(figures), ANSWER_END)
    PAGE.write_text(text)
    PLOT.parent.mkdir(exist_ok=True)
    PLOT.write_text(_plot(figures))
    return 0
