"""Writes docs/benchmarks/placement.md and the pages beside it from the results of the simulations."""

from pathlib import Path
from typing import Any, Final

from bench.placement.drawings import FOLDER, Plot, row_frontier, save
from bench.placement.draws import Draws, command
from bench.placement.figures import Figures, find
from bench.placement.margins import margins
from bench.placement.rows import OURS, REGIONAL, ROWS, SEEDS, Row
from bench.placement.rule import HIT_SLACK, NEAR, P90_FACTOR, Reached, Verdict, reached, verdicts
from bench.placement.single_pages import BUILDERS, write_single
from bench.placement.tables import row_table, rule_table, table
from bench.placement.templates import filled

PAGE: Final = Path("docs/benchmarks/placement.md")
BESIDE: Final = f"{FOLDER.name}/"
_ROWS_HEAD: Final = """\
Each value is the median of runs at several seeds, with the smallest and the largest value in brackets.
[Placement](../../benchmarks/placement.md) explains the rule. Rows marked *held back* were not used to choose constants.
*Header from 34% of sessions*: 34 % of the sessions send a header that names the session.
"""

_ONCE: Final = """\
The draws of these rows have not been played. These are single runs at seed 1, from before the last change of a rule.
"""
SHARES: Final = ("0%", "34%", "100%")
GOALS: Final = {"warmroute+events": ("agents' rows", 1.0), "warmroute": ("all rows", 0.85)}
"""For each policy: the rows on which the rule should hold, and the share of these rows that is enough."""


def write(draws: Draws, figures: Figures) -> None:
    """Write all pages and plots. The pages name rows without results."""
    found = verdicts(draws)
    for plot in (_margins(found), *_frontiers(draws, found)):
        save(plot)
    PAGE.write_text(main_page(draws, found, figures), encoding="utf-8")
    (BUILDERS / "rows.md").write_text("\n".join(_rows_page(draws)).rstrip() + "\n", encoding="utf-8")
    write_single(figures)


def main_page(draws: Draws, found: dict[str, list[Verdict]], figures: Figures) -> str:
    """The text of docs/benchmarks/placement.md."""
    return filled(
        PAGE.name,
        hit_slack=str(HIT_SLACK),
        p90_factor=str(P90_FACTOR),
        near=str(NEAR),
        played=_played(draws),
        answer=_answer(found),
        header_gain=_header_gain_in_short(draws, figures),
        margins=_margins(found).shown(BESIDE),
        state_of_draws=_state_of_draws(draws),
        groups=_groups(found),
        regions=_regions(draws, figures),
        frontiers=[plot.shown(BESIDE) for plot in _frontiers(draws, found)],
    )


def _groups(found: dict[str, list[Verdict]]) -> list[str]:
    lines = []
    for group in dict.fromkeys(row.group for row in ROWS):
        pairs = [pair for pair in zip(*(found[policy] for policy in OURS), strict=True) if pair[0].row.group == group]
        if pairs:
            lines += [f"### {group}\n", *rule_table(pairs)]
    return lines


def _played(draws: Draws) -> str:
    counts = [_count(row, draws) for row in ROWS]
    whole = sum(count >= len(SEEDS) for count in counts)
    some = sum(0 < count < len(SEEDS) for count in counts)
    if whole == len(ROWS):
        seeds = f"medians of {len(SEEDS)} seeds for each of {len(ROWS)} rows"
        return f"Rows (kinds of traffic) on which [the rule](#the-rule-and-draws) holds, with {seeds}:\n"
    text = (
        f"{len(ROWS)} rows: {whole} have {len(SEEDS)} draws, {some} have fewer, and {len(ROWS) - whole - some} are not"
    )
    return f"{text} played yet ([which](#the-rule-and-draws)). The table has the medians of the played rows:\n"


def _count(row: Row, draws: Draws) -> int:
    played = draws.get(row.name, {})
    return min((len(played.get(policy, ())) for policy in row.policies), default=0)


def _answer(found: dict[str, list[Verdict]]) -> list[str]:
    rows = []
    for policy in OURS:
        for name, chosen in (
            ("agents' rows", [each for each in found[policy] if each.row.is_agents]),
            ("all rows", found[policy]),
            ("rows held back", [each for each in found[policy] if each.row.is_held_back]),
        ):
            whose, share = GOALS[policy]
            goal = f"{share:.0%}" if name == whose else ""
            either = sum(not each.better_hit and not each.better_p90 for each in chosen)
            both = sum(not set(each.better_hit) & set(each.better_p90) for each in chosen)
            holds = sum(each.holds for each in chosen)
            rows.append((policy, name, f"{holds} of {len(chosen)}", goal, both, either))
    heads = (
        "policy", "rows", "the rule holds", "goal", "no baseline is better in both hit ratio and p90",
        "no baseline is better in either",
    )  # fmt: skip
    return [*table(heads, rows), *_missed(found)]


