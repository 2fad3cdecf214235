"""What a starting engine's log says: lines of SGLang 0.5.23, from its source and from runs on a CPU."""

import pytest

from warmroute_backend.launch.start_log import GB, pool, progress

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
