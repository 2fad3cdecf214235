"""The formulas reproduce what was published: sizes of KV pools, capacities, fractions at which an engine starts."""

from dataclasses import replace
from statistics import median

import pytest
from bench.plans import band, left_out, rooflined, scaled
from tests.unit.plan.published import (
    ACCEPTED,
    CAPACITIES,
    LLAMA_8B,
    SCALINGS,
    SIZES,
    SPEEDS,
    Capacity,
    Scaling,
    Size,
    Speed,
)

from warmroute_backend.plan.cache import COMPRESSED_ROW_BYTES, cell_bytes, state_bytes, value_bytes
from warmroute_backend.plan.hardware import GIB, GPUS
from warmroute_backend.plan.memory import EngineShape, default_fraction, memory, reserve_mib
from warmroute_backend.plan.model import Model
from warmroute_backend.plan.models import MODELS, known_model
from warmroute_backend.plan.speculation import Draft, accepted_tokens
from warmroute_backend.plan.weights import LOADED_PER_STORED, loaded_bytes, weights
from warmroute_backend.plan.words import KvType
from warmroute_cli.plan.targets import UNCERTAIN_PROMPT, UNCERTAIN_STEP

MOST_MEDIAN_ERROR = 0.05
UNEXPLAINED = 0.01
OUTSIDE = {"GLM-4.6, 8 B200, batch 1", "GLM-5, 8 B200, batch 1"}
"""Slower than all others by a factor of two, without a published cause."""


def gib(size: Size) -> float:
    return size.tokens * cell_bytes(size.model, size.kv_type, size.tp, raw_rows=size.raw_rows) / GIB


def error(capacity: Capacity) -> float:
    shape = EngineShape("aggregated", capacity.tp, capacity.attention_dp, 8192, 512, 512, capacity.kv_type, 1)
    found = memory(GPUS[capacity.gpu], known_model(capacity.model), shape, capacity.fraction)
    return found.tokens / capacity.tokens - 1


@pytest.mark.parametrize("size", [size for size in SIZES if size.exact], ids=lambda size: size.what)
def test_a_published_size_comes_out_to_its_last_digit(size: Size) -> None:
    assert gib(size) == pytest.approx(size.gib, abs=size.digits)


def test_at_least_ten_sizes_and_capacities_beyond_the_given_table_have_a_small_median_error() -> None:
    errors = [abs(gib(size) / size.gib - 1) for size in SIZES[4:]] + [abs(error(each)) for each in CAPACITIES]
    assert len(errors) >= 12
    assert median(errors) <= MOST_MEDIAN_ERROR


@pytest.mark.parametrize("capacity", CAPACITIES, ids=lambda capacity: capacity.what)
def test_a_published_capacity_is_met_and_what_is_missed_is_explained(capacity: Capacity) -> None:
    found = error(capacity)
    assert abs(found) <= MOST_MEDIAN_ERROR
    assert bool(capacity.why) == (abs(found) > UNEXPLAINED)


@pytest.mark.parametrize("speed", SPEEDS, ids=lambda speed: speed.what)
def test_a_published_speed_is_near_the_rooflines_by_constants_that_are_not_from_it(speed: Speed) -> None:
    error = left_out(speed)
    assert rooflined(speed) == pytest.approx(speed.published, rel=0.3) or not speed.is_fitted
    assert error is None or (abs(error) > 0.55) == (speed.what in OUTSIDE)


def test_the_band_of_maybe_is_what_eight_of_ten_left_out_speeds_are_within() -> None:
    assert UNCERTAIN_PROMPT - 0.01 < band(of_prompts=True) <= UNCERTAIN_PROMPT
    assert UNCERTAIN_STEP - 0.01 < band(of_prompts=False) <= UNCERTAIN_STEP


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: scaling.what)
def test_published_gains_of_more_nodes_are_near_the_rooflines(scaling: Scaling) -> None:
    """TP over nodes, and pipeline stages."""
    assert scaled(scaling) == pytest.approx(scaling.published, rel=0.02 if scaling.is_fitted else 0.15)


