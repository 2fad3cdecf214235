"""Judges the facts of a machine: findings, and what to do about each. Pure.

Without a plan (`plan.toml`), a missing device or program is only a note, since nothing needs it. With a plan, the
finding is a problem if the plan cannot run or would fall back to TCP, and a warning if the plan would run badly.
"""

from collections.abc import Iterator
from typing import Final

from warmroute_backend.doctor import health
from warmroute_backend.doctor.facts import Disk, Finding, Gpus, Host, Level, Machine, Versions
from warmroute_backend.plan.deployment import Plan
from warmroute_backend.plan.hardware import GIB
from warmroute_backend.plan.speed import Load, prefill_tokens_per_s

SGLANG: Final = "0.5.23"
"""The SGLang version whose rules the planner follows."""
BUSY_MIB: Final = 1_024
"""More memory than this in use means a busy GPU: a driver alone takes a few hundred MiB."""
LEAST_OPEN_FILES: Final = 65_536
LEAST_SHM_BYTES: Final = 32 * GIB
"""The `--shm-size` of SGLang's own instructions (docs.sglang.io, install)."""
SHM: Final = "/dev/shm"  # noqa: S108 (its own name)
MOONCAKE: Final = "mooncake-transfer-engine"
LMCACHE_TODO: Final = "pip install --no-deps lmcache==0.5.6 and what it imports: docs/reference/plan.md, LMCache"
"""`--no-deps`, because pip cannot install LMCache's requirements beside SGLang 0.5.23: the two need different versions
of grpcio."""
RATE_SHARE: Final = 0.95


def judge(machine: Machine, plan: Plan | None, node: int = 0) -> list[Finding]:
    """All findings, in the order in which a deployment needs what they are about. `node`: the machine's number in the
    plan.
    """
    return [
        *_gpus(machine.gpus, plan),
        *health.of_gpus(machine.gpus, machine.isolation, plan),
        *_driver(machine.gpus, machine.versions),
        *_links(machine.gpus, plan),
        *health.of_paths(machine.isolation, machine.gpus, plan),
        *_rdma(machine, plan),
        *health.of_cards(machine.rdma, plan),
        *_memory(machine.host, plan),
        *health.of_numa(machine.gpus, machine.host, plan, node),
        *health.of_cgroup(machine.isolation, machine.host, plan),
        *_limits(machine, plan),
        *_disk(machine.disk, plan),
        *_versions(machine.versions, plan),
    ]


def _lack(plan: Plan | None) -> Level:
    return Level.NOTE if plan is None else Level.PROBLEM


def _over_network(plan: Plan | None) -> bool:
    return plan is not None and plan.cluster.nodes > 1 and (plan.is_split or plan.has_store)


def _gpus(gpus: Gpus, plan: Plan | None) -> Iterator[Finding]:
    if plan is not None:
        for text in mismatches(plan, gpus):
            yield Finding(Level.PROBLEM, "GPU", text)
    if gpus.problem:
        if plan is None:
            todo = "pip install 'warmroute[doctor]'" if "binding" in gpus.problem else ""
            yield Finding(Level.WARNING if todo else Level.NOTE, "GPU", gpus.problem, todo)
        return
    names = ", ".join(sorted({device.name for device in gpus.devices}))
    yield Finding(Level.OK, "GPU", f"{len(gpus.devices)} x {names}, driver {gpus.driver}")
    for device in gpus.devices:
        if device.used_mib > BUSY_MIB:
            yield Finding(
                Level.WARNING if plan is None else Level.PROBLEM,
                "GPU",
                f"GPU {device.index}: {device.used_mib:,} of {device.memory_mib:,} MiB are taken",
                "end the processes that use them (nvidia-smi), or the pool will be smaller than planned",
            )
        if device.mig:
            todo = f"sudo nvidia-smi -i {device.index} -mig 0"
            yield Finding(_lack(plan), "GPU", f"GPU {device.index} is divided (MIG)", todo)


def _driver(gpus: Gpus, versions: Versions) -> Iterator[Finding]:
    """Findings if the driver is too old for SGLang's CUDA. CUDA runs on any driver of the same major version, but
    without the features of a newer minor version (docs.nvidia.com/deploy/cuda-compatibility)."""
    if gpus.problem or versions.cuda is None:
        return
    built = _numbers(versions.cuda)
    can = ".".join(map(str, gpus.cuda))
    text = f"the driver runs CUDA {can} and torch was built for {versions.cuda}"
    todo = "a newer driver, or a wheel for an older CUDA"
    if built[:1] > gpus.cuda[:1]:
        yield Finding(Level.PROBLEM, "driver", text, todo)
    elif built[:2] > gpus.cuda:
        yield Finding(Level.WARNING, "driver", f"{text}: kernels that are compiled on the way may fail", todo)
    else:
        yield Finding(Level.OK, "driver", text)


