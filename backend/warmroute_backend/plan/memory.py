"""The memory of one GPU of an engine: SGLang's reserve, the weights, and the tokens of KV that fit into the rest.

Source: `sglang/srt/arg_groups/memory_hook.py` (reserve and fraction) and `KVCacheConfigurator._profile_available_bytes`
(`sglang/srt/mem_cache/kv_cache_configurator.py`), SGLang 0.5.23.

    reserve = max(512 + 1.5 * activation tokens + 1024 * GPUs/8 + graphs, 10240)     in MiB
    fraction = round((memory - reserve) / memory, 3), times a factor for a vision tower
    free = memory - context - communicators                       before weights load
    pool = free - weights - free * (1 - fraction) - vision cache
    tokens = floor(pool / (cell * dcp) / page) * page * dcp

`cell` is the bytes of a token on a GPU, and `dcp` the number of GPUs that divide the KV of each sequence. With several
pipeline stages, `weights` and `cell` are those of the stage with the most layers.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta

from warmroute_backend.costs import Role
from warmroute_backend.plan.cache import cell_bytes, state_bytes
from warmroute_backend.plan.hardware import GROUP_MIB, MIB, Count, Gpu
from warmroute_backend.plan.model import CacheKind, Model
from warmroute_backend.plan.weights import loaded_bytes
from warmroute_backend.plan.words import AllToAll, KvType

_LEAST_ACTIVATION_TOKENS: Final = 2048
_FLOOR_MIB: Final = 10_240
_FLOOR_FROM_MIB: Final = 60 * 1024
_MLA_PREFILL_GRAPH_MIB: Final = 1536
_BUCKET_MIB: Final = 8
_LARGE_GRAPH: Final = 300
_DISPATCHED_TOKENS: Final = 128
_DISPATCH_MIB: Final = 4095
"""Memory of DeepEP's buffers in LMSYS' recipe for decode, as `_dispatch_mib` computes it."""

_DEEPEP_PREFILL_MIB: Final = 12_234
_DEEPEP_DECODE_MIB: Final = 13_457
"""With DeepEP, this and the constant before it replace SGLang's reserve, whose rule counts the tokens of all groups for
each GPU and would leave no memory. They give the fractions 0.85 (prefill) and 0.835 (decode) of the recipe on H100,
with 32 and 72 GPUs, `DEEPEP_CHUNK_TOKENS` a rank and batches of 256 (sgl-project/sglang#6017)."""

DEEPEP_CHUNK_TOKENS: Final = 16_384
"""Tokens of prompts that a rank of a prefill engine with DeepEP computes at once in the recipe."""

_VISION_CACHE_MIB: Final = 100
_BASELINE_VISION: Final = 24 * 1024**2


@dataclass(frozen=True, slots=True)
class EngineShape:
    """The settings of an engine that decide its memory. `chunk_tokens` is `--chunked-prefill-size`, which the attention
    groups divide among them."""

    role: Role
    tp: int
    attention_dp: int
    chunk_tokens: int
    running_requests: int
    graph_batch: int
    kv_type: KvType
    page_tokens: int
    draft_layers: Count = 0
    draft_tokens: Count = 0
    draft_bytes: Count = 0
    """Bytes of a separate draft model's weights on each GPU."""
    draft_is_mtp: bool = False
    window_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.8
    dcp: int = 1
    """GPUs of an attention group that divide the KV of each sequence (`--dcp-size`)."""
    pp: int = 1
    """Pipeline stages of `tp` GPUs each; each stage has a part of the layers (`--pp-size`)."""
    all_to_all: AllToAll = "none"
    """How tokens reach their experts: SGLang's collectives, or DeepEP's kernels, which also cross nodes."""
    redundant_experts: int = 0
    """Second copies of popular experts (`--ep-num-redundant-experts`)."""

    @property
    def attention_tp(self) -> int:
        return self.tp // self.attention_dp

    @property
    def gpus(self) -> int:
        return self.tp * self.pp


def takes_deepep(gpu: Gpu, model: Model) -> bool:
    """Whether DeepEP can move the tokens of a model: in SGLang, its kernels compute only experts in fp8, on NVIDIA's
    GPUs.
    """
    return model.experts > 0 and model.weight_format == "fp8" and gpu.vendor == "nvidia"


def takes_stages(model: Model) -> bool:
    """Whether SGLang's class of a model can run as one of several pipeline stages (`model_runner.py:512`)."""
    return model.architecture != "Llama4ForConditionalGeneration"


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one GPU, and the tokens that its pool holds."""

    total: int
    free_before_weights: int
    weights: int
    slack: int
    """Memory outside the pool, for activations and graphs: `free_before_weights * (1 - fraction)`."""
    pool: int
    """Memory of the KV pool. If it is below 0, the engine does not start."""
    cell: float
    tokens: int
    fraction: float
    window_tokens: int = 0
    """Tokens of the second pool, which is for layers with sliding-window attention; 0 if the model has no such layers.
    """

    @property
    def least_fraction(self) -> float:
        """The fraction above which memory for a pool is left: 1 - free after weights / free before, as SGLang's error
        states it.
        """
        return self.weights / self.free_before_weights


def reserve_mib(gpu: Gpu, model: Model, shape: EngineShape) -> float:
    """MiB that SGLang keeps out of the static memory (weights and KV) by default; with DeepEP, MiB of LMSYS' recipe."""
    if shape.all_to_all == "deepep":
        more = 1.5 * max(0, chunk_of_rank(shape) - DEEPEP_CHUNK_TOKENS) + 2 * max(0, shape.graph_batch - _LARGE_GRAPH)
        if shape.role == "prefill":
            return _DEEPEP_PREFILL_MIB + more
        return _DEEPEP_DECODE_MIB + more + max(0.0, _dispatch_mib(model, shape) - _DISPATCH_MIB)
    if shape.role == "decode":
        activation = max(shape.running_requests * max(1, shape.draft_tokens), _LEAST_ACTIVATION_TOKENS)
    else:
        activation = max(shape.chunk_tokens, _LEAST_ACTIVATION_TOKENS)
    reserve = 512 + 1.5 * activation + shape.gpus / 8 * 1024 + _graphs_mib(model, shape)
    return max(reserve, _FLOOR_MIB) if gpu.memory_mib > _FLOOR_FROM_MIB else reserve


def _dispatch_mib(model: Model, shape: EngineShape) -> float:
    """MiB of the buffers of DeepEP's low-latency kernels: two to send and two to receive. Each buffer has, for each
    expert and token, a row with its scales (`LowLatencyLayout`, deepseek-ai/DeepEP, csrc/config.hpp)."""
    row = model.hidden * (2 + 4 / 128)
    return 4 * (model.experts + shape.redundant_experts) * dispatched_tokens(shape) * row / MIB


def _graphs_mib(model: Model, shape: EngineShape) -> float:
    """MiB of CUDA graphs, by `reserve_for_graph_mb`: decode graphs by batch size, more with attention groups, and
    prefill graphs. With divided KV, pipeline stages or DeepSeek V4, there are no prefill graphs
    (`cuda_graph_hook.py:150-213`)."""
    found = 0.0
    if shape.role != "prefill":
        found += 2 * shape.graph_batch
        if shape.attention_dp > 1:
            found += (4.5 if shape.graph_batch > _LARGE_GRAPH else 3) * shape.graph_batch * shape.attention_dp
    if shape.role != "decode" and shape.dcp == shape.pp == 1 and model.kind is not CacheKind.COMPRESSED:
        found += _MLA_PREFILL_GRAPH_MIB if model.is_latent else _BUCKET_MIB * _buckets(shape.chunk_tokens)
    return found


def _buckets(most: int) -> int:
    """The number of sizes of prefill graphs (`generate_prefill_cuda_graph_batch_sizes`)."""
    sizes = [*range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64)]
    sizes += [*range(1280, 4097, 256), *range(4608, most + 1, 512)]
    return sum(size <= most for size in sizes)


