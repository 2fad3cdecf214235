"""The slowness of this machine: the factor by which time limits of a server on a CPU are lengthened.

A prefill of 9,500 tokens takes seconds on the machine for which the limits were chosen, and three times as long on a
slower one. Without the factor, a limit would end a server that is only slow.
"""

import functools
import os
import time
from pathlib import Path
from typing import NamedTuple

REFERENCE_S = 0.020
"""The time of `_work_s` on the machine for which the limits were chosen: CPython 3.11 on a core of an AMD EPYC."""

MAX_SLOWNESS = 30.0
"""The largest slowness, so that a server that hangs is ended at some time on any machine."""

_REPEATS = 5


class Speed(NamedTuple):
    """How many times longer this machine takes for a given work than the reference machine."""

    processor: float  # in processor time: the speed of a core
    wall: float  # in wall time: with other processes, and a container's quota


def slowness() -> float:
    """The slowness: 1 with a free core as fast as the reference's; 10 if the work takes ten times as long."""
    speed = measured()
    return min(MAX_SLOWNESS, max(1.0, speed.wall, speed.processor * load()))


def load() -> float:
    """Processes that want to run, for each core: the last minute's or the current number, whichever is larger."""
    path = Path("/proc/loadavg")
    running = path.read_text().partition("/")[0].rpartition(" ")[-1] if path.exists() else "0"
    return max(1.0, os.getloadavg()[0], float(running)) / (os.cpu_count() or 1)


@functools.cache
def measured() -> Speed:
    """The machine's speed, measured by a few hundredths of a second of work, once in a process."""
    began_s = time.perf_counter()
    processor_s = min(_work_s() for _ in range(_REPEATS))
    wall_s = (time.perf_counter() - began_s) / _REPEATS
    return Speed(processor_s / REFERENCE_S, wall_s / REFERENCE_S)


def _work_s() -> float:
    began_s = time.thread_time()
    table: dict[int, str] = {}
    for number in range(60_000):
        key = number * 7919 % 1009
        table[key] = f"{key}{table.get(key, '')[:20]}"
    return time.thread_time() - began_s