@pytest.mark.parametrize("steps", ACCEPTED)
def test_other_numbers_of_drafts_bring_what_was_published(steps: int) -> None:
    draft = Draft("EAGLE3", "", 1, 0, ACCEPTED[3], "")
    assert accepted_tokens(draft, steps) == pytest.approx(ACCEPTED[steps], rel=0.1)


def test_lmsys_wide_decode_holds_its_batch() -> None:
    """DeepSeek on 72 H100 with fraction 0.835: a batch of 256 with 2,100 tokens each ran (sgl-project/sglang#6017)."""
    shape = EngineShape(
        "decode", 72, 72, 8192, 18_432, 256, "bf16", 64, all_to_all="deepep", redundant_experts=32
    )  # fmt: skip
    found = memory(GPUS["H100"], known_model("deepseek-r1"), shape, 0.835)
    assert 1.0 <= found.tokens / (256 * 2100) <= 1.1


@pytest.mark.parametrize("draft_tokens", [0, 4])
def test_deepeps_buffers_for_drafts_are_left_free(draft_tokens: int) -> None:
    """Rows of 7,168 values and 56 pairs of scales, to and from 288 experts, twice (`LowLatencyLayout` of DeepEP)."""
    shape = EngineShape(
        "decode", 72, 72, 8192, 18_432, 256, "bf16", 64, draft_tokens=draft_tokens, all_to_all="deepep",
        redundant_experts=32,
    )  # fmt: skip
    more = (256 * max(1, draft_tokens) - 256) * 4 * 288 * (2 * 7168 + 4 * 56) / 2**20
    reserve = reserve_mib(GPUS["H100"], known_model("deepseek-r1"), shape)
    assert reserve == pytest.approx(13_457 + more, abs=2)


def test_the_last_of_two_stages_has_31_of_58_layers_with_experts() -> None:
    model = known_model("deepseek-r1")
    found = weights(model)
    stage, whole = loaded_bytes(model, 8, 1, pp=2), loaded_bytes(model, 8, 1)
    others = whole / LOADED_PER_STORED - found.experts / 8
    assert stage / LOADED_PER_STORED > found.experts / 8 * 31 / 58
    assert stage / LOADED_PER_STORED < found.experts / 8 * 31 / 58 + others


def test_each_stage_has_the_vision_tower() -> None:
    """`kimi_k25.py:680` makes it on every rank."""
    model = known_model("kimi-k2.5")
    without = replace(model, vision_layers=0, checkpoint_bytes=0)
    more = loaded_bytes(replace(model, checkpoint_bytes=0), 8, 1, pp=2) - loaded_bytes(without, 8, 1, pp=2)
    whole = loaded_bytes(replace(model, checkpoint_bytes=0), 8, 1) - loaded_bytes(without, 8, 1)
    assert whole > 0
    assert more == pytest.approx(whole, abs=2)


@pytest.mark.parametrize(("draft_gib", "least"), [(0.0, 0.9113), (3.07, 0.9335)])
def test_the_least_fraction_is_that_of_sglangs_error(draft_gib: float, least: float) -> None:
    """DeepSeek-V4-Pro on 8 H200: 12.25 GiB are free after 125.65 GiB of weights (SemiAnalysisAI/InferenceX#2128)."""
    shape = EngineShape("aggregated", 8, 1, 8192, 512, 512, "bf16", 1)
    found = replace(memory(GPUS["H200"], LLAMA_8B, shape, 0.88), weights=int((125.65 + draft_gib) * GIB))
    assert found.free_before_weights / GIB == pytest.approx(137.9, abs=0.05)
    assert found.least_fraction == pytest.approx(least, abs=0.0004)


def test_a_pool_is_what_is_left_of_free_memory_after_the_slack() -> None:
    """Qwen3-30B-A3B on one AMD GPU: 230.20 GiB are free after 56.98 of weights, 204.63 for KV (sglang#18263)."""
    shape = EngineShape("aggregated", 1, 1, 8192, 512, 512, "bf16", 1)
    own = loaded_bytes(LLAMA_8B, 1, 1)
    gpu = replace(GPUS["MI355X"], memory_mib=int((230.20 + 56.98) * 1024), context_mib=0)
    found = memory(gpu, LLAMA_8B, replace(shape, draft_bytes=int(56.98 * GIB) - own), 0.911)
    assert found.pool / GIB == pytest.approx(204.63, abs=0.02)


