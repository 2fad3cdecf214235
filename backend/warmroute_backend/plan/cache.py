"""Bytes of KV cache for one token on one GPU: what SGLang's pools allocate.

Source: `DefaultPoolConfigurator._compute_cell_size` and `HybridSWAPoolConfigurator` of
`sglang/srt/model_executor/pool_configurator.py`, `calculate_mla_kv_cache_dim` of
`sglang/srt/mem_cache/kv_cache_configurator.py`, SGLang 0.5.23.
"""

from typing import Final

from warmroute_backend.plan.model import CacheKind, Model
from warmroute_backend.plan.words import KvType

WINDOW_RATIO: Final = 0.8
"""SGLang's `--swa-full-tokens-ratio`: tokens of the pool of window layers for each of the pool of full layers."""

_SCALE_BLOCK: Final = 128
_SCALE_BYTES: Final = 4


def value_bytes(kv_type: KvType) -> int:
    return 1 if kv_type == "fp8_e4m3" else 2


def cell_bytes(
    model: Model,
    kv_type: KvType,
    attention_tp: int,
    *,
    draft_layers: int = 0,
    window_ratio: float = WINDOW_RATIO,
    raw_rows: bool = False,
) -> float:
    """Bytes of a token of `max_total_num_tokens` on each GPU of an attention group of `attention_tp`.

    LATENT   layers * (kv_rank + rope) * bytes, on every GPU of the group
    SPARSE   bf16: that + layers * (index + index/128*4); fp8: layers * (kv_rank + kv_rank/128*4 + rope*2 + ...), where
             `raw_rows` (TensorRT-LLM kernels) has no scales: kv_rank + rope
    HEADS    2 * layers * max(1, kv_heads/tp) * head_dim * bytes: heads are repeated where there are more GPUs
    WINDOW   (full layers + window_ratio * window layers) * 2 * max(1, kv_heads/tp) * head_dim * bytes
    A draft model adds its layers, each as large as one of the target's (the indexer of every one of them).
    """
    if model.is_latent:
        return _latent(model, kv_type, draft_layers, raw_rows=raw_rows)
    row = 2 * max(1, model.kv_heads // attention_tp) * model.head_dim * value_bytes(kv_type)
    full = model.layers - model.window_layers + draft_layers
    return row * (full + window_ratio * model.window_layers)


def _latent(model: Model, kv_type: KvType, draft_layers: int, *, raw_rows: bool) -> float:
    row = (model.kv_rank + model.rope_dim) * value_bytes(kv_type)
    if model.kind is not CacheKind.SPARSE:
        return row * (model.layers + draft_layers)
    if kv_type == "fp8_e4m3" and not raw_rows:
        row = model.kv_rank + model.kv_rank // _SCALE_BLOCK * _SCALE_BYTES + 2 * model.rope_dim
    index = model.index_dim + model.index_dim // _SCALE_BLOCK * _SCALE_BYTES
    return row * (model.layers + draft_layers) + index * (model.indexed_layers + draft_layers)
