"""What stands between GPUs, network cards and this process: IOMMU, PCI bridges, the cgroup, errors of the driver.

Sources: Linux, Documentation/admin-guide/cgroup-v2.rst; PCI Express Base Specification, 7.7.11 (Access Control
Services); docs.nvidia.com/deploy/xid-errors.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from warmroute_backend.doctor.facts import Isolation
from warmroute_backend.doctor.host import number_of, text_of

MAX_BRIDGES: Final = 1024
MAX_LOG_BYTES: Final = 4 << 20
MAX_XIDS: Final = 8
_BRIDGE: Final = "0x0604"
_ACS: Final = 0x000D
_FIRST_EXTENDED: Final = 0x100
_CONTROL: Final = 6
_REDIRECTS: Final = 0b0_1100
"""P2P request redirect and completion redirect: packets between two devices go up to the root complex and back."""
_XID: Final = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")


def read_isolation(root: Path = Path("/")) -> Isolation:
    """All of it. What needs root and cannot be read is empty."""
    groups = root / "sys/kernel/iommu_groups"
    return Isolation(
        has_iommu=groups.is_dir() and any(groups.iterdir()),
        passes_through="iommu=pt" in (text_of(root / "proc/cmdline") or "").split(),
        redirecting_bridges=_redirecting(root / "sys/bus/pci/devices"),
        cgroup_memory_bytes=number_of(root / "sys/fs/cgroup/memory.max"),
        cgroup_cpus=_cgroup_cpus(root / "sys/fs/cgroup/cpu.max"),
        has_open_driver="Open Kernel Module" in (text_of(root / "proc/driver/nvidia/version") or ""),
        xids=_xids(root / "dev/kmsg"),
    )


def _redirecting(devices: Path) -> tuple[str, ...]:
    """Addresses of PCI bridges whose ACS sends traffic between devices over the root complex."""
    found = []
    for device in sorted(devices.iterdir())[: MAX_BRIDGES * 8] if devices.is_dir() else []:
        if not (text_of(device / "class") or "").startswith(_BRIDGE):
            continue
        with suppress(OSError):
            if _redirects((device / "config").read_bytes()):
                found.append(device.name)
    return tuple(found[:MAX_BRIDGES])


def _redirects(config: bytes) -> bool:
    at, seen = _FIRST_EXTENDED, 0
    while at + 8 <= len(config) and seen < 64:
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == _ACS:
            control = int.from_bytes(config[at + _CONTROL : at + _CONTROL + 2], "little")
            return bool(control & _REDIRECTS)
        at, seen = header >> 20, seen + 1
        if at < _FIRST_EXTENDED:
            return False
    return False


def _cgroup_cpus(path: Path) -> float | None:
    """`QUOTA PERIOD`, or `max PERIOD` without a limit."""
    words = (text_of(path) or "").split()
    if len(words) != 2 or not all(word.isdecimal() for word in words) or not int(words[1]):
        return None
    return int(words[0]) / int(words[1])


def _xids(path: Path) -> tuple[tuple[str, int], ...]:
    """Bus address and number of the driver's errors in the kernel's log, the newest last."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ()
    found, taken = [], 0
    try:
        while taken < MAX_LOG_BYTES:
            record = os.read(descriptor, 8192)
            if not record:
                break
            taken += len(record)
            found += [(bus, int(number)) for bus, number in _XID.findall(record.decode(errors="replace"))]
    except OSError:  # no more is there, or a record was overwritten meanwhile
        pass
    finally:
        os.close(descriptor)
    return tuple(found[-MAX_XIDS:])
