"""How many cores this process may use: those it may run on, or fewer by the CPU quota of its container."""

import os
from math import ceil
from pathlib import Path
from typing import Final

_CGROUPS: Final = Path("/sys/fs/cgroup")


def usable_cores(cgroups: Path = _CGROUPS) -> int:
    """At least 1. A quota of 2.5 cores counts as 3."""
    cores = len(os.sched_getaffinity(0))
    quota = _quota(cgroups)
    return cores if quota is None else max(1, min(cores, ceil(quota)))


def _quota(cgroups: Path) -> float | None:
    """In cores, by version 2 or 1 of control groups; None where there is none."""
    try:
        given, period = (cgroups / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            given, period = [
                (cgroups / "cpu" / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")
            ]
        except OSError:
            return None
    try:
        quota = int(given) / int(period)
    except (ValueError, ZeroDivisionError):  # "max"
        return None
    return quota if quota > 0 else None
