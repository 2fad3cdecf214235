"""What the parts of a start cost: `startup_time` of SGLang 0.5.23, and lines of its log."""

import pytest

from warmroute_backend.launch.start_log import PHASES, phases_s

STARTUP = {
    "load_weight": 81.5,
    "kv_cache_allocation": 2.25,
    "scheduler_e2e": 140.0,
    "cuda_graph": {"prefill": 0.0, "decode": 14.0, "target_verify": 6.25},
    "tokenizer_e2e": 156.0,
}
LOG = """\
[2026-11-23 07:09:13 TP0] Allocating Target hierarchical KV host pool: 2048000 tokens, 126.00 GB host memory.
[2026-11-23 07:09:13 TP1] Allocating Target hierarchical KV host pool: 2048000 tokens, 126.00 GB host memory.
[2026-11-23 07:09:37 TP1] Using Mooncake
[2026-11-23 07:09:39 TP0] max_total_num_tokens=221376, chunked_prefill_size=4096, context_len=1
[2026-11-23 07:12:00 TP0] later
[2026-19-39 27:62:99 TP0] of the shape of a time, and none
""".splitlines()


def test_all_phases_are_told_and_add_up_to_the_start() -> None:
    found = phases_s(170.0, {"startup_time": STARTUP}, LOG)
    assert tuple(sorted(found)) == tuple(sorted(PHASES))
    assert found == {
        "imports, warm-up": 30.0,
        "weights": 81.5,
        "KV pool": 2.25,
        "graphs": 20.25,
        "host pool": 26.0,
        "other": 10.0,
    }
    assert sum(found.values()) == pytest.approx(170.0)


def test_without_a_host_pool_and_without_sglangs_own_times() -> None:
    assert phases_s(170.0, {"startup_time": STARTUP}, LOG[3:])["host pool"] == 0.0
    assert phases_s(5.0, {"startup_time": {"tokenizer_e2e": 4.0}}, LOG) == {}
    assert phases_s(5.0, {}, []) == {}
