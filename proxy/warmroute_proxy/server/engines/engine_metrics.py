"""Reads an engine's own metrics: a report of each rank, for conditions (alarms), and counts of the whole engine.

The names are those of SGLang 0.5.23 (`sglang/srt/observability/metrics_collector.py`). Ranks of one attention group
(the GPUs of one data-parallel rank) work on shards of the same requests and report the same values, so the largest
value counts. SGLang's HTTP process counts prompt and cached tokens without a rank, so every rank of the engine gets
these values.

The HTTP process counts a request when it has ended, and does not count `/health`. It reports `cached_tokens_total`
separately for each `cache_source` (`device`, `host`, `storage`, or only `total` if the sources are unknown). The engine
that simulates SGLang counts under the same names, but by rank. So the samples of a name are added up, and counts are
those of an engine, not of a rank.
"""

import re
from collections.abc import Iterator
from math import isfinite
from typing import Final

from warmroute_proxy.core.accounting.engine_counts import EngineCounts
from warmroute_proxy.core.load.signs import EngineReport
from warmroute_proxy.server.engines.server_info import MAX_DP_RANKS

_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "accept_length": ("spec_accept_length",),
    "token_usage": ("token_usage",),
    "running": ("num_running_reqs",),
    "waiting": ("num_queue_reqs",),
    "bootstrap_queue": ("num_prefill_bootstrap_queue_reqs",),
    "prealloc_queue": ("num_decode_prealloc_queue_reqs",),
    "transfer_queue": ("num_decode_transfer_queue_reqs",),
    "prompt_tokens": ("prompt_tokens_total",),
    "lower_hit_tokens": ("cached_tokens_total",),
    "retracted": ("num_retracted_requests_total",),
    "failed_transfers": ("num_transfer_failed_reqs_total", "num_bootstrap_failed_reqs_total"),
    "transfers": ("kv_transfer_speed_gb_s_count",),
    "transfer_gb_s_sum": ("kv_transfer_speed_gb_s_sum",),
    "transfer_ms_sum": ("kv_transfer_latency_ms_sum",),
    "transfer_ms_count": ("kv_transfer_latency_ms_count",),
    "host_used_tokens": ("hicache_host_used_tokens",),
    "host_total_tokens": ("hicache_host_total_tokens",),
}
"""Field of `EngineReport` -> the metric families whose sum it is."""

_FIELD_OF: Final = {family: field for field, families in _FIELDS.items() for family in families}
_LINE: Final = re.compile(rf"^sglang:({'|'.join(_FIELD_OF)})\{{([^}}]*)\}} ([0-9.eE+-]+)$", re.MULTILINE)
_COUNTED: Final = ("num_requests_total", "prompt_tokens_total", "cached_tokens_total", "generation_tokens_total")
"""The counted metrics, in the order of the fields of `EngineCounts`."""

_COUNT: Final = re.compile(rf"^sglang:({'|'.join(_COUNTED)})(?:\{{([^}}]*)\}})? ([0-9.eE+-]+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(?<!\w)(\w++)="([^"]*+)"')  # takes linear time, whatever an engine sends
_LOWER: Final = frozenset({"host", "storage"})
_SUMMED_LABELS: Final = ("cache_source", "is_streaming", "pool")
"""Labels that split one number of a rank into samples, which are summed. All other labels tell shards apart."""
MAX_RANK_DIGITS: Final = 6


Found = dict[int | None, dict[str, dict[str, float]]]
"""Rank -> metric family -> shard -> value. The rank is None for values without a rank."""


def add_reports(found: Found, text: str) -> None:
    for family, labels, value in samples(_LINE, text):
        if family == "cached_tokens_total" and labels.get("cache_source") not in _LOWER:
            continue
        rank = labels.get("dp_rank")
        number = int(rank) if rank is not None and rank.isdecimal() and len(rank) <= MAX_RANK_DIGITS else None
        if number is not None and number >= MAX_DP_RANKS:
            continue
        by_shard = found.setdefault(number, {}).setdefault(family, {})
        shard = ",".join(f"{name}={labels[name]}" for name in sorted(labels) if name not in _SUMMED_LABELS)
        by_shard[shard] = by_shard.get(shard, 0.0) + value


def reports_of(found: Found) -> dict[int, EngineReport]:
    shared = _report(found.pop(None, {}))
    if not found:
        return {0: shared}
    ranks = {number: _report(families) for number, families in found.items() if number is not None}
    return {number: _together(report, shared) for number, report in ranks.items()}


def _report(families: dict[str, dict[str, float]]) -> EngineReport:
    values: dict[str, float] = {}
    for family, by_shard in families.items():
        field = _FIELD_OF[family]
        values[field] = values.get(field, 0.0) + max(by_shard.values())
    return EngineReport(**values)


def _together(report: EngineReport, shared: EngineReport) -> EngineReport:
    return EngineReport(*[mine or theirs for mine, theirs in zip(report, shared, strict=True)])


def samples(line: re.Pattern[str], text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of each matching line. `line`: a pattern with groups for name, labels and value."""
    for family, labels, value in line.findall(text):
        try:
            number = float(value)
        except ValueError:
            continue
        if isfinite(number):
            yield family, dict(_LABEL.findall(labels)), number


def add_counts(sums: dict[str, float], text: str) -> None:
    for name, _, number in samples(_COUNT, text):
        if number >= 0:
            sums[name] = sums.get(name, 0.0) + number


def counts_of(sums: dict[str, float]) -> EngineCounts | None:
    """The counts of an engine since its start, from its sums; None if the sums lack prompt tokens."""
    return EngineCounts(*[int(sums.get(name, 0.0)) for name in _COUNTED]) if _COUNTED[1] in sums else None
