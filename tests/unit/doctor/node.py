"""The folder tree of a node with eight H100: what the readers of /proc and /sys find there.

Made by hand, from documentation: NVIDIA's DGX H100 user guide (two sockets of 56 cores, 2 TB of memory, ten ConnectX-7
ports of which eight are for compute), the kernel's ABI/stable/sysfs-class-infiniband and -devices-node, proc(5),
admin-guide/mm/transhuge.
"""

from pathlib import Path
from typing import Final

from warmroute_backend.doctor.facts import Gpu, Gpus

GIB: Final = 1 << 30
CPUS: Final = 224
NODE_KIB: Final = 1_056_714_752
GPUS: Final = Gpus(
    driver="550.90.07",
    cuda=(12, 4),
    devices=tuple(
        Gpu(index, "NVIDIA H100 80GB HBM3", 81_559, 4, "9.0", 18, 0, index // 4, mig=False) for index in range(8)
    ),
    peers=tuple((first, second) for first in range(8) for second in range(first + 1, 8)),
)


def tree(root: Path, *, active: int = 10, rate: str = "400 Gb/sec (4X NDR)", peermem: bool = True) -> Path:
    """Write it; `active`: how many of the ten ports are up."""
    write(
        root, "proc/cpuinfo", "".join(f"processor\t: {n}\nmodel name\t: Xeon Platinum 8480C\n\n" for n in range(CPUS))
    )
    memory = [f"MemTotal:       {2 * NODE_KIB} kB", f"MemAvailable:   {2 * NODE_KIB - 9_000_000} kB"]
    write(root, "proc/meminfo", "\n".join([*memory, "Hugepagesize:       2048 kB", ""]))
    write(root, "proc/sys/vm/nr_hugepages", "0\n")
    write(root, "proc/sys/kernel/numa_balancing", "1\n")
    write(root, "proc/sys/kernel/osrelease", "5.15.0-1042-nvidia\n")
    write(root, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.90.07\n")
    write(root, "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    write(root, "sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n")
    for node in range(2):
        write(root, f"sys/devices/system/node/node{node}/meminfo", f"Node {node} MemTotal:       {NODE_KIB} kB\n")
    write(root, "sys/devices/system/node/possible", "0-1\n")
    for number in range(10):
        device = f"sys/class/infiniband/mlx5_{number}"
        is_up = number < active
        write(root, f"{device}/ports/1/state", "4: ACTIVE\n" if is_up else "1: DOWN\n")
        write(root, f"{device}/ports/1/link_layer", "InfiniBand\n")
        write(root, f"{device}/ports/1/rate", f"{rate}\n")
        write(root, f"{device}/device/numa_node", f"{number // 5}\n")
    if peermem:
        write(root, "sys/module/nvidia_peermem/refcnt", "0\n")
    for index, bus in enumerate(("1b", "43", "52", "61", "9d", "c3", "d1", "df")):
        write(root, f"sys/bus/pci/devices/0000:{bus}:00.0/numa_node", f"{index // 4}\n")
    return root


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
