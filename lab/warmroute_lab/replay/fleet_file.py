"""A file that describes the workers of a fleet that differ, for `warmroute replay --fleet FILE`.

    [[worker]]
    count = 6

    [[worker]]
    count = 2
    speed = 0.5           # of prefill and decode, as a share of the model's own
    kv_tokens = 750_000   # of its device; without it that of --kv-tokens
    max_running = 128     # without it that of --max-running

The workers of each region, in this order, are those of the file.
"""

from pathlib import Path
from typing import Final

import msgspec

from warmroute.files.documents import toml_in
from warmroute_lab.replay.trace import TraceError

MAX_WORKERS: Final = 1024
MIN_SPEED: Final = 0.01
MAX_SPEED: Final = 100.0
MAX_BYTES: Final = 1_048_576


class WorkerKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Workers that are alike. None: as all others."""

    count: int = 1
    speed: float = 1.0
    kv_tokens: int | None = None
    max_running: int | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    worker: list[WorkerKind]


def read_fleet(path: Path) -> tuple[WorkerKind, ...]:
    """The kind of each worker of a region. Raises: TraceError, which says what is wrong and where; UnreadableFile."""
    try:
        found = msgspec.convert(toml_in(path, MAX_BYTES), _File)
    except msgspec.ValidationError as error:
        raise TraceError(f"{path}: {error}") from None
    workers: list[WorkerKind] = []
    for number, kind in enumerate(found.worker, 1):
        _check(path, number, kind)
        workers += [kind] * kind.count
    if not 0 < len(workers) <= MAX_WORKERS:
        raise TraceError(f"{path}: a fleet has 1 to {MAX_WORKERS} workers, not {len(workers)}")
    return tuple(workers)


def _check(path: Path, number: int, kind: WorkerKind) -> None:
    where = f"{path}: worker {number}"
    if not 0 < kind.count <= MAX_WORKERS:
        raise TraceError(f"{where}: count is a number from 1 to {MAX_WORKERS}, not {kind.count}")
    if not MIN_SPEED <= kind.speed <= MAX_SPEED:
        raise TraceError(f"{where}: speed is a number from {MIN_SPEED} to {MAX_SPEED:g}, not {kind.speed}")
    for name in ("kv_tokens", "max_running"):
        value = getattr(kind, name)
        if value is not None and value < 1:
            raise TraceError(f"{where}: {name} is a number from 1 on, not {value}")
