"""Compares engines' reports with the plan, and a prefill engine with its decode engine. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from warmroute_backend.launch.program import Expected
from warmroute_backend.launch.start_log import Pool

TOLERANCE: Final = 0.05
"""The share by which a pool usually differs from the plan, because of drivers and communicators. A larger difference
has another cause."""
ROUNDED_BYTES: Final = 0.005 * (1 << 30)
"""The error of a size in the log, which is rounded to hundredths of a GB, separately for K and V."""


def against_plan(expected: Expected | None, pool: Pool) -> list[str]:
    """Sentences on a pool that differs from the plan by more than `TOLERANCE`, with the likely cause. Empty if the pool
    is as planned.
    """
    if expected is None:
        return []
    if pool.tokens is None:
        return ["its log says nothing of max_total_num_tokens, so its pool was not compared with the plan"]
    tokens_off = pool.tokens / expected.tokens - 1 if expected.tokens else 0.0
    bytes_off = _size_off(expected, pool)
    if abs(tokens_off) <= TOLERANCE and abs(bytes_off) <= TOLERANCE:
        return []
    if abs(tokens_off) <= TOLERANCE:
        takes = f"its KV takes {_gib(pool.kv_bytes or 0)}, {abs(bytes_off):.0%} {_more(bytes_off)} than the planned"
        return [f"{takes} {_gib(expected.kv_bytes)} for as many tokens: {_cell_cause()}"]
    size = f" ({_gib(pool.kv_bytes)})" if pool.kv_bytes is not None else ""
    found = f"max_total_num_tokens is {pool.tokens:,}{size}, {abs(tokens_off):.0%} {_more(tokens_off)} than the planned"
    return [f"{found} {expected.tokens:,} ({_gib(expected.kv_bytes)}): {_cause(tokens_off, bytes_off, pool)}"]


def _size_off(expected: Expected, pool: Pool) -> float:
    if pool.kv_bytes is None or not expected.kv_bytes:
        return 0.0
    if abs(pool.kv_bytes - expected.kv_bytes) <= 2 * ROUNDED_BYTES:
        return 0.0
    return pool.kv_bytes / expected.kv_bytes - 1


def _cause(tokens_off: float, bytes_off: float, pool: Pool) -> str:
    """The likely cause of a difference in tokens. If the pool has as much memory as planned, a token takes more or
    fewer bytes than planned. Otherwise the GPU had less or more memory left than planned.
    """
    if pool.kv_bytes is not None and abs(bytes_off) <= TOLERANCE:
        return _cell_cause()
    if tokens_off < 0:
        return "something else has memory of its GPU (nvidia-smi), or --mem-fraction-static is not the plan's"
    return "weights take less than planned, or --mem-fraction-static or --max-total-tokens is not the plan's"


def _cell_cause() -> str:
    return "its KV type or its number of layers with a cache, draft included, is not the plan's"


def _more(off: float) -> str:
    return "more" if off > 0 else "less"


def _gib(size: float) -> str:
    return f"{size / (1 << 30):.2f} GiB"


_AGREED: Final[tuple[tuple[str, str], ...]] = (
    ("page_size", "page size"),
    ("kv_cache_dtype", "KV dtype"),
    ("version", "version"),
)


def disagreements(
    route: Mapping[str, Any], prefill: Mapping[str, Any], decode: Mapping[str, Any], names: tuple[str, str]
) -> list[str]:
    """The settings on which a prefill and a decode engine disagree. `prefill`, `decode`: the engines' `/server_info`.
    `route`: the answer of the prefill engine's bootstrap server, which lacks SGLang's version; its keys win over those
    of `prefill`. `names`: the engines' names.
    """
    found = []
    for key, words in _AGREED:
        ours, theirs = route.get(key, prefill.get(key)), decode.get(key)
        if ours is not None and theirs is not None and ours != theirs:
            found.append(
                f"{names[0]} and {names[1]} exchange KV and need the same {words}: {names[0]} has {ours}, "
                f"{names[1]} has {theirs}"
            )
    return found
