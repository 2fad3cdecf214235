"""Plots as hand-written SVG: lines or dots over two axes, bars, strips of dots; light and dark in one file.

Plots are narrow, with the legend below, so that a phone shows them whole.
"""

import html
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

COLOURS: Final = (
    "#e8590c", "#2b7de9", "#2f9e44", "#9c4fd6", "#0c9bb0", "#e0447f", "#a87b00", "#7a828e",
    "#c2410c", "#5b8c00", "#5a6fd8", "#b0643c", "#11998e", "#8461e0", "#cc7a00", "#66788a",
)  # fmt: skip
"""Colours that are readable on white and on black. The first two are warmroute's."""

OTHERS: Final = "#8b949e"
_GOOD: Final = "#2f9e44"
WIDTH: Final = 520
_HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 320, 58, 46, 16, 18
_LINE, _NAMES = 18, 150
STYLE: Final = (
    "svg{color-scheme:light dark}.plot{font:13px system-ui,'DejaVu Sans',sans-serif;fill:#1f2328}"
    ".plot-paper{fill:#fff}.plot-grid{stroke:#d8dee4}"
    "@media(prefers-color-scheme:dark){.plot{fill:#f0f3f6}.plot-paper{fill:#1b1f24}.plot-grid{stroke:#3d444d}}"
)
"""The colours of a plot's text, background and grid."""


class Series(NamedTuple):
    """Points of one colour, joined by a line. With `dots`: single dots, each beside its `mark` (default: the name)."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    dots: bool = False
    mark: str | None = None


class Bar(NamedTuple):
    name: str
    values: Sequence[float]
    is_ours: bool = False


class _Axis(NamedTuple):
    """Maps values to pixels. `log`: the scale is logarithmic."""

    ticks: list[float]
    start: float
    length: float
    log: bool

    def place(self, value: float) -> float:
        low, high, at = self.ticks[0], self.ticks[-1], value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(max(value, low))
        return round(self.start + (at - low) / (high - low) * self.length, 1)


def svg(
    title: str, series: Sequence[Series], x_label: str, y_label: str, *, log_y: bool = False, legend: bool = False,
    better: bool = False,
) -> str:  # fmt: skip
    """One plot; an empty text without points. `legend`: the names of all series are below the plot.

    `better`: an arrow shows that points on the right and below are better.
    """
    points = [point for each in series for point in each.points]
    if not points:
        return ""
    y_values = [point[1] for point in points]
    high = _HEIGHT - _BOTTOM - _TOP
    x_axis = _Axis(_ticks([point[0] for point in points]), _LEFT, WIDTH - _LEFT - _RIGHT, log=False)
    y_axis = _Axis(_log_ticks(y_values) if log_y else _ticks(y_values), _TOP + high, -high, log_y)
    parts = _grid(x_axis, y_axis)
    for number, each in reversed(list(enumerate(series))):  # the first is on top; every second mark is above its dot
        pixels = [(x_axis.place(x), y_axis.place(y)) for x, y in each.points]
        parts.append(_drawn(each, pixels, above=number % 2 == 0))
    parts.append(_text(_LEFT + x_axis.length / 2, _HEIGHT - 8, x_label, 'text-anchor="middle"'))
    turned = f'transform="translate(13 {_TOP + high / 2}) rotate(-90)" text-anchor="middle"'
    parts.append(f"<text {turned}>{html.escape(y_label)}</text>")
    if better:
        dots = [(x_axis.place(x), y_axis.place(y)) for x, y in points]
        parts.append(_better(*_empty(dots)))
    lines, names = _legend(series) if legend else (0, [])
    return framed(title, WIDTH, _HEIGHT + _LINE * lines, [*parts, *names])


def bars(title: str, rows: Sequence[Bar], measures: Sequence[str], x_label: str) -> str:
    """Horizontal bars on a logarithmic axis: a row for each name, with a bar for each measure."""
    thick, gap, left = 9, 10, 190
    step = thick * len(measures) + gap
    floor = _TOP + step * len(rows)
    ticks = _log_ticks([value * share for row in rows for value in row.values for share in (0.6, 1)])
    axis = _Axis(ticks, left, WIDTH - left - 56, log=True)
    parts = [_upright(axis, tick, floor) for tick in axis.ticks if f"{tick:g}".lstrip("0.")[:1] == "1"]
    for number, row in enumerate(rows):
        y = _TOP + step * number
        weight = ' font-weight="bold"' if row.is_ours else ""
        parts.append(_text(left - 8, y + step / 2, row.name, f'text-anchor="end"{weight}'))
        for at, value in enumerate(row.values):
            top, end = y + thick * at, axis.place(value)
            shade = f'fill="{COLOURS[0] if row.is_ours else OTHERS}" opacity="{1 if at == 0 else 0.55}"'
            parts.append(f'<rect x="{left}" y="{top}" width="{round(end - left, 1)}" height="{thick - 1}" {shade}/>')
            parts.append(_text(end + 4, top + thick - 1, f"{value:g}", 'font-size="10"'))
    parts.append(_text(left + axis.length / 2, floor + 36, x_label, 'text-anchor="middle"'))
    parts.append(_text(12, floor + 58, f"upper bar: {measures[0]}; lower, paler bar: {measures[-1]}"))
    return framed(title, WIDTH, floor + 70, parts)


def strips(title: str, groups: Sequence[tuple[str, Sequence[float], str]], x_label: str) -> str:
    """A strip for each group of name, values and colour: a dot for each value, and a line at the median."""
    step = 44
    floor = _TOP + step * len(groups)
    axis = _Axis(
        _ticks([value for _, values, _ in groups for value in values]), _NAMES, WIDTH - _NAMES - _RIGHT, log=False
    )
    parts = [_upright(axis, tick, floor) for tick in axis.ticks]
    for number, (name, values, colour) in enumerate(groups):
        middle = _TOP + step * number + step / 2
        parts.append(_text(_NAMES - 8, middle + 4, name, 'text-anchor="end"'))
        for at, value in enumerate(values):
            y = middle + (at * 7 % 13 - 6) * 1.6  # spread, so that equal values do not hide each other
            parts.append(f'<circle cx="{axis.place(value)}" cy="{y:.1f}" r="3" fill="{colour}" opacity="0.6"/>')
        x = axis.place(sorted(values)[len(values) // 2])
        parts.append(f'<path d="M{x} {middle - 15}V{middle + 15}" stroke="{colour}" stroke-width="2.5"/>')
    parts.append(_text(_NAMES + axis.length / 2, floor + 34, x_label, 'text-anchor="middle"'))
    return framed(title, WIDTH, floor + 46, parts)


def framed(title: str, width: int, height: float, parts: Sequence[str]) -> str:
    """The whole SVG file: a background with round corners, and the parts."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" width="{width}" height="{height:g}" '
        f'viewBox="0 0 {width} {height:g}" role="img" aria-label="{html.escape(title)}"><style>{STYLE}</style>'
        f'<rect class="plot-paper" width="{width}" height="{height:g}" rx="8"/>{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" {more}>{html.escape(words)}</text>'


