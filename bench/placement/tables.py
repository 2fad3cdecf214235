"""Tables in Markdown: of rows and their draws, and of single runs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.placement.draws import Draw
from bench.placement.rows import OURS, Row
from bench.placement.rule import Verdict, reached, verdict


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the lines of a table, followed by an empty line."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return [*lines, ""]


def row_table(row: Row, played: Mapping[str, Sequence[Draw]]) -> list[str]:
    """Return the table of a row's policies: medians and ranges, and the verdicts on warmroute's policies."""
    cells = []
    for name in row.policies:
        each = reached(name, played[name])
        says = "" if name not in OURS else "holds" if verdict(row, name, played).holds else "**missed**"
        cells.append((name, each.hit.text(4), each.p90_s.text(3), says))
    return table(("policy", "hit", "TTFT p90 s", "the rule"), cells)


def rule_table(pairs: Iterable[tuple[Verdict, Verdict]]) -> list[str]:
    """Return the table of verdicts on rows, without and with KV events."""
    cells = [
        (
            f"{without.row.name}{' *' if without.row.is_held_back else ''}", without.draws,
            without.ours.hit.text(3), with_events.ours.hit.text(3),
            f"{without.best.hit.median:.3f} {without.best.policy}",
            without.ours.p90_s.text(2), with_events.ours.p90_s.text(2),
            f"{without.yardstick.p90_s.median:.2f} {without.yardstick.policy}",
            _said(without), _said(with_events),
        )
        for without, with_events in pairs
    ]  # fmt: skip
    heads = (
        "row", "seeds", "hit", "hit, +events", "best baseline hit", "TTFT p90 s", "p90 s, +events", "best p90 near it",
        "rule", "rule, +events",
    )  # fmt: skip
    return table(heads, cells)


def _said(found: Verdict) -> str:
    if found.holds:
        return "holds"
    missed = [name for name, holds in (("hit", found.hit_holds), ("p90", found.p90_holds)) if not holds]
    return f"**{', '.join(missed)}**"
