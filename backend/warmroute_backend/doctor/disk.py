"""How fast a folder is written and read: a file of `SIZE_BYTES`, flushed to the disk, read again without the page cache
where the system can do that, and removed."""

import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from warmroute_backend.doctor.facts import Disk
from warmroute_backend.plan.files.proxy import STORE

SIZE_BYTES: Final = 256 << 20
BLOCK_BYTES: Final = 4 << 20
LIMIT_S: Final = 10.0
"""A slow disk is measured by what it has done until then."""


def measured(folder: Path, size_bytes: int = SIZE_BYTES) -> Disk:
    """Measure a folder; the nearest one above it that exists, if it does not."""
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    try:
        free = shutil.disk_usage(nearest).free
        if free < 2 * size_bytes:
            return Disk(str(folder), None, None, f"{nearest} has only {free >> 20} MiB free")
        with tempfile.NamedTemporaryFile(dir=nearest, prefix=".warmroute-doctor-") as file:
            written, write_s = _write(file.fileno(), size_bytes)
            read, read_s = _read(file.fileno(), written)
    except OSError as error:
        return Disk(str(folder), None, None, f"{nearest} cannot be written: {error.strerror}")
    free += _taken(folder / STORE)
    return Disk(str(folder), written / max(write_s, 1e-9), read / max(read_s, 1e-9), free_bytes=free)


def _taken(folder: Path) -> int:
    """Bytes that the files below a folder have on their disk."""
    taken = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # a store that runs deletes files
                taken += (Path(root) / name).lstat().st_blocks * 512
    return taken


def _write(descriptor: int, size_bytes: int) -> tuple[int, float]:
    block = os.urandom(BLOCK_BYTES)
    began_s, done = time.perf_counter(), 0
    while done < size_bytes and time.perf_counter() - began_s < LIMIT_S:
        done += os.write(descriptor, block)
        os.fdatasync(descriptor)
    return done, time.perf_counter() - began_s


def _read(descriptor: int, size_bytes: int) -> tuple[int, float]:
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.lseek(descriptor, 0, os.SEEK_SET)
    began_s, done = time.perf_counter(), 0
    while done < size_bytes and time.perf_counter() - began_s < LIMIT_S:
        done += len(os.read(descriptor, BLOCK_BYTES))
    return done, time.perf_counter() - began_s
