"""Bytes of a model's weights on one GPU.

Parameters are counted from the shape, class by class, because each class is divided differently: experts among all GPUs
of an engine, attention among the GPUs of an attention group, and some tensors not at all. The sum is then scaled to the
size of the checkpoint, so that a format that is known only roughly does not change it.
"""

from typing import Final, NamedTuple

from warmroute_backend.plan.model import CacheKind, Model

LOADED_PER_STORED: Final = 1.02
"""Bytes on the GPU for each byte of weights, because of copies made at load (absorbed projections, packed scales,
rotary tables). `mem usage` after loading in SGLang's logs, against this module's sum: Kimi-K2.5 on 8 GPUs 73.58 against
71.7 GiB, QwQ-32B on 4 GPUs 15.54 against 15.3, DeepSeek-R1 NVFP4 on 4 GPUs 94.5 against 94.2."""

FP4_LOADED_PER_STORED: Final = 1.25
"""`LOADED_PER_STORED` for fp4: DeepSeek V4 Pro takes 125.65 GiB on each of 8 H200 (SemiAnalysisAI/InferenceX#2128),
1.25 times this module's sum. The factor is used for Blackwell, too, of which no log is known."""

_PLAIN_BYTES: Final = 2
"""Bytes of a parameter of embeddings, routers and vision towers, which are bf16 in every format."""


class Weights(NamedTuple):
    """Bytes of a checkpoint's weights, by how they are divided."""

    experts: float
    attention: float
    """Divided among the GPUs of an attention group."""
    replicated: float
    """On every GPU: low-rank down-projections, indexer, router, vision tower."""
    dense: float
    """Dense feed-forward layers and shared experts, divided among all GPUs of the engine."""
    embedding: float
    """Divided among the GPUs of an attention group."""
    head: float
    """Divided among all GPUs of the engine."""
    mtp: float
    """Layers that predict further tokens. They are loaded only as a draft model."""

    @property
    def total(self) -> float:
        return self.target + self.mtp

    @property
    def target(self) -> float:
        """Bytes of all weights except `mtp`."""
        return self.experts + self.attention + self.replicated + self.dense + self.embedding + self.head


def weights(model: Model) -> Weights:
    counted = _counted(model)
    scale = model.checkpoint_bytes / counted.total if model.checkpoint_bytes else 1.0
    return Weights(*(each * scale for each in counted))


def _counted(model: Model) -> Weights:
    each = model.dense_bytes_each
    moe_layers = model.layers - model.dense_layers if model.experts else 0
    block = 3 * model.hidden * model.expert_width
    experts = model.experts * block * model.expert_bytes_each
    shared = model.shared_experts * block * each
    attention, low_rank = (count * each for count in _attention_parameters(model))
    router = model.hidden * model.experts * _PLAIN_BYTES
    vocabulary = model.vocabulary * model.hidden * _PLAIN_BYTES
    joining = 2 * model.hidden**2 * each
    return Weights(
        experts=moe_layers * experts,
        attention=model.layers * attention,
        replicated=model.layers * low_rank + moe_layers * router + _vision(model),
        dense=moe_layers * shared + model.dense_layers * 3 * model.hidden * model.dense_width * each,
        embedding=vocabulary,
        head=0.0 if model.tied else vocabulary,
        mtp=model.mtp_layers * (experts + shared + router + attention + low_rank + joining),
    )


def _vision(model: Model) -> float:
    return 12 * model.vision_layers * model.vision_width**2 * _PLAIN_BYTES


def _attention_parameters(model: Model) -> tuple[int, int]:
    """The numbers of parameters of one layer's attention that are divided among an attention group, and that are on
    each GPU.
    """
    hidden, heads = model.hidden, model.heads
    if model.kind is CacheKind.COMPRESSED:
        return _compressed_attention(model)
    if not model.is_latent:
        return hidden * (2 * heads + 2 * model.kv_heads) * model.head_dim, 0
    divided = model.q_rank * heads * (model.nope_dim + model.rope_dim)
    divided += model.kv_rank * heads * (model.nope_dim + model.v_dim) + heads * model.v_dim * hidden
    low_rank = hidden * (model.q_rank + model.kv_rank + model.rope_dim)
    if model.kind is CacheKind.SPARSE:
        low_rank += model.q_rank * model.index_heads * model.index_dim + hidden * (model.index_dim + model.index_heads)
    return divided, low_rank


def _compressed_attention(model: Model) -> tuple[int, int]:
    """`_attention_parameters` for DeepSeek V4. Queries and the grouped output are divided. Each GPU has all weights
    that compute KV, those of its compression, and the indexer of layers with one vector for 4 tokens
    (`sglang/srt/models/deepseek_v4.py`)."""
    hidden, width = model.hidden, model.heads * model.head_dim
    divided = model.q_rank * width + width * model.o_rank + model.o_groups * model.o_rank * hidden
    each = hidden * (model.q_rank + model.head_dim)
    index = model.q_rank * model.index_heads * model.index_dim + hidden * (model.index_heads + 4 * model.index_dim)
    compressed = model.quarter_layers * (4 * hidden * model.head_dim + index)
    compressed += model.coarse_layers * 2 * hidden * model.head_dim
    return divided, each + compressed // model.layers


def loaded_bytes(
    model: Model,
    tp: int,
    attention_dp: int,
    *,
    with_mtp: bool = False,
    pp: int = 1,
    whole_dense: bool = False,
    redundant_experts: int = 0,
) -> int:
    """Bytes of weights on each GPU of an engine of `pp` stages, each of `tp` GPUs in `attention_dp` attention groups.

    weights = experts/tp + dense/tp + head/tp + (attention + embedding)/(tp/attention_dp) + replicated

    `whole_dense`: dense layers and shared experts are on every GPU (`--moe-dense-tp-size 1`), and the head is in every
    group (`--enable-dp-lm-head`), as in the recipes for DeepEP. With several stages, the result is an upper bound: a
    stage with the most layers, all with experts, with the larger of embedding and head, and with a vision tower.
    """
    found = weights(model)
    group = tp // attention_dp
    copies = 1 + redundant_experts / model.experts if model.experts else 1.0
    layers = found.experts * copies / tp + found.dense / (1 if whole_dense else tp)
    layers += found.attention / group + found.replicated
    embedding, head = found.embedding / group, found.head / (group if whole_dense else tp)
    if pp == 1:
        stored = layers + embedding + head
    else:
        of_stage = -(-model.layers // pp)
        moe_layers = max(1, model.layers - model.dense_layers)
        experts = found.experts * copies / tp
        stored = (layers - experts - _vision(model)) * of_stage / model.layers
        stored += experts * min(1, of_stage / moe_layers) + _vision(model) + max(embedding, head)
    if with_mtp:
        stored += found.mtp * copies / tp
    return int(stored * (FP4_LOADED_PER_STORED if model.weight_format == "fp4" else LOADED_PER_STORED))


def active_experts(model: Model) -> float:
    if not model.experts:
        return 0.0
    return float((model.layers - model.dense_layers) * model.experts_active * 3 * model.hidden * model.expert_width)


def active_parameters(model: Model) -> float:
    moe_layers = model.layers - model.dense_layers if model.experts else 0
    block = 3 * model.hidden * model.expert_width
    found = moe_layers * ((model.experts_active + model.shared_experts) * block + model.hidden * model.experts)
    found += model.dense_layers * 3 * model.hidden * model.dense_width
    return float(found + model.layers * sum(_attention_parameters(model)) + model.vocabulary * model.hidden)
