"""Divides GPUs into engines: the GPUs of an engine, and how its attention and experts are divided among them.

A layout fits if its memory is enough: one rank must hold the longest request.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from warmroute_backend.costs import Role
from warmroute_backend.plan.cache import COMPRESSED_PAGE_TOKENS, COMPRESSED_WINDOW_RATIO, WINDOW_RATIO
from warmroute_backend.plan.deployment import Traffic
from warmroute_backend.plan.hardware import Gpu
from warmroute_backend.plan.memory import (
    DEEPEP_CHUNK_TOKENS,
    EngineShape,
    Memory,
    chunk_of_rank,
    default_fraction,
    memory,
    most_fraction,
    requests_held,
    takes_deepep,
    window_of,
)
from warmroute_backend.plan.model import CacheKind, Model
from warmroute_backend.plan.request import WHOLE_GROUP, PlanRequest
from warmroute_backend.plan.words import AllToAll, KvType

PAGE_TOKENS: Final = 64
"""Sparse attention allows only this page size. HiCache and KV events work well from this size on; with SGLang's default
of 1, each token would be an event.
"""

LARGE_GPU_MIB: Final = 160 * 1024
CHUNK_TOKENS: Final = 8192
LARGE_CHUNK_TOKENS: Final = 16_384
RANK_CHUNK_TOKENS: Final = 2048
"""The chunk of a prompt that one attention group computes at once. SGLang divides the engine's chunk among its groups
(`handle_data_parallelism`), so the engine's chunk is the sum.
"""

MOST_RUNNING: Final = {"latency": 64, "throughput": 256}
"""The maximum number of requests that run in a rank: with more, the steps of any known model are too slow for the
reader of an answer."""

REQUEST_TOKENS: Final = 16_384
"""The tokens of a request if no traffic is given: the median prompt of a coding agent has more than 10,000 tokens."""

POOL_SHARE: Final = 0.4
"""For throughput, an engine takes the fewest GPUs with which KV gets at least this share of the memory that weights and
KV take together."""

WINDOW_SPARE: Final = 1.2
"""The pool of layers with sliding-window attention has room for this many times the requests of the other pool."""

REDUNDANT_SHARE: Final = 8
DISPATCH_TOKENS: Final = 1024
"""The maximum number of tokens that DeepEP's low-latency kernels accept from a rank in a step (`deepep.py:409`)."""

_WEIGHT_BLOCK: Final = 128


@dataclass(frozen=True, slots=True)
class Layout:
    """An engine that fits: its shape, the division of its experts, the memory fraction, and the resulting memory."""

    shape: EngineShape
    ep: int
    fraction: float
    memory: Memory


def divides_kv(model: Model, shape: EngineShape) -> bool:
    """Whether an engine can divide the KV of a sequence among `dcp` GPUs. Only engines with latent attention can. With
    sparse attention, SGLang allows it only without HiCache and without disaggregation
    (`model_overrides/deepseek_v2.py:18`). Other models store KV by head, so tensor parallelism divides it instead."""
    return model.kind is CacheKind.LATENT and shape.dcp > 0 and shape.attention_tp % shape.dcp == 0


