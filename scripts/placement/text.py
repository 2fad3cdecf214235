"""The text of docs/benchmarks/placement.md, around the tables."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from scripts.placement import prose
from scripts.placement.drawings import against_load, frontier, pd_loads
from scripts.placement.figures import Figures, Row, find, speed_words
from scripts.placement.parts import PARTS, PRODUCTION, QUEUE, SPEED, WAITING, Part
from scripts.placement.rule import HIT_SLACK, Cell, Verdict, cells, reaching, verdicts

PAGE: Final = Path("docs/benchmarks/placement.md")
_PUBLIC: Final = ("conversation-8", "conversation-4", "synthetic-8", "claude-code")
_MADE_UP: Final = ("toolagent", "bursty", "inference-day", "waves", "short")

REGION_ROWS: Final = {
    "LMetric": [f"lmetric inside, header from {share} of sessions" for share in ("0%", "34%", "100%")],
    "warmroute": [
        "no affinity: any region, warmroute inside",
        "header from 34% of sessions",
        "header from 100% of sessions",
    ],
}
STEADY: Final = 2.0
"""Of two fleets at the same load the one with that many times the TTFT is not worth its time per token."""


def write(figures: Figures) -> None:
    """Write the page and its plots from what was measured."""
    parts = {part.name: part for part in PARTS}
    ruled, goals = verdicts(figures), cells(figures)
    lines = [prose.HEAD, "## In short\n", *_in_short(figures, ruled, goals)]
    lines += ["## The model reproduces published rows\n", *_reproduction(figures)]
    lines += ["## Goals\n", *_goals(figures, goals)]
    lines += ["## The rule\n", prose.RULE, *_ruled(ruled), prose.MISSED]
    lines += ["## Every policy, row by row\n"]
    for name in (*_PUBLIC, *_MADE_UP):
        if name in figures["rows"]:
            lines += _part(figures, parts[name])
    lines += ["## Against load\n", *_against_load(figures, parts)]
    if "regions" in figures["rows"]:
        lines += ["## Regions: from 60 % to 80 %\n", prose.REGIONS, *_regions(figures, parts["regions"])]
    if "pd" in figures["rows"]:
        lines += ["## Prefill and decode apart\n", prose.PD, *_pd(figures, parts["pd"])]
    lines += ["## When engines are full\n", prose.WAITING, *_waiting(figures)]
    lines += ["## Speed of the replay\n", *_speed(figures)]
    lines += ["## What this does not show\n", prose.LIMITS]
    PAGE.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _in_short(figures: Figures, ruled: Sequence[Verdict], goals: Sequence[Cell]) -> list[str]:
    holds = [each for each in ruled if each.hit_holds and each.p90_holds]
    reached = [cell for cell in goals if cell.reached]
    lines = [
        f"- The rule below holds on {len(holds)} of {len(ruled)} rows. Of {len(goals)} goals {len(reached)} are met."
    ]
    free = [each for each in ruled if not each.ahead]
    lines.append(f"- On {len(free)} of these rows no baseline is as good in both columns.")
    missed = [each for each in ruled if not (each.hit_holds and each.p90_holds)]
    if missed:
        lines.append("- Missed by the rule:")
        lines += [f"  - {each.title}, {each.speed_up:g}x: {', '.join(_missed(each))}" for each in missed]
    far = [cell for cell in goals if not cell.reached]
    if far:
        lines.append("- Goals that are missed:")
        lines += [f"  - {each.title}, {each.speed_up:g}x: {each.what} {each.figure} ({each.goal})" for each in far]
    if "regions" in figures["rows"]:
        bound = figures["bounds"]["regions"]
        pairs = [
            (f"{inside} inside the regions", [find(figures, "regions", label, 1)["hit"] for label in labels])
            for inside, labels in REGION_ROWS.items()
        ]
        shown = "; ".join(f"{' / '.join(f'{hit:.3f}' for hit in hits)} with {name}" for name, hits in pairs)
        lines.append(
            f"- Regions, hit without a header / from a third of the sessions / from all: {shown} (one cache that never "
            f"forgets: {bound:.3f} over all requests, those of the warm-up too)."
        )
    return [*lines, ""]


def _missed(verdict: Verdict) -> list[str]:
    found = []
    if not verdict.hit_holds:
        found.append(f"hit {verdict.ours['hit']:.4f}, needed {verdict.best['hit'] - HIT_SLACK:.4f}")
    if not verdict.p90_holds:
        found.append(f"p90 {verdict.ours['ttft_p90_s']:.3f} s, allowed {verdict.p90_limit_s:.3f} s")
    return found


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
    heads = ("row", "policy", "hit, published", "here", "off", "p90 s, published", "here", "off")
    return [prose.REPRODUCTION, *_table(heads, rows)]


def _goals(figures: Figures, goals: Iterable[Cell]) -> list[str]:
    rows = [
        (
            f"{each.title}, {each.speed_up:g}x",
            each.what,
            each.goal,
            each.figure,
            "reached" if each.reached else "**missed**",
        )
        for each in goals
    ]
    others = [f"{row}: {', '.join(names)}" for row, names in reaching(figures).items() if names]
    text = f"Baselines that reach a row in both columns: {'; '.join(others) or 'none'}.\n"
    return [*_table(("row", "", "goal", "warmroute", ""), rows), text, prose.GOALS]


def _ruled(ruled: Iterable[Verdict]) -> list[str]:
    rows = [
        (
            f"{each.title}, {each.speed_up:g}x", f"{each.ours['hit']:.4f}",
            f"{each.best['hit']:.4f} ({each.best['policy']})", "holds" if each.hit_holds else "**missed**",
            f"{each.ours['ttft_p90_s']:.3f}", f"{each.yardstick['ttft_p90_s']:.3f} ({each.yardstick['policy']})",
            "holds" if each.p90_holds else "**missed**", ", ".join(each.ahead) or "none",
        )
        for each in ruled
    ]  # fmt: skip
    return _table(("row", "hit", "best baseline", "", "p90 s", "best near it", "", "better in both"), rows)


def _part(figures: Figures, part: Part) -> list[str]:
    bound = figures["bounds"][part.name]
    lines = [f"### {part.title}\n", f"One cache that never forgets: {bound:.4f}.\n", _command(part)]
    all_rows: list[Row] = figures["rows"][part.name]
    for load in part.loads:
        rows = [row for row in all_rows if row["speed_up"] == load]
        lines += [f"<details><summary>{part.title}, {load:g}x: {len(rows)} policies</summary>\n"]
        lines += [*_policies(rows), "</details>\n"]
    for load in part.loads:
        rows = [row for row in all_rows if row["speed_up"] == load]
        lines.append(frontier(part.name, part.title, load, rows))
    return [*lines, ""]


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
    return _table(heads, cells_)


def _against_load(figures: Figures, parts: dict[str, Part]) -> list[str]:
    images = against_load(figures)
    return [_command(parts["conversation-8-loads"]), *images, ""] if images else []


def _regions(figures: Figures, part: Part) -> list[str]:
    return [_command(part), *_latencies(figures["rows"][part.name], "routing")]


def _pd(figures: Figures, part: Part) -> list[str]:
    rows: list[Row] = figures["rows"][part.name]
    lines = [_command(part), *_latencies(rows, "GPUs", with_load=True), prose.SPLITS]
    for load in sorted({row["speed_up"] for row in rows}):
        at = [row for row in rows if row["speed_up"] == load]
        together = next(row for row in at if "aggregated" in row["policy"])
        steady = [row for row in at if row is not together and row["ttft_p90_s"] < STEADY * together["ttft_p90_s"]]
        best = min(steady, key=lambda row: row["tpot_p90_s"])
        lines.append(
            f"- {load:g}x: p90 of the time per token {together['tpot_p90_s'] * 1000:.0f} ms aggregated, "
            f"{best['tpot_p90_s'] * 1000:.0f} ms as {best['policy']}; TTFT p90 {together['ttft_p90_s']:.2f} s and "
            f"{best['ttft_p90_s']:.2f} s."
        )
    lines.append("")
    return [*lines, prose.AGGREGATED, *pd_loads(figures), ""]


def _waiting(figures: Figures) -> list[str]:
    lines = []
    rows: list[Row] = []
    for part in WAITING:
        for row in figures["rows"].get(part.name, ()):
            waits = "in the proxy" if row["policy"] == QUEUE else "in engines"
            rows.append(row | {"policy": f"{part.title}, {row['speed_up']:g}x: {waits}"})
        lines.append(_command(part))
    return [*lines, *_latencies(rows, "who waits, and where")]


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
    heads = ("what", "requests", "wall s", "CPU s", "of it the run", "peak MB", "command")
    return [prose.SPEED, *_table(heads, rows), prose.JUMPED]


def _command(part: Part) -> str:
    return f"    warmroute replay {' '.join(part.words('$TRACES'))}\n"


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return [*lines, ""]
