"""Reads memory, NUMA, limits and clock of this machine from /proc and /sys, and measures its disk.

Sources: proc(5); Linux, Documentation/admin-guide.
"""

import ctypes
import os
import re
import resource
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from warmroute_backend.doctor.facts import Disk, Host, Rdma
from warmroute_backend.plan.files.proxy import STORE

SIZE_BYTES: Final = 256 << 20
BLOCK_BYTES: Final = 4 << 20
LIMIT_S: Final = 10.0
"""The longest time of writing: on a slow disk, fewer bytes are written and measured."""


def measured(folder: Path, size_bytes: int = SIZE_BYTES) -> Disk:
    """Measure the disk of a folder or, if the folder does not exist, of its nearest parent that does."""
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
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
            with suppress(OSError):  # the file is gone: a running store deletes files
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


CLASS: Final = "sys/class/infiniband"
_RATE: Final = re.compile(r"([\d.]+) Gb/sec")
MAX_PORTS: Final = 256
MAX_ENTRIES: Final = 256


def read_rdma(root: Path = Path("/")) -> tuple[Rdma, ...]:
    """All ports of all RDMA devices, in the order of the devices' names."""
    found = [_port(device, port) for device in _listed(root / CLASS) for port in _listed(device / "ports")]
    return tuple(found[:MAX_PORTS])


def _port(device: Path, port: Path) -> Rdma:
    rate = _RATE.match(text_of(port / "rate") or "")
    node = text_of(device / "device/numa_node")
    return Rdma(
        device=device.name,
        port=int(port.name),
        state=text_of(port / "state") or "unknown",
        link_layer=text_of(port / "link_layer") or "unknown",
        gbit_s=float(rate[1]) if rate else None,
        numa_node=int(node) if node is not None and node.isdecimal() else None,
        gid_types=tuple(sorted({text for path in _listed(port / "gid_attrs/types") if (text := text_of(path))})),
        mtu=next(
            (int(mtu) for path in _listed(device / "device/net") if (mtu := text_of(path / "mtu") or "").isdecimal()),
            None,
        ),
    )


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())[:MAX_ENTRIES] if folder.is_dir() else []


KIB: Final = 1024
UNSYNCHRONISED: Final = 0x0040
"""STA_UNSYNC of `adjtimex(2)`."""
PEER_MODULES: Final = ("nvidia_peermem", "nv_peer_mem")
_NODE: Final = re.compile(r"node(\d+)")


def read_host(root: Path = Path("/")) -> Host:
    """Memory, limits and clock of the machine. Limits and clock are always those of this process, not of `root`."""
    memory = _meminfo(root / "proc/meminfo")
    of_cpus = (text_of(root / "proc/cpuinfo") or "").splitlines()
    return Host(
        cpus=sum(line.startswith("processor") for line in of_cpus) or os.cpu_count() or 1,
        cpu_model=next(
            (line.partition(":")[2].strip() for line in of_cpus if line.startswith("model name")), "unknown"
        ),
        memory_bytes=memory.get("MemTotal"),
        available_bytes=memory.get("MemAvailable"),
        numa_nodes=_numa_nodes(root / "sys/devices/system/node"),
        huge_pages=number_of(root / "proc/sys/vm/nr_hugepages"),
        huge_page_bytes=memory.get("Hugepagesize"),
        transparent_huge_pages=_chosen(root / "sys/kernel/mm/transparent_hugepage/enabled"),
        numa_balancing=_flag(root / "proc/sys/kernel/numa_balancing"),
        shm_bytes=_size(root / "dev/shm"),
        memlock_bytes=_limit(resource.RLIMIT_MEMLOCK),
        open_files=_limit(resource.RLIMIT_NOFILE),
        clock_synchronised=clock_is_synchronised(),
        clocksource=text_of(root / "sys/devices/system/clocksource/clocksource0/current_clocksource"),
        kernel=text_of(root / "proc/sys/kernel/osrelease"),
        has_numactl=shutil.which("numactl") is not None,
        peer_memory=next((name for name in PEER_MODULES if (root / "sys/module" / name).exists()), None),
    )


def clock_is_synchronised() -> bool | None:
    """Whether the kernel says that its clock is synchronised (such as by NTP); None if it cannot be asked."""
    fields = ctypes.create_string_buffer(512)  # struct timex: 208 bytes on 64 bits; its `status` is at 40
    try:
        if ctypes.CDLL(None, use_errno=True).adjtimex(fields) < 0:
            return None
    except (OSError, AttributeError):
        return None
    status = int.from_bytes(fields.raw[40:44], "little")
    return not status & UNSYNCHRONISED


def _meminfo(path: Path) -> dict[str, int]:
    """The entries of a `meminfo` file: name of a line -> bytes."""
    found = {}
    for line in (text_of(path) or "").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0]) * (KIB if words[1:] == ["kB"] else 1)
    return found


def _numa_nodes(folder: Path) -> dict[int, int]:
    found = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if (name := _NODE.fullmatch(path.name)) is not None:
            line = next((line for line in (text_of(path / "meminfo") or "").splitlines() if "MemTotal:" in line), "")
            words = line.split()
            found[int(name[1])] = int(words[-2]) * KIB if len(words) > 1 else 0
    return found


def _chosen(path: Path) -> str | None:
    """The word in brackets of a text such as `always [madvise] never`."""
    found = re.search(r"\[(\w+)\]", text_of(path) or "")
    return found[1] if found else None


def _size(folder: Path) -> int | None:
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_blocks * status.f_frsize


def _limit(which: int) -> float:
    soft, _ = resource.getrlimit(which)
    return float("inf") if soft == resource.RLIM_INFINITY else float(soft)


def _flag(path: Path) -> bool | None:
    number = number_of(path)
    return None if number is None else number > 0


def text_of(path: Path) -> str | None:
    """The text of a file of the kernel; None if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return None


def number_of(path: Path) -> int | None:
    """The number in a file of the kernel; None if the file cannot be read or does not hold a number."""
    text = text_of(path)
    return int(text) if text is not None and text.isdecimal() else None