def _links(gpus: Gpus, plan: Plan | None) -> Iterator[Finding]:
    count = len(gpus.devices)
    if count < 2:
        return
    wanted = plan is not None and (plan.inside_node or any(engine.shape.gpus > 1 for engine in plan.engines))
    pairs = count * (count - 1) // 2
    if len(gpus.peers) < pairs:
        text = f"{len(gpus.peers)} of {pairs} pairs of GPUs reach each other by NVLink"
        todo = "nvidia-smi topo -m; systemctl status nvidia-fabricmanager"
        yield Finding(Level.PROBLEM if wanted else Level.NOTE, "NVLink", text, todo)
    else:
        yield Finding(Level.OK, "NVLink", f"all {pairs} pairs of GPUs reach each other by NVLink")
    down = [device.index for device in gpus.devices if device.links_down]
    if down:
        text = f"NVLinks are down on GPU {', '.join(map(str, down))}"
        yield Finding(Level.WARNING, "NVLink", text, "nvidia-smi nvlink -s; nvidia-smi -q | grep -A4 Fabric")


def _rdma(machine: Machine, plan: Plan | None) -> Iterator[Finding]:
    ports, gpus, needed = machine.rdma, machine.gpus, _over_network(plan)
    active = [port for port in ports if port.is_active]
    if not active:
        level = Level.PROBLEM if needed else Level.NOTE
        text = f"{len(ports)} RDMA ports, none is active" if ports else "there is no RDMA device"
        todo = "load the driver and check cables (ibstat); without it KV goes over TCP" if needed else ""
        yield Finding(level, "RDMA", text, todo)
    else:
        kinds = ", ".join(sorted({f"{port.link_layer} {port.gbit_s or 0:g} Gbit/s" for port in active}))
        yield Finding(Level.OK, "RDMA", f"{len(active)} of {len(ports)} ports are active: {kinds}")
    for port in ports:
        if active and not port.is_active:
            text = f"{port.device} port {port.port} is {port.state}"
            yield Finding(Level.WARNING if needed else Level.NOTE, "RDMA", text, f"ibstat {port.device}")
    if plan is None or not needed:
        return
    known = {port.device for port in active}
    named = {name for name in plan.site.ib_devices.split(",") if name and "{" not in plan.site.ib_devices}
    for name in sorted(named - known):
        todo = f"site.ib_devices of the plan; active are {', '.join(sorted(known)) or 'none'}"
        yield Finding(Level.PROBLEM, "RDMA", f"the plan names {name}, which is not an active device", todo)
    for port in active:
        if port.gbit_s is not None and port.gbit_s < RATE_SHARE * plan.cluster.gpu.nic_gbit_s:
            text = (
                f"{port.device} runs at {port.gbit_s:g} Gbit/s, and the plan counts on {plan.cluster.gpu.nic_gbit_s:g}"
            )
            yield Finding(Level.WARNING, "RDMA", text, "cables and the switch port, or nic_gbit_s of a [[gpu]]")
    near = {port.numa_node for port in active}
    far = sorted({gpu.numa_node for gpu in gpus.devices if gpu.numa_node is not None and gpu.numa_node not in near})
    if active and far:
        text = f"GPUs of NUMA node {', '.join(map(str, far))} have no active RDMA port on that node"
        yield Finding(
            Level.WARNING, "RDMA", text, "nvidia-smi topo -m; cable the cards beside them, or KV crosses sockets"
        )
    if active and not gpus.problem and not health.reads_gpu_memory(machine.isolation, machine.host):
        text = "neither nvidia_peermem nor dma-buf: network cards do not read GPU memory, and KV is copied by the host"
        yield Finding(Level.WARNING, "RDMA", text, "sudo modprobe nvidia-peermem, or the open driver on Linux 5.12")


