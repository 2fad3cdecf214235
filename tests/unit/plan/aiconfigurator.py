"""What AIConfigurator says of published speeds: printed by its command, on a machine without a GPU.

    pip install aiconfigurator==0.12.0
    aiconfigurator cli estimate --backend sglang --estimate-mode static_gen --system h200_sxm
        --model deepseek-ai/DeepSeek-R1 --isl 1024 --osl 1024 --batch-size 8
        --tp-size 8 --moe-tp-size 8 --moe-ep-size 1 --attention-dp-size 1

and the same with the tokens, GPUs and batch of each row. For 72 GPUs by DeepEP it answers that cross-node EP requires
data of the exchange, which it lacks on H100 and H200.
"""

from typing import Final, NamedTuple

from tests.unit.plan.published import SPEEDS, Speed

VERSION: Final = "0.12.0"


class Estimate(NamedTuple):
    """A published speed, and milliseconds of a step by AIConfigurator."""

    speed: Speed
    ms: float | None


_MS: Final = {
    "DeepSeek-R1, 8 H200, batch 8": 13.249,
    "DeepSeek-R1, 8 H200, batch 16": 20.292,
    "DeepSeek-R1, 8 H200, batch 32": 27.573,
    "DeepSeek-R1, 8 H200, batch 64": 38.455,
    "DeepSeek-R1, 16 H100 over InfiniBand, alone": 11.367,
    "the same after 4,096 tokens": 11.956,
    "the same after 8,192 tokens": 12.455,
    "DeepSeek-V3, 72 H100 by DeepEP, batch 256 in two halves": None,
}

ESTIMATES: Final = tuple(Estimate(speed, _MS[speed.what]) for speed in SPEEDS if speed.what in _MS)
