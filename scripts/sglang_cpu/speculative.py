"""Python bodies of the kernels that EAGLE-3 calls on a CPU, for chains of drafts (top-k 1).

They do what the Triton kernels beside their callers do (sglang/kernels/ops/speculative, kvcache), a request at a time.
Attention is that of the `intel_amx` backend, whose bookkeeping for drafts is in Python already.
"""

# mypy: disable-error-code="import-not-found"
import ctypes
from typing import Any

import torch


def assign_extend_cache_locs_cpu(rows: Any, table: Any, starts: Any, ends: Any, out: Any, _pool_len: int) -> None:
    """Slots [start, end) of each request's row, one request after the other."""
    done = 0
    for row, first, last in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        out[done : done + last - first] = table[row, first:last].to(out.dtype)
        done += last - first


def assign_draft_cache_locs_contiguous_cpu(
    rows: Any, table: Any, lengths: Any, out: Any, _pool_len: int, topk: int, columns: int
) -> None:
    """The slots that follow each request's tokens, as many as it drafts."""
    width = topk * columns
    for number, (row, first) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        out.view(-1)[number * width : (number + 1) * width] = table[row, first : first + width].to(out.dtype)


def fill_bonus_tokens_cpu(accepted: Any, lengths: Any, bonus: Any, stride: int) -> None:
    """The last accepted token of each request."""
    rows = torch.arange(lengths.shape[0])
    bonus[: rows.shape[0]] = accepted.view(-1)[rows * stride + lengths.long() - 1].to(bonus.dtype)


def fill_accept_out_cache_loc_cpu(index: Any, slots: Any, out: Any) -> None:
    """The slots of accepted tokens, packed."""
    kept = index.view(-1)
    kept = kept[kept > -1].long()
    out[: kept.shape[0]] = slots[kept].to(out.dtype)


def build_tree_kernel_efficient_cpu(
    _parents: Any,
    _selected: Any,
    lengths: Any,
    mask: Any,
    positions: Any,
    index: Any,
    next_token: Any,
    _next_sibling: Any,
    topk: int,
    _depth: int,
    drafts: int,
    mask_mode: Any,
) -> None:
    """The tree of each request's drafts, which is a chain: each token follows the one before it, and sees it."""
    _only_chains(topk == 1)
    chain = torch.arange(drafts)
    causal = torch.tril(torch.ones(drafts, drafts)).to(mask.dtype)
    following = torch.where(chain < drafts - 1, chain + 1, torch.full_like(chain, -1))
    full, offset, flat = int(mask_mode) == 0, 0, mask.view(-1)
    for number, length in enumerate(lengths.tolist()):
        own = slice(number * drafts, (number + 1) * drafts)
        positions.view(-1)[own] = (chain + length).to(positions.dtype)
        index.view(-1)[own] = (chain + number * drafts).to(index.dtype)
        next_token.view(-1)[own] = following.to(next_token.dtype)
        seen = length if full else 0
        width = seen + drafts
        for row in range(drafts):
            flat[offset + row * width + seen : offset + (row + 1) * width] = causal[row]
        offset += drafts * width


def verify_tree_greedy_cpu(
    *,
    predicts: Any,
    accept_index: Any,
    accept_token_num: Any,
    candidates: Any,
    retrive_index: Any,
    retrive_next_token: Any,
    retrive_next_sibling: Any,
    target_predict: Any,
) -> None:
    """Accept drafts from the root as long as each is what the model itself says; then its own next token."""
    target, said = target_predict.view(-1), predicts.view(-1)
    for number in range(candidates.shape[0]):
        last = int(retrive_index[number, 0])
        accept_index[number, 0] = last
        current = accepted = 0
        for _ in range(1, accept_index.shape[1]):
            current = int(retrive_next_token[number, current])
            while current != -1 and int(candidates[number, current]) != int(target[last]):
                current = int(retrive_next_sibling[number, current])
            if current == -1:
                break
            said[last] = target[last].to(said.dtype)
            accepted += 1
            last = int(retrive_index[number, current])
            accept_index[number, accepted] = last
        accept_token_num[number] = accepted
        said[last] = target[last].to(said.dtype)


def copy_all_layer_kv_cache_cpu(pointers: Any, strides: Any, targets: Any, sources: Any) -> None:
    """Move the KV of tokens from slots to slots, in every layer's buffer."""
    for pointer, stride in zip(pointers.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(pointer + source * stride, stride) for source in sources.tolist()]
        for target, row in zip(targets.tolist(), rows, strict=True):
            ctypes.memmove(pointer + target * stride, row, stride)


def build_draft_decode_metadata_cpu(
    table: Any, rows: Any, _lengths: Any, topk: int, _steps: int, _pool_len: int
) -> Any:
    """The slots that each draft sees: its request's."""
    _only_chains(topk == 1)
    return table[rows.long()].clone()


def decode_attention_cpu(
    query: Any,
    k_buffer: Any,
    v_buffer: Any,
    _k_scale: float,
    _v_scale: float,
    output: Any,
    key: Any,
    value: Any,
    slot: Any,
    _logits: Any,
    table: Any,
    rows: Any,
    lengths: Any,
    scale: float,
    *_unused: Any,
) -> None:
    """One token for each request; keeps its key and value first."""
    if key is not None:
        k_buffer[slot] = key.view(-1, *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[slot] = value.view(-1, *v_buffer.shape[1:]).to(v_buffer.dtype)
    for number, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        slots = table[row, :length].long()
        own = slice(number, number + 1)
        output[own] = _attend(query[own], k_buffer[slots], v_buffer[slots], scale)


def extend_attention_cpu(
    query: Any,
    _key: Any,
    _value: Any,
    output: Any,
    k_buffer: Any,
    v_buffer: Any,
    _k_scale: float,
    _v_scale: float,
    table: Any,
    rows: Any,
    lengths: Any,
    extended: Any,
    starts: Any,
    _longest: int,
    scale: float,
    _logit_cap: float,
    _is_cross_attention: bool,
    _window: int,
    _encoder_lens: Any,
    _sinks: Any,
    tree_mask: Any,
    _is_causal: bool,
) -> None:
    """The new tokens of each request, whose keys and values are in the buffers already."""
    _only_chains(tree_mask is None)
    wanted = (rows.tolist(), lengths.tolist(), extended.tolist(), starts.tolist())
    for row, length, tokens, start in zip(*wanted, strict=True):
        slots = table[row, :length].long()
        own = slice(start, start + tokens)
        output[own] = _attend(query[own], k_buffer[slots], v_buffer[slots], scale)


def _attend(query: Any, keys: Any, values: Any, scale: float) -> Any:
    """Causal: query (tokens, heads, dim) are the last tokens of keys and values (length, kv heads, dim)."""
    tokens, length = query.shape[0], keys.shape[0]
    seen = torch.arange(length)[None, :] <= length - tokens + torch.arange(tokens)[:, None]
    q, k, v = (tensor.movedim(0, 1)[None].to(query.dtype) for tensor in (query, keys, values))
    found = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=True)
    return found[0].movedim(1, 0)


def _only_chains(chain: bool) -> None:
    if not chain:
        raise NotImplementedError("drafts that branch have no body on this CPU: use --speculative-eagle-topk 1")
