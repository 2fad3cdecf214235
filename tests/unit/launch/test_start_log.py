"""Logs of engines: what one says of a start, what the parts of a start cost, and logs that are rotated meanwhile.

Lines and `startup_time` are those of SGLang 0.5.23, from its source and from runs on a CPU.
"""

from pathlib import Path

import pytest

from warmroute_backend.launch.start_log import (
    GB,
    KEPT_LOGS,
    PHASES,
    TAIL_BYTES,
    end_of,
    phases_s,
    pool,
    progress,
    rotate,
    tail,
)

LINES = """\
[2026-11-23 07:09:13 TP0] Load weight begin. avail mem=137.94 GB
Multi-thread loading shards:   0% Completed | 0/4 [00:00<?, ?it/s]
Multi-thread loading shards:  50% Completed | 2/4 [00:10<00:10, 5.0s/it]
[2026-11-23 07:09:13 TP0] Load weight end. elapsed=20.04 s, type=KimiK25ForConditionalGeneration, mem usage=70.1 GB.
[2026-11-23 07:09:14 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 221376, KV size: 14.50 GB
[2026-11-23 07:09:14 TP0] Memory pool end. avail mem=19.97 GB
Capturing batches (bs=64 avail_mem=12.10 GB):  25%|###       | 3/12 [00:03<00:09,  1.0it/s]
[2026-11-23 07:09:14 TP0] max_total_num_tokens=221376, chunked_prefill_size=4096, context_len=1
[2026-11-23 07:09:15] The server is fired up and ready to roll!
""".splitlines()


@pytest.mark.parametrize(
    ("count", "phase", "percent"),
    [
        (0, "starting", None),
        (1, "loading weights", None),
        (3, "loading weights", 50),
        (4, "weights loaded", None),
        (6, "KV pool allocated", None),
        (7, "capturing graphs", 25),
        (8, "warming up", None),
        (9, "serving", None),
    ],
)
def test_how_far_a_start_is(count: int, phase: str, percent: int | None) -> None:
    found = progress(LINES[:count])
    assert (found.phase, found.percent) == (phase, percent)
    assert found.last_line == (LINES[count - 1].strip() if count else "")


def test_a_line_that_tells_nothing_leaves_the_phase_as_it_was() -> None:
    assert progress([*LINES[:3], "a warning of some library", ""]).phase == "loading weights"
    assert progress([*LINES[:3], "a warning of some library", ""]).last_line == "a warning of some library"


def test_the_pool_of_latent_attention_of_heads_and_of_a_draft() -> None:
    assert pool(LINES) == pool(LINES[4:])
    assert pool(LINES).tokens == 221376
    assert pool(LINES).kv_bytes == pytest.approx(14.5 * GB)
    heads = "[2026] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 221376, K size: 7.00 GB, V size: 6.50 GB"
    draft = (
        "[2026] Draft KV Cache is allocated. dtype: torch.bfloat16, #tokens: 221376, K size: 0.10 GB, V size: 0.10 GB"
    )
    assert pool([heads, heads, LINES[7]]).kv_bytes == pytest.approx(13.5 * GB)
    assert pool([heads, draft, LINES[7]]).kv_bytes == pytest.approx(13.7 * GB)


def test_a_pool_that_was_not_said_is_unknown() -> None:
    assert pool(LINES[:5]).tokens is None
    assert pool([LINES[7]]).kv_bytes is None


def test_a_prefill_that_nobody_can_reach_says_why_whatever_comes_behind() -> None:
    """SGLang goes on: it is fired up, and answers probes."""
    said = "[..] Prefill instance failed to register to bootstrap server after 5 retries"
    found = progress([*LINES, said, "[..] The server is fired up and ready to roll!"])
    assert found.phase == "not at its bootstrap server, so no decode can reach it: restart it"
    assert found.last_line == said


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


def test_a_log_that_is_open_goes_on_in_the_empty_file(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with log.open("ab", buffering=0) as file:
        for number in range(KEPT_LOGS + 2):
            file.write(f"{number}\n".encode() * 10)
            assert rotate(log, 10)
            assert log.stat().st_size == 0
        file.write(b"the end\n")
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["a.log", *[f"a.log.{number}" for number in range(1, KEPT_LOGS + 1)]]
    assert (tmp_path / "a.log.1").read_text().startswith(f"{KEPT_LOGS + 1}\n")
    assert log.read_text() == "the end\n"
    assert not rotate(log, 10)


def test_a_tail_splits_bars_and_begins_where_it_is_told(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"old\nbar 1%\rbar 2%\r\nnew\n\n")
    assert tail(log, 10) == ["old", "bar 1%", "bar 2%", "new"]
    assert tail(log, 2) == ["bar 2%", "new"]
    assert tail(log, 10, 4) == ["bar 1%", "bar 2%", "new"]
    assert tail(log, 10, 10_000) == ["old", "bar 1%", "bar 2%", "new"], "it was rotated since"
    assert tail(tmp_path / "none.log", 10) == []
    assert end_of(tmp_path / "none.log") == 0


def test_a_tail_reads_a_bounded_part(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"x" * 100 + b"\n" + b"y" * TAIL_BYTES)
    assert tail(log, 10) == ["y" * TAIL_BYTES]
