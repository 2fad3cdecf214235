"""What the log of a starting engine says: how far it is, and how large its pool became. Pure.

The lines are those of SGLang 0.5.23: `Load weight begin` (`model_executor/model_runner.py:1274`), tqdm's bars of the
loaders (`model_loader/weight_utils.py:1166`, `:1371`), `KV Cache is allocated` (`mem_cache/memory_pool.py:2084-2098`;
`KV size` of latent attention, else `K size` and `V size`), `Post-capture KV sizing`
(`model_executor/model_runner_components/kv_pool_runtime.py:195`), graphs (`cuda_graph_setup.py:685`,
`runner/decode_cuda_graph_runner.py:1343`), `max_total_num_tokens` (`managers/scheduler.py:1269`). The embedded engine
writes the two lines about its pool.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

GB: Final = 1 << 30
"""SGLang's GB in logs of memory (`mem_cache/memory_pool.py`, `GB = 1024**3`)."""

_TOKENS: Final = re.compile(r"\bmax_total_num_tokens=(\d+), chunked_prefill_size")
_SIZE: Final = re.compile(
    r"(?P<label>\w*) ?KV [Cc]ache (?:is )?allocated\. .*#tokens: (?P<tokens>\d+), (?:KV size|K size): (?P<gb>[\d.]+) GB"
)
_V_SIZE: Final = re.compile(r"\bV size: ([\d.]+) GB")
_PERCENT: Final = re.compile(r"(\d{1,3})%(?:\||\s+Completed)")
_PHASES: Final[tuple[tuple[str, str], ...]] = (
    ("Load weight begin", "loading weights"),
    ("Loading safetensors", "loading weights"),
    ("Multi-thread loading", "loading weights"),
    ("Load weight end", "weights loaded"),
    ("KV Cache is allocated", "allocating the KV pool"),
    ("Memory pool end", "KV pool allocated"),
    ("Capture ", "capturing graphs"),
    ("Capturing batches", "capturing graphs"),
    ("max_total_num_tokens=", "warming up"),
    ("The server is fired up", "serving"),
)
"""What a line has, and the phase that it shows; later rows win where a line has several."""

_UNREGISTERED: Final = "failed to register to bootstrap server"
"""Of a prefill that goes on without its ranks there, and answers probes (`disaggregation/common/conn.py:1661`)."""

UNREGISTERED: Final = "not at its bootstrap server, so no decode can reach it: restart it"
STARTING: Final = "starting"
MAX_LINE_CHARS: Final = 400


@dataclass(frozen=True, slots=True)
class Pool:
    """The pool of a rank: tokens, and bytes of their KV on one GPU, rounded as the log rounds; None: not said yet."""

    tokens: int | None
    kv_bytes: float | None


@dataclass(frozen=True, slots=True)
class StartProgress:
    """How far a start is. `percent` of the phase, where a bar says it."""

    phase: str
    percent: int | None
    last_line: str


def pool(lines: Sequence[str]) -> Pool:
    """The pool by the last lines about it. A draft model's cache of as many tokens belongs to it; all GPUs of an engine
    write the same lines."""
    tokens: int | None = None
    sizes: dict[tuple[str, int], float] = {}
    for line in lines:
        if (found := _TOKENS.search(line)) is not None:
            tokens = int(found[1])
        elif (found := _SIZE.search(line)) is not None:
            values = _V_SIZE.search(line)
            sizes[found["label"], int(found["tokens"])] = (
                float(found["gb"]) + (float(values[1]) if values else 0.0)
            ) * GB
    if tokens is None:
        return Pool(None, None)
    whole = [size for (_, count), size in sizes.items() if count == tokens]
    return Pool(tokens, sum(whole) if whole else None)


def progress(lines: Sequence[str]) -> StartProgress:
    shown = [line for line in lines if line.strip()]
    last_line = shown[-1].strip()[-MAX_LINE_CHARS:] if shown else ""
    for line in reversed(shown):
        if _UNREGISTERED in line:
            return StartProgress(UNREGISTERED, None, line.strip()[-MAX_LINE_CHARS:])
    for line in reversed(shown):
        phases = [phase for words, phase in _PHASES if words in line]
        if phases:
            bars = _PERCENT.findall(line)
            return StartProgress(phases[-1], int(bars[-1]) if bars else None, last_line)
    return StartProgress(STARTING, None, last_line)