def _memory(host: Host, plan: Plan | None) -> Iterator[Finding]:
    total = host.memory_bytes or 0
    nodes = f"{len(host.numa_nodes)} NUMA node{'s' * (len(host.numa_nodes) != 1)}"
    yield Finding(
        Level.OK,
        "memory",
        f"{total / GIB:.0f} GiB on {nodes}, {host.cpus} CPUs ({host.cpu_model}), Linux {host.kernel or 'unknown'}",
    )
    need = health.pinned_bytes(plan)
    if need and total and need > total:
        text = f"host pools take {need / GIB:.0f} GiB of host memory, and there are {total / GIB:.0f}"
        yield Finding(Level.PROBLEM, "memory", text, "a smaller size_gb of the plan's engines")
    elif need and host.available_bytes is not None and need > host.available_bytes:
        text = f"host pools take {need / GIB:.0f} GiB, and {host.available_bytes / GIB:.0f} are available now"
        yield Finding(
            Level.PROBLEM, "memory", text, "end the processes that use it (free -h), or set a smaller size_gb"
        )
    if len(host.numa_nodes) > 1 and host.numa_balancing:
        text = "automatic NUMA balancing moves pages between nodes, which stalls processes with large pinned pools"
        level = Level.NOTE if plan is None else Level.WARNING
        yield Finding(level, "NUMA", text, "sudo sysctl kernel.numa_balancing=0")
    huge = (host.huge_pages or 0) * (host.huge_page_bytes or 0)
    text = f"{huge / GIB:.1f} GiB in huge pages, transparent ones: {host.transparent_huge_pages or 'unknown'}"
    if need and huge > max(0, total - need):
        todo = "sudo sysctl vm.nr_hugepages=0, or fewer: HiCache pins ordinary pages"
        yield Finding(Level.PROBLEM, "huge pages", f"{text}, which HiCache cannot use", todo)
    else:
        yield Finding(Level.OK, "huge pages", text)


def _limits(machine: Machine, plan: Plan | None) -> Iterator[Finding]:
    host = machine.host
    unlimited = host.memlock_bytes == float("inf")
    if not unlimited:
        level = Level.PROBLEM if _over_network(plan) else Level.NOTE if plan is None else Level.WARNING
        text = f"memlock is {_size(host.memlock_bytes)}: RDMA and HiCache lock host memory"
        yield Finding(level, "memlock", text, "LimitMEMLOCK=infinity (systemd), or ulimit -l unlimited")
    else:
        yield Finding(Level.OK, "memlock", "unlimited")
    if host.open_files < LEAST_OPEN_FILES:
        text = f"{host.open_files:,.0f} open files, and {LEAST_OPEN_FILES:,} are a good limit"
        yield Finding(
            Level.NOTE if plan is None else Level.WARNING, "open files", text, "LimitNOFILE=1048576, ulimit -n"
        )
    if host.shm_bytes is not None and host.shm_bytes < LEAST_SHM_BYTES:
        text = f"{SHM} holds {_size(host.shm_bytes)}, and SGLang is given {LEAST_SHM_BYTES // GIB}"
        needs = plan is not None and any(engine.shape.gpus > 1 for engine in plan.engines)
        todo = "docker --shm-size 32g, or an emptyDir of medium Memory"
        yield Finding(Level.PROBLEM if needs else Level.NOTE, SHM, text, todo)
    if host.clock_synchronised is False:
        text = "the clock is not synchronised: receipts, quotas by day and certificates go by it"
        yield Finding(Level.WARNING, "clock", text, "timedatectl; systemctl enable --now chronyd")
    elif host.clock_synchronised:
        yield Finding(Level.OK, "clock", f"synchronised, source {host.clocksource or 'unknown'}")


def _disk(disk: Disk | None, plan: Plan | None) -> Iterator[Finding]:
    if disk is None:
        return
    if disk.problem or disk.read_bytes_s is None or disk.write_bytes_s is None:
        yield Finding(
            _lack(plan), "HiCache disk", disk.problem or f"{disk.folder} was not measured", "site.storage_dir"
        )
        return
    text = f"{disk.folder} writes {disk.write_bytes_s / 1e9:.2f} GB/s and reads {disk.read_bytes_s / 1e9:.2f} GB/s"
    wanted = 0 if plan is None else plan.site.store_disk_gb * 10**9
    if disk.free_bytes < wanted:
        lack = f"{disk.folder} has room for {disk.free_bytes / 1e9:,.0f} GB, and the store may fill {wanted / 1e9:,.0f}"
        yield Finding(Level.PROBLEM, "HiCache disk", lack, "a larger disk, or less store_disk_gb of the plan")
    slower = [] if plan is None else list(_slower_than_computing(disk.read_bytes_s, plan))
    if slower:
        todo = "a faster disk (local NVMe), or no tier of files (--storage none, or store_disk_gb 0)"
        yield Finding(Level.WARNING, "HiCache disk", f"{text}: {slower[0]}", todo)
    else:
        yield Finding(Level.OK, "HiCache disk", text)


