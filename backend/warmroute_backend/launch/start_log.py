"""Reads the log of a starting engine: how far the start is, and how large the pool became. Pure.

The lines are those of SGLang 0.5.23: `Load weight begin` (`model_executor/model_runner.py:1274`), tqdm's bars of the
loaders (`model_loader/weight_utils.py:1166`, `:1371`), `KV Cache is allocated` (`mem_cache/memory_pool.py:2084-2098`;
`KV size` of latent attention, else `K size` and `V size`), `Post-capture KV sizing`
(`model_executor/model_runner_components/kv_pool_runtime.py:195`), graphs (`cuda_graph_setup.py:685`,
`runner/decode_cuda_graph_runner.py:1343`), `max_total_num_tokens` (`managers/scheduler.py:1269`). The embedded
(simulated) engine writes only the two lines about its pool.
"""

import os
import re
import shutil
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

MAX_LOG_BYTES: Final = 64 << 20
KEPT_LOGS: Final = 3
TAIL_BYTES: Final = 256 << 10


def rotate(log: Path, max_bytes: int = MAX_LOG_BYTES) -> bool:
    """Rename a log that is larger than `max_bytes` to `.1`, and older logs to the next number; the oldest is deleted.
    Raises: OSError.
    """
    try:
        if log.stat().st_size <= max_bytes:
            return False
    except FileNotFoundError:
        return False
    for number in range(KEPT_LOGS - 1, 0, -1):
        older = _numbered(log, number)
        if older.exists():
            older.replace(_numbered(log, number + 1))
    fresh = _numbered(log, 1)
    partial = fresh.with_suffix(".tmp")
    shutil.copyfile(log, partial)
    os.truncate(log, 0)
    partial.replace(fresh)
    return True


def tail(log: Path, count: int, begin: int = 0) -> list[str]:
    """The last lines of a log, from at most its last `TAIL_BYTES`. `begin`: the offset before which the log is
    skipped. Each state of a tqdm bar, which ends with a carriage return, is a line."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            at = max(begin if begin <= size else 0, size - TAIL_BYTES)
            file.seek(at)
            content = file.read(TAIL_BYTES)
    except OSError:
        return []
    lines = content.decode("utf-8", "replace").replace("\r", "\n").splitlines()
    return list(deque((line for line in lines if line.strip()), maxlen=count))


def end_of(log: Path) -> int:
    """The size of a log: where the next start's lines begin."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def _numbered(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")


PHASES: Final = ("imports, warm-up", "weights", "KV pool", "graphs", "host pool", "other")
"""`other` includes communicators, attention back ends and the radix cache. The embedded engine reports no phases."""

_LINE: Final = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)([^\]]*)\] (.*)")
_PINS: Final = re.compile(r"Allocating .* GB host memory")


def phases_s(total_s: float, server_info: Mapping[str, Any], lines: Sequence[str]) -> dict[str, float]:
    """The seconds of each of `PHASES`, in sum `total_s`; empty if the server does not report them. `lines`: the log of
    this start.
    """
    found = server_info.get("startup_time")
    if not isinstance(found, Mapping) or not isinstance(found.get("scheduler_e2e"), int | float):
        return {}
    graphs = found.get("cuda_graph")
    scheduler_s = _seconds(found.get("scheduler_e2e"))
    parts = {
        "weights": _seconds(found.get("load_weight")),
        "KV pool": _seconds(found.get("kv_cache_allocation")),
        "graphs": sum(_seconds(each) for each in graphs.values()) if isinstance(graphs, Mapping) else 0.0,
    }
    left_s = max(0.0, scheduler_s - sum(parts.values()))
    parts["host pool"] = min(left_s, _pinning_s(lines))
    parts["other"] = left_s - parts["host pool"]
    return {"imports, warm-up": max(0.0, total_s - scheduler_s), **parts}


def _pinning_s(lines: Sequence[str]) -> float:
    """Seconds in which the slowest rank pins host memory: from its line that announces the pinning to its next line."""
    begun: dict[str, datetime] = {}
    spent: dict[str, float] = {}
    for line in lines:
        if (found := _LINE.match(line)) is None:
            continue
        time_text, rank, text = found.groups()
        try:
            at = datetime.fromisoformat(time_text)
        except ValueError:  # a wrong time, such as 25:00:00
            continue
        if rank in begun:
            spent[rank] = spent.get(rank, 0.0) + (at - begun.pop(rank)).total_seconds()
        if _PINS.match(text):
            begun[rank] = at
    return max(0.0, *spent.values()) if spent else 0.0


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


GB: Final = 1 << 30
"""What SGLang calls a GB in log lines on memory (`mem_cache/memory_pool.py`, `GB = 1024**3`)."""

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
"""A text in a line -> the phase that it shows. If a line has several of these texts, the last row wins."""

_UNREGISTERED: Final = "failed to register to bootstrap server"
"""A line of a prefill engine whose ranks could not register with its bootstrap server. The engine runs on and answers
probes (`disaggregation/common/conn.py:1661`).
"""

UNREGISTERED: Final = "not at its bootstrap server, so no decode can reach it: restart it"
STARTING: Final = "starting"
MAX_LINE_CHARS: Final = 400


@dataclass(frozen=True, slots=True)
class Pool:
    """The KV pool of a rank: its tokens, and its bytes on one GPU as rounded in the log. None: not logged yet."""

    tokens: int | None
    kv_bytes: float | None


@dataclass(frozen=True, slots=True)
class StartProgress:
    """How far a start is. `percent`: how much of the phase is done, if a progress bar shows it."""

    phase: str
    percent: int | None
    last_line: str


def pool(lines: Sequence[str]) -> Pool:
    """The pool, from the last lines about it. A draft model's cache with as many tokens counts as a part of the pool.
    All GPUs of an engine write the same lines, so each line counts once."""
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
