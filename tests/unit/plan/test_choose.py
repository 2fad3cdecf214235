"""What is chosen fits, is explained, and is refused with alternatives where nothing fits."""

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.plan.plans import KINDS, TRAFFIC, kind, plan, request

from warmroute_backend.plan.argv import argv, environment
from warmroute_backend.plan.check import problems
from warmroute_backend.plan.choose import alternatives, make_plan
from warmroute_backend.plan.deployment import Traffic
from warmroute_backend.plan.errors import PlanError
from warmroute_backend.plan.measured import page
from warmroute_backend.plan.models import MODELS

pytestmark = pytest.mark.full

ALWAYS_PRINTED = (
    "--tp-size", "--attn-dp-size", "--ep-size", "--page-size", "--mem-fraction-static", "--chunked-prefill-size",
    "--max-running-requests", "--kv-cache-dtype", "--context-length", "--enable-cache-report",
)  # fmt: skip
RENAMED = ("--tp", "--dp", "--enable-dp-attention", "--cuda-graph-max-bs", "--ep", "--enable-hicache")
"""Abbreviations and old names that recipes use."""


@pytest.mark.parametrize("name", KINDS)
def test_a_plan_has_no_problem_and_says_why(name: str) -> None:
    made = kind(name)
    assert problems(made) == []
    assert made == kind(name)
    topics = {choice.topic for choice in made.choices}
    assert {"division", "KV type", "page", "speculation", "host memory"} <= topics
    for role in {engine.role for engine in made.engines}:
        words = ("parallelism", "expert parallelism", "memory fraction", "chunk", "running requests")
        assert {f"{role}: {word}" for word in words} <= topics
    assert all(choice.because.endswith(".") for choice in made.choices)
    text = page(made)
    assert all(engine.name in text for engine in made.engines)
    assert all(len(line) <= 120 for line in text.splitlines())


@pytest.mark.parametrize("name", KINDS)
def test_flags_that_decide_memory_are_always_printed_and_by_their_full_names(name: str) -> None:
    made = kind(name)
    for engine in made.engines:
        command = argv(made, engine)
        assert set(ALWAYS_PRINTED) <= set(command)
        assert not set(RENAMED) & set(command)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("gpus", ["8xH100", "8xH200", "8xB200", "8xB300", "8xMI300X", "2x8xH200", "4xH200"])
@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_every_shape_gets_a_plan_without_problems_or_alternatives_that_work(
    model: str, gpus: str, objective: str
) -> None:
    try:
        made = plan(model, gpus, objective=objective)
    except PlanError as error:
        assert error.alternatives
        works = next(each for each in error.alternatives if each.startswith("--gpus "))
        assert plan(model, works.removeprefix("--gpus "), objective=objective).engines
    else:
        assert problems(made) == []


def test_kimi_on_eight_h100_is_refused_with_the_nearest_shapes() -> None:
    with pytest.raises(PlanError) as caught:
        plan("kimi-k2.5", "8xH100", traffic=TRAFFIC)
    assert "73.2 GiB of weights" in caught.value.sentence
    assert {"--gpus 2x8xH100", "--gpus 8xH200"} <= set(caught.value.alternatives)


def test_latent_attention_on_tensor_parallelism_holds_what_one_gpu_holds() -> None:
    one, groups = (
        plan("deepseek-r1", "8xH200", speculation=False),
        plan("deepseek-r1", "8xH200", objective="throughput"),
    )
    assert one.engines[0].ranks == 1
    assert groups.engines[0].ranks == 8
    total = sum(groups.memory(engine).tokens * engine.ranks for engine in groups.engines)
    assert total > 3 * one.memory(one.engines[0]).tokens
    assert "capacity is that of one" in next(
        each.because for each in one.choices if each.topic.endswith(": parallelism")
    )


def test_fp8_weights_get_expert_groups_where_their_scales_need_them() -> None:
    assert plan("qwen3-coder-480b", "8xH200").engines[0].ep == 2
    assert plan("deepseek-r1", "8xH200").engines[0].ep == 1


def test_sparse_attention_has_fp8_on_blackwell_only() -> None:
    types = {gpus: plan("deepseek-v3.2", gpus).engines[0].shape.kv_type for gpus in ("8xH200", "8xB200")}
    assert types == {"8xH200": "bf16", "8xB200": "fp8_e4m3"}


def test_both_sides_of_a_pair_agree() -> None:
    made = kind("over nodes")
    assert len({(each.shape.page_tokens, each.shape.kv_type, each.context_tokens) for each in made.engines}) == 1
    assert len({each.speculation and each.speculation.algorithm for each in made.engines}) == 1
    assert [each.role for each in made.engines] == ["prefill", "decode", "decode", "decode"]
    assert all(each.hicache is None for each in made.of("decode"))


def test_nothing_is_drafted_where_it_does_not_pay() -> None:
    short = Traffic(1000, 1000, 1.0, 0.0)
    made = plan("gpt-oss-120b", "1xH100", objective="throughput", traffic=short)
    found = made.engines[0]
    if found.speculation is not None:
        assert found.shape.running_requests <= found.speculation.largest_batch
    latency = plan("kimi-k2.5", "8xH200", traffic=short).engines[0]
    assert latency.speculation is not None
    assert latency.shape.running_requests <= latency.speculation.largest_batch


