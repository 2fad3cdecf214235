"""What facts mean: each lack of a node, with a plan and without."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.doctor.node import GIB, GPUS, tree
from tests.unit.plan.plans import kind, plan

from warmroute_backend.doctor.facts import Disk, Finding, Gpus, Level, Machine, Versions
from warmroute_backend.doctor.health import pinned_bytes
from warmroute_backend.doctor.host import read_host, read_rdma
from warmroute_backend.doctor.judgement import LMCACHE_TODO, MOONCAKE, judge, mismatches
from warmroute_backend.plan.deployment import Plan
from warmroute_backend.plan.hardware import GPUS as HARDWARE
from warmroute_backend.plan.tiers import host_bytes

PACKAGES = {"sglang": "0.5.23", "torch": "2.13.0", MOONCAKE: "0.3.9"}


@pytest.fixture
def node(tmp_path: Path) -> Machine:
    """A node as it should be."""
    host = replace(
        read_host(tree(tmp_path)),
        memlock_bytes=float("inf"),
        open_files=1_048_576,
        shm_bytes=64 * GIB,
        clock_synchronised=True,
        numa_balancing=False,
        has_numactl=True,
    )
    return Machine(GPUS, read_rdma(tmp_path), host, None, Versions("3.11.7", PACKAGES, "12.4", modules=("mooncake",)))


def bad(machine: Machine, plan: Plan | None) -> list[Finding]:
    return [finding for finding in judge(machine, plan) if finding.level in {Level.WARNING, Level.PROBLEM}]


def test_a_node_as_it_should_be_has_nothing_to_say(node: Machine) -> None:
    assert bad(node, None) == []
    assert bad(node, kind("inside a node")) == []


def of_plan() -> Plan:
    """Two nodes of eight H100, prefill and decode apart."""
    found = plan("gpt-oss-120b", "2x8xH100", split=(8, 8))
    return replace(found, site=replace(found.site, ib_devices="mlx5_0,mlx5_3"))


@pytest.mark.parametrize("name", [name for name, gpu in HARDWARE.items() if gpu.vendor == "nvidia"])
def test_a_node_has_the_gpus_of_its_plan_by_the_words_of_their_name(name: str) -> None:
    made = plan("qwen3-8b", f"1x{name}")
    device = replace(GPUS.devices[0], name=f"NVIDIA {name.replace('-', ' ')}", memory_mib=HARDWARE[name].memory_mib)
    assert mismatches(made, Gpus(devices=(device,))) == []
    (other,) = mismatches(made, Gpus(devices=(replace(device, name="NVIDIA GH200 480GB"),)))
    assert "plan again for this one" in other


Change = Callable[[Machine], Machine]


@pytest.mark.parametrize(("cuda", "name"), [("12.8", MOONCAKE), ("13.0", f"{MOONCAKE}-cuda13"), (None, MOONCAKE)])
def test_mooncake_is_advised_by_the_name_for_the_cuda_of_torch(node: Machine, cuda: str | None, name: str) -> None:
    found = bad(with_versions(node, modules=(), cuda=cuda), of_plan())
    assert [each.todo for each in found if each.topic == "versions"] == [f"pip install {name}"]


def test_a_plan_with_lmcache_needs_its_module(node: Machine) -> None:
    lacking, found = (bad(with_versions(node, modules=modules), kind("LMCache")) for modules in ((), ("lmcache",)))
    assert [each.todo for each in lacking if "LMCache" in each.text] == [LMCACHE_TODO]
    assert not [each for each in found if "LMCache" in each.text]


def test_any_distribution_that_has_the_module_will_do(node: Machine) -> None:
    """SGLang's installer for CUDA 13 takes `mooncake-transfer-engine-cuda13`."""
    found = {"sglang": "0.5.23", "torch": "2.14.1", f"{MOONCAKE}-cuda13": "0.3.13"}
    problems = bad(with_versions(node, packages=found, cuda="13.0"), of_plan())
    assert [each for each in problems if each.topic == "versions"] == []