def test_a_prompt_of_qwen3_235b_on_eight_gpus_moves_as_many_bytes_as_mooncake_measured() -> None:
    """32K tokens are 12.62 GB with 4 KV heads repeated on 8 GPUs (Mooncake, sglang-benchmark-results-v1.md)."""
    cell = cell_bytes(known_model("qwen3-235b"), "bf16", 8)
    assert 8 * cell * 32_768 / 1e9 == pytest.approx(12.62, abs=0.005)


def test_compressed_kv_has_the_bytes_that_sglang_computes() -> None:
    """A page of 256 rows has 149,760 bytes in the log of sgl-project/sglang#26783; sums are those of
    `DSV4PoolConfigurator`, computed by hand for 61 layers: 30 of ratio 4, 31 of 128."""
    assert COMPRESSED_ROW_BYTES * 256 == 149_760
    pro = known_model("deepseek-v4-pro")
    assert (pro.layers, pro.quarter_layers, pro.coarse_layers) == (61, 30, 31)
    by_hand = 0.1 * (61 * 585 + 30 * 320) + 30 * (585 + 132) / 4 + 31 * 864 / 128
    assert cell_bytes(pro, "fp8_e4m3", 1, window_ratio=0.1) == pytest.approx(by_hand)
    assert state_bytes(pro, 64, drafts=False) == 31 * 8576 * 4096


def full_only_bytes(model: Model, kv_type: KvType) -> float:
    """Bytes of a token over all GPUs where only the layers that see everything are counted.

    This is how Cloudflare counts Llama 4 Scout in Infire: 56 GiB for 1.22 million tokens
    (https://blog.cloudflare.com/high-performance-llms/). SGLang gives the chunked layers a pool as well.
    """
    return 2 * (model.layers - model.window_layers) * model.kv_heads * model.head_dim * value_bytes(kv_type)


def test_cloudflares_scout_counts_the_layers_that_see_everything() -> None:
    """56 GiB for more than 1.2 million tokens in Infire; SGLang's pools of chunked layers leave less."""
    scout = known_model("llama-4-scout")
    assert 56 * GIB / full_only_bytes(scout, "bf16") == pytest.approx(1.22e6, rel=0.01)
    for ratio, tokens in ((0.8, 360e3), (0.05, 1.06e6), (0.01, 1.19e6)):
        assert 56 * GIB / (2 * cell_bytes(scout, "bf16", 2, window_ratio=ratio)) == pytest.approx(tokens, rel=0.01)


def test_cloudflares_kimi_fits_a_lean_engine_and_not_sglangs_defaults() -> None:
    """More than 30 GiB for KV on 8 H100: 637 GiB less weights, if an engine takes at most 6.6 GiB of each GPU."""
    model, gpu = known_model("kimi-k2.5"), GPUS["H100"]
    left = 8 * gpu.memory_bytes - weights(model).total
    assert left / GIB == pytest.approx(83, abs=1)
    assert left - 8 * 6.6 * GIB >= 30 * GIB
    shape = EngineShape("aggregated", 8, 1, 8192, 64, 64, "bf16", 64)
    assert memory(gpu, model, shape, default_fraction(gpu, model, shape)).pool < 0


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].checkpoint_bytes])
def test_counted_weights_are_those_of_the_checkpoint(name: str) -> None:
    model = known_model(name)
    assert weights(replace(model, checkpoint_bytes=0)).total == pytest.approx(model.checkpoint_bytes, rel=0.01)


@pytest.mark.parametrize(
    ("name", "tp", "logged_gib"),
    [
        ("kimi-k2.5", 8, 73.58),
        ("glm-5", 8, 89.2),  # both logs of ajith-sirra-amd/Issues
        ("deepseek-v4-pro", 8, 125.65),  # SemiAnalysisAI/InferenceX#2128
    ],
)
def test_loaded_weights_are_near_those_that_sglang_logs(name: str, tp: int, logged_gib: float) -> None:
    assert loaded_bytes(known_model(name), tp, 1) / GIB == pytest.approx(logged_gib, rel=0.015)
