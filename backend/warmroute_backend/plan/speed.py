"""The speed of an engine: a roofline with measured constants. The roofline ranks plans; it promises no latency.

    prefill   flops of a token / (GPUs * flops that kernels reach), separately for attention, experts and all else
              + layers * two all-reduces
              chunks flow through pipeline stages: n chunks take n + stages - 1 times as long as one chunk in one stage
    decode    max(bytes / (bandwidth * share), flops / flops that kernels reach)
              + layers * (time of a layer + exchange between several nodes, or between GPUs that divide the KV)
              with two batches, OVERLAP_SHARE of the shorter of computing and exchanging is hidden

The bytes of a decode step are the weights that its tokens need (only experts that a token selects) and the KV of every
sequence. `kernels` has the shares with their sources; docs/benchmarks/plans.md has the errors of the roofline.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from warmroute_backend.costs import Costs
from warmroute_backend.plan.cache import COMPRESSED_ROW_BYTES, cell_bytes
from warmroute_backend.plan.hardware import Gpu
from warmroute_backend.plan.kernels import attention_tflops, dense_tflops, experts_tflops, kernels, layer_s
from warmroute_backend.plan.memory import EngineShape, engine_cell
from warmroute_backend.plan.model import CacheKind, Model
from warmroute_backend.plan.weights import active_experts, active_parameters, weights

NODES_LAYER_S: Final = 220e-6
"""The additional time of a layer whose all-reduces cross nodes. On 16 H100 over InfiniBand, a token of a single
sequence of DeepSeek-R1 takes 23.1 ms (tenstorrent/tt-inference-server#356): for its 61 layers, 13.4 ms more than the
roofline of one node and `STEP_S`."""

ALL_TO_ALL_US: Final = {8: 191, 16: 313, 32: 428, 64: 487, 128: 561, 256: 554}
"""GPUs -> microseconds of DeepEP's exchange (dispatch and combine) for `ALL_TO_ALL_TOKENS` tokens of each GPU, if a
token has 7,168 values and 8 experts, on H800 with a 400 Gbit/s card for each GPU (deepseek-ai/DeepEP, docs/legacy.md,
low-latency kernels)."""

ALL_TO_ALL_TOKENS: Final = 128
LEAST_ALL_TO_ALL_S: Final = 100e-6
"""The least time of dispatch and combine, even for a single token: two messages over the network. An assumption."""

OVERLAP_SHARE: Final = 0.5
"""The part of the shorter of computing and DeepEP's exchange that is hidden if two batches overlap. DeepSeek-V3 on 72
H100 decodes 22,282 tokens a second and node with `--enable-two-batch-overlap`, and a fifth fewer without
(lmsys.org/blog/2025-05-05-large-scale-ep)."""

OVERLAP_TOKENS: Final = 128
"""The least tokens of a rank in a step with which two batches are faster than one (the blog named above: between 64
and 128)."""

OVERLAP_PREFILL: Final = 1.31
"""The speed of prompts in two batches over their speed in one: 27 to 35 % more (the blog named above)."""

NODES_PREFILL: Final = 0.136
"""The additional share of a prompt's time for each further node that all-reduces cross. DeepSeek-V3.1 with TP 32 on 4
nodes of H20 computes 2.54 times as many prompts as with TP 8 on one node (lmsys.org/blog/2026-01-15-chunked-pipeline).
The loss because each GPU has fewer columns of an expert is counted separately."""

HOP_S: Final = 50e-6
"""The time from a pipeline stage to the next one, over a network card: an assumption."""

DCP_LAYER_S: Final = 30e-6
"""The additional time of a layer whose GPUs divide the KV, since queries and partial results cross NVLink. An assumed
quarter of a layer's time on Hopper: SGLang's a2a kernels on Hopper have no published figure."""

STEP_S: Final = 0.001
"""The time of scheduling between two steps that is not hidden behind the GPU; an assumption."""

LINK_SHARE: Final = 0.8
"""The share of the line rate of network cards: 164 of 200 GB/s (Mooncake, sglang-benchmark-results-v1.md)."""

HOST_GB_S: Final = 50.0
"""The rate of copies to and from host memory: PCIe 5.0 x16 has 63 GB/s, of which copies reach about 50."""


@dataclass(frozen=True, slots=True)
class Load:
    """An average sequence: tokens of the prompt, its uncached tokens, and tokens of the answer."""

    input_tokens: float
    uncached_tokens: float
    output_tokens: float

    @property
    def context_tokens(self) -> float:
        return self.input_tokens + self.output_tokens / 2


def attention_flops(model: Model, context_tokens: float) -> float:
    """Operations of all layers' attention for one token after `context_tokens` others. For sparse attention, only the
    operations of the index, all of which each GPU of a group computes."""
    if model.kind is CacheKind.SPARSE:
        return 2 * model.index_heads * model.index_dim * model.indexed_layers * context_tokens
    if model.kind is CacheKind.COMPRESSED:
        keys = 2 * model.index_heads * model.index_dim * model.quarter_layers * context_tokens / 4
        return keys + 4 * model.heads * model.head_dim * _rows_read(model, context_tokens)
    if model.is_latent:
        width = 2 * model.heads * (model.nope_dim + model.rope_dim + model.v_dim)
        return width * model.layers * context_tokens
    width = 4 * model.heads * model.head_dim
    windows = model.window_layers * min(context_tokens, model.window_tokens)
    return width * ((model.layers - model.window_layers) * context_tokens + windows)


def _rows_read(model: Model, context_tokens: float) -> float:
    """The number of vectors of DeepSeek V4's KV that all layers read for one token: those of windows, the selected ones
    for 4 tokens, and all for 128 tokens.
    """
    found: float = model.layers * min(context_tokens, model.window_tokens) + model.coarse_layers * context_tokens / 128
    return found + model.quarter_layers * min(context_tokens / 4, model.index_topk)


def prefill_tokens_per_s(gpu: Gpu, model: Model, shape: EngineShape, load: Load) -> float:
    """Prompt tokens that one rank computes in a second. With attention groups, this is a rank's share of the engine's
    speed. A real rank is faster while other groups are idle, since the experts of all GPUs then work for it alone."""
    context = max(0.0, load.input_tokens - load.uncached_tokens / 2)
    token_s = _token_s(gpu, model, shape, context) / shape.tp
    engine = 1 / (token_s + _all_reduces_s(gpu, model, shape))
    if shape.all_to_all == "deepep":
        engine /= 1 if overlaps(model, shape) else OVERLAP_PREFILL
    else:
        engine /= 1 + NODES_PREFILL * (-(-shape.tp // gpu.per_node) - 1)
    return engine / shape.attention_dp * stages_at_work(shape, load)


def _token_s(gpu: Gpu, model: Model, shape: EngineShape, context_tokens: float) -> float:
    """GPU seconds to compute one token after `context_tokens` others."""
    attention = attention_flops(model, context_tokens) / attention_tflops(gpu, model) / 1e12
    if model.kind is CacheKind.SPARSE:  # more GPUs in a group do not shorten this time
        attention = shape.attention_tp * (attention + model.layers * kernels(gpu).sparse_s)
    return _products_s(gpu, model, shape) + attention


def _products_s(gpu: Gpu, model: Model, shape: EngineShape) -> float:
    """GPU seconds of one token's products with weights."""
    experts = active_experts(model)
    columns = model.expert_width / (1 if shape.all_to_all == "deepep" else shape.tp)
    found = 2 * (active_parameters(model) - experts) / dense_tflops(gpu, model)
    if experts:
        found += 2 * experts / experts_tflops(gpu, model, columns)
    return found / 1e12


def _all_reduces_s(gpu: Gpu, model: Model, shape: EngineShape) -> float:
    """Seconds of one token's all-reduces inside a node, two in each layer."""
    if shape.tp == 1 or shape.all_to_all == "deepep":
        return 0.0
    return 2 * model.layers * 2 * model.hidden / (kernels(gpu).all_reduce_gb_s * 1e9)


def stages_at_work(shape: EngineShape, load: Load) -> float:
    """The average number of pipeline stages that compute at once while one prompt goes through them chunk by chunk. If
    several prompts wait, more stages compute."""
    chunks = max(1, math.ceil(load.uncached_tokens * shape.attention_dp / shape.chunk_tokens))
    return shape.pp * chunks / (chunks + shape.pp - 1)


def overlaps(model: Model, shape: EngineShape) -> bool:
    """Whether an engine computes one half of a batch while it exchanges tokens of the other half
    (`--enable-two-batch-overlap`). Only engines with DeepEP and without drafts do: prefill engines always, decode
    engines with enough tokens."""
    if shape.all_to_all == "none" or not model.is_latent or shape.draft_tokens:
        return False
    return shape.role == "prefill" or (shape.role == "decode" and shape.graph_batch >= OVERLAP_TOKENS)


def decode_step_s(gpu: Gpu, model: Model, shape: EngineShape, load: Load, batch: float, tokens_each: int = 1) -> float:
    """Seconds of a decode step with `batch` sequences in each attention group, if `tokens_each` tokens are verified for
    each sequence. With pipeline stages, the batch is cut into one part for each stage, and each part goes through all
    stages in a step."""
    found = weights(model)
    batch /= shape.pp
    deepep = shape.all_to_all == "deepep"
    copies = 1 + shape.redundant_experts / model.experts if model.experts else 1.0
    tokens = batch * shape.attention_dp * tokens_each
    reached = 1 - (1 - model.experts_active / model.experts) ** tokens if model.experts else 0.0
    read = found.experts * reached * copies / shape.tp + found.dense / (1 if deepep else shape.tp)
    read += found.head / (shape.attention_tp if deepep else shape.tp)
    read += found.attention / shape.attention_tp + found.replicated
    shares = kernels(gpu)
    memory_s = read / (gpu.read_share or shares.read)
    memory_s += (
        batch * _kv_read(gpu, model, shape, load.context_tokens) / (shares.latent_kv if model.is_latent else shares.kv)
    )
    memory_s /= gpu.bandwidth_gb_s * 1e9
    compute_s = tokens * _products_s(gpu, model, shape) / shape.tp  # attention is bound by reading the KV
    work_s = max(memory_s, compute_s) + model.layers * layer_s(gpu, model)
    exchange_s = model.layers * (nodes_layer_s(gpu, model, shape, tokens) + DCP_LAYER_S * (shape.dcp > 1))
    hidden_s = OVERLAP_SHARE * min(work_s, exchange_s) if overlaps(model, shape) and batch >= OVERLAP_TOKENS else 0.0
    return work_s + exchange_s - hidden_s + HOP_S * (shape.pp - 1)


def nodes_layer_s(gpu: Gpu, model: Model, shape: EngineShape, tokens: float) -> float:
    """The additional time of a layer of an engine over several nodes, if a step of the whole engine has `tokens`
    tokens. With DeepEP each token goes to its experts, so the bytes depend on the token's width and the number of its
    experts. Without DeepEP, attention groups gather the tokens of all other groups, and reduce the results."""
    if shape.tp <= gpu.per_node:
        return 0.0
    if shape.all_to_all == "none":
        gathered = 2 * 2 * tokens * model.hidden * (1 - gpu.per_node / shape.tp) * (shape.attention_dp > 1)
        return NODES_LAYER_S + gathered / (gpu.nics * gpu.nic_gbit_s / 8 * LINK_SHARE * 1e9)
    bytes_share = tokens / shape.tp / ALL_TO_ALL_TOKENS * (model.hidden * model.experts_active) / (7168 * 8)
    return max(LEAST_ALL_TO_ALL_S, _all_to_all_s(shape.tp) * bytes_share)


def _all_to_all_s(gpus: int) -> float:
    """Seconds of dispatch and combine, interpolated between the two nearest numbers of GPUs in `ALL_TO_ALL_US`."""
    sizes = sorted(ALL_TO_ALL_US)
    gpus = min(gpus, sizes[-1])
    above = next(size for size in sizes if size >= gpus)
    below = max((size for size in sizes if size < gpus), default=above)
    share = (gpus - below) / (above - below) if above > below else 0.0
    return (ALL_TO_ALL_US[below] + share * (ALL_TO_ALL_US[above] - ALL_TO_ALL_US[below])) * 1e-6


def _kv_read(gpu: Gpu, model: Model, shape: EngineShape, context_tokens: float) -> float:
    """Bytes of one sequence's KV that a GPU reads in a step."""
    if model.kind is CacheKind.SPARSE:
        index = (model.index_dim + 4) * model.indexed_layers
        row = engine_cell(gpu, model, replace(shape, pp=1)) - index
        return index * context_tokens + row * min(context_tokens, model.index_topk)
    if model.kind is CacheKind.COMPRESSED:
        keys = (model.index_dim + 4) * model.quarter_layers * context_tokens / 4
        return keys + COMPRESSED_ROW_BYTES * _rows_read(model, context_tokens)
    if model.kind is CacheKind.WINDOW:
        row = cell_bytes(model, shape.kv_type, shape.attention_tp, window_ratio=0.0)
        window = cell_bytes(model, shape.kv_type, shape.attention_tp, window_ratio=1.0) - row
        return row * context_tokens + window * min(context_tokens, model.window_tokens)
    return engine_cell(gpu, model, replace(shape, pp=1)) * context_tokens


def transfer_gb_s(gpu: Gpu, shape: EngineShape, *, inside_node: bool) -> float:
    """The rate at which one rank's KV goes from prefill to decode: the rate of a GPU's NVLink, or of the network cards
    beside the rank's GPUs.
    """
    if inside_node:
        return gpu.link_gb_s
    return gpu.nic_gbit_s / 8 * LINK_SHARE * max(1, shape.attention_tp * gpu.nics // gpu.per_node)


def costs(
    gpu: Gpu, model: Model, shape: EngineShape, load: Load, *, transfer: float = 0.0, accept_length: float = 1.0
) -> Costs:
    """The costs of one rank, for the simulated engine. `transfer`: the rate of KV transfers in GB/s. The time of a
    decode step is a line through the steps of one sequence and of a full batch. With drafts, a step verifies all drafts
    and brings `accept_length` tokens."""
    most = max(2, shape.running_requests // shape.attention_dp)
    each = max(1, shape.draft_tokens)
    drafting = each > 1 and (each - 1) * shape.draft_layers * layer_s(gpu, model)

    def token_s(batch: int) -> float:
        return (decode_step_s(gpu, model, shape, load, batch, each) + drafting + STEP_S) / accept_length

    slope = (token_s(most) - token_s(1)) / (most - 1)
    cell = engine_cell(gpu, model, shape)
    return Costs(
        prefill_tokens_per_s=prefill_tokens_per_s(gpu, model, shape, load),
        chunk_tokens=max(1, shape.chunk_tokens // shape.attention_dp),
        step_overhead_s=STEP_S,
        decode_base_s=max(0.0, token_s(1) - slope - STEP_S),
        decode_per_sequence_s=slope,
        transfer_tokens_per_s=transfer * 1e9 / cell if transfer else Costs().transfer_tokens_per_s,
        host_load_s_per_token=cell / (HOST_GB_S * 1e9),
        storage_fetch_s_per_token=cell / (gpu.nic_gbit_s / 8 * LINK_SHARE * 1e9),
    )