OVER_NODES = {"split": (0, 0), "tp": 16, "attention_dp": 1, "speculation": False}


@pytest.mark.parametrize(
    ("model", "gpus", "options", "words"),
    [
        ("kimi-k2.5", "8xH200", {"context_tokens": 300_000}, "context"),
        ("kimi-k2.5", "8xH200", {"traffic": Traffic(262_000, 400, 1.0, 0.9)}, "context"),
        ("kimi-k2.5", "8xH200", {"split": (8, 8)}, r"8\+8 GPUs"),
        ("kimi-k2.5", "8xH200", {"split": (8, 0)}, "both sides"),
        ("kimi-k2.5", "8xH200", {"storage": "file", "hicache": False}, "behind HiCache"),
        ("kimi-k2.5", "8xH200", {"dcp": 8, "speculation": True}, "without drafts"),
        ("kimi-k2.5", "8xH200", {"dcp": 3}, "--dcp 3 does not divide"),
        ("gpt-oss-120b", "8xH200", {"dcp": 2}, "latent attention"),
        ("deepseek-v3.2", "8xH200", {"dcp": 2}, "latent attention"),
        ("qwen3-235b", "8xH200", {"speculation": True}, "no draft model"),
        ("glm-4.6", "8xH200", {"lmcache": True, "speculation": True}, r"kv_cache_hook\.py:433-470"),
        ("glm-4.6", "8xH200", {"lmcache": True, "attention_dp": 8}, r"kv_cache_hook\.py:433-470"),
        ("glm-4.6", "8xH200", {"lmcache": True, "split": (4, 4)}, r"kv_cache_hook\.py:433-470"),
        # The daemons of two nodes do not know each other.
        ("kimi-k2-instruct", "2x8xH200", {"lmcache": True, **OVER_NODES}, "its own node's LMCache alone"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(model: str, gpus: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        plan(model, gpus, **options)


def test_a_context_longer_than_a_rank_holds_is_refused_with_what_it_holds() -> None:
    with pytest.raises(PlanError) as caught:
        plan("kimi-k2.5", "8xH200", context_tokens=262_144, attention_dp=8)
    assert "a rank holds" in caught.value.sentence
    assert any(each.startswith(("--context", "--kv-dtype")) for each in caught.value.alternatives)


def test_alternatives_are_tried_and_not_guessed() -> None:
    for change in alternatives(request("glm-5", "8xH100")):
        assert make_plan(request("glm-5", change.removeprefix("--gpus "))).engines


def test_a_plan_inside_a_node_moves_kv_by_nvlink_and_one_over_nodes_by_named_cards() -> None:
    inside, over = kind("inside a node"), kind("over nodes")
    assert environment(inside, inside.engines[0])["SGLANG_MOONCAKE_CUSTOM_MEM_POOL"] == "INTRA_NODE_NVLINK"
    assert "SGLANG_MOONCAKE_CUSTOM_MEM_POOL" not in environment(over, over.engines[0])
    command = argv(over, over.engines[0])
    assert command[command.index("--disaggregation-ib-device") + 1] == "mlx5_0"
    events = json.loads(command[command.index("--kv-events-config") + 1])
    assert events["publisher"] == "zmq"
    assert "--kv-events-config" not in argv(over, over.engines[1])
    assert "--disaggregation-decode-enable-offload-kvcache" in argv(over, over.engines[1])


def test_divided_kv_holds_more_tokens_on_the_same_gpus() -> None:
    """Each GPU has the KV of every eighth token, and no prefill graphs: SGLang captures none. It drafts nothing."""
    whole = plan("kimi-k2.5", "8xH200", speculation=False)
    divided = plan("kimi-k2.5", "8xH200", dcp=8)
    held, more = (each.memory(each.engines[0]).tokens for each in (whole, divided))
    assert 8.0 < more / held < 8.4
    command = argv(divided, divided.engines[0])
    assert command[command.index("--dcp-size") + 1] == "8"
    assert "--speculative-algorithm" not in command
    assert any("KV divided among 8 GPUs" in choice.value for choice in divided.choices)


def test_stages_and_not_the_model_are_why_nothing_is_drafted() -> None:
    made = plan("deepseek-r1", "2x8xH200", pp=2, split=(0, 0))
    (why,) = [each.because for each in made.choices if each.topic == "speculation"]
    assert "pipeline stages" in why


def test_aggregated_engines_with_deepep_have_no_experts_by_load() -> None:
    """SGLang counts what experts get in the modes of prefill and decode, and raises in `auto`."""
    made = plan("deepseek-r1", "2x8xH200", all_to_all="deepep", split=(0, 0))
    assert made.engines[0].nodes == 2
    assert "--enable-eplb" not in argv(made, made.engines[0])
    engine = made.engines[0]
    copied = replace(engine, shape=replace(engine.shape, redundant_experts=32))
    assert any("does not count" in each for each in problems(replace(made, engines=(copied,))))
    split = kind("wide experts")
    assert all("--enable-eplb" in argv(split, each) for each in split.engines)


def test_divided_kv_is_that_of_decode_engines() -> None:
    made = plan("deepseek-r1", "2x8xH200", split=(8, 8), dcp=4)
    assert {engine.role: engine.shape.dcp for engine in made.engines} == {"prefill": 1, "decode": 4}
