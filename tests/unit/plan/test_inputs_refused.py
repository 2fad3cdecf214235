"""Bad input gets one sentence: what is wrong, and what would work."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.plan.plans import plan

from warmroute_backend.plan.deployment import Site
from warmroute_backend.plan.errors import PlanError
from warmroute_backend.plan.hardware import gpus_with, parse_cluster
from warmroute_backend.plan.model import model_from_config
from warmroute_backend.plan.models import MODELS, known_model
from warmroute_cli.plan.inputs import find_model


def refusal(call: object) -> str:
    with pytest.raises(PlanError) as caught:
        call()  # type: ignore[operator]
    return str(caught.value)


def test_what_is_unknown_names_the_nearest() -> None:
    assert "kimi-k2.5" in refusal(lambda: known_model("kimi-k25"))
    assert "H200" in refusal(lambda: parse_cluster("8xH20O"))


@pytest.mark.parametrize("text", ["", "H200", "8 H200", "0xH200", "3xH200", "9xH200", "65x8xH200", "8xH200x2"])
def test_a_number_of_gpus_that_no_node_has_is_refused(text: str) -> None:
    assert "GPU" in refusal(lambda: parse_cluster(text)) or "8xH200" in refusal(lambda: parse_cluster(text))


@pytest.mark.parametrize(
    ("model", "change", "word"),
    [
        ("deepseek-r1", {"num_hidden_layers": None}, "num_hidden_layers"),
        ("deepseek-r1", {"num_hidden_layers": "61"}, "num_hidden_layers"),
        ("deepseek-r1", {"kv_lora_rank": -1}, "kv_lora_rank"),
        ("deepseek-r1", {"quantization_config": {"quant_method": "new"}}, "'new'"),
        ("deepseek-v4-flash", {"compress_ratios": [0, 2, 4] * 15}, "compress_ratios"),  # of a later pool
        ("glm-5", {"index_topk_freq": 4}, "indexer_types"),
        # Families without a formula.
        ("glm-5", {"architectures": ["Qwen3_5MoeForConditionalGeneration"]}, "Qwen3_5MoeForConditionalGeneration"),
        ("glm-5", {"architectures": ["KimiLinearForCausalLM"]}, "KimiLinearForCausalLM"),
        ("glm-5", {"architectures": ["NewForCausalLM"]}, "NewForCausalLM"),
    ],
)
def test_what_is_missing_or_wrong_in_a_config_is_named(model: str, change: dict[str, object], word: str) -> None:
    config = {**MODELS[model].config, **change}
    assert word in refusal(lambda: model_from_config(config, "it", "it", 1))


@pytest.mark.parametrize(
    ("gpus", "options", "words"),
    [
        ("4xH200", {"pp": 3}, "engines of 3 GPUs do not divide 4"),
        ("3x8xH200", {"pp": 4, "split": (0, 0)}, "in 4 stages takes no even part of nodes with 8"),
        ("3x8xH200", {"pp": 3, "tp": 4, "split": (0, 0)}, "in 3 stages takes no even part of nodes with 8"),
        ("3x8xH200", {"all_to_all": "deepep", "split": (12, 12)}, "an engine of 12 GPUs in 1 stage takes no even part"),
        ("3x8xH200", {"all_to_all": "deepep", "split": (0, 0)}, "256 experts do not divide among 24 GPUs"),
        ("3x8xH200", {"tp": 24, "split": (0, 0)}, "128 attention heads are not divisible"),
        ("2x8xH200", {"all_to_all": "deepep", "pp": 2}, "plans have --pp without drafts, LMCache, --dcp and DeepEP"),
        ("8xMI300X", {"all_to_all": "deepep"}, "DeepEP takes tokens to experts of fp8 on NVIDIA's GPUs"),
        ("8xH200", {"draft_steps": 5, "speculation": False}, "--draft-steps is of plans with drafts"),
        ("2x8xH200", {"draft_steps": 5, "pp": 2, "split": (0, 0)}, "--draft-steps is of plans with drafts"),
        ("8xH200", {"site": Site(store_disk_gb=8000)}, "--store-disk-gb is of the Mooncake store"),
    ],
)
def test_options_that_contradict_are_named(gpus: str, options: dict[str, Any], words: str) -> None:
    assert words in refusal(lambda: plan("deepseek-r1", gpus, **options))


def test_a_class_without_stages_is_named() -> None:
    assert "llama-4-scout has no pipeline stages" in refusal(lambda: plan("llama-4-scout", "2xH200", pp=2))


def test_layers_that_share_an_indexer_are_counted() -> None:
    types = ["full", "shared", "shared", "shared"] * 19 + ["full", "shared"]
    listed = {**MODELS["glm-5"].config, "index_topk_freq": 4, "indexer_types": types}
    assert model_from_config(listed, "it", "it", 1).indexed_layers == 20


def test_a_folder_needs_an_index(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODELS["deepseek-r1"].config))
    assert "model.safetensors.index.json" in refusal(lambda: find_model(str(tmp_path)))
    index = {"metadata": {"total_size": 123}, "weight_map": {}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert find_model(str(tmp_path)).checkpoint_bytes == 123


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_a_config_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert "config.json" in refusal(lambda: find_model(str(tmp_path)))


def test_a_gpu_of_a_file_is_checked_and_then_known() -> None:
    table = {
        "name": "X1", "memory_mib": 100_000, "context_mib": 1000, "bandwidth_gb_s": 1000, "bf16_tflops": 100,
        "fp8_tflops": 0, "fp4_tflops": 0, "link_gb_s": 100, "host_memory_gib": 512, "nics": 1, "nic_gbit_s": 100,
        "compute_capability": "9.0",
    }  # fmt: skip
    assert parse_cluster("4xx1", gpus_with([table], "file")).gpu.memory_mib == 100_000
    assert "memory_mib" in refusal(lambda: gpus_with([{**table, "memory_mb": 1}], "file"))
    assert "memory_mib" in refusal(lambda: gpus_with([{**table, "memory_mib": -1}], "file"))
    assert "nics" in refusal(lambda: gpus_with([{key: value for key, value in table.items() if key != "nics"}], "file"))