def _missed(found: dict[str, list[Verdict]]) -> list[str]:
    """The rows on which the rule does not hold for one of warmroute's policies, and by how much."""
    pairs = zip(*(found[policy] for policy in OURS), strict=True)
    rows = [(pair[0].row.name, *map(_shortfall, pair)) for pair in pairs if not all(each.holds for each in pair)]
    heading = "The rule, which is defined below, fails on these rows. The bound that is missed is in brackets:\n"
    return [heading, *table(("row", *OURS), rows)] if rows else []


def _shortfall(found: Verdict) -> str:
    parts = []
    if not found.hit_holds:
        parts.append(f"hit {found.ours.hit.median:.4f} ({found.best.hit.median - HIT_SLACK:.4f})")
    if not found.p90_holds:
        parts.append(f"p90 {found.ours.p90_s.median:.3g} s ({P90_FACTOR * found.yardstick.p90_s.median:.3g})")
    return ", ".join(parts) or "holds"


def _state_of_draws(draws: Draws) -> str:
    counts: dict[int, list[str]] = {}
    for row in ROWS:
        counts.setdefault(_count(row, draws), []).append(row.name)
    asked = f"The seeds are {SEEDS[0]} to {SEEDS[-1]}."
    played = [
        f"{len(names)} rows have {count} {'draw' if count == 1 else 'draws'}"
        for count, names in sorted(counts.items(), reverse=True)
        if 0 < count < len(SEEDS)
    ]
    missing = [f"Not played: {'; '.join(counts[0])}."] if 0 in counts else []
    fewer = [", ".join(played) + " (each table says how many)."] if played else []
    return " ".join([asked, *fewer, *missing]) + "\n"


def _regions(draws: Draws, figures: Figures) -> list[str]:
    heads = ("policy inside a region", *(f"hit, {share}" for share in SHARES), *(f"p90 s, {share}" for share in SHARES))
    rows = _regional(draws)
    if rows is None:
        cells = [
            (name, *(f"{one['hit']:.3f}" for one in each), *(f"{one['ttft_p90_s']:.2f}" for one in each))
            for name, each in _regions_once(figures).items()
        ]
        return [_ONCE, *table(heads, cells)]
    drawn = _inside(draws, rows).items()
    lines = (
        (policy, *(one.hit.text(3) for one in each), *(one.p90_s.text(2) for one in each)) for policy, each in drawn
    )
    return table(heads, lines)


def _inside(draws: Draws, rows: list[Row]) -> dict[str, list[Reached]]:
    """The results of each policy inside regions, on each of their rows."""
    return {policy: [reached(policy, draws[row.name][policy]) for row in rows] for policy in (*REGIONAL, *OURS)}


def _header_gain_in_short(draws: Draws, figures: Figures) -> list[str]:
    rows = _regional(draws)
    if rows is None:
        hits = {name: [one["hit"] for one in each] for name, each in _regions_once(figures).items()}
    else:
        hits = {policy: [one.hit.median for one in each] for policy, each in _inside(draws, rows).items()}
    heads = (
        "hit ratio in regions, by policy", "no session header", "header from a third of sessions", "header from all",
    )  # fmt: skip
    cells = [(policy, *(f"{hit:.2f}" for hit in each)) for policy, each in hits.items()]
    return table(heads, cells)


def _regions_once(figures: Figures) -> dict[str, list[dict[str, Any]]]:
    """Single runs by the policy inside the regions, for each share of sessions with the header that names a region."""
    labels = {
        "lmetric": [f"lmetric inside, header from {share} of sessions" for share in SHARES],
        "warmroute": [
            "no affinity: any region, warmroute inside", *(f"header from {share} of sessions" for share in SHARES[1:]),
        ],
    }  # fmt: skip
    return {name: [find(figures, "regions", label, 1) for label in each] for name, each in labels.items()}


def _regional(draws: Draws) -> list[Row] | None:
    rows = [row for row in ROWS if row.group == "Regions"]
    return rows if all(row.name in draws for row in rows) else None


def _margins(found: dict[str, list[Verdict]]) -> Plot:
    return Plot("margins", "All rows against the rule", margins(found))


def _frontiers(draws: Draws, found: dict[str, list[Verdict]]) -> list[Plot]:
    """The plots of the rows on which the rule holds for neither of warmroute's policies, at most four."""
    both = [pair for pair in zip(*(found[policy] for policy in OURS), strict=True) if not any(e.holds for e in pair)]
    return [row_frontier(pair[0].row, draws[pair[0].row.name]) for pair in both[:4]]


def _rows_page(draws: Draws) -> list[str]:
    lines = ["# Every row, every policy\n", _ROWS_HEAD]
    for row in ROWS:
        if row.name in draws:
            lines += [f"## {row.name}{' (held back)' if row.is_held_back else ''}\n"]
            lines += [f"    {command(row, 'SEED')}\n", *row_table(row, draws[row.name])]
    return lines
