"""What an engine's metrics page says of each rank."""

from warmroute_proxy.core.load.signs import EngineReport
from warmroute_proxy.server.engines.engine_metrics import Found, add_reports, reports_of

PAGE = """\
sglang:kv_transfer_latency_ms_sum{model_name="tiny",tp_rank="0"} 301.18989100003546
sglang:kv_transfer_latency_ms_count{model_name="tiny",tp_rank="0"} 4.0
sglang:kv_transfer_speed_gb_s_sum{model_name="tiny",tp_rank="0"} 0.19954718324652038
sglang:kv_transfer_speed_gb_s_count{model_name="tiny",tp_rank="0"} 4.0
sglang:num_running_reqs{model_name="tiny",tp_rank="0"} 0.0
sglang:num_queue_reqs{model_name="tiny",tp_rank="0"} 0.0
sglang:token_usage{model_name="tiny",tp_rank="0"} 0.0
sglang:spec_accept_length{model_name="tiny",tp_rank="0"} 0.0
sglang:num_prefill_bootstrap_queue_reqs{model_name="tiny",tp_rank="0"} 0.0
sglang:num_prefill_inflight_queue_reqs{model_name="tiny",tp_rank="0"} 0.0
sglang:hicache_host_used_tokens{model_name="tiny",tp_rank="0"} 2608.0
sglang:hicache_host_total_tokens{model_name="tiny",tp_rank="0"} 65552.0
sglang:prompt_tokens_total{is_streaming="false",model_name="tiny"} 10440.0
sglang:cached_tokens_total{cache_source="device",model_name="tiny"} 5216.0
sglang:cached_tokens_total{cache_source="storage",model_name="tiny"} 2608.0
"""
"""Of a prefill engine of SGLang 0.5.23 on a CPU with HiCache, some labels less."""


def reports_by_rank(text: str) -> dict[int, EngineReport]:
    found: Found = {}
    add_reports(found, text)
    return reports_of(found)


def test_a_page_of_sglang() -> None:
    (report,) = reports_by_rank(PAGE).values()
    assert report.prompt_tokens == 10440
    assert report.lower_hit_tokens == 2608
    assert (report.transfers, round(report.transfer_gb_s_sum, 3)) == (4, 0.2)
    assert (report.transfer_ms_count, round(report.transfer_ms_sum)) == (4, 301)
    assert (report.host_used_tokens, report.host_total_tokens) == (2608, 65552)
    assert report.accept_length == report.waiting == report.retracted == 0


def rank(number: int, family: str, value: float, **labels: str) -> str:
    more = "".join(f',{name}="{text}"' for name, text in labels.items())
    return f'sglang:{family}{{dp_rank="{number}"{more}}} {value}\n'


def test_shards_of_a_rank_report_the_same_and_ranks_their_own() -> None:
    page = "".join(rank(0, "num_queue_reqs", 7, tp_rank=str(shard)) for shard in range(4)) + rank(
        1, "num_queue_reqs", 2
    )
    page += 'sglang:prompt_tokens_total{is_streaming="false"} 10\nsglang:prompt_tokens_total{is_streaming="true"} 5\n'
    found = reports_by_rank(page)
    assert {number: (report.waiting, report.prompt_tokens) for number, report in found.items()} == {
        0: (7, 15),
        1: (2, 15),
    }


def test_failures_are_summed_and_nonsense_is_left_out() -> None:
    page = rank(0, "num_transfer_failed_reqs_total", 2) + rank(0, "num_bootstrap_failed_reqs_total", 3)
    page += 'sglang:num_queue_reqs{dp_rank="0"} 1e999\nsglang:num_queue_reqs{dp_rank="0"} 1-2\nother{a="b"} 1\n'
    assert reports_by_rank(page)[0].failed_transfers == 5
    assert reports_by_rank(page)[0].waiting == 0
    assert reports_by_rank("") == {0: reports_by_rank("nothing")[0]}
