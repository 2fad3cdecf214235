"""The tables of results: medians of the rounds, ratios to other proxies, and whether the goals are reached."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal

from bench.bench import Sample
from bench.proxies import Kind, Proxy
from bench.workloads import Workload


@dataclass(frozen=True)
class ProcessReport:
    """The medians of one proxy in one workload."""

    proxy: Proxy
    samples: Sequence[Sample]

    @property
    def figure(self) -> float:
        return median(sample.figure for sample in self.samples)

    @property
    def spread(self) -> tuple[float, float]:
        figures = [sample.figure for sample in self.samples]
        return min(figures), max(figures)

    @property
    def bad(self) -> int:
        return sum(sample.bad for sample in self.samples)

    @property
    def longest_of_p50(self) -> float:
        """The longest wait of a round over its p50; the median of all rounds."""
        return median(sample.took_ms.get("longest", 0.0) / sample.took_ms.get("p50", 1.0) for sample in self.samples)

    def middle(self, what: Literal["took_ms", "delay_ms"], quantile: str) -> float:
        """The median of a quantile of `took_ms` or `delay_ms`."""
        of_samples = [sample.took_ms if what == "took_ms" else sample.delay_ms for sample in self.samples]
        return median(quantiles.get(quantile, 0.0) for quantiles in of_samples)


@dataclass(frozen=True)
class Goal:
    """The largest ratio to the cheapest proxy of some kinds, or the largest figure if no kinds are given."""

    workload: str
    against: tuple[Kind, ...]
    goal: float
    must: float


RUST: Final[tuple[Kind, ...]] = ("rust", "rust cache-aware")
GOALS: Final = [
    Goal("w1", RUST, 0.6, 0.75),
    Goal("w1", ("rust cache-aware",), 0.5, 0.5),
    Goal("w2", RUST, 1.0, 1.1),
    Goal("w2sync", RUST, 1.0, 1.1),
    Goal("w2burst", RUST, 0.15, 0.2),
    Goal("w3-200k", ("rust cache-aware",), 0.25, 0.33),
    Goal("w3-1m", ("rust cache-aware",), 0.25, 0.33),
    Goal("w3pd-200k", ("rust pd",), 0.3, 0.35),
    Goal("w3pd-1m", ("rust pd",), 0.3, 0.35),
    Goal("w4", (), 12.0, 20.0),
    Goal("w5", RUST, 0.5, 0.7),
    Goal("w5s", RUST, 1.0, 1.2),
    Goal("w5m", ("python",), 0.1, 0.1),
    Goal("w6s", (), 20.0, 50.0),
]
AS_FAIR: Final = 1.5
"""A proxy is fair if its p99 / p50 and longest / p50 are at most this many times those of the floor (`floor.py`)."""
FLOOR_P99, FLOOR_LONGEST = 2.5, 5.0
"""The largest p99 / p50 and longest / p50 of the floor with which fairness is judged. If they are larger, requests wait
for the machine or the load."""


def cheapest(rows: Iterable[ProcessReport], kinds: tuple[Kind, ...]) -> ProcessReport | None:
    """The row with the least figure among proxies of these kinds. A row with bad answers does not count."""
    found = [row for row in rows if row.proxy.kind in kinds and not row.bad]
    return min(found, key=lambda row: row.figure, default=None)


def _table(head: list[str], lines: list[list[str]]) -> list[str]:
    said = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    return said + [f"| {' | '.join(line)} |" for line in lines]


def _ratio(row: ProcessReport, other: ProcessReport | None) -> str:
    return f"{row.figure / other.figure:.2f}" if other is not None and other.figure else "-"


def workload_table(workload: Workload, rows: Sequence[ProcessReport], direct: Sequence[Sample]) -> list[str]:
    """The table of one workload: a line for each proxy, and which goals are reached."""
    if workload.figure == "p99 / p50":
        return waits_table(workload, rows)
    any_rust = cheapest(rows, ("rust pd",) if workload.pd else RUST)
    aware = cheapest(rows, ("rust pd",) if workload.pd else ("rust cache-aware",))
    digits = 2 if workload.figure.startswith("ms") else 1
    head = ["proxy", workload.figure, "least, most", "user", "core", "load's core", "a second", "p50, p99 ms"]
    head += ["of Rust", "of cache-aware Rust", "bad"]
    lines = []
    for row in rows:
        least, most = row.spread
        times: Literal["took_ms", "delay_ms"] = "delay_ms" if workload.stamped else "took_ms"
        lines.append(
            [
                row.proxy.name,
                f"{row.figure:.{digits}f}",
                f"{least:.{digits}f}, {most:.{digits}f}",
                f"{median(s.user_share for s in row.samples):.0%}",
                f"{median(s.busy for s in row.samples):.0%}",
                f"{median(s.load_busy for s in row.samples):.0%}",
                f"{median(s.per_s for s in row.samples):,.0f}",
                f"{row.middle(times, 'p50'):.2f}, {row.middle(times, 'p99'):.2f}",
                _ratio(row, any_rust),
                _ratio(row, aware),
                _bad(row),
            ]
        )
    said = [f"### {workload.name}: {workload.title}", "", *_table(head, lines), ""]
    if direct:
        said += [_alone(direct), ""]
    return [*said, *_goals(workload, rows), ""]


def waits_table(workload: Workload, rows: Sequence[ProcessReport]) -> list[str]:
    """The table of waits: a line for each proxy, and whether warmroute is as fair as the floor."""
    head = ["proxy", "p99 / p50", "longest / p50", "p50 ms", "p99 ms", "longest ms", "a second", "core", "bad"]
    lines = [
        [
            row.proxy.name,
            f"{row.figure:.2f}",
            f"{row.longest_of_p50:.2f}",
            *[f"{row.middle('took_ms', quantile):.1f}" for quantile in ("p50", "p99", "longest")],
            f"{median(s.per_s for s in row.samples):,.0f}",
            f"{median(s.busy for s in row.samples):.0%}",
            _bad(row),
        ]
        for row in rows
    ]
    said = [f"### {workload.name}: {workload.title}", "", *_table(head, lines), ""]
    floor = next((row for row in rows if row.proxy.kind == "floor"), None)
    if floor is None:
        return [*said, "- no floor to compare with", ""]
    if floor.figure > FLOOR_P99 or floor.longest_of_p50 > FLOOR_LONGEST:
        said.append(f"- **the floor itself is above {FLOOR_P99:g} or {FLOOR_LONGEST:g}**: the machine was not quiet")
    for row in (row for row in rows if row.proxy.kind == "ours"):
        p99, longest = row.figure / floor.figure, row.longest_of_p50 / floor.longest_of_p50
        verdict = "within" if max(p99, longest) <= AS_FAIR else "**not** within"
        said.append(f"- {row.proxy.name}: p99 / p50 is {p99:.2f} x the floor's, and longest / p50 is {longest:.2f} x ")
        said[-1] += f"the floor's: {verdict} the goal of {AS_FAIR:g} x"
    return [*said, ""]


def _alone(direct: Sequence[Sample]) -> str:
    """A line about the limits of load and engines. Near these limits, a proxy's figure includes their delays."""
    per_s, busy = median(s.per_s for s in direct), median(s.load_busy for s in direct)
    p50_ms = median(s.took_ms["p50"] for s in direct)
    return f"Without a proxy: {per_s:,.0f} a second with {busy:.0%} of a core, p50 {p50_ms:.3f} ms."


