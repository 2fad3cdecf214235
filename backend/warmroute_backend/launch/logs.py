"""Logs of launched processes: each process writes to its own file, which is rotated while it is open.

A process has its log open for appending, so the launcher copies a log that has grown too large and empties the file
(as logrotate's `copytruncate` does): what is written between the two is lost, a few lines once in many megabytes. A
pipe to the launcher would lose nothing, and end every process when the launcher is killed.
"""

import os
import shutil
from collections import deque
from pathlib import Path
from typing import Final

MAX_LOG_BYTES: Final = 64 << 20
KEPT_LOGS: Final = 3
TAIL_BYTES: Final = 256 << 10


def rotate(log: Path, max_bytes: int = MAX_LOG_BYTES) -> bool:
    """Move a log that is larger than `max_bytes` to `.1`, and older ones on; the oldest goes. Raises: OSError."""
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
    """The last lines, of at most `TAIL_BYTES`; `begin`: only what lies behind this offset. Bars of tqdm, which a
    carriage return overwrites, are lines of their own."""
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
