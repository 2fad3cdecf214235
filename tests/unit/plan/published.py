"""Published figures that the formulas must reproduce: each with the page that it is from.

Two kinds. A `Size` is a log of tokens and the bytes that they take: the formula of a cell. A `Capacity` is a log of
the tokens that a start with known flags gave: the formula of a whole GPU, weights and context included.
"""

from dataclasses import dataclass
from typing import Any, Final

from warmroute_backend.plan.model import Model, model_from_config
from warmroute_backend.plan.models import known_model
from warmroute_backend.plan.words import KvType

GITHUB: Final = "https://github.com"
SGLANG: Final = "https://github.com/sgl-project/sglang"
VLLM: Final = "https://github.com/vllm-project/vllm"
RECIPES: Final = f"{GITHUB}/vllm-project/recipes/issues/115"
KTRANSFORMERS: Final = f"{GITHUB}/kvcache-ai/ktransformers/issues/1804"
SRT_SLURM: Final = f"{GITHUB}/ishandhanani/srt-slurm"
QWEN: Final = f"{VLLM}/issues/21348"
KIMI_LOG: Final = (
    "https://github.com/ajith-sirra-amd/Issues/blob/ffc532e00e6706c6d0a791a0e73dffb1dd93cafb/"
    "Kimi-K2.5-MI355X-SGLANG-ERROR.md"
)
GLM_LOG: Final = (
    "https://github.com/ajith-sirra-amd/Issues/blob/95a6dec604eac37b37ed406d81d902dce429c8c2/"
    "GLM-5-FP8-MI355X-SGLANG-ERROR.md"
)


def dense(architecture: str, **numbers: int) -> Model:
    """A model without experts, of the numbers that its cache depends on."""
    config: dict[str, Any] = {
        "architectures": [architecture],
        "intermediate_size": 1,
        "vocab_size": 1,
        "max_position_embeddings": 1,
        **numbers,
    }
    return model_from_config(config, architecture, "", 0)


LLAMA_8B: Final = dense(
    "LlamaForCausalLM", num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8
)
QWEN_30B_A3B: Final = dense(
    "Qwen3MoeForCausalLM",
    num_hidden_layers=48,
    hidden_size=2048,
    num_attention_heads=32,
    num_key_value_heads=4,
    head_dim=128,
)


@dataclass(frozen=True)
class Size:
    """`gib` for `tokens` on a GPU of an attention group of `tp`; `total`: over all GPUs of the group."""

    what: str
    model: Model
    tokens: int
    gib: float
    source: str
    kv_type: KvType = "bf16"
    tp: int = 1
    raw_rows: bool = False
    exact: bool = True
    """To the last digit that was published."""
    digits: float = 0.01


