"""KV of 4 bits: its size, and what excludes it."""

from typing import Any

import pytest
from tests.unit.plan.plans import plan

from warmroute_backend.plan.argv import argv
from warmroute_backend.plan.errors import PlanError


def test_a_token_has_9_of_the_32_bits_of_bf16() -> None:
    """`head_num * (head_dim // 2 + head_dim // 16) * layers * 2` bytes: SGLang 0.5.23, `compute_cell_size`."""
    made, plain = (plan("qwen3-32b", "4xB200", kv_type=kind, split=(0, 0)) for kind in ("nvfp4", "bf16"))
    cell = made.memory(made.engines[0]).cell
    assert cell == 2 * (128 // 2 + 128 // 16) * 64 * 2
    assert cell / plain.memory(plain.engines[0]).cell == 9 / 32
    assert made.engines[0].hicache is None
    command = argv(made, made.engines[0])
    assert command[command.index("--kv-cache-dtype") + 1] == "nvfp4"
    assert command[command.index("--attention-backend") + 1] == "trtllm_mha"


@pytest.mark.parametrize(
    ("model", "gpus", "options", "words"),
    [
        ("qwen3-32b", "4xH200", {}, "on Blackwell"),
        ("deepseek-r1", "8xB200", {}, "heads of keys and values"),
        ("qwen3-32b", "8xB200", {"split": (4, 4)}, "without prefill/decode"),
        ("qwen3-32b", "4xB200", {"lmcache": True}, "without HiCache and LMCache"),
        ("qwen3-32b", "4xB200", {"hicache": True}, "does not keep KV of nvfp4"),
    ],
)
def test_what_excludes_it_is_named(model: str, gpus: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        plan(model, gpus, **{"kv_type": "nvfp4", "split": (0, 0), "speculation": False, **options})
