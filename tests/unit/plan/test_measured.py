"""What was measured on a GPU takes the place of constants, and nothing else does."""

from typing import Any

import pytest

from warmroute_backend.plan.errors import PlanError
from warmroute_backend.plan.hardware import GPUS
from warmroute_backend.plan.measured import comparison, measured_gpu
from warmroute_backend.plan.memory import EngineShape
from warmroute_backend.plan.models import known_model
from warmroute_backend.plan.speed import Load, decode_step_s, prefill_tokens_per_s

FIGURES = {"bf16_tflops": 494.5, "fp8_tflops": 1187.4, "attention_tflops": 494.5, "read_gb_s": 4320.0}
LOAD = Load(8192, 8192, 500)
SHAPE = EngineShape("aggregated", 1, 1, 8192, 8, 8, "bf16", 64)


def document(device: str = "NVIDIA H200", **changed: Any) -> dict[str, Any]:
    return {"measured": {"device": device, "note": "", **FIGURES, **changed}}


def test_measured_shares_change_the_speeds_of_that_gpu() -> None:
    before, after = GPUS["H200"], measured_gpu(document(), GPUS, "m.toml")
    assert after.name == "H200"
    assert (after.bf16_share, after.fp8_share, after.read_share) == pytest.approx((0.5, 0.6, 0.9))
    model = known_model("qwen3-8b")
    assert prefill_tokens_per_s(after, model, SHAPE, LOAD) < prefill_tokens_per_s(before, model, SHAPE, LOAD)
    assert decode_step_s(after, model, SHAPE, LOAD, 1) < decode_step_s(before, model, SHAPE, LOAD, 1)
    assert next(comparison(after)) == "H200, products, bf16: measured 50% of the peak, 75% planned without (-33%)"
    assert not list(comparison(before))


@pytest.mark.parametrize(
    ("device", "name"),
    [("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA H100 NVL", "H100-NVL"), ("NVIDIA A100-SXM4-80GB", "A100")],
)
def test_a_device_is_known_by_the_words_of_its_name(device: str, name: str) -> None:
    assert measured_gpu(document(device, **dict.fromkeys(FIGURES, 10.0)), GPUS, "m.toml").name == name


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "no table"),
        (document("NVIDIA T4"), "not a known GPU"),
        (document(note="tiny sizes on a CPU: no GPU was used"), "no GPU was used"),
        (document(bf16_tflops=1500.0), "the peak of H200 is 989"),
        (document(read_gb_s=True), "read_gb_s is True"),
    ],
)
def test_a_file_that_is_of_no_use_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        measured_gpu(given, GPUS, "m.toml")