SIZES: Final = (
    # The table that the planner has to reproduce exactly.
    Size("V3.2, fp8, 8 groups", known_model("deepseek-v3.2"), 975_424, 43.67, f"{SGLANG}/pull/11309", "fp8_e4m3"),
    Size("V3.2, real size", known_model("deepseek-v3.2"), 1_462_784, 65.48, f"{SGLANG}/pull/11309", "fp8_e4m3"),
    Size("Kimi-K2-Thinking", known_model("kimi-k2-thinking"), 715_072, 46.80, RECIPES),
    Size("Qwen3-235B, 4 GPUs, K and V", known_model("qwen3-235b"), 367_404, 16.47, f"{VLLM}/issues/21348", tp=4),
    # More of them.
    Size("DeepSeek-R1, 8 groups", known_model("deepseek-r1"), 274_934, 17.99, f"{SGLANG}/issues/6027", digits=0.011),
    Size("DeepSeek-V3", known_model("deepseek-v3.1"), 10_000, 0.65, KTRANSFORMERS),
    Size("DeepSeek-R1, fp8", known_model("deepseek-r1"), 524_288, 17.16, SRT_SLURM, "fp8_e4m3"),
    Size("Kimi-K2.5 on MI355X", known_model("kimi-k2.5"), 2_454_421, 160.63, KIMI_LOG),
    Size(
        "sparse attention, fp8, raw rows, B300 (a model of V3.2's shape, not named)",
        known_model("deepseek-v3.2"), 4_636_736, 186.50, "https://github.com/flashinfer-ai/flashinfer/pull/3333",
        "fp8_e4m3", raw_rows=True,
    ),
    Size(
        "GLM-5.2 NVFP4, fp8, raw rows, computed as GLM-5 (all layers keep an index)",
        known_model("glm-5"), 464_768, 23.91, "https://github.com/SemiAnalysisAI/InferenceX/pull/2335",
        "fp8_e4m3", raw_rows=True,
    ),
    Size("Qwen3-30B-A3B, K and V", QWEN_30B_A3B, 1_669_816, 152.88, f"{SGLANG}/pull/18263"),
    Size("Llama-3.1-8B in vLLM, 1,952 blocks", LLAMA_8B, 31_232, 3.81, f"{VLLM}/issues/10517"),
    Size("Llama-3.1-8B in vLLM, 1,478 blocks", LLAMA_8B, 23_648, 2.89, f"{VLLM}/issues/10517"),
    Size("GLM-5, fp8 on MI355X", known_model("glm-5"), 3_199_575, 183.15, GLM_LOG, "fp8_e4m3"),
    # vLLM rounds to blocks and keeps one back.
    Size("Qwen3-235B in vLLM, 4 GPUs", known_model("qwen3-235b"), 178_880, 8.11, QWEN, tp=4, exact=False),
)  # fmt: skip


@dataclass(frozen=True)
class Capacity:
    """Tokens of a rank that was started with `fraction`. `why`: what explains the difference, where it is above 1 %."""

    what: str
    model: str
    gpu: str
    tp: int
    attention_dp: int
    fraction: float
    tokens: int
    source: str
    kv_type: KvType = "bf16"
    why: str = ""


