"""The shares of a GPU's peaks that SGLang's kernels reach, by generation, format of weights, kind of attention and MLP.

NVIDIA has measured kernels of SGLang 0.5.14 (Ampere: 0.5.10) for its tool AIConfigurator. All values but `layer_s` are
from the Apache-2.0 data of the package `aiconfigurator-core` 0.12.0, on A100, L40S, H100, H200 and B200. Each value is
the median over the shapes of the models that the planner knows (in brackets: the table of the data):

    dense       matrix products of 2,048 to 8,192 tokens (gemm_perf)
    experts     8,192 tokens on fused experts (moe_perf): S * w / (w + w0) for w columns of an expert on each GPU
    attention   a prompt of 16,384 tokens (context_attention_perf, context_mla_perf): share of the bf16 peak
    sparse      a layer of sparse attention for 4,096 to 8,192 tokens after up to 65,536 others
                (dsa_context_module_perf): a time for each token, and the index in fp8 at the peak of bf16
    kv          a decode step of 32 sequences with 8,192 tokens (generation_attention_perf, generation_mla_perf): share
                of HBM's bandwidth
    all_reduce  64 MiB among 8 GPUs, in GB/s of the message (custom_allreduce_perf)
    read        weights of a decode step of 32 tokens: share of HBM's bandwidth

Shares that `python -m scripts.gpu` has measured on a machine and written to a file replace these.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from warmroute_backend.plan.hardware import Gpu
from warmroute_backend.plan.model import CacheKind, Model


@dataclass(frozen=True, slots=True)
class Kernels:
    """The shares and times of one GPU generation. Weights in a format that is not listed are multiplied in bf16."""

    dense: Mapping[str, float]
    experts: Mapping[str, tuple[float, float]]
    """Format -> S and w0 of the formula above."""
    attention: float
    latent: float
    sparse_s: float
    """Seconds of sparse attention for each token and layer, with SGLang's default KV type for the generation."""
    kv: float
    latent_kv: float
    all_reduce_gb_s: float
    read: float
    layer_s: Mapping[CacheKind, float]
    """Seconds of launches, norms and all-reduces in a layer with experts, by the kind of attention."""


_H, _L, _S = CacheKind.HEADS, CacheKind.LATENT, CacheKind.SPARSE

PLAIN_LAYER: Final = 0.6
"""A layer without experts takes this share of `layer_s`, since it lacks the router and the sums over experts. On Hopper
the layer takes 74 of 123 us: 14 us of attention, two all-reduces of 13 us and four products of 8 to 10 us (the tables
above, for 8 KiB and one token)."""

AMPERE: Final = Kernels(
    dense={"bf16": 0.77},
    experts={"bf16": (0.33, 40), "int4": (0.43, 120)},
    attention=0.55,
    latent=0.18,
    sparse_s=0.6e-6,
    kv=0.85,
    latent_kv=0.22,
    all_reduce_gb_s=70,
    read=0.85,
    layer_s={_H: 160e-6, _L: 160e-6, _S: 160e-6},
)
"""Attention, all-reduces and the time of a layer are assumed from Hopper's, since no table has them."""

ADA: Final = Kernels(
    dense={"bf16": 0.56, "fp8": 0.39},
    experts={"bf16": (0.29, 160), "int4": (0.25, 80), "mxfp4": (0.21, 1)},
    attention=0.55,
    latent=0.18,
    sparse_s=0.6e-6,
    kv=0.85,
    latent_kv=0.22,
    all_reduce_gb_s=12,
    read=0.80,
    layer_s={_H: 160e-6, _L: 160e-6, _S: 160e-6},
)
"""Attention and the time of a layer are assumed from Hopper's. All-reduces go over PCIe; their rate is also assumed."""

HOPPER: Final = Kernels(
    dense={"bf16": 0.75, "fp8": 0.53},
    experts={"bf16": (0.25, 60), "fp8": (0.29, 220), "int4": (0.27, 160), "mxfp4": (0.29, 1), "fp4": (0.29, 220)},
    attention=0.62,
    latent=0.18,
    sparse_s=0.6e-6,
    kv=0.88,
    latent_kv=0.22,
    all_reduce_gb_s=113,
    read=0.85,
    layer_s={_H: 123e-6, _L: 123e-6, _S: 123e-6},
)
"""Source of the time of a layer: on 8 H100, one sequence decodes 70 tokens/s with GLM-4.6-FP8 and 100 with
Qwen3-Coder-480B (zai-org/GLM-4.5#113), so a token takes 14.3 and 10 ms. Minus the time to read the bytes and `STEP_S`,
127 us are left for each of GLM's 92 layers, and 119 us for each of Qwen's 62."""