def _upright(axis: _Axis, tick: float, floor: float) -> str:
    x = axis.place(tick)
    return f'<path class="plot-grid" d="M{x} {_TOP}V{floor}"/>' + _text(
        x, floor + 16, f"{tick:g}", 'text-anchor="middle"'
    )


def _grid(x_axis: _Axis, y_axis: _Axis) -> list[str]:
    parts = [_upright(x_axis, tick, _HEIGHT - _BOTTOM) for tick in x_axis.ticks]
    for tick in y_axis.ticks:
        y = y_axis.place(tick)
        parts.append(f'<path class="plot-grid" d="M{_LEFT} {y}H{WIDTH - _RIGHT}"/>')
        parts.append(_text(_LEFT - 5, y + 4, f"{tick:g}", 'text-anchor="end"'))
    return parts


def _empty(dots: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The place for the `better` arrow: the first place without dots, searched from the upper left corner."""
    corners = [(_LEFT + 10.0 + x, _TOP + 8.0 + y) for y in range(0, 200, 50) for x in range(0, 340, 85)]
    free = (
        (left, top)
        for left, top in corners
        if not any(left - 12 < x < left + 110 and top - 22 < y < top + 46 for x, y in dots)
    )
    return next(free, corners[0])


def _better(x: float, y: float) -> str:
    arrow = f"M{x} {y}l22 22m0 -9v9h-9"
    return f'<path d="{arrow}" fill="none" stroke="{_GOOD}" stroke-width="2"/>' + _text(
        x + 30, y + 22, "better", f'style="fill:{_GOOD}"'
    )


def _legend(series: Sequence[Series]) -> tuple[int, list[str]]:
    """The legend: how many lines it has, and its parts, as many on a line as fit."""
    widths = [30 + 7.3 * len(each.name) for each in series]
    starts: list[tuple[float, int]] = []
    lines, x = 0, 0.0
    for width in widths:
        if starts and x + width > WIDTH - 2 * 12:
            lines, x = lines + 1, 0.0
        starts.append((12 + x, _HEIGHT + _LINE * lines))
        x += width
    parts = []
    for each, (left, top) in zip(series, starts, strict=True):
        parts.append(f'<circle cx="{left + 5:g}" cy="{top + 4}" r="4.5" fill="{each.colour}"/>')
        parts.append(_text(left + 14, top + 8, each.name))
    return lines + 1, parts


def _drawn(series: Series, pixels: Sequence[tuple[float, float]], *, above: bool) -> str:
    name = html.escape(series.name)
    if series.dots:
        beside = html.escape(series.name if series.mark is None else series.mark)
        return "".join(
            f'<circle cx="{x}" cy="{y}" r="5" fill="{series.colour}"><title>{name}</title></circle>'
            f'<text x="{x + 7}" y="{y - 5 if above else y + 14}" style="fill:{series.colour}">{beside}</text>'
            for x, y in pixels
        )
    path = " ".join(f"{x},{y}" for x, y in pixels)
    stroke = f'fill="none" stroke="{series.colour}" stroke-width="2"'
    return f'<polyline points="{path}" {stroke}><title>{name}</title></polyline>'


def _ticks(values: Sequence[float]) -> list[float]:
    """Round numbers for an axis with all values; at least two."""
    low, high = min(values), max(values)
    if high - low < 1e-12:
        low, high = low - max(abs(low), 1.0) * 0.05, high + max(abs(high), 1.0) * 0.05
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor >= rough)
    first = math.floor(low / step)
    last_step = math.ceil(high / step)
    return [round(number * step, 12) for number in range(first, last_step + 1)]


def _log_ticks(values: Sequence[float]) -> list[float]:
    """1, 2, 5, 10, ... for an axis with all values above 0; at least two."""
    above = [value for value in values if value > 0] or [1.0]
    all_ticks = [factor * 10.0**power for power in range(-6, 9) for factor in (1, 2, 5)]
    low = max((tick for tick in all_ticks if tick <= min(above)), default=all_ticks[0])
    high = min((tick for tick in all_ticks if tick > max(above)), default=all_ticks[-1])
    return [tick for tick in all_ticks if low <= tick <= high]
