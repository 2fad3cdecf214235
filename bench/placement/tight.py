"""The rows with tight KV memory: the simulations, the bars, and the tables of docs/benchmarks/tight.md.

The *working set* is the sessions whose KV a worker should keep; other sessions wait. A *bar* is the most that a column
may be: a factor of the best router in that column, by the medians over seeds. warmroute without working sets is one of
these routers. ThunderAgent, which holds turns back, too, has a separate line. Each bar was set before the working set
was tried on its row. No constant was chosen at `SEEDS`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from bench.placement.draws import Draw, Draws
from bench.placement.rows import CLAUDE_CODE, Row
from bench.placement.rule import Drawn, drawn
from bench.placement.tables import table

SEEDS: Final = (11, 12, 13, 14, 15)
OURS: Final = "warmroute+working-set"
PAUSING: Final = "thunderagent"
ROUTERS: Final = (
    "smg_event", "llmd_affinity", "session_sticky", "prefix_hash", "warmroute+events", "warmroute+queue",
)  # fmt: skip


class Bar(NamedTuple):
    """The largest figures that the working set may have, as factors of the best baseline in each column."""

    computed: float
    p90: float
    p99: float
    session: float


class _Column(NamedTuple):
    name: str
    read: Callable[[Draw], float]
    digits: int
    has_bar: bool = False
    is_more_better: bool = False


_COLUMNS: Final = (
    _Column("hit", lambda draw: draw.hit, 3, is_more_better=True),
    _Column("computed M", lambda draw: draw.computed_tokens / 1e6, 0, has_bar=True),
    _Column("TTFT mean s", lambda draw: draw.mean_s, 1),
    _Column("p50", lambda draw: draw.p50_s, 2),
    _Column("p90", lambda draw: draw.p90_s, 1, has_bar=True),
    _Column("p99", lambda draw: draw.p99_s, 0, has_bar=True),
    _Column("max", lambda draw: draw.max_s, 0),
    _Column("session s", lambda draw: draw.session_s, 0, has_bar=True),
)


def _row(name: str, *words: str, routers: tuple[str, ...] = ROUTERS) -> Row:
    return Row(name, "Tight KV memory", words, (*routers, PAUSING), ours=(OURS,))


def _made_up(name: str, load: int) -> tuple[str, ...]:
    return ("--made-up", name, "--speed-up", str(load), "--workers", "8", "--kv-tokens", "500k")


_EIGHT: Final = (CLAUDE_CODE, "--workers", "8", "--kv-tokens")
BARS: Final[Mapping[Row, Bar]] = {
    _row("8 x 1.5 M", *_EIGHT, "1500000"): Bar(0.65, 0.4, 1.4, 0.65),
    _row("8 x 1 M", *_EIGHT, "1M"): Bar(0.6, 0.3, 1.0, 0.5),
    _row("8 x 1.5 M, 60 s", *_EIGHT, "1500000", "--working-set-wait-s", "60"): Bar(0.75, 0.5, 1.4, 0.75),
    _row("8 x 1 M, 60 s", *_EIGHT, "1M", "--working-set-wait-s", "60"): Bar(0.8, 1.0, 1.0, 0.7),
    _row("bursts, 8 x 500 k", *_made_up("bursty", 1)): Bar(0.9, 0.7, 1.4, 0.9),
    _row("6:2 x 1.5 M", CLAUDE_CODE, "--workers", "6:2", "--kv-tokens", "1500000"): Bar(0.65, 0.4, 1.4, 0.65),
    _row("5:3 x 1.5 M", CLAUDE_CODE, "--workers", "5:3", "--kv-tokens", "1500000"): Bar(0.65, 0.4, 1.4, 0.65),
    _row("2 regions x 4 x 1.5 M", CLAUDE_CODE, "--regions", "2", "--workers", "4", "--kv-tokens", "1500000"): Bar(
        0.65, 0.4, 1.4, 0.65
    ),
    _row("host tier, 8 x 1 M + 2 M", *_EIGHT, "1M:2M"): Bar(1.0, 1.0, 1.15, 1.0),
    _row("tool agents 4x, 8 x 500 k", *_made_up("toolagent", 4)): Bar(1.02, 1.02, 1.15, 1.02),
    _row("16 x 1 M", CLAUDE_CODE, "--workers", "16", "--kv-tokens", "1M", routers=("warmroute+queue",)): Bar(
        1.02, 1.02, 1.15, 1.02
    ),
}
"""All rows, in the order of the page. On the last rows memory is not tight, and no figure may get worse."""


WHOLE: Final = frozenset({"8 x 1.5 M", "8 x 1 M"})
"""Rows for which the page shows each router. For other rows it shows only the best router of each column."""

PROXIES: Final = tuple(
    Row(
        f"{count} proxies{suffix}", "Tight KV memory",
        (*_EIGHT, "1500000", "--routers", str(count), "--share-lag-ms", "20", *more), (), ours=(OURS,),
    )
    for count, suffix, more in ((2, "", ()), (2, ", 10 % lost", ("--share-loss", "0.1")), (4, "", ()))
)  # fmt: skip
"""Rows with several proxies. Compared with one proxy on 8 x 1.5 M, they must be within 5 % in the hit ratio, and within
15 % in p90 and in the time of a session."""

_BOUNDS: Final = {"60 s": "60", "120 s": "", "240 s": "240", "480 s": "480", "none": "1e6"}
BOUNDS: Final = tuple(
    Row(f"{fleet}, {bound}" if wait_s else fleet, "Tight KV memory",
        (*_EIGHT, kv, *(("--working-set-wait-s", wait_s) if wait_s else ())), (), ours=(OURS,))
    for fleet, kv in (("8 x 1.5 M", "1500000"), ("8 x 1 M", "1M")) for bound, wait_s in _BOUNDS.items()
)  # fmt: skip
"""Rows with each limit of the wait for memory, on two fleets. The default and 60 s are also rows of `BARS`."""


def tight_tables(draws: Draws) -> list[str]:
    """Return the tables of all rows with results: medians, and ranges in columns with a bar."""
    heads = ("row", "policy", *(column.name for column in _COLUMNS))
    played = {
        row: _at_same_seeds({policy: draws.get(row.name, {}).get(policy, []) for policy in row.policies})
        for row in BARS
    }
    lines = []
    for is_whole in (True, False):
        rows = [row for row, each in played.items() if each[OURS] and (row.name in WHOLE) == is_whole]
        lines += table(heads, [line for row in rows for line in _cells(row, BARS[row], played[row])])
    return [*lines, *_proxies(draws), *_bounds(draws)]


def _at_same_seeds(played: Mapping[str, Sequence[Draw]]) -> dict[str, list[Draw]]:
    """Keep only the draws at seeds for which all policies have results."""
    seeds = set.intersection(*({draw.seed for draw in each} for each in played.values()))
    return {name: [draw for draw in each if draw.seed in seeds] for name, each in played.items()}


def _proxies(draws: Draws) -> list[str]:
    """The table of several proxies beside one, at the seeds for which both have results."""
    cells: list[Sequence[str]] = []
    for row in PROXIES:
        of_both = {"1 proxy": "8 x 1.5 M", row.name: row.name}
        played = _at_same_seeds({name: draws.get(each, {}).get(OURS, []) for name, each in of_both.items()})
        if not played[row.name]:
            continue
        one, several = ([drawn(map(column.read, each)) for column in _COLUMNS] for each in played.values())
        for name, found in (("1 proxy", one), (row.name, several)):
            texts = (each.text(column.digits) for each, column in zip(found, _COLUMNS, strict=True))
            cells.append((f"{name}, {len(played[row.name])} draws", *texts))
        cells.append(("x one", *(f"{a.median / b.median:.3f}" for a, b in zip(several, one, strict=True))))
    return table(("proxies", *(column.name for column in _COLUMNS)), cells) if cells else []


def _bounds(draws: Draws) -> list[str]:
    """The table of limits of the wait for memory, at the seeds for which all limits of a fleet have results."""
    cells: list[Sequence[str]] = []
    for at in range(0, len(BOUNDS), len(_BOUNDS)):
        rows = BOUNDS[at : at + len(_BOUNDS)]
        played = _at_same_seeds({row.name: draws.get(row.name, {}).get(OURS, []) for row in rows})
        if not all(played.values()):
            continue
        for row, bound in zip(rows, _BOUNDS, strict=True):
            found = (drawn(map(column.read, played[row.name])) for column in _COLUMNS)
            texts = (_text(each, column) for each, column in zip(found, _COLUMNS, strict=True))
            cells.append((rows[1].name, bound, f"{len(played[row.name])}", *texts))
    return table(("row", "bound", "draws", *(column.name for column in _COLUMNS)), cells) if cells else []


def _cells(row: Row, bar: Bar, played: Mapping[str, Sequence[Draw]]) -> list[Sequence[str]]:
    reached = {policy: [drawn(map(column.read, played[policy])) for column in _COLUMNS] for policy in row.policies}
    routers = [each for each in row.baselines if each != PAUSING]
    best = [
        (max if column.is_more_better else min)((reached[each][at] for each in routers), key=_median)
        for at, column in enumerate(_COLUMNS)
    ]
    named = {f"`{each}`": reached[each] for each in routers} if row.name in WHOLE else {"the best router": best}
    lines: list[Sequence[str]] = [
        ("", name, *(_text(each, column) for each, column in zip(found, _COLUMNS, strict=True)))
        for name, found in {**named, "ThunderAgent": reached[PAUSING], f"**`{OURS}`**": reached[OURS]}.items()
    ]
    bars = iter(bar)
    for name, others in (("x the best router (bar)", best), ("x ThunderAgent", reached[PAUSING])):
        factors = [
            f"{ours.median / other.median:.2f}" + (f" ({next(bars):.2f})" if others is best else "")
            if column.has_bar
            else ""
            for ours, other, column in zip(reached[OURS], others, _COLUMNS, strict=True)
        ]
        lines.append(("", name, *factors))
    count = len(played[OURS])
    return [(f"{row.name}, {count} draw{'s' if count > 1 else ''}", *lines[0][1:]), *lines[1:]]


def _median(found: Drawn) -> float:
    return found.median


def _text(found: Drawn, column: _Column) -> str:
    return found.text(column.digits) if column.has_bar else f"{found.median:.{column.digits}f}"
