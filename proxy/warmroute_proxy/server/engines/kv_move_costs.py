"""Reads from an engine's own metrics what it costs to use cached KV from the host and storage tiers.

SGLang counts by DP rank and TP rank, in its Prometheus text:

- tokens loaded from host memory (`load_back_tokens_total`), and the seconds that this took
  (`load_back_duration_seconds_sum`, GPU only);
- tokens fetched from storage (`prefetched_tokens_total`), and the bandwidth of each fetch in GB/s
  (`prefetch_bandwidth`, for stores that measure it);
- tokens and bytes backed up. Bytes divided by tokens is the size of a token's KV.

TP ranks work in parallel on shards, so tokens and seconds are those of one TP rank, and bytes are summed over TP ranks.

The counters only grow, so the cost is computed from the difference of two readings.
"""

import re
from typing import Final, NamedTuple

from warmroute_proxy.server.engines.engine_metrics import MAX_RANK_DIGITS, samples

_LINE: Final = re.compile(
    r"^sglang:(load_back_tokens_total|load_back_duration_seconds_sum|prefetched_tokens_total|prefetch_bandwidth_sum"
    r"|prefetch_bandwidth_count|hicache_backup_tokens_total|hicache_backup_bytes_total)\{([^}]*)\} ([0-9.eE+-]+)$",
    re.MULTILINE,
)


class MoveTotals(NamedTuple):
    """The counters of one DP rank."""

    load_tokens: float = 0.0
    load_s: float = 0.0
    fetch_tokens: float = 0.0
    bandwidth_sum_gb_s: float = 0.0
    bandwidth_count: float = 0.0
    backup_tokens: float = 0.0
    backup_bytes: float = 0.0

    def load_since(self, before: "MoveTotals") -> tuple[int, float]:
        """Tokens loaded from host memory, and the seconds that the loads took; 0 if unknown."""
        return int(self.load_tokens - before.load_tokens), self.load_s - before.load_s

    def fetch_since(self, before: "MoveTotals") -> tuple[int, float]:
        """Tokens fetched from storage, and the seconds that the fetches took at the mean bandwidth; 0 if unknown."""
        tokens = int(self.fetch_tokens - before.fetch_tokens)
        fetches = self.bandwidth_count - before.bandwidth_count
        if tokens <= 0 or fetches <= 0 or self.backup_tokens <= 0:
            return 0, 0.0
        gb_s = (self.bandwidth_sum_gb_s - before.bandwidth_sum_gb_s) / fetches
        token_bytes = self.backup_bytes / self.backup_tokens
        return tokens, tokens * token_bytes / (gb_s * 1e9) if gb_s > 0 else 0.0


Values = dict[int, dict[str, dict[str, float]]]
"""DP rank -> name of a metric -> shard (TP rank) -> value."""


def add_totals(values: Values, text: str) -> None:
    for name, labels, value in samples(_LINE, text):
        rank = labels.get("dp_rank", "0")
        of_rank = values.setdefault(int(rank) if rank.isdecimal() and len(rank) <= MAX_RANK_DIGITS else 0, {})
        by_shard = of_rank.setdefault(name, {})
        shard = labels.get("tp_rank", "0")
        if labels.get("pool", "kv") == "kv":
            by_shard[shard] = by_shard.get(shard, 0.0) + value


def totals_of(values: Values) -> dict[int, MoveTotals]:
    """DP rank -> its counters. A missing counter is 0."""
    return {rank: _totals(of_rank) for rank, of_rank in values.items()}


def _totals(of_rank: dict[str, dict[str, float]]) -> MoveTotals:
    def one(name: str) -> float:
        return max(of_rank.get(name, {}).values(), default=0.0)

    return MoveTotals(
        one("load_back_tokens_total"),
        one("load_back_duration_seconds_sum"),
        one("prefetched_tokens_total"),
        one("prefetch_bandwidth_sum"),
        one("prefetch_bandwidth_count"),
        one("hicache_backup_tokens_total"),
        sum(of_rank.get("hicache_backup_bytes_total", {}).values()),
    )