BLACKWELL: Final = Kernels(
    dense={"bf16": 0.64, "fp8": 0.45, "nvfp4": 0.29},
    experts={
        "bf16": (0.34, 120),
        "fp8": (0.16, 160),
        "int4": (0.28, 60),
        "nvfp4": (0.45, 820),
        "mxfp4": (0.20, 400),
        "fp4": (0.20, 400),
    },
    attention=0.46,
    latent=0.63,
    sparse_s=0.24e-6,
    kv=0.88,
    latent_kv=0.69,
    all_reduce_gb_s=170,
    read=0.85,
    layer_s={_H: 44e-6, _L: 77e-6, _S: 64e-6},
)
"""Source of the time of a layer: a page of runs on 8 B200 (gist BenHamm/78563d0d0a08d7cb61b4737392633384). With one
sequence, a token of gpt-oss-120b takes 2.41 ms and one of Qwen3-235B 6.70 ms, which gives 36 and 52 us a layer;
DeepSeek-R1 FP4 takes 5.74 ms and Kimi-K2 7.54 ms, which gives 60 and 94 us. Sparse attention: GLM-5.2 NVFP4 with 5
drafts takes 1.85 ms a token at about 4 tokens a step (sgl-project/sglang#29674)."""

_BY_CAPABILITY: Final[Mapping[str, Kernels]] = {"8.0": AMPERE, "8.9": ADA}


def kernels(gpu: Gpu) -> Kernels:
    """The values of a GPU's generation. GPUs that no table has, such as AMD's, count as Hopper."""
    return BLACKWELL if gpu.is_blackwell else _BY_CAPABILITY.get(gpu.compute_capability, HOPPER)


def peak_tflops(gpu: Gpu, weight_format: str) -> float:
    """The peak of the format in which weights are multiplied. Weights of `int4` are multiplied in bf16, and so is
    every format for which the GPU has no faster one."""
    if weight_format == "fp8":
        return gpu.fp8_tflops or gpu.bf16_tflops
    if weight_format in {"nvfp4", "mxfp4"}:
        return gpu.fp4_tflops or gpu.bf16_tflops
    if weight_format == "fp4":
        return gpu.fp4_tflops or gpu.fp8_tflops or gpu.bf16_tflops
    return gpu.bf16_tflops


def dense_tflops(gpu: Gpu, model: Model) -> float:
    """The speed of products with weights that belong to no expert."""
    weight_format = "fp8" if model.weight_format in {"fp8", "fp4"} else "bf16"
    found = kernels(gpu).dense
    if weight_format not in found or not gpu.fp8_tflops:
        weight_format = "bf16"
    measured = gpu.fp8_share if weight_format == "fp8" else gpu.bf16_share
    return peak_tflops(gpu, weight_format) * (measured or found[weight_format])


def experts_tflops(gpu: Gpu, model: Model, columns: float) -> float:
    """The speed of products with experts, if each GPU has `columns` columns of each expert."""
    found = kernels(gpu).experts
    weight_format = model.weight_format if model.weight_format in found else "bf16"
    share, half = found[weight_format]
    return peak_tflops(gpu, weight_format) * share * columns / (columns + half)


def attention_tflops(gpu: Gpu, model: Model) -> float:
    found = kernels(gpu)
    if model.kind is CacheKind.SPARSE:
        return gpu.bf16_tflops
    share = found.latent if model.is_latent else gpu.attention_share or found.attention
    return gpu.bf16_tflops * share


def layer_s(gpu: Gpu, model: Model) -> float:
    """Seconds of a layer in a decode step, without the time to read its bytes."""
    times = kernels(gpu).layer_s
    found = times.get(model.kind, times[CacheKind.SPARSE if model.kind is CacheKind.COMPRESSED else CacheKind.HEADS])
    return found * (1.0 if model.experts else PLAIN_LAYER)
