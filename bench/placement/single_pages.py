"""The pages of single runs: every policy at one seed, the simulator's model, split fleets, and full engines."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.placement.drawings import against_load, frontier, pd_loads
from bench.placement.figures import Figures, Row, find, speed_words
from bench.placement.goals import goals
from bench.placement.parts import PARTS, PRODUCTION, QUEUE, SPEED, WAITING, Part
from bench.placement.tables import table
from bench.placement.templates import write_page

FOLDER: Final = Path("docs/benchmarks/placement")
BUILDERS: Final = Path("docs/contribute/placement")
_PUBLIC: Final = ("conversation-8", "conversation-4", "synthetic-8", "claude-code")
_MADE_UP: Final = ("toolagent", "bursty", "inference-day", "waves", "short")
STEADY: Final = 2.0
"""If a fleet has this many times the TTFT of another at the same load, a better time per token does not make up for it.
"""


def write_single(figures: Figures) -> None:
    """Write the pages and their plots from what was measured."""
    parts = {part.name: part for part in PARTS}
    rows = [line for name in (*_PUBLIC, *_MADE_UP) for line in _part(figures, parts[name])]
    write_page(BUILDERS / "policies.md", rows=rows, against_load=_against_load(parts, figures))
    write_page(FOLDER / "model.md", reproduction=_reproduction(figures), goals=_goals(figures), speed=_speed(figures))
    pd = parts["pd"]
    write_page(FOLDER / "pd.md", rows=_pd(figures, pd), splits=_splits(figures, pd), plots=pd_loads(figures))
    write_page(FOLDER / "waiting.md", rows=_waiting(figures))


def _reproduction(figures: Figures) -> list[str]:
    from tests.simulation.test_reference_rows import ROWS

    where = {
        ("conversation", 8): "conversation-8",
        ("conversation", 4): "conversation-4-below",
        ("synthetic", 8): "synthetic-8",
    }
    rows = []
    for (trace, workers, load), published in ROWS.items():
        part = "conversation-4" if (trace, workers, load) == ("conversation", 4, 4) else where[trace, workers]
        if part not in figures["rows"]:
            continue
        for policy, (hit, p90_s) in published.items():
            ours = find(figures, part, policy, load)
            rows.append(
                (
                    f"{trace}, N={workers}, {load}x", policy, f"{hit:.3f}", f"{ours['hit']:.3f}",
                    f"{ours['hit'] - hit:+.3f}", f"{p90_s:.2f}", f"{ours['ttft_p90_s']:.2f}",
                    f"{ours['ttft_p90_s'] / p90_s - 1:+.1%}",
                )
            )  # fmt: skip
    heads = (
        "row", "policy", "hit, published", "hit, here", "difference",
        "TTFT p90 s, published", "TTFT p90 s, here", "difference",
    )  # fmt: skip
    return table(heads, rows)


def _goals(figures: Figures) -> list[str]:
    rows = [
        (f"{each.title}, {each.speed_up:g}x", each.what, each.goal, each.figure, "yes" if each.reached else "**no**")
        for each in goals(figures)
    ]
    return table(("row", "figure", "goal", "warmroute", "reached"), rows)


def _part(figures: Figures, part: Part) -> list[str]:
    bound = figures["bounds"][part.name]
    best = f"A single cache that never evicts, shared by all workers, would have a hit ratio of {bound:.4f}.\n"
    lines = [f"## {part.title}\n", best, _command(part)]
    at = {load: [row for row in figures["rows"][part.name] if row["speed_up"] == load] for load in part.loads}
    for load, rows in at.items():
        lines += [f'<details markdown="1"><summary>{part.title}, {load:g}x: {len(rows)} policies</summary>\n']
        lines += [*_policies(rows), "</details>\n"]
    return [*lines, *(frontier(part.name, part.title, load, rows) for load, rows in at.items()), ""]


def _policies(rows: Sequence[Row]) -> list[str]:
    ordered = sorted(rows, key=lambda row: (not row["policy"].startswith(PRODUCTION), -row["hit"]))
    return _latencies(ordered, "policy")


def _latencies(rows: Sequence[Row], first: str, *, with_load: bool = False) -> list[str]:
    heads = [first, "load", "hit", "TTFT p50 s", "p90", "p99", "mean", "time per token p90 ms", "imbalance"]
    cells_ = [
        [
            f"**{row['policy']}**" if row["policy"] == PRODUCTION else row["policy"], f"{row['speed_up']:g}x",
            f"{row['hit']:.4f}", f"{row['ttft_p50_s']:.2f}", f"{row['ttft_p90_s']:.2f}", f"{row['ttft_p99_s']:.2f}",
            f"{row['ttft_mean_s']:.2f}", f"{row['tpot_p90_s'] * 1000:.1f}", f"{row['imbalance']:.2f}",
        ]
        for row in rows
    ]  # fmt: skip
    if not with_load:
        del heads[1]
        for each in cells_:
            del each[1]
    return table(heads, cells_)


def _against_load(parts: dict[str, Part], figures: Figures) -> list[str]:
    return [_command(parts["conversation-8-loads"]), *against_load(figures), ""]


def _pd(figures: Figures, part: Part) -> list[str]:
    return [_command(part), *_latencies(figures["rows"][part.name], "GPUs", with_load=True)]


def _splits(figures: Figures, part: Part) -> list[str]:
    rows: list[Row] = figures["rows"][part.name]
    lines = []
    for load in sorted({row["speed_up"] for row in rows}):
        at = [row for row in rows if row["speed_up"] == load]
        together = next(row for row in at if "aggregated" in row["policy"])
        steady = [row for row in at if row is not together and row["ttft_p90_s"] < STEADY * together["ttft_p90_s"]]
        best = min(steady, key=lambda row: row["tpot_p90_s"])
        lines.append(
            f"- {load:g}x, {best['policy']}: time per token p90 {together['tpot_p90_s'] * 1000:.0f} ms aggregated, "
            f"{best['tpot_p90_s'] * 1000:.0f} ms split; TTFT p90 {together['ttft_p90_s']:.2f} s aggregated, "
            f"{best['ttft_p90_s']:.2f} s split."
        )
    return [*lines, ""]


def _waiting(figures: Figures) -> list[str]:
    lines = []
    rows: list[Row] = []
    for part in WAITING:
        for row in figures["rows"].get(part.name, ()):
            waits = "in the proxy" if row["policy"] == QUEUE else "in engines"
            rows.append(row | {"policy": f"{part.title}, {row['speed_up']:g}x: {waits}"})
        lines.append(_command(part))
    return [*lines, *_latencies(rows, "traffic and fleet: where requests wait")]


def _speed(figures: Figures) -> list[str]:
    rows = []
    for part in SPEED:
        spent = figures["speed"].get(part.name)
        if spent is not None:
            words = " ".join(speed_words(part, "$TRACES"))
            rows.append(
                (
                    part.title, f"{spent['requests']:,}", f"{spent['wall_s']:.2f}", f"{spent['cpu_s']:.2f}",
                    f"{spent['simulation_cpu_s']:.2f}", f"{spent['rss_mb']:.0f}", f"`warmroute replay {words}`",
                )
            )  # fmt: skip
    heads = (
        "trace", "requests", "wall s", "CPU s of the process", "CPU s of the simulation alone", "peak memory, MB",
        "command",
    )  # fmt: skip
    return table(heads, rows)


def _command(part: Part) -> str:
    return f"    warmroute replay {' '.join(part.words('$TRACES'))}\n"
