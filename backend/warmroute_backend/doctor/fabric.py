"""RDMA devices and their links, from /sys/class/infiniband (Linux, Documentation/ABI/stable/sysfs-class-infiniband)."""

import re
from pathlib import Path
from typing import Final

from warmroute_backend.doctor.facts import Rdma
from warmroute_backend.doctor.host import text_of

CLASS: Final = "sys/class/infiniband"
_RATE: Final = re.compile(r"([\d.]+) Gb/sec")
MAX_PORTS: Final = 256
MAX_ENTRIES: Final = 256


def read_rdma(root: Path = Path("/")) -> tuple[Rdma, ...]:
    """All ports of all devices, in order of their names."""
    folder = root / CLASS
    if not folder.is_dir():
        return ()
    found = [_port(device, port) for device in sorted(folder.iterdir()) for port in _ports(device)]
    return tuple(found[:MAX_PORTS])


def _ports(device: Path) -> list[Path]:
    folder = device / "ports"
    return sorted(folder.iterdir()) if folder.is_dir() else []


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