def most_fraction(gpu: Gpu, model: Model, shape: EngineShape) -> float:
    """The largest `--mem-fraction-static` that leaves what SGLang reserves for activations and graphs."""
    return round((gpu.memory_mib - reserve_mib(gpu, model, shape)) / gpu.memory_mib, 3)


def default_fraction(gpu: Gpu, model: Model, shape: EngineShape) -> float:
    """SGLang's default for `--mem-fraction-static`."""
    fraction = most_fraction(gpu, model, shape)
    if not model.is_multimodal or shape.role == "decode":
        return fraction
    complexity = model.vision_layers * model.vision_width**2 / _BASELINE_VISION
    return fraction * 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (complexity - 1.0)))


def memory(gpu: Gpu, model: Model, shape: EngineShape, fraction: float) -> Memory:
    """The memory of one GPU of an engine that is started with `fraction`."""
    free = gpu.memory_bytes - gpu.context_mib * MIB - (GROUP_MIB * MIB if shape.gpus > 1 else 0)
    weights = engine_weights(model, shape)
    slack = int(free * (1 - fraction))
    vision = _VISION_CACHE_MIB * MIB if model.is_multimodal else 0
    states = state_bytes(model.stage(shape.pp), shape.graph_batch, drafts=shape.draft_layers > 0)
    pool = free - weights - slack - vision - states
    cell = engine_cell(gpu, model, shape)
    rows = int(max(0, pool) / (cell * shape.dcp)) // shape.page_tokens * shape.page_tokens
    tokens = rows * shape.dcp  # `logical_token_capacity`
    window = 0
    if model.kind in {CacheKind.WINDOW, CacheKind.COMPRESSED}:
        window = int(tokens * shape.window_ratio) // shape.page_tokens * shape.page_tokens
    return Memory(
        total=gpu.memory_bytes,
        free_before_weights=free,
        weights=weights,
        slack=slack,
        pool=pool,
        cell=cell,
        tokens=tokens,
        fraction=fraction,
        window_tokens=window,
    )


