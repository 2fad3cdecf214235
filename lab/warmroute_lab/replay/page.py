"""The page of a replay: a table and plots in one HTML file that needs nothing else."""

import html
import json
import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from warmroute_lab.replay.results import Result

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


_STYLE = """body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1180px;padding:0 1rem;color:#1c1917}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:13px}
td,th{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #e7e5e4}
td:first-child,th:first-child,td:nth-child(3),th:nth-child(3){text-align:left}
h2{margin-top:2.2rem}.plots{display:flex;flex-wrap:wrap;gap:1rem}figure{margin:0}figcaption{font-size:13px}
svg{border:1px solid #e7e5e4}.note{color:#57534e;font-size:13px}"""


def page(results: Sequence[Result], title: str, notes: Iterable[str] = ()) -> str:
    parts = [f"<h1>{html.escape(title)}</h1>"]
    parts += [f'<p class="note">{html.escape(note)}</p>' for note in notes]
    parts.append(_table(results))
    for trace in dict.fromkeys((result.trace, result.workers) for result in results):
        chosen = [result for result in results if (result.trace, result.workers) == trace]
        parts.append(f"<h2>{html.escape(trace[0])}, {html.escape(trace[1])} workers</h2>")
        parts.append(f'<div class="plots">{"".join(_plots(chosen))}</div>')
    data = json.dumps([result.as_dict() for result in results]).replace("<", "\\u003c")
    parts.append(f'<script type="application/json" id="results">{data}</script>')
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _table(results: Sequence[Result]) -> str:
    heads = ("trace", "workers", "policy", "speed-up", "requests", "hit", "TTFT p50 s", "p90", "p99", "mean",
             "TPOT p90 ms", "imbalance")  # fmt: skip
    rows = ["".join(f"<th>{head}</th>" for head in heads)]
    for each in results:
        cells = (
            html.escape(each.trace), html.escape(each.workers), html.escape(each.policy), f"{each.speed_up:g}",
            str(each.requests), f"{each.hit:.4f}", f"{each.ttft_p50_s:.3f}", f"{each.ttft_p90_s:.3f}",
            f"{each.ttft_p99_s:.3f}", f"{each.ttft_mean_s:.3f}", f"{each.tpot_p90_s * 1000:.1f}",
            f"{each.imbalance:.2f}",
        )  # fmt: skip
        rows.append("".join(f"<td>{cell}</td>" for cell in cells))
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"


def _plots(results: Sequence[Result]) -> list[str]:
    policies = list(dict.fromkeys(result.policy for result in results))
    colours = {policy: COLOURS[at % len(COLOURS)] for at, policy in enumerate(policies)}
    loads = sorted({result.speed_up for result in results})
    plots = []
    if len(loads) > 1:
        for label, key in (("hit ratio", "hit"), ("TTFT p90, s", "ttft_p90_s"), ("TTFT p99, s", "ttft_p99_s")):
            lines = [
                Series(p, [(r.speed_up, getattr(r, key)) for r in results if r.policy == p], colours[p])
                for p in policies
            ]
            plots.append(_figure(f"{label} against load (speed-up)", lines, "speed-up", label))
    for load in loads:
        points = [
            Series(r.policy, [(r.hit, r.ttft_p90_s)], colours[r.policy], dots=True)
            for r in results
            if r.speed_up == load
        ]
        plots.append(_figure(f"Frontier at {load:g}x: right and low is good", points, "hit ratio", "TTFT p90, s"))
    return plots + [_load_figure(result) for result in results if result.speed_up == loads[-1]]


def _load_figure(result: Result) -> str:
    times, rows = result.load_times_s, result.load_tokens
    count = len(rows[0]) if rows else 0
    lines = [
        Series(f"w{at}", [(t, row[at]) for t, row in zip(times, rows, strict=True)], COLOURS[at % len(COLOURS)])
        for at in range(count)
    ]
    title = f"Load of each worker over time: {result.policy} at {result.speed_up:g}x"
    return _figure(title, lines, "virtual time, s", "outstanding prompt tokens", legend=count <= len(COLOURS))


def _figure(title: str, series: Sequence[Series], x_label: str, y_label: str, *, legend: bool = True) -> str:
    drawn = svg(title, series, x_label, y_label)
    if not drawn:
        return ""
    names = " ".join(
        f'<span style="color:{each.colour}">&#9632;</span> {html.escape(each.name)}' for each in series if legend
    )
    return (
        f"<figure><figcaption><b>{html.escape(title)}</b></figcaption>{drawn}"
        f'<figcaption style="max-width:{WIDTH}px">{names}</figcaption></figure>'
    )