def layouts(request: PlanRequest, gpus: int, role: Role) -> Iterator[Layout]:
    """Engines of exactly `gpus` GPUs that hold the context, the preferred engine first."""
    model = request.model
    stages = stages_of(request.pp, role)
    tp = gpus // stages
    if gpus % stages or (request.all_to_all == "deepep" and not takes_deepep(request.cluster.gpu, model)):
        return
    for attention_dp in _attention_groups(request, tp):
        if tp % attention_dp or model.heads % (tp // attention_dp):
            continue
        found = _sized(request, tp, attention_dp, role, stages)
        if request.all_to_all == "deepep" and (model.experts + found.shape.redundant_experts) % tp:
            continue
        if found.shape.dcp > 1 and not divides_kv(model, found.shape):
            continue
        if holds(request, found):
            yield found


def stages_of(pp: int | None, role: Role) -> int:
    """Pipeline stages of an engine. Decode engines have one stage, since further stages would wait for each token."""
    return 1 if role == "decode" else pp or 1


def on_nodes(shape: EngineShape, per_node: int) -> bool:
    """Whether an engine takes an even part of a node, or whole nodes. If it takes several nodes, each node must have
    whole stages, or each stage whole nodes (`_calculate_rank_ranges`, `sglang/srt/entrypoints/engine.py:2063`)."""
    if shape.gpus <= per_node:
        return per_node % shape.gpus == 0
    nodes, rest = divmod(shape.gpus, per_node)
    return rest == 0 and (shape.pp % nodes == 0 or nodes % shape.pp == 0)


def redundant_experts(model: Model, gpus: int, per_node: int, role: Role) -> int:
    """The number of second copies of experts with DeepEP. An engine inside a node has no copies, as in SGLang's
    cookbook. Aggregated engines have no copies, since in DeepEP's mode `auto` SGLang does not count how often experts
    are used (`expert_distribution.py:412`). Other engines have copies of at least an eighth of the experts. The number
    of copies is the smallest with which experts and copies divide evenly among the GPUs: 32 for DeepSeek's 256 experts
    on 32 or 72 GPUs, as in the recipe of LMSYS (sgl-project/sglang#6017)."""
    if gpus <= per_node or role == "aggregated":
        return 0
    copies = -(-model.experts // REDUNDANT_SHARE)
    return copies + -(model.experts + copies) % gpus


def holds(request: PlanRequest, layout: Layout) -> bool:
    """Whether a rank has memory for the context that is needed and for one request of the traffic."""
    found = layout.memory
    least = least_context(request)
    if least < 0:  # any memory will do
        return True
    one = min(request_tokens(request.traffic), max(1, found.tokens))
    return found.tokens >= least and requests_held(found, request.model, layout.shape, one) > 0


def least_context(request: PlanRequest) -> int:
    """The tokens that a rank must hold for one request."""
    traffic = request.traffic
    return request.context_tokens or (traffic.input_tokens + traffic.output_tokens if traffic else 8192)


def smallest_engine(request: PlanRequest, most_gpus: int, role: Role) -> Layout | None:
    """The engine that is preferred among those of at most `most_gpus` GPUs. For latency, the largest; for throughput,
    the smallest with enough memory for KV (`POOL_SHARE`), or the largest if no engine has enough.
    """
    sizes = [1 << power for power in range(most_gpus.bit_length()) if 1 << power <= most_gpus]
    if request.tp is not None:
        sizes = [size for size in sizes if size == request.tp]
    if request.objective == "latency":
        sizes.reverse()
    largest = None
    for gpus in sizes:
        layout = next(layouts(request, gpus, role), None)
        if layout is None:
            continue
        if request.objective == "latency" or layout.memory.pool >= POOL_SHARE * (
            layout.memory.pool + layout.memory.weights
        ):
            return layout
        largest = layout
    return largest


def _attention_groups(request: PlanRequest, gpus: int) -> list[int]:
    """The numbers of attention groups to try. If the GPUs of one group would hold copies of the same KV, more groups
    hold more tokens.
    """
    if request.attention_dp is not None:
        return [request.attention_dp] if gpus % request.attention_dp == 0 else []
    model = request.model
    if request.all_to_all == "deepep":
        return [gpus]
    most = gpus if model.is_latent else max(1, gpus // model.kv_heads)
    groups = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
    return groups if request.objective == "latency" else groups[::-1]


def _sized(request: PlanRequest, tp: int, attention_dp: int, role: Role, stages: int) -> Layout:
    """The engine with as many running requests as its pool holds. The number changes the pool, because the CUDA graphs
    for more requests take more memory.
    """
    gpu, model = request.cluster.gpu, request.model
    all_to_all: AllToAll = request.all_to_all or "none"
    chunk = request.chunk_tokens or default_chunk(gpu, attention_dp)
    if all_to_all == "deepep" and role == "prefill":
        chunk = request.chunk_tokens or DEEPEP_CHUNK_TOKENS * attention_dp
    most = MOST_RUNNING[request.objective]  # 256 requests with 4 draft tokens each fill `DISPATCH_TOKENS`
    kv_type = request.kv_type or default_kv_type(gpu, model)
    shape = EngineShape(
        role, tp, attention_dp, chunk, most * attention_dp, most, kv_type, page_tokens(model),
        window_ratio=request.window_ratio or default_window_ratio(model), pp=stages, all_to_all=all_to_all,
        redundant_experts=redundant_experts(model, tp, gpu.per_node, role) if all_to_all == "deepep" else 0,
    )  # fmt: skip
    if request.dcp is not None and role != "prefill":
        shape = replace(shape, dcp=shape.attention_tp if request.dcp == WHOLE_GROUP else request.dcp)
    shape = _with_window_ratio(request, shape)
    layout = fitted(request, shape)
    running = max(1, min(most, requests_held(layout.memory, model, shape, request_tokens(request.traffic))))
    return fitted(request, replace(shape, running_requests=running * attention_dp, graph_batch=running))


def _with_window_ratio(request: PlanRequest, shape: EngineShape) -> EngineShape:
    """The shape with the least ratio of the pools, to a hundredth, at which the window pool does not limit the number
    of requests. A smaller ratio leaves more memory to the other pool, which then holds more requests."""
    if request.model.kind is not CacheKind.WINDOW or request.window_ratio is not None:
        return shape
    tokens = request_tokens(request.traffic)
    for hundredth in range(1, 100):
        tried = replace(shape, window_ratio=hundredth / 100)
        found = fitted(request, tried).memory
        needed = chunk_of_rank(tried) + found.tokens // tokens * window_of(request.model, tried, tokens)
        if found.window_tokens >= WINDOW_SPARE * needed:
            return tried
    return replace(shape, window_ratio=1.0)


def default_chunk(gpu: Gpu, attention_dp: int) -> int:
    """`--chunked-prefill-size`: SGLang's default for the GPU, or more if many attention groups divide it."""
    of_gpu = LARGE_CHUNK_TOKENS if gpu.memory_mib >= LARGE_GPU_MIB else CHUNK_TOKENS
    return max(of_gpu, RANK_CHUNK_TOKENS * attention_dp)


def fitted(request: PlanRequest, shape: EngineShape) -> Layout:
    gpu, model = request.cluster.gpu, request.model
    chosen = most_fraction if request.most_fraction else default_fraction
    fraction = request.fraction or round(chosen(gpu, model, shape), 3)
    return Layout(shape, expert_groups(request, shape), fraction, memory(gpu, model, shape, fraction))


def request_tokens(traffic: Traffic | None) -> int:
    return traffic.input_tokens + traffic.output_tokens if traffic else REQUEST_TOKENS


def expert_groups(request: PlanRequest, shape: EngineShape) -> int:
    """`--ep-size`, the number of groups among which experts are divided. With DeepEP, and for throughput with attention
    groups, it is the number of GPUs, so that each GPU has whole experts. Otherwise it is the least number that gives
    each GPU a multiple of 128 columns of an expert, since 128 columns share a scale in fp8."""
    model = request.model
    if not model.experts:
        return 1
    if shape.all_to_all == "deepep":
        return shape.tp
    if shape.attention_dp > 1 and request.objective == "throughput" and model.experts % shape.tp == 0:
        return shape.tp
    groups = 1
    if model.weight_format == "fp8":
        while groups < shape.tp and model.expert_width * groups // shape.tp % _WEIGHT_BLOCK:
            groups *= 2
    return groups


def page_tokens(model: Model) -> int:
    """`--page-size`."""
    return COMPRESSED_PAGE_TOKENS if model.kind is CacheKind.COMPRESSED else PAGE_TOKENS


def default_window_ratio(model: Model) -> float:
    """SGLang's `--swa-full-tokens-ratio`."""
    return COMPRESSED_WINDOW_RATIO if model.kind is CacheKind.COMPRESSED else WINDOW_RATIO


def default_kv_type(gpu: Gpu, model: Model) -> KvType:
    """SGLang's default KV type: that of the model, but fp8 for DeepSeek V4, and for sparse attention on Blackwell
    (`overrides.py:534,892`)."""
    if model.kind is CacheKind.COMPRESSED:
        return "fp8_e4m3"
    return "fp8_e4m3" if model.kind is CacheKind.SPARSE and gpu.is_blackwell else "bf16"
