"""The plots of single runs: hit ratio against latency, and figures against load."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.placement import rows, rule
from bench.placement.draws import Draw
from bench.placement.figures import Figures, Row, find
from bench.placement.parts import CURVE, PARTS, PRODUCTION
from bench.placement.rows import OURS

from warmroute_lab.replay.plot import COLOURS, OTHERS, Series, svg

FOLDER: Final = Path("docs/benchmarks/placement")
TO_FOLDER: Final = "../../benchmarks/placement/"
"""The way to the plots from docs/contribute/placement, which has the pages of every policy and row."""


class Plot(NamedTuple):
    """A plot, and the name of its file without the ending."""

    name: str
    caption: str
    drawn: str

    def shown(self, folder: str = "") -> str:
        """The Markdown that shows the plot, on a page from which `folder` leads to the plots."""
        return f"![{self.caption}]({folder}{self.name}.svg)"


def frontier(part: str, title: str, speed_up: float, runs: Sequence[Row]) -> str:
    """Plot hit ratio against p90 of TTFT, a point for each policy. Returns the image for the page."""
    ordered = sorted(runs, key=lambda row: (row["policy"] != PRODUCTION, -row["hit"]))
    dots = [_dot(number, row["policy"], row["hit"], row["ttft_p90_s"]) for number, row in enumerate(ordered, 1)]
    caption = f"Frontier: {title}, {speed_up:g}x"
    drawn = svg(caption, dots, "hit ratio", "TTFT p90, s", log_y=True, legend=True, better=True)
    return save(Plot(f"frontier-{part}-{speed_up:g}x", caption, drawn), TO_FOLDER)


def row_frontier(row: rows.Row, draws: Mapping[str, Sequence[Draw]]) -> Plot:
    """Return the plot of the medians of all policies of a row, warmroute's first."""
    reached_by = [rule.reached(policy, draws[policy]) for policy in row.policies]
    dots = [_dot(number, each.policy, each.hit.median, each.p90_s.median) for number, each in enumerate(reached_by, 1)]
    caption = f"Frontier: {row.name}"
    drawn = svg(caption, dots, "hit ratio", "TTFT p90, s", log_y=True, legend=True, better=True)
    name = "".join(each if each.isalnum() else "-" for each in row.name.lower())
    return Plot(f"row-{name}", caption, drawn)


def _dot(number: int, policy: str, hit: float, p90_s: float) -> Series:
    """The point of a policy, with its number. warmroute's policies are coloured, others grey."""
    colour = COLOURS[OURS.index(policy)] if policy in OURS else OTHERS
    return Series(f"{number} {policy}", [(hit, p90_s)], colour, dots=True, mark=str(number))


def against_load(figures: Figures) -> list[str]:
    """Plot hit ratio and TTFT of the conversation trace on 8 workers against load."""
    parts = [part for part in PARTS if part.name in {"conversation-8", "conversation-8-loads"}]
    images = []
    for key, label, log_y in (
        ("hit", "hit ratio", False), ("ttft_p90_s", "TTFT p90, s", True), ("ttft_p99_s", "TTFT p99, s", True),
    ):  # fmt: skip
        lines = []
        for number, policy in enumerate((PRODUCTION, *CURVE)):
            points = [
                (load, find(figures, part.name, policy, load)[key]) for part in parts for load in part.loads
            ]  # fmt: skip
            lines.append(Series(policy, sorted(points), COLOURS[number]))
        caption = f"{label.rsplit(',')[0]} against load, conversation, N=8"
        drawn = svg(caption, lines, "load (arrival times divided by)", label, log_y=log_y, legend=True)
        images.append(save(Plot(f"load-{key.removesuffix('_s').replace('_', '-')}", caption, drawn), TO_FOLDER))
    return images


def pd_loads(figures: Figures) -> list[str]:
    """Plot time per token and TTFT against load, for each division into prefill and decode."""
    runs: list[Row] = figures["rows"]["pd"]
    images = []
    for key, label, factor in (("tpot_p90_s", "time per token p90, ms", 1000), ("ttft_p90_s", "TTFT p90, s", 1)):
        lines = [
            Series(name, [(row["speed_up"], row[key] * factor) for row in runs if row["policy"] == name], COLOURS[at])
            for at, name in enumerate(dict.fromkeys(row["policy"] for row in runs))
        ]
        caption = f"{label.rsplit(',')[0]} against load, 8 GPUs"
        drawn = svg(caption, lines, "load", label, legend=True)
        images.append(save(Plot(f"pd-{key.removesuffix('_s').replace('_', '-')}", caption, drawn)))
    return images


def save(plot: Plot, folder: str = "") -> str:
    """Write a plot. Returns the Markdown for a page from which `folder` leads to the plots."""
    (FOLDER / f"{plot.name}.svg").write_text(plot.drawn + "\n", encoding="utf-8")
    return plot.shown(folder)
