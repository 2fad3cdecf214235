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
    "DeepSeek-R1, 16 H100 over InfiniBand, batch 1": 11.367,
    "DeepSeek-R1, 16 H100 over InfiniBand, batch 1, after 4,096 tokens": 11.956,
    "DeepSeek-R1, 16 H100 over InfiniBand, batch 1, after 8,192 tokens": 12.455,
    "DeepSeek-V3, 72 H100 with DeepEP, batch 256 in two overlapping halves": None,
}

ESTIMATES: Final = tuple(Estimate(speed, _MS[speed.what]) for speed in SPEEDS if speed.what in _MS)


class Pair(NamedTuple):
    """Milliseconds of one prompt of `tokens` and of a step of `batch`, by AIConfigurator; None: refused."""

    model: str
    gpu: str
    gpus: int
    batch: int
    tokens: int
    output_tokens: int
    step_ms: float | None
    prompt_ms: float | None


PAIRS: Final[tuple[Pair, ...]] = (
    Pair("deepseek-r1", "H200", 8, 32, 8192, 512, 53.88, 365.186),
    Pair("kimi-k2.5", "H200", 8, 32, 8192, 512, 22.308, 517.716),
    Pair("minimax-m2", "H200", 4, 32, 8192, 512, 16.5, 147.663),
    Pair("gpt-oss-120b", "H100", 4, 32, 8192, 512, 12.583, 85.036),
    Pair("gpt-oss-20b", "H100", 1, 32, 8192, 512, 17.933, 207.943),
    Pair("llama-3.3-70b", "H100", 4, 32, 8192, 512, 23.744, 574.094),
    Pair("qwen3-32b", "H100", 2, 32, 8192, 512, 25.645, 500.901),
    Pair("qwen3-8b", "H100", 1, 32, 8192, 512, 19.556, 210.981),
    Pair("qwen3-30b-2507", "H100", 1, 32, 4096, 512, 23.693, 73.035),
    Pair("glm-5.2", "B200", 8, 32, 8192, 512, 16.982, 299.579),
    Pair("deepseek-v3.1", "B200", 8, 32, 8192, 512, 15.402, 179.613),
    Pair("kimi-k2.5-nvfp4", "B200", 8, 32, 8192, 512, 13.018, 142.342),
    Pair("qwen3-235b-2507", "H200", 4, 32, 8192, 512, 23.336, 278.862),
    Pair("qwen3-235b-2507", "B200", 4, 32, 8192, 512, 16.178, 187.262),
    Pair("gpt-oss-120b", "B200", 4, 32, 8192, 512, 4.397, 55.88),
)
"""By `static_gen` and `static_ctx`. The command refuses GLM-4.6 (no such architecture), and Qwen3-235B and
Qwen3-Coder-480B on eight GPUs, since a part of an expert is no multiple of 128 columns there."""