def engine_weights(model: Model, shape: EngineShape) -> int:
    """Bytes of weights on each GPU of an engine, including a draft model's."""
    found = loaded_bytes(
        model,
        shape.tp,
        shape.attention_dp,
        with_mtp=shape.draft_is_mtp,
        pp=shape.pp,
        whole_dense=shape.all_to_all == "deepep",
        redundant_experts=shape.redundant_experts,
    )
    return found + shape.draft_bytes


def dispatched_tokens(shape: EngineShape) -> int:
    """Tokens of a rank for which DeepEP's low-latency kernels have buffers: those of a full batch with drafts."""
    batch = max(shape.graph_batch, shape.running_requests // shape.attention_dp)
    return max(_DISPATCHED_TOKENS, batch * max(1, shape.draft_tokens))


def requests_held(found: Memory, model: Model, shape: EngineShape, request_tokens: int) -> int:
    """The number of requests of `request_tokens` tokens that a rank holds. The second pool must hold the last window of
    each request, since a prefix without its window is not a hit (`swa_radix_cache`), and the chunk of a prompt that is
    being computed."""
    held = found.tokens // request_tokens
    if model.kind not in {CacheKind.WINDOW, CacheKind.COMPRESSED}:
        return held
    return min(held, max(0, found.window_tokens - chunk_of_rank(shape)) // window_of(model, shape, request_tokens))


def window_of(model: Model, shape: EngineShape, request_tokens: int) -> int:
    """Tokens of one request in the second pool: its window, and the page in which the window begins."""
    return min(request_tokens, model.window_tokens + shape.page_tokens)


def chunk_of_rank(shape: EngineShape) -> int:
    """Tokens of prompts that a rank computes at once."""
    return 0 if shape.role == "decode" else shape.chunk_tokens // shape.attention_dp


def engine_cell(gpu: Gpu, model: Model, shape: EngineShape) -> float:
    """Bytes of a token on each GPU of this engine, on average: with `dcp`, each token is on only one of `dcp` GPUs.

    In fp8, sparse attention has raw rows on Blackwell, because SGLang uses TensorRT-LLM's kernels there, and rows with
    scales on Hopper (`overrides.py:700-726`).
    """
    raw = model.kind is CacheKind.SPARSE and (gpu.is_blackwell or gpu.vendor == "amd")
    cell = cell_bytes(
        model.stage(shape.pp),
        shape.kv_type,
        shape.attention_tp,
        draft_layers=shape.draft_layers,
        window_ratio=shape.window_ratio,
        raw_rows=raw,
    )
    return cell / shape.dcp