def _bad(row: ProcessReport) -> str:
    if not row.bad:
        return "0"
    reasons: dict[str, int] = {}
    for sample in row.samples:
        for reason, many in sample.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + many
    return ", ".join(f"{many} {reason}" for reason, many in sorted(reasons.items()))


def _goals(workload: Workload, rows: Sequence[ProcessReport]) -> list[str]:
    ours = next((row for row in rows if row.proxy.kind == "ours"), None)
    if ours is None:
        return []
    said = [] if not ours.bad else [f"- {ours.proxy.name}: {ours.bad} bad answers; there must be none."]
    for goal in (each for each in GOALS if each.workload == workload.name):
        if not goal.against:
            said.append(f"- {ours.figure:.1f} {workload.figure}: {_verdict(ours.figure, goal)}")
            continue
        other = cheapest(rows, goal.against)
        if other is not None and other.figure:
            ratio = ours.figure / other.figure
            said.append(f"- {ratio:.2f} x {other.proxy.name}: {_verdict(ratio, goal)}")
    return said


def _verdict(value: float, goal: Goal) -> str:
    if value <= goal.goal:
        return f"reaches the goal of {goal.goal:g}"
    if value <= goal.must:
        return f"holds {goal.must:g}, not the goal of {goal.goal:g}"
    return f"**misses {goal.must:g}** (goal {goal.goal:g})"
