"""The rows with tight KV memory: what is played, the bars, and the tables of docs/benchmarks/tight.md.

A bar is a factor of the best baseline of its column, the router without working sets included, by the medians of the
draws. Each bar was set before the working set was played on its row. No constant was chosen at `SEEDS`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from scripts.placement.draws import Draw, Draws
from scripts.placement.rows import CLAUDE_CODE, Row
from scripts.placement.rule import Drawn, drawn
from scripts.placement.tables import table

SEEDS: Final = (11, 12, 13, 14, 15)
OURS: Final = "warmroute+working-set"
BASELINES: Final = ("smg_event", "llmd_affinity", "thunderagent", "warmroute+events", "warmroute+queue")


class Bar(NamedTuple):
    """The most that the working set may reach, as factors of the best baseline of each column."""

    computed: float
    p90: float
    p99: float
    session: float


class _Column(NamedTuple):
    name: str
    read: Callable[[Draw], float]
    digits: int
    has_bar: bool = False


_COLUMNS: Final = (
    _Column("hit", lambda draw: draw.hit, 3),
    _Column("computed M", lambda draw: draw.computed_tokens / 1e6, 0, has_bar=True),
    _Column("TTFT mean s", lambda draw: draw.mean_s, 1),
    _Column("p50", lambda draw: draw.p50_s, 2),
    _Column("p90", lambda draw: draw.p90_s, 1, has_bar=True),
    _Column("p99", lambda draw: draw.p99_s, 0, has_bar=True),
    _Column("max", lambda draw: draw.max_s, 0),
    _Column("session s", lambda draw: draw.session_s, 0, has_bar=True),
)


def _row(name: str, *words: str, baselines: tuple[str, ...] = BASELINES) -> Row:
    return Row(name, "Tight KV memory", words, baselines, ours=(OURS,))


_EIGHT: Final = (CLAUDE_CODE, "--workers", "8", "--kv-tokens")
BARS: Final[Mapping[Row, Bar]] = {
    _row("8 x 1.5 M", *_EIGHT, "1500000"): Bar(0.65, 0.4, 1.4, 0.65),
    _row("8 x 1 M", *_EIGHT, "1M"): Bar(0.6, 0.3, 1.0, 0.5),
}
"""All rows, in the order of the page."""


def tight_tables(draws: Draws) -> list[str]:
    """Return the table of all rows that were played: medians, and ranges where there is a bar."""
    heads = ("row", "policy", *(column.name for column in _COLUMNS))
    cells: list[Sequence[str]] = []
    for row, bar in BARS.items():
        if all(draws.get(row.name, {}).get(policy) for policy in row.policies):
            cells += _cells(row, bar, draws[row.name])
    return table(heads, cells)


def _cells(row: Row, bar: Bar, played: Mapping[str, Sequence[Draw]]) -> list[Sequence[str]]:
    reached = {policy: [drawn(map(column.read, played[policy])) for column in _COLUMNS] for policy in row.policies}
    lines: list[Sequence[str]] = []
    for policy in (*row.baselines, *row.ours):
        name = f"**`{policy}`**" if policy in row.ours else f"`{policy}`"
        texts = [_text(found, column) for found, column in zip(reached[policy], _COLUMNS, strict=True)]
        lines.append((f"{row.name}, {len(played[policy])} draws" if not lines else "", name, *texts))
    factors = [
        reached[OURS][at].median / min(reached[each][at].median for each in row.baselines) if column.has_bar else None
        for at, column in enumerate(_COLUMNS)
    ]
    bars = iter(bar)
    lines.append(("", "x the best baseline", *("" if each is None else f"{each:.2f}" for each in factors)))
    lines.append(("", "bar", *(f"{next(bars):g}" if column.has_bar else "" for column in _COLUMNS)))
    return lines


def _text(found: Drawn, column: _Column) -> str:
    return found.text(column.digits) if column.has_bar else f"{found.median:.{column.digits}f}"
