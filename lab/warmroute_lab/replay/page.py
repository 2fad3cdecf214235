"""The page of a replay: a table and plots in one HTML file without other files."""

import html
import json
from collections.abc import Iterable, Sequence

from warmroute_lab.replay.plot import COLOURS, WIDTH, Series, svg
from warmroute_lab.replay.results import Result

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
