"""The two text formats of `/metrics`: that of Prometheus, and OpenMetrics, which has exemplars.

OpenMetrics (prometheus.io/docs/specs/om/open_metrics_spec) also differs in three details: the name of a counter's
family lacks `_total`, a bound is written `1.0` and not `1`, and the page ends with `# EOF`.
"""

from collections.abc import Iterable
from typing import Final

from warmroute_proxy.server.base.declared_metrics import BY_NAME, Metric
from warmroute_proxy.server.base.metrics import GaugeRow, Labels, Metrics

Buckets = Iterable[tuple[float, int, tuple[str, float, float] | None]]
"""For each bucket: its upper bound, the count of values up to the bound, and an exemplar (trace id, value, unix s)."""

TEXT_TYPE: Final = "text/plain; version=0.0.4"
OPEN_METRICS_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_OPEN_METRICS: Final = "application/openmetrics-text"
_TOTAL: Final = "_total"


def wants_open_metrics(accept: str) -> bool:
    """Whether an `Accept` header prefers OpenMetrics to plain text."""
    best = {_OPEN_METRICS: 0.0, "text/plain": 0.0}
    for item in accept.split(","):
        media_type, *parameters = [piece.strip().lower() for piece in item.split(";")]
        if media_type in best:
            best[media_type] = max(best[media_type], _quality(parameters))
    return best[_OPEN_METRICS] > 0.0 and best[_OPEN_METRICS] >= best["text/plain"]


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def page_of(metrics: Metrics, gauges: Iterable[GaugeRow], *, open_metrics: bool = False) -> str:
    page = Page(open_metrics=open_metrics)
    for name, labels, value in sorted(metrics.counters()):
        page.sample("counter", BY_NAME[name], labels, str(value))
    for metric, labels, histogram in metrics.histograms():
        page.histogram(metric, labels, histogram.buckets(), histogram.total)
    for metric, labels, number in sorted(gauges):
        page.sample("gauge", metric, labels, f"{number:.15g}")
    return page.text()


class Page:
    def __init__(self, *, open_metrics: bool) -> None:
        self._open_metrics = open_metrics
        self._lines: list[str] = []
        self._family = ""

    def sample(self, kind: str, metric: Metric, labels: Labels, value: str) -> None:
        self._begin(kind, metric)
        self._lines.append(f"{metric.name}{rendered(labels)} {value}")

    def histogram(self, metric: Metric, labels: Labels, buckets: Buckets, total: float) -> None:
        """Add a histogram. The bound of the last bucket is infinity."""
        self._begin("histogram", metric)
        name, count = metric.name, 0
        for bound, count, exemplar in buckets:
            line = f"{name}_bucket{rendered((*labels, ('le', self._edge(bound))))} {count}"
            if exemplar is not None and self._open_metrics:
                trace_id, value, unix_s = exemplar
                line += f' # {{trace_id="{trace_id}"}} {value:.9g} {unix_s:.3f}'
            self._lines.append(line)
        end = rendered(labels)
        self._lines += [f"{name}_sum{end} {total:.15g}", f"{name}_count{end} {count}"]

    def text(self) -> str:
        ends = ["# EOF"] if self._open_metrics else []
        return "\n".join([*self._lines, *ends]) + "\n"

    def _begin(self, kind: str, metric: Metric) -> None:
        name = metric.name
        if name == self._family:
            return
        self._family = name
        shown = name.removesuffix(_TOTAL) if self._open_metrics and kind == "counter" else name
        self._lines += [f"# HELP {shown} {metric.help}", f"# TYPE {shown} {kind}"]

    def _edge(self, bound: float) -> str:
        if bound == float("inf"):
            return "+Inf"
        return str(float(bound)) if self._open_metrics else f"{bound:g}"


def rendered(labels: Labels) -> str:
    """A label set in braces; an empty text for an empty set."""
    if not labels:
        return ""
    inner = ",".join(f'{name}="{_escape(value)}"' for name, value in labels)
    return "{" + inner + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