@pytest.mark.parametrize(
    ("change", "topic", "words", "level"),
    [
        (lambda m: replace(m, gpus=Gpus(problem="there is no GPU")), "GPU", "the plan is for 2x8xH100", Level.PROBLEM),
        (lambda m: replace(m, gpus=replace(GPUS, devices=GPUS.devices[:4], peers=())),
         "GPU", "the plan is for 8 GPUs a node, and this one has 4", Level.PROBLEM),
        (lambda m: with_gpu(m, name="NVIDIA H200"), "GPU", "GPU 0 is NVIDIA H200", Level.PROBLEM),
        (lambda m: with_gpu(m, used_mib=30_000), "GPU", "GPU 0: 30,000 of 81,559 MiB are taken", Level.PROBLEM),
        (lambda m: with_gpu(m, mig=True), "GPU", "GPU 0 is divided (MIG)", Level.PROBLEM),
        (lambda m: with_gpu(m, links_down=2), "NVLink", "NVLinks are down on GPU 0", Level.WARNING),
        (lambda m: replace(m, gpus=replace(GPUS, peers=())), "NVLink", "0 of 28 pairs", Level.PROBLEM),
        (lambda m: with_versions(m, cuda="13.0"), "driver", "CUDA 12.4 and torch was built for 13.0", Level.PROBLEM),
        (lambda m: with_versions(m, cuda="12.9"), "driver", "kernels that are compiled on the way", Level.WARNING),
        (lambda m: replace(m, rdma=()), "RDMA", "there is no RDMA device", Level.PROBLEM),
        (lambda m: replace(m, rdma=m.rdma[1:]), "RDMA", "the plan names mlx5_0", Level.PROBLEM),
        (lambda m: with_port(m, state="1: DOWN"), "RDMA", "mlx5_0 port 1 is 1: DOWN", Level.WARNING),
        (lambda m: with_port(m, gbit_s=100.0), "RDMA", "mlx5_0 runs at 100 Gbit/s", Level.WARNING),
        (lambda m: replace(m, rdma=m.rdma[:5]), "RDMA", "GPUs of NUMA node 1 have no active RDMA port", Level.WARNING),
        (lambda m: with_host(m, peer_memory=None), "RDMA", "neither nvidia_peermem nor dma-buf", Level.WARNING),
        (lambda m: with_gpu(m, ecc_errors=3), "GPU", "3 memory errors", Level.PROBLEM),
        (lambda m: with_gpu(m, remap_pending=True), "GPU", "wait to be remapped", Level.WARNING),
        (lambda m: with_gpu(m, slowed_by="too hot"), "GPU", "GPU 0 is slowed down: too hot", Level.WARNING),
        (lambda m: isolated(m, xids=(("0000:1b:00", 79),)), "GPU", "Xid 79 of the GPU at 0000:1b:00", Level.PROBLEM),
        (lambda m: isolated(m, xids=(("0000:1b:00", 31),)), "GPU", "Xid 31", Level.WARNING),
        (lambda m: isolated(m, redirecting_bridges=("0000:15:01.0",)), "PCI", "1 PCI bridges", Level.WARNING),
        (lambda m: isolated(m, has_iommu=True), "PCI", "the IOMMU translates", Level.WARNING),
        (lambda m: isolated(m, cgroup_memory_bytes=GIB), "cgroup", "may have 1 GiB of memory, and host", Level.PROBLEM),
        (lambda m: isolated(m, cgroup_cpus=4.0), "cgroup", "may use 4 of 224 CPUs", Level.WARNING),
        (lambda m: with_port(m, link_layer="Ethernet"), "RDMA", "mlx5_0 has no GID of RoCE v2", Level.WARNING),
        (lambda m: with_port(m, link_layer="Ethernet", gid_types=("RoCE v2",), mtu=1500),
         "RDMA", "mlx5_0 has an MTU of 1500", Level.WARNING),
        (lambda m: with_host(m, memlock_bytes=8 << 20), "memlock", "memlock is 8 MiB", Level.PROBLEM),
        (lambda m: with_host(m, open_files=1024), "open files", "1,024 open files", Level.WARNING),
        (lambda m: with_host(m, shm_bytes=64 << 20), "/dev/shm", "/dev/shm holds 64 MiB", Level.PROBLEM),
        (lambda m: with_host(m, memory_bytes=100 * GIB), "memory", "of host memory, and there are 100", Level.PROBLEM),
        (lambda m: with_host(m, available_bytes=GIB), "memory", "1 are available now", Level.PROBLEM),
        (lambda m: with_host(m, numa_balancing=True), "NUMA", "moves pages", Level.WARNING),
        (lambda m: with_host(m, has_numactl=False), "NUMA", "there is no numactl", Level.WARNING),
        (lambda m: with_host(m, numa_nodes={0: 100 * GIB, 1: 1009 * GIB}),
         "NUMA", "of the GPUs of node 0 take", Level.PROBLEM),
        (lambda m: with_host(m, huge_pages=900_000), "huge pages", "which HiCache cannot use", Level.PROBLEM),
        (lambda m: with_host(m, clock_synchronised=False), "clock", "not synchronised", Level.WARNING),
        (lambda m: with_versions(m, packages={}), "versions", "has no sglang", Level.PROBLEM),
        (lambda m: with_versions(m, packages={**PACKAGES, "sglang": "0.5.20"}),
         "versions", "this is 0.5.20", Level.WARNING),
        (lambda m: with_versions(m, modules=()), "versions", "Python 3.11.7 has no module mooncake", Level.PROBLEM),
    ],
)  # fmt: skip
def test_a_lack_is_found_with_what_to_do(node: Machine, change: Change, topic: str, words: str, level: Level) -> None:
    plan = of_plan()
    assert bad(node, plan) == []
    found = bad(change(node), plan)
    (finding,) = [each for each in found if words in each.text]
    assert (finding.topic, finding.level) == (topic, level)
    assert finding.todo or topic == "GPU"
    problems = [each for each in judge(change(node), None) if each.level is Level.PROBLEM]
    assert all(each.topic == "driver" for each in problems), "without a plan nothing is missing"


