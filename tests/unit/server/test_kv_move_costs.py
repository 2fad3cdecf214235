"""What host and storage hits cost, read from an engine's own metrics.

The text is as SGLang 0.5.23 writes it; the durations and bandwidths, which it measures only on GPUs and with stores
such as Mooncake, are written by hand after `observability/metrics_collector.py`.
"""

import pytest

from warmroute_proxy.server.engines.kv_move_costs import MoveTotals, Values, add_totals, totals_of

TEXT = """\
# HELP sglang:load_back_tokens_total The number of tokens loaded back from local host DRAM (L2) to GPU.
# TYPE sglang:load_back_tokens_total counter
sglang:load_back_tokens_total{cache_type="UnifiedRadixCache",dp_rank="0",pool="kv",pp_rank="0",tp_rank="0"} 16512.0
sglang:load_back_tokens_total{cache_type="UnifiedRadixCache",dp_rank="0",pool="kv",pp_rank="0",tp_rank="1"} 16512.0
sglang:load_back_tokens_total{cache_type="UnifiedRadixCache",dp_rank="0",pool="swa",pp_rank="0",tp_rank="0"} 9.0
sglang:load_back_tokens_total{cache_type="UnifiedRadixCache",dp_rank="1",pool="kv",pp_rank="0",tp_rank="0"} 100.0
sglang:load_back_duration_seconds_bucket{cache_type="UnifiedRadixCache",dp_rank="0",le="0.1",tp_rank="0"} 2.0
sglang:load_back_duration_seconds_sum{cache_type="UnifiedRadixCache",dp_rank="0",pp_rank="0",tp_rank="0"} 0.04
sglang:load_back_duration_seconds_sum{cache_type="UnifiedRadixCache",dp_rank="0",pp_rank="0",tp_rank="1"} 0.05
sglang:hicache_backup_tokens_total{cache_type="UnifiedRadixCache",dp_rank="0",pool="kv",pp_rank="0",tp_rank="0"} 1000.0
sglang:hicache_backup_bytes_total{cache_type="UnifiedRadixCache",dp_rank="0",pp_rank="0",tp_rank="0"} 3.5e+07
sglang:hicache_backup_bytes_total{cache_type="UnifiedRadixCache",dp_rank="0",pp_rank="0",tp_rank="1"} 3.5e+07
sglang:prefetched_tokens_total{dp_rank="0",storage_backend="mooncake",tp_rank="0"} 2000.0
sglang:prefetch_bandwidth_sum{dp_rank="0",storage_backend="mooncake",tp_rank="0"} 28.0
sglang:prefetch_bandwidth_count{dp_rank="0",storage_backend="mooncake",tp_rank="0"} 2.0
"""


def totals_by_rank(text: str) -> dict[int, MoveTotals]:
    values: Values = {}
    add_totals(values, text)
    return totals_of(values)


def test_tp_ranks_work_at_the_same_time_on_shards() -> None:
    found = totals_by_rank(TEXT)
    assert found[0] == MoveTotals(16512.0, 0.05, 2000.0, 28.0, 2.0, 1000.0, 7e7)
    assert found[1] == MoveTotals(load_tokens=100.0)


def test_moves_are_what_was_added_since() -> None:
    now = totals_by_rank(TEXT)[0]
    tokens, seconds = now.load_since(now._replace(load_tokens=6512.0, load_s=0.03))
    assert tokens == 10_000
    assert seconds == pytest.approx(0.02)
    tokens, seconds = now.fetch_since(MoveTotals())  # 70 KB a token at 14 GB/s
    assert tokens == 2000
    assert seconds == pytest.approx(2000 * 70_000 / 14e9)


def test_without_a_bandwidth_or_a_size_nothing_is_known_of_fetches() -> None:
    now = totals_by_rank(TEXT)[0]
    assert now.fetch_since(now) == (0, 0.0)
    assert now._replace(bandwidth_count=0.0).fetch_since(MoveTotals()) == (0, 0.0)
    assert now._replace(backup_tokens=0.0).fetch_since(MoveTotals()) == (0, 0.0)
    assert now._replace(bandwidth_sum_gb_s=0.0).fetch_since(MoveTotals()) == (2000, 0.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no metrics",
        "sglang:load_back_tokens_total 5",
        'sglang:load_back_tokens_total{dp_rank="x"} 1.2.3',
        'sglang:load_back_tokens_total{dp_rank="0"} 1e999',
    ],
)
def test_other_texts_say_nothing(text: str) -> None:
    assert totals_by_rank(text) == {}


def test_a_rank_that_is_no_number_is_the_first() -> None:
    text = 'sglang:load_back_tokens_total{dp_rank="' + "9" * 5000 + '"} 7\n'
    assert totals_by_rank(text) == {0: MoveTotals(load_tokens=7.0)}
