"""Judges the health of GPUs and of the paths between them: errors, heat, PCI bridges, limits of the cgroup. Pure."""

from collections.abc import Iterator
from typing import Final

from warmroute_backend.doctor.facts import Finding, Gpus, Host, Isolation, Level, Rdma
from warmroute_backend.plan.deployment import Plan
from warmroute_backend.plan.hardware import GIB
from warmroute_backend.plan.tiers import host_bytes

FATAL_XIDS: Final = frozenset({48, 63, 64, 74, 79, 94, 95, 119, 120})
"""Xid errors (errors that NVIDIA's driver logs) of ECC, remapped rows, NVLink, a GPU that fell off the bus, and the GPU
system processor (docs.nvidia.com/deploy/xid-errors).
"""

ROCE_MTU: Final = 4096
"""An Ethernet frame of RoCE carries 4,096 bytes if the link's MTU is at least about 4,200."""

DMABUF_KERNEL: Final = (5, 12)


def of_gpus(gpus: Gpus, isolation: Isolation, plan: Plan | None) -> Iterator[Finding]:
    level = Level.WARNING if plan is None else Level.PROBLEM
    for device in gpus.devices:
        if device.ecc_errors:
            text = f"GPU {device.index}: {device.ecc_errors} memory errors since the start that ECC could not correct"
            yield Finding(level, "GPU", text, "nvidia-smi -q -d ECC; reset or replace it")
        if device.remap_pending:
            text = f"GPU {device.index}: rows of its memory wait to be remapped"
            yield Finding(Level.WARNING, "GPU", text, f"nvidia-smi -r -i {device.index}, when nothing runs on it")
        if device.slowed_by:
            text = f"GPU {device.index} is slowed down: {device.slowed_by}"
            yield Finding(Level.WARNING, "GPU", text, "nvidia-smi -q -d PERFORMANCE; cooling and power supply")
    for bus, number in dict.fromkeys(isolation.xids):
        fatal = number in FATAL_XIDS
        text = f"the driver has logged Xid {number} of the GPU at {bus}"
        todo = "https://docs.nvidia.com/deploy/xid-errors"
        yield Finding(level if fatal else Level.WARNING, "GPU", text, todo)


def of_paths(isolation: Isolation, gpus: Gpus, plan: Plan | None) -> Iterator[Finding]:
    """Findings if traffic between GPUs and cards goes through the root complex or the IOMMU."""
    if not gpus.devices:
        return
    level = Level.NOTE if plan is None else Level.WARNING
    if isolation.redirecting_bridges:
        count = len(isolation.redirecting_bridges)
        text = f"{count} PCI bridges send traffic between devices over the root complex (ACS)"
        todo = "turn ACS off in the BIOS, or setpci -s BRIDGE ECAP_ACS+6.w=0 at each start"
        yield Finding(level, "PCI", text, todo)
    if isolation.has_iommu and not isolation.passes_through:
        text = "the IOMMU translates traffic between GPUs and network cards"
        yield Finding(level, "PCI", text, "iommu=pt on the kernel's command line, unless virtual machines need it")


def of_cards(ports: tuple[Rdma, ...], plan: Plan | None) -> Iterator[Finding]:
    level = Level.NOTE if plan is None else Level.WARNING
    for port in ports:
        if not port.is_active or port.link_layer != "Ethernet":
            continue
        if "RoCE v2" not in port.gid_types:
            text = f"{port.device} has no GID of RoCE v2"
            yield Finding(level, "RDMA", text, "give its interface an IP address; show_gids, NCCL_IB_GID_INDEX")
        if port.mtu is not None and port.mtu < ROCE_MTU:
            text = f"{port.device} has an MTU of {port.mtu}, and RDMA then sends 1,024 bytes at a time"
            yield Finding(level, "RDMA", text, "an MTU of 9000 on the interface and the switch")


def reads_gpu_memory(isolation: Isolation, host: Host) -> bool:
    """Whether network cards can read GPU memory: by a kernel module, or by dma-buf, which the open driver supports from
    Linux 5.12 on.
    """
    numbers = tuple(int(word) for word in (host.kernel or "").partition("-")[0].split(".")[:2] if word.isdecimal())
    return host.peer_memory is not None or (isolation.has_open_driver and numbers >= DMABUF_KERNEL)


def of_cgroup(isolation: Isolation, host: Host, plan: Plan | None) -> Iterator[Finding]:
    limit = isolation.cgroup_memory_bytes
    if limit is not None and (host.memory_bytes is None or limit < host.memory_bytes):
        need = pinned_bytes(plan)
        text = f"this cgroup may have {limit / GIB:.0f} GiB of memory"
        if need > limit:
            text += f", and host pools take {need / GIB:.0f}"
            yield Finding(Level.PROBLEM, "cgroup", text, "a higher memory limit, or a smaller size_gb")
        else:
            yield Finding(Level.OK, "cgroup", text)
    cpus = isolation.cgroup_cpus
    if cpus is not None and cpus < host.cpus:
        text = f"this cgroup may use {cpus:g} of {host.cpus} CPUs"
        few = plan is not None and cpus < max((engine.gpus_each_node for engine in plan.engines), default=0)
        todo = "each rank of an engine keeps a CPU busy" if few else ""
        yield Finding(Level.WARNING if few else Level.OK, "cgroup", text, todo)


def of_numa(gpus: Gpus, host: Host, plan: Plan | None, node: int) -> Iterator[Finding]:
    """Findings if a NUMA node lacks memory for its GPUs' host pools, since SGLang binds each rank to its GPU's node."""
    if plan is None or len(host.numa_nodes) < 2:
        return
    if not host.has_numactl:
        text = "there is no numactl, and SGLang leaves each rank's host pool on any NUMA node without it"
        yield Finding(Level.WARNING, "NUMA", text, "install numactl")
        return
    numa_nodes = {device.index: device.numa_node for device in gpus.devices}
    taken: dict[int, float] = {}
    for engine in plan.engines:
        if node in engine.all_nodes:
            for gpu in range(engine.first_gpu, engine.first_gpu + engine.gpus_each_node):
                if (numa_node := numa_nodes.get(gpu)) is not None:
                    taken[numa_node] = taken.get(numa_node, 0.0) + host_bytes(plan, engine)
    for numa_node, need in sorted(taken.items()):
        if need > host.numa_nodes.get(numa_node, 0) > 0:
            text = f"host pools of the GPUs of node {numa_node} take {need / GIB:.0f} GiB, and it has "
            text += f"{host.numa_nodes[numa_node] / GIB:.0f}"
            yield Finding(Level.PROBLEM, "NUMA", text, "a smaller size_gb, or SGLANG_AUTO_NUMA_BIND=0")


def pinned_bytes(plan: Plan | None) -> float:
    """Host memory that KV pools and parts of the shared store take on the node on which they take most."""
    if plan is None:
        return 0.0
    taken = dict.fromkeys(range(plan.cluster.nodes), 0.0)
    for engine in plan.engines:
        for node in engine.all_nodes:
            if node in taken:
                taken[node] += host_bytes(plan, engine) * engine.shape.gpus / engine.nodes
    return max(taken.values())