def test_all_stages_of_a_node_pin_memory_and_keep_cpus_busy(node: Machine) -> None:
    """Two stages of four GPUs on one node are eight ranks."""
    made = plan("gpt-oss-120b", "8xH100", pp=2, tp=4)
    (engine,) = made.engines
    assert pinned_bytes(made) == 8 * host_bytes(made, engine) > 0
    assert [each.text for each in bad(isolated(node, cgroup_cpus=6.0), made) if each.topic == "cgroup"]
    single = plan("gpt-oss-120b", "8xH100", pp=8, tp=1)
    assert any(each.topic == "NVLink" for each in bad(replace(node, gpus=replace(GPUS, peers=())), single))


def test_a_disk_that_is_slower_than_the_gpus(node: Machine) -> None:
    slow = replace(node, disk=Disk("/cache", 1e9, 0.5e9))
    fast = replace(node, disk=Disk("/cache", 1e11, 1e11))
    plan = replace(kind("files"), cluster=kind("files").cluster)
    (finding,) = [each for each in judge(slow, plan) if each.topic == "HiCache disk"]
    assert finding.level is Level.WARNING
    assert "tokens a second from there, and computes" in finding.text
    (finding,) = [each for each in judge(fast, plan) if each.topic == "HiCache disk"]
    assert finding.level is Level.OK


@pytest.mark.parametrize(("room_gb", "level"), [(7_900, Level.PROBLEM), (8_000, Level.OK)])
def test_a_disk_has_room_for_the_store(node: Machine, room_gb: int, level: Level) -> None:
    machine = replace(node, disk=Disk("/cache", 1e12, 1e12, free_bytes=room_gb * 10**9))
    found = [each for each in judge(machine, kind("store on disks")) if each.topic == "HiCache disk"]
    assert found[0].level is level
    assert ("the store may fill 8,000" in found[0].text) is (level is Level.PROBLEM)


def with_gpu(machine: Machine, **changes: object) -> Machine:
    first = replace(GPUS.devices[0], **changes)  # type: ignore[arg-type]
    return replace(machine, gpus=replace(GPUS, devices=(first, *GPUS.devices[1:])))


def test_dma_buf_of_the_open_driver_does_what_the_module_does(node: Machine) -> None:
    assert bad(isolated(with_host(node, peer_memory=None), has_open_driver=True), of_plan()) == []
    old = isolated(with_host(node, peer_memory=None, kernel="5.4.0-100-generic"), has_open_driver=True)
    assert [each.topic for each in bad(old, of_plan())] == ["RDMA"]


def isolated(machine: Machine, **changes: object) -> Machine:
    return replace(machine, isolation=replace(machine.isolation, **changes))  # type: ignore[arg-type]


def with_port(machine: Machine, **changes: object) -> Machine:
    """The first device has a second port, which is otherwise."""
    other = replace(machine.rdma[0], **changes)  # type: ignore[arg-type]
    return replace(machine, rdma=(*machine.rdma, other))


def with_host(machine: Machine, **changes: object) -> Machine:
    return replace(machine, host=replace(machine.host, **changes))  # type: ignore[arg-type]


def with_versions(machine: Machine, **changes: object) -> Machine:
    return replace(machine, versions=replace(machine.versions, **changes))  # type: ignore[arg-type]
