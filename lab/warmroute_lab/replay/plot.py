"""Plots as SVG, written by hand: lines or dots over two axes, the vertical one linear or logarithmic."""

import html
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

COLOURS: Final = (
    "#c2410c", "#2563eb", "#15803d", "#9333ea", "#0891b2", "#be123c", "#a16207", "#4b5563",
    "#db2777", "#65a30d", "#1e3a8a", "#7c2d12", "#0d9488", "#6d28d9", "#b45309", "#334155",
)  # fmt: skip
WIDTH: Final = 560
_HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 320, 62, 44, 14, 12
_LEGEND, _LINE = 190, 14
_FONT = "font-family:system-ui,sans-serif;font-size:11px"


class Series(NamedTuple):
    """Points of one colour; joined by a line unless `dots`, which have `mark` (or the name) beside them."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    dots: bool = False
    mark: str | None = None


class _Axis(NamedTuple):
    """Where values lie between two pixels; `log` if their logarithms do."""

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
    title: str, series: Sequence[Series], x_label: str, y_label: str, *, log_y: bool = False, legend: bool = False
) -> str:
    """One plot, empty text if there are no points. With `legend` the names of all series stand on the right."""
    points = [point for each in series for point in each.points]
    if not points:
        return ""
    width, height = WIDTH, _HEIGHT
    if legend:
        width, height = WIDTH + _LEGEND, max(_HEIGHT, _TOP + _LINE * len(series) + 8)
    high = height - _BOTTOM - _TOP
    y_values = [point[1] for point in points]
    x_axis = _Axis(_ticks([point[0] for point in points]), _LEFT, WIDTH - _LEFT - _RIGHT, log=False)
    y_axis = _Axis(_log_ticks(y_values) if log_y else _ticks(y_values), _TOP + high, -high, log_y)
    parts = _grid(x_axis, y_axis, height)
    for each in reversed(series):  # the first on top
        parts.append(_drawn(each, [(x_axis.place(x), y_axis.place(y)) for x, y in each.points]))
    middle, half = _LEFT + x_axis.length / 2, _TOP + high / 2
    parts.append(f'<text x="{middle}" y="{height - 8}" text-anchor="middle">{html.escape(x_label)}</text>')
    turned = f'transform="translate(12 {half}) rotate(-90)" text-anchor="middle"'
    parts.append(f"<text {turned}>{html.escape(y_label)}</text>")
    if legend:
        parts += [_entry(each, _TOP + _LINE * number) for number, each in enumerate(series)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{html.escape(title)}" style="background:#fff;{_FONT}">{"".join(parts)}</svg>'
    )


def _grid(x_axis: _Axis, y_axis: _Axis, height: int) -> list[str]:
    parts = []
    floor = height - _BOTTOM
    for tick in x_axis.ticks:
        x = x_axis.place(tick)
        parts.append(f'<path d="M{x} {_TOP}V{floor}" stroke="#f0eeec"/>')
        parts.append(f'<text x="{x}" y="{floor + 15}" text-anchor="middle">{tick:g}</text>')
    for tick in y_axis.ticks:
        y = y_axis.place(tick)
        parts.append(f'<path d="M{_LEFT} {y}H{WIDTH - _RIGHT}" stroke="#f0eeec"/>')
        parts.append(f'<text x="{_LEFT - 5}" y="{y + 4}" text-anchor="end">{tick:g}</text>')
    return parts


def _entry(series: Series, y: float) -> str:
    return (
        f'<circle cx="{WIDTH + 8}" cy="{y + 6}" r="4" fill="{series.colour}"/>'
        f'<text x="{WIDTH + 18}" y="{y + 10}">{html.escape(series.name)}</text>'
    )


def _drawn(series: Series, pixels: Sequence[tuple[float, float]]) -> str:
    name = html.escape(series.name)
    if series.dots:
        beside = html.escape(series.name if series.mark is None else series.mark)
        return "".join(
            f'<circle cx="{x}" cy="{y}" r="5" fill="{series.colour}"><title>{name}</title></circle>'
            f'<text x="{x + 7}" y="{y - 5}" fill="{series.colour}">{beside}</text>'
            for x, y in pixels
        )
    path = " ".join(f"{x},{y}" for x, y in pixels)
    stroke = f'fill="none" stroke="{series.colour}" stroke-width="1.6"'
    return f'<polyline points="{path}" {stroke}><title>{name}</title></polyline>'


def _ticks(values: Sequence[float]) -> list[float]:
    """Round numbers around all values; at least two."""
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
    """1, 2, 5, 10, ... around all values above 0; at least two."""
    above = [value for value in values if value > 0] or [1.0]
    all_ticks = [factor * 10.0**power for power in range(-6, 9) for factor in (1, 2, 5)]
    low = max((tick for tick in all_ticks if tick <= min(above)), default=all_ticks[0])
    high = min((tick for tick in all_ticks if tick > max(above)), default=all_ticks[-1])
    return [tick for tick in all_ticks if low <= tick <= high]