def _slower_than_computing(read_bytes_s: float, plan: Plan) -> Iterator[str]:
    """A sentence for each engine whose file tier reads fewer tokens a second than the engine computes. Each attention
    rank reads a separate part of a token's KV.
    """
    for engine in plan.engines:
        if plan.keeps_files(engine):
            cell = plan.memory(engine).cell * engine.shape.attention_tp
            fetched = read_bytes_s / cell
            load = Load(engine.context_tokens / 2, engine.context_tokens / 2, 1)
            computed = prefill_tokens_per_s(plan.cluster.gpu, plan.model, engine.shape, load)
            if fetched < computed:
                yield (f"{engine.name} fetches {fetched:,.0f} tokens a second from there, and computes {computed:,.0f}")


def _versions(versions: Versions, plan: Plan | None) -> Iterator[Finding]:
    if versions.problem:
        yield Finding(_lack(plan), "versions", versions.problem, "--python FILE names the Python that has SGLang")
        return
    sglang = versions.packages.get("sglang")
    if sglang is None:
        todo = f"pip install sglang=={SGLANG} in it, or --python FILE" if plan is not None else ""
        yield Finding(_lack(plan), "versions", f"Python {versions.python} has no sglang", todo)
        return
    shown = ", ".join(f"{name} {number}" for name, number in versions.packages.items())
    yield Finding(Level.OK, "versions", f"Python {versions.python}: {shown}")
    if sglang != SGLANG:
        text = f"plans follow the rules of sglang {SGLANG}, and this is {sglang}"
        yield Finding(
            Level.WARNING, "versions", text, f"pip install sglang=={SGLANG}, or compare its pool with the plan"
        )
    if plan is not None and (plan.is_split or plan.has_store) and "mooncake" not in versions.modules:
        text = f"the plan moves KV by Mooncake, and Python {versions.python} has no module mooncake"
        yield Finding(Level.PROBLEM, "versions", text, f"pip install {_mooncake_for(versions.cuda)}")
    if plan is not None and plan.has_lmcache and "lmcache" not in versions.modules:
        text = f"the plan keeps KV in LMCache, and Python {versions.python} has no module lmcache"
        yield Finding(Level.PROBLEM, "versions", text, LMCACHE_TODO)


def _mooncake_for(cuda: str | None) -> str:
    """The package name of Mooncake for a CUDA version. SGLang 0.5.23 pins CUDA 13."""
    return f"{MOONCAKE}-cuda13" if cuda is not None and cuda.startswith("13") else MOONCAKE


def _size(count: float) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / 2**20:.0f} MiB"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(word) for word in version.split(".") if word.isdecimal())


TOLERANCE = 0.02
"""The share by which a GPU's memory may differ from the plan's: drivers report a few hundred MiB more or less."""


def mismatches(plan: Plan, gpus: Gpus) -> list[str]:
    """Why this machine is not a node of the plan. Empty if the machine is a node, or if the plan's GPUs are AMD's,
    which are not compared.
    """
    wanted, count = plan.cluster.gpu, plan.cluster.per_node
    trial = "`--engine embedded` tries the plan without GPUs"
    if wanted.vendor != "nvidia":
        return []
    if gpus.problem:
        return [f"the plan is for {plan.cluster}, and {gpus.problem} here: run it on such a node; {trial}"]
    names = sorted({device.name for device in gpus.devices})
    found = []
    if len(gpus.devices) < count:
        found.append(
            f"the plan is for {count} GPUs a node, and this one has {len(gpus.devices)} ({', '.join(names)}): "
            f"`warmroute plan --gpus {len(gpus.devices)}x...` makes another; {trial}"
        )
    for device in gpus.devices:
        off = device.memory_mib / wanted.memory_mib - 1
        if not wanted.is_named(device.name) or abs(off) > TOLERANCE:
            found.append(
                f"the plan is for {wanted.name} with {wanted.memory_mib:,} MiB, and GPU {device.index} is "
                f"{device.name} with {device.memory_mib:,} MiB: plan again for this one; {trial}"
            )
            break
    return found
