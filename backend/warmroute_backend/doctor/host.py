"""Memory, NUMA, limits and clock of this machine, from /proc and /sys (proc(5); Linux, Documentation/admin-guide)."""

import ctypes
import os
import re
import resource
import shutil
from pathlib import Path
from typing import Final

from warmroute_backend.doctor.facts import Host

KIB: Final = 1024
UNSYNCHRONISED: Final = 0x0040
"""STA_UNSYNC of `adjtimex(2)`."""
PEER_MODULES: Final = ("nvidia_peermem", "nv_peer_mem")
_NODE: Final = re.compile(r"node(\d+)")


def read_host(root: Path = Path("/")) -> Host:
    """All of it. Limits and the clock are this process' own, whatever the root is."""
    memory = _meminfo(root / "proc/meminfo")
    return Host(
        cpus=_cpus(root),
        cpu_model=_cpu_model(root),
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
    """Whether the kernel says that its clock follows another one; None if it cannot be asked."""
    fields = ctypes.create_string_buffer(512)  # struct timex: 208 bytes on 64 bits; its `status` is at 40
    try:
        if ctypes.CDLL(None, use_errno=True).adjtimex(fields) < 0:
            return None
    except (OSError, AttributeError):
        return None
    status = int.from_bytes(fields.raw[40:44], "little")
    return not status & UNSYNCHRONISED


def _meminfo(path: Path) -> dict[str, int]:
    """Name -> bytes."""
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


def _cpus(root: Path) -> int:
    listed = [line for line in (text_of(root / "proc/cpuinfo") or "").splitlines() if line.startswith("processor")]
    return len(listed) or os.cpu_count() or 1


def _cpu_model(root: Path) -> str:
    lines = (text_of(root / "proc/cpuinfo") or "").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _chosen(path: Path) -> str | None:
    """The word in brackets: `always [madvise] never`."""
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
    """What a file of the kernel says; None if there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return None


def number_of(path: Path) -> int | None:
    """The number that it says; None for another text, too."""
    text = text_of(path)
    return int(text) if text is not None and text.isdecimal() else None
