"""What each part of a start has cost, in seconds. Pure.

SGLang measures itself, the slowest rank of each phase (`startup_time` of `/server_info`; its
`observability/startup_time.py`). It does not measure how long HiCache pins host memory: that follows from its log, to
the second.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

PHASES: Final = ("imports, warm-up", "weights", "KV pool", "graphs", "host pool", "other")
"""`other`: communicators, attention back ends, the radix cache. The embedded engine has no phases."""

_LINE: Final = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)([^\]]*)\] (.*)")
_PINS: Final = re.compile(r"Allocating .* GB host memory")


def phases_s(total_s: float, server_info: Mapping[str, Any], lines: Sequence[str]) -> dict[str, float]:
    """Phase -> seconds, for those of `PHASES` that are known; in sum `total_s`. `lines`: of this start's log."""
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
    """From the line that a rank writes before it pins to its next one; of the slowest rank."""
    begun: dict[str, datetime] = {}
    spent: dict[str, float] = {}
    for line in lines:
        if (found := _LINE.match(line)) is None:
            continue
        time_text, rank, text = found.groups()
        try:
            at = datetime.fromisoformat(time_text)
        except ValueError:  # of the shape of a time, and none
            continue
        if rank in begun:
            spent[rank] = spent.get(rank, 0.0) + (at - begun.pop(rank)).total_seconds()
        if _PINS.match(text):
            begun[rank] = at
    return max(0.0, *spent.values()) if spent else 0.0


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
