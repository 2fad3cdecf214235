"""The plot of all rows: how far warmroute's policies are from the rule (`rule`), in hit ratio and in p90 of TTFT."""

import html
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from bench.placement.rows import OURS
from bench.placement.rule import HIT_SLACK, P90_FACTOR, Drawn, Verdict

from warmroute_lab.replay import plot
from warmroute_lab.replay.plot import framed

COLOURS: Final = dict(zip(OURS, plot.COLOURS, strict=False))
_LEFT, _PANEL, _GAP, _TOP, _LINE = 12, 190, 20, 96, 31
_LEGEND: Final = "against the best baseline; shaded: fails; bold: held back"
_FAILS: Final = 'fill="#e5484d" opacity="0.16"'
_WIDTH: Final = 2 * _LEFT + 2 * _PANEL + _GAP


class _Panel(NamedTuple):
    """One column of the plot. Values beyond `low` and `high` are drawn at the edge of the column."""

    title: str
    left: float
    low: float
    high: float
    limit: float
    ticks: Sequence[tuple[float, str]]
    fails_below: bool
    value: Callable[[Verdict], Drawn]

    def place(self, value: float) -> float:
        inside = min(max(value, self.low), self.high)
        return round(self.left + (inside - self.low) / (self.high - self.low) * _PANEL, 1)


def _hit(found: Verdict) -> Drawn:
    """The hit ratio less that of the best baseline, in percentage points."""
    return Drawn(*(100 * (each - found.best.hit.median) for each in found.ours.hit))


def _p90(found: Verdict) -> Drawn:
    """The p90 over the best p90 of baselines near the best hit ratio."""
    return Drawn(*(each / found.yardstick.p90_s.median for each in found.ours.p90_s))


_PANELS: Final = (
    _Panel(
        "hit ratio, in points", _LEFT, -3, 6, -100 * HIT_SLACK,
        ((-2, "-2 pt"), (0, "0"), (2, "+2"), (4, "+4")), True, _hit,
    ),
    _Panel(
        "TTFT p90, as a factor", _LEFT + _PANEL + _GAP, 0.4, 1.5, P90_FACTOR,
        ((0.5, "0.5 x"), (0.75, "0.75"), (1, "1"), (1.25, "1.25")), False, _p90,
    ),
)  # fmt: skip


def margins(by_policy: dict[str, list[Verdict]]) -> str:
    """Return the plot as SVG: for each row and policy of warmroute, a dot for the median and a bar for the range.

    A row's name is above the row, so that the picture is narrow enough for a phone.
    """
    rows = by_policy[OURS[0]]
    height = _TOP + _LINE * len(rows) + 12
    parts = [_frame(panel, height) for panel in _PANELS]
    for at, policy in enumerate(OURS):
        x = _LEFT + 4 + 130 * at
        parts.append(f'<circle cx="{x}" cy="14" r="4" fill="{COLOURS[policy]}"/>')
        parts.append(f'<text x="{x + 8}" y="18">{policy}</text>')
    parts.append(f'<text x="{_LEFT}" y="38" opacity="0.75">{_LEGEND}</text>')
    for number in range(len(rows)):
        y = _TOP + _LINE * number + 22
        row = rows[number].row
        weight = ' font-weight="bold"' if row.is_held_back else ""
        name = html.escape(row.name)
        parts.append(f'<text x="{_LEFT}" y="{y - 8}"{weight}>{name}</text>')
        parts += [f'<path d="M{panel.left} {y}H{panel.left + _PANEL}" class="plot-grid"/>' for panel in _PANELS]
        for at, policy in enumerate(OURS):
            parts += [_dot(panel, by_policy[policy][number], y - 2.5 + 5 * at) for panel in _PANELS]
    return framed("All rows against the rule", _WIDTH, height, ['<g font-size="13">', *parts, "</g>"])


def _frame(panel: _Panel, height: int) -> str:
    limit, floor = panel.place(panel.limit), height - 8
    start, end = (panel.left, limit) if panel.fails_below else (limit, panel.left + _PANEL)
    parts = [
        f'<rect x="{start}" y="{_TOP}" width="{round(end - start, 1)}" height="{floor - _TOP}" {_FAILS}/>',
        f'<text x="{panel.left + _PANEL / 2}" y="62" text-anchor="middle" font-weight="bold">{panel.title}</text>',
    ]
    for value, text in panel.ticks:
        x = panel.place(value)
        stroke = 'stroke="#8b949e"' if value in (0, 1) else 'class="plot-grid"'
        parts.append(f'<path d="M{x} {_TOP}V{floor}" {stroke}/>')
        parts.append(f'<text x="{x}" y="{_TOP - 8}" text-anchor="middle">{text}</text>')
    return "".join(parts)


def _dot(panel: _Panel, found: Verdict, y: float) -> str:
    value = panel.value(found)
    x, colour = panel.place(value.median), COLOURS[found.ours.policy]
    bar = f'<path d="M{panel.place(value.least)} {y}H{panel.place(value.most)}" stroke="{colour}" stroke-width="1.5"/>'
    if panel.low <= value.median <= panel.high:
        return f'{bar}<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>'
    side = 6 if value.median < panel.low else -6
    return f'{bar}<path d="M{x} {y}l{side} -4v8z" fill="{colour}"/>'
