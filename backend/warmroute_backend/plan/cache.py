"""Bytes of KV cache for one token on one GPU, as SGLang's pools allocate them.

Source: `DefaultPoolConfigurator._compute_cell_size` and `HybridSWAPoolConfigurator` of
`sglang/srt/model_executor/pool_configurator.py`, `calculate_mla_kv_cache_dim` of
`sglang/srt/mem_cache/kv_cache_configurator.py`, SGLang 0.5.23.
"""

from typing import Final

from warmroute_backend.plan.model import CacheKind, Model
from warmroute_backend.plan.words import KvType

WINDOW_RATIO: Final = 0.8
"""SGLang's default of `--swa-full-tokens-ratio`: tokens in the pool of layers with sliding-window attention, for each
token in the pool of full layers."""

_SCALE_BLOCK: Final = 128
_SCALE_BYTES: Final = 4


NVFP4_BYTES: Final = 0.5 + 1 / 16
"""Bytes of a value in nvfp4: half a byte, and a scale of one byte for 16 values
(`NVFP4KVCacheMethod.compute_cell_size`, only with the kernels' own layout).
"""


def value_bytes(kv_type: KvType) -> float:
    return {"bf16": 2, "fp8_e4m3": 1, "nvfp4": NVFP4_BYTES}[kv_type]


def cell_bytes(
    model: Model,
    kv_type: KvType,
    attention_tp: int,
    *,
    draft_layers: int = 0,
    window_ratio: float = WINDOW_RATIO,
    raw_rows: bool = False,
) -> float:
    """Bytes of one token of `max_total_num_tokens`, on each GPU of an attention group of `attention_tp` GPUs.

    LATENT   layers * (kv_rank + rope) * bytes, on every GPU of the group
    SPARSE   bf16: as LATENT, + layers * (index + index/128*4) for the indexer; fp8: layers * (kv_rank + kv_rank/128*4
             + rope*2) + the indexer; with `raw_rows` (TensorRT-LLM kernels, no scales), layers * (kv_rank + rope) + the
             indexer
    HEADS    2 * layers * max(1, kv_heads/tp) * head_dim * bytes: heads are repeated if there are more GPUs than heads
    WINDOW   (full layers + window_ratio * window layers) * 2 * max(1, kv_heads/tp) * head_dim * bytes
    COMPRESSED  see `_compressed`; equal for each `kv_type`
    A draft model adds its layers, each as large as one of the target model's, and always with an indexer.
    """
    if model.kind is CacheKind.COMPRESSED:
        return _compressed(model, draft_layers, window_ratio)
    if model.is_latent:
        return _latent(model, kv_type, draft_layers, raw_rows=raw_rows)
    row = 2 * max(1, model.kv_heads // attention_tp) * model.head_dim * value_bytes(kv_type)
    full = model.layers - model.window_layers + draft_layers
    return row * (full + window_ratio * model.window_layers)


COMPRESSED_WINDOW_RATIO: Final = 0.1
"""SGLang's default of `--swa-full-tokens-ratio` for DeepSeek V4 (`model_overrides/deepseek_v4.py:49`)."""

COMPRESSED_PAGE_TOKENS: Final = 256
COMPRESSED_ROW_BYTES: Final = 149_760 / COMPRESSED_PAGE_TOKENS
"""A row has 448 values of 1 byte, 64 values of 2 bytes, and 8 bytes of scales. A page of 256 rows is rounded up to a
multiple of 576 bytes.
"""

_COARSE_ROW_BYTES: Final = 864
"""Bytes of a row of the layers with one vector for 128 tokens, whose pages have two rows."""

_STATE_BYTES: Final = 4


def _compressed(model: Model, draft_layers: int, window_ratio: float) -> float:
    """Bytes of a token in DeepSeek V4's pools (`DSV4PoolConfigurator` of `pool_configurator.py`). The ratio scales the
    rows of the window pool and the states of its compression. In addition, each 4 tokens have a row and an index key,
    and each 128 tokens have a row. A draft adds its layers to all of these."""
    ring = 16 if draft_layers else 8
    states = 4 * (model.head_dim + model.index_dim) * _STATE_BYTES * ring / COMPRESSED_PAGE_TOKENS
    window = COMPRESSED_ROW_BYTES * model.layers + states * model.quarter_layers
    index = model.index_dim + model.index_dim // _SCALE_BLOCK * _SCALE_BYTES
    found = window_ratio * window + model.quarter_layers * (COMPRESSED_ROW_BYTES + index) / 4
    found += model.coarse_layers * _COARSE_ROW_BYTES / 128
    return found * (model.layers + draft_layers) / model.layers


def state_bytes(model: Model, requests: int, *, drafts: bool) -> int:
    """Bytes that a rank needs beside its pools: for each request, the states of vectors that do not have their 128
    tokens yet (`_get_c128_state_fixed_bytes`)."""
    ring = 256 if drafts else 128
    rows = -(-((requests + 2) * ring + 1) // 128) * 128
    return rows * 2 * model.head_dim * _STATE_BYTES * model.coarse_layers


def _latent(model: Model, kv_type: KvType, draft_layers: int, *, raw_rows: bool) -> float:
    row = (model.kv_rank + model.rope_dim) * value_bytes(kv_type)
    if model.kind is not CacheKind.SPARSE:
        return row * (model.layers + draft_layers)
    if kv_type == "fp8_e4m3" and not raw_rows:
        row = model.kv_rank + model.kv_rank // _SCALE_BLOCK * _SCALE_BYTES + 2 * model.rope_dim
    index = model.index_dim + model.index_dim // _SCALE_BLOCK * _SCALE_BYTES
    return row * (model.layers + draft_layers) + index * (model.indexed_layers + draft_layers)