CAPACITIES: Final = (
    Capacity("Kimi-K2.5, default fraction", "kimi-k2.5", "MI355X", 8, 1, 0.8260405859375, 2_454_421, KIMI_LOG),
    Capacity(
        "Qwen3-235B", "qwen3-235b", "H100", 4, 1, 0.93, 367_404, f"{VLLM}/issues/21348",
        why="the log is a year older: communicators then took less, which is 0.5 of 16.5 GiB for KV",
    ),
    Capacity(
        "Kimi-K2.6", "kimi-k2.6", "H20", 8, 1, 0.92, 209_413, "a log of SGLang 0.5.12 whose address is not known",
        why="KV gets 13.7 of 95.6 GiB, so that an error of 0.5 GiB in the weights is 4 % of the KV memory",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Speed:
    """A decode step of `batch` sequences in each attention group, in ms, or prompt tokens a second of a node.

    `is_fitted`: a constant of the roofline is from this figure, so that its error says nothing.
    """

    what: str
    model: str
    gpu: str
    tp: int
    attention_dp: int
    batch: int
    """0: of prompts."""
    input_tokens: int
    output_tokens: int
    published: float
    source: str
    kv_type: KvType = "bf16"
    is_fitted: bool = False
    redundant_experts: int = 0
    """Of DeepEP, by which the engine exchanges tokens if there are any."""
    two_batches: bool = True
    weight_format: str = ""
    """Another than the known checkpoint's."""
    layer_of: str = ""
    """Fitted figures of one generation and attention share a time of a layer: each is left out in turn."""


INFERENCEX: Final = f"{GITHUB}/SemiAnalysisAI/InferenceX/issues/870"
TENSTORRENT: Final = f"{GITHUB}/tenstorrent/tt-inference-server/issues/356"
LARGE_EP: Final = "https://lmsys.org/blog/2025-05-05-large-scale-ep/"
LLM_D: Final = f"{GITHUB}/llm-d/llm-d.github.io/pull/490"
GLM_52: Final = f"{SGLANG}/issues/29674"
GLM_46: Final = f"{GITHUB}/zai-org/GLM-4.5/issues/113"
SWEEP: Final = "https://gist.github.com/BenHamm/78563d0d0a08d7cb61b4737392633384"
K2_EP: Final = "https://lmsys.org/blog/2025-07-20-k2-large-scale-ep/"


def alone(name: str, model: str, gpu: str, ms: float, source: str, layer_of: str = "", form: str = "") -> Speed:
    """A step of one sequence on eight GPUs."""
    kv: KvType = "fp8_e4m3" if model == "glm-5" else "bf16"
    what = f"{name}, 8 {gpu}, batch 1"
    return Speed(
        what, model, gpu, 8, 1, 1, 1000, 1000, ms, source, kv, bool(layer_of), weight_format=form, layer_of=layer_of
    )  # fmt: skip


ALONE: Final = (
    alone("GLM-4.6", "glm-4.6", "H100", 1e3 / 70, GLM_46, "Hopper"),
    alone("Qwen3-Coder-480B", "qwen3-coder-480b", "H100", 10.0, GLM_46, "Hopper"),
    alone("gpt-oss-120b", "gpt-oss-120b", "B200", 2.41, SWEEP, "Blackwell, heads"),
    alone("Qwen3-235B", "qwen3-235b", "B200", 6.70, SWEEP, "Blackwell, heads", "bf16"),
    alone("Kimi-K2", "kimi-k2-instruct", "B200", 7.54, SWEEP, "Blackwell, latent"),
    alone("DeepSeek-R1 FP4", "deepseek-r1", "B200", 5.74, SWEEP, "Blackwell, latent", "nvfp4"),
    alone("GLM-4.6", "glm-4.6", "B200", 14.93, SWEEP, form="bf16"),
    alone("GLM-5", "glm-5", "B200", 20.22, SWEEP),
)

SPEEDS: Final = (
    Speed("DeepSeek-R1, 8 H200, batch 4, long answers", "deepseek-r1", "H200", 8, 1, 4, 1024, 8192, 10.93, INFERENCEX),
    Speed("DeepSeek-R1, 8 H200, batch 4, long prompts", "deepseek-r1", "H200", 8, 1, 4, 8192, 1024, 12.05, INFERENCEX),
    Speed("DeepSeek-R1, 8 H200, batch 8", "deepseek-r1", "H200", 8, 1, 8, 1024, 1024, 12.8, INFERENCEX),
    Speed("DeepSeek-R1, 8 H200, batch 16", "deepseek-r1", "H200", 8, 1, 16, 1024, 1024, 17.2, INFERENCEX),
    Speed("DeepSeek-R1, 8 H200, batch 32", "deepseek-r1", "H200", 8, 1, 32, 1024, 1024, 25.6, INFERENCEX),
    Speed("DeepSeek-R1, 8 H200, batch 64", "deepseek-r1", "H200", 8, 1, 64, 1024, 1024, 34.6, INFERENCEX),
    Speed(
        "DeepSeek-R1, 16 H100 over InfiniBand, batch 1", "deepseek-r1", "H100", 16, 1, 1, 128, 128, 23.1, TENSTORRENT,
        is_fitted=True,
    ),
    Speed(
        "DeepSeek-R1, 16 H100 over InfiniBand, batch 1, after 4,096 tokens", "deepseek-r1", "H100", 16, 1, 1, 4096, 128,
        23.7, TENSTORRENT,
    ),
    Speed(
        "DeepSeek-R1, 16 H100 over InfiniBand, batch 1, after 8,192 tokens", "deepseek-r1", "H100", 16, 1, 1, 8192, 128,
        24.0, TENSTORRENT,
    ),
    Speed(
        "DeepSeek-V3, 72 H100 with DeepEP, batch 256 in two overlapping halves", "deepseek-v3.1", "H100", 72, 72, 256,
        2000, 100, 256 * 8 / 22_282 * 1e3, LARGE_EP, redundant_experts=32, is_fitted=True,
    ),
    Speed(
        "DeepSeek-V3, 72 H100 with DeepEP, batch 256 undivided", "deepseek-v3.1", "H100", 72, 72, 256, 2000, 100,
        256 * 8 / (22_310 / 1.255) * 1e3, LARGE_EP, redundant_experts=32, two_batches=False,
    ),
    Speed(
        "DeepSeek-V3, DeepSeek's profile: 128 H800 with DeepEP, batch 128", "deepseek-v3.1", "H100", 128, 128, 128,
        4096, 0, 128 * 8 / 18_598 * 1e3, LARGE_EP, redundant_experts=32,
    ),
    Speed(
        "Kimi-K2, 96 H200 with DeepEP, batch 480", "kimi-k2-instruct", "H200", 96, 96, 480, 2000, 100,
        480 * 8 / 24_000 * 1e3, K2_EP, redundant_experts=96,
    ),
    *(
        Speed(
            f"DeepSeek-V3, prompts of {tokens:,}, 32 H100 with DeepEP", "deepseek-v3.1", "H100", 32, 32, 0, tokens, 1,
            published, LARGE_EP, redundant_experts=32,
        )
        for tokens, published in ((1024, 57_674), (2048, 54_543), (4096, 50_302))
    ),
    Speed(
        "Kimi-K2, prompts of 2,000, 32 H200 with DeepEP", "kimi-k2-instruct", "H200", 32, 32, 0, 2000, 1, 56_000, K2_EP,
        redundant_experts=32,
    ),
    Speed(
        "GLM-5.2, 8 B200, one prompt of 80,000", "glm-5.2", "B200", 8, 1, 0, 80_000, 1, 80_000 / 5.4, LLM_D,
        kv_type="fp8_e4m3",
    ),
    Speed(
        "GLM-5.2 NVFP4, 8 B200, one step with drafts of 5", "glm-5.2", "B200", 8, 1, 1, 1000, 1000, 7.4, GLM_52,
        kv_type="fp8_e4m3", is_fitted=True, weight_format="nvfp4", layer_of="Blackwell, sparse",
    ),
    *ALONE,
)  # fmt: skip
"""LMSYS: tokens a second and node. Redundant experts for K2's prompts are not named; speeds hardly depend on them.
Prompts of one deployment count as fitted together."""


ACCEPTED_SOURCE: Final = (
    f"{GITHUB}/SemiAnalysisAI/InferenceX/blob/ce4e6f073750328525786d1e799f86c3745abf90/golden_al_distribution/"
    "minimaxm3_eagle3.yaml"
)
ACCEPTED: Final = {1: 1.78, 2: 2.38, 3: 2.83, 4: 3.11, 5: 3.35, 6: 3.45, 7: 3.53, 8: 3.74}
"""Drafts of a step -> tokens that it brings: MiniMax-M3 with EAGLE3, coding prompts of SPEED-Bench, thinking on."""


@dataclass(frozen=True)
class Scaling:
    """How many times the prompt tokens a second of one pipeline stage an engine with more of them computes."""

    what: str
    model: str
    tp: int
    pp: int
    chunk_tokens: int
    published: float
    tokens: int = 131_072
    gpu: str = "H20"
    is_fitted: bool = False


PIPELINE: Final = "https://lmsys.org/blog/2026-01-15-chunked-pipeline/"

SCALINGS: Final = (
    Scaling("DeepSeek-V3.1, TP 32 on four nodes over TP 8", "deepseek-v3.1", 32, 1, 12_288, 2.54, is_fitted=True),
    Scaling("DeepSeek-V3.1, TP 8 in 4 stages, chunks of 4,096", "deepseek-v3.1", 8, 4, 4096, 3.20),
    Scaling("DeepSeek-V3.1, TP 8 in 4 stages, chunks of 12,288", "deepseek-v3.1", 8, 4, 12_288, 2.54 * 1.184),
    Scaling("Qwen3-235B, TP 4 in 8 stages, chunks of 6,144", "qwen3-235b", 4, 8, 6144, 8 * 0.696),
)
"""LMSYS, with H20: 128K tokens, averaged over 16 prompts. Ratios only: seconds of H20 are off by 1.8 times, since its
kernels reach a larger share of its small peak than those of H100."""
