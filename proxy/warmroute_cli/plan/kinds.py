"""Compares several kinds and numbers of GPUs by the cost of a million tokens within the targets.

The best plan of each kind is searched separately. It is then simulated at other rates, to find the maximum number of
requests per second within the targets. GPUs that are fast at prefill serve more long prompts; GPUs with much memory
serve more long answers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from warmroute_backend.plan.deployment import Traffic
from warmroute_backend.plan.errors import PlanError
from warmroute_backend.plan.hardware import Cluster
from warmroute_backend.plan.measured import table
from warmroute_backend.plan.request import PlanRequest
from warmroute_cli.plan.costs import goodput
from warmroute_cli.plan.search import Search, search
from warmroute_cli.plan.targets import Targets
from warmroute_lab.replay.trace import Trace

_HEADS: Final = ("GPUs", "USD/hour", "division", "requests/s", "USD/M tokens", "USD/M of answers", "reaches")


@dataclass(frozen=True, slots=True)
class Kind:
    """GPUs, and the cost of tokens on them at the maximum number of requests per second within the targets. `search` is
    None if no plan fits; `refused` then has the reason."""

    cluster: Cluster
    usd_per_hour: float
    traffic: Traffic
    search: Search | None = None
    requests_per_s: float = 0.0
    refused: str = ""

    @property
    def usd_per_million(self) -> float:
        """USD per million tokens of prompts (including cached tokens) and answers."""
        return self._usd_of(self.traffic.input_tokens + self.traffic.output_tokens)

    @property
    def usd_per_million_output(self) -> float:
        return self._usd_of(self.traffic.output_tokens)

    def _usd_of(self, tokens: float) -> float:
        rate = self.requests_per_s * tokens
        return self.usd_per_hour / 3600 / rate * 1e6 if rate else float("inf")

    @property
    def serves(self) -> bool:
        return self.search is not None and not self.search.best.missed

    def as_dict(self) -> dict[str, Any]:
        return {
            "gpus": str(self.cluster),
            "usd_per_hour": round(self.usd_per_hour, 4),
            "division": self.search.best.sizing.division if self.search else None,
            "requests_per_s": round(self.requests_per_s, 4),
            "usd_per_million": round(self.usd_per_million, 4) if self.requests_per_s else None,
            "usd_per_million_output": round(self.usd_per_million_output, 4) if self.requests_per_s else None,
            "serves": self.serves,
            "refused": self.refused,
        }


def compared(
    requests: Iterable[PlanRequest], gpu_hours: Mapping[str, float], traffic: Traffic, trace: Trace, targets: Targets
) -> list[Kind]:
    """Search each kind. Kinds that serve the traffic come first, then cheaper ones. Raises PlanError if none fits."""
    found = [_kind(each, gpu_hours, traffic, trace, targets) for each in requests]
    if all(each.search is None for each in found):
        raise PlanError("; ".join(f"{each.cluster}: {each.refused}" for each in found))
    return sorted(found, key=lambda each: (not each.serves, each.search is None, each.usd_per_million))


def _kind(
    request: PlanRequest, gpu_hours: Mapping[str, float], traffic: Traffic, trace: Trace, targets: Targets
) -> Kind:
    cluster = request.cluster
    usd_per_hour = gpu_hours[cluster.gpu.name] * cluster.gpus
    try:
        found = search(request, trace, targets)
        rate = goodput(found.best, traffic, trace, targets).requests_per_s
    except PlanError as error:
        return Kind(cluster, usd_per_hour, traffic, refused=str(error))
    return Kind(cluster, usd_per_hour, traffic, found, rate)


def section(found: Iterable[Kind]) -> str:
    rows = [_row(each) for each in found]
    head = "GPUs compared (USD per million tokens at the most requests/s within the targets; the first one is planned)"
    return "\n".join((head, table(_HEADS, rows)))


def _row(each: Kind) -> tuple[str, ...]:
    if each.search is None:
        return (str(each.cluster), f"{each.usd_per_hour:,.2f}", f"none: {each.refused[:60]}", "", "", "", "no")
    return (
        str(each.cluster),
        f"{each.usd_per_hour:,.2f}",
        each.search.best.sizing.division,
        f"{each.requests_per_s:.3g}",
        f"{each.usd_per_million:,.3f}",
        f"{each.usd_per_million_output:,.2f}",
        "yes" if each.serves else "no",
    )
