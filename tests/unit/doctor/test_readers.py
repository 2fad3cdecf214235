"""Readers of /proc, /sys and NVML, on the tree of an 8-GPU node."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from tests.unit.doctor.node import CPUS, NODE_KIB, tree, write

from warmroute_backend.doctor import nvidia
from warmroute_backend.doctor.facts import Isolation
from warmroute_backend.doctor.host import measured, read_host, read_rdma
from warmroute_backend.doctor.nvidia import read_gpus
from warmroute_backend.doctor.reading import read_isolation, read_versions


def test_memory_numa_and_switches_of_the_node(tmp_path: Path) -> None:
    host = read_host(tree(tmp_path))
    assert (host.cpus, host.cpu_model) == (CPUS, "Xeon Platinum 8480C")
    assert host.memory_bytes == 2 * NODE_KIB * 1024
    assert host.numa_nodes == {0: NODE_KIB * 1024, 1: NODE_KIB * 1024}
    assert (host.huge_pages, host.huge_page_bytes, host.transparent_huge_pages) == (0, 2 << 20, "madvise")
    assert host.numa_balancing is True
    assert (host.clocksource, host.kernel, host.peer_memory) == ("tsc", "5.15.0-1042-nvidia", "nvidia_peermem")


def test_ports_of_the_fabric(tmp_path: Path) -> None:
    ports = read_rdma(tree(tmp_path, active=9))
    assert len(ports) == 10
    first = ports[0]
    assert (first.device, first.gbit_s, first.link_layer, first.numa_node) == ("mlx5_0", 400.0, "InfiniBand", 0)
    assert [port.device for port in ports if not port.is_active] == ["mlx5_9"]


def bridge(root: Path, name: str, control: int) -> None:
    """A PCI bridge with two extended capabilities, the second of which is ACS."""
    config = bytearray(0x200)
    config[0x100:0x104] = (0x0001 | 0x140 << 20).to_bytes(4, "little")
    config[0x140:0x144] = (0x000D | 1 << 16).to_bytes(4, "little")
    config[0x146:0x148] = control.to_bytes(2, "little")
    write(root, f"sys/bus/pci/devices/{name}/class", "0x060400\n")
    (root / f"sys/bus/pci/devices/{name}/config").write_bytes(config)


def test_what_stands_between_devices(tmp_path: Path) -> None:
    root = tree(tmp_path)
    bridge(root, "0000:15:01.0", 0x1D)
    bridge(root, "0000:15:02.0", 0x00)
    write(root, "sys/kernel/iommu_groups/0/type", "DMA\n")
    write(root, "proc/cmdline", "quiet iommu=pt\n")
    write(root, "sys/fs/cgroup/memory.max", "1073741824\n")
    write(root, "sys/fs/cgroup/cpu.max", "250000 100000\n")
    write(
        root, "dev/kmsg", "4,1,2,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.\n6,2,3,-;else\n"
    )
    found = read_isolation(root)
    assert found.redirecting_bridges == ("0000:15:01.0",)
    assert (found.has_iommu, found.passes_through, found.has_open_driver) == (True, True, True)
    assert (found.cgroup_memory_bytes, found.cgroup_cpus) == (1 << 30, 2.5)
    assert found.xids == (("0000:1b:00", 79),)


@pytest.mark.parametrize(
    "config", [b"", b"\x00" * 300, b"\xff" * 4096, (0x0001 | 0x100 << 20).to_bytes(4, "little") * 1024]
)
def test_configuration_space_that_makes_no_sense_is_no_bridge_with_acs(tmp_path: Path, config: bytes) -> None:
    write(tmp_path, "sys/bus/pci/devices/0000:00:01.0/class", "0x060400\n")
    (tmp_path / "sys/bus/pci/devices/0000:00:01.0/config").write_bytes(config)
    assert read_isolation(tmp_path).redirecting_bridges == ()


def test_no_limit_is_none(tmp_path: Path) -> None:
    write(tmp_path, "sys/fs/cgroup/memory.max", "max\n")
    write(tmp_path, "sys/fs/cgroup/cpu.max", "max 100000\n")
    assert read_isolation(tmp_path) == Isolation()


def test_gids_and_the_mtu_of_a_port(tmp_path: Path) -> None:
    root = tree(tmp_path)
    device = "sys/class/infiniband/mlx5_0"
    write(root, f"{device}/ports/1/gid_attrs/types/0", "IB/RoCE v1\n")
    write(root, f"{device}/ports/1/gid_attrs/types/1", "RoCE v2\n")
    write(root, f"{device}/device/net/eth0/mtu", "9000\n")
    assert (read_rdma(root)[0].gid_types, read_rdma(root)[0].mtu) == (("IB/RoCE v1", "RoCE v2"), 9000)


def test_a_machine_without_any_of_it(tmp_path: Path) -> None:
    assert read_rdma(tmp_path) == ()
    host = read_host(tmp_path)
    read = (host.memory_bytes, host.huge_pages, host.numa_balancing, host.shm_bytes, host.peer_memory)
    assert read == (None, None, None, None, None)
    assert host.numa_nodes == {}
    assert "no NVIDIA GPU" in read_gpus(tmp_path).problem


class EightGpus:
    """NVML with eight GPUs: there are none where tests run. Constants and the error are the binding's own."""

    def __init__(self, *, mig: bool = False, links: int = 18, ecc_errors: int = 0, slowed: int = 0) -> None:
        self._mig = mig
        self._ecc_errors = ecc_errors
        self._slowed = slowed
        self._links = links

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml") and not name.startswith("nvmlClocks"):
            return {
                "nvmlInit": lambda: None,
                "nvmlShutdown": lambda: None,
                "nvmlSystemGetCudaDriverVersion_v2": lambda: 12040,
                "nvmlSystemGetDriverVersion": lambda: "550.90.07",
                "nvmlDeviceGetCount": lambda: 8,
                "nvmlDeviceGetHandleByIndex": lambda index: index,
                "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=81_559 << 20, used=4 << 20),
                "nvmlDeviceGetCudaComputeCapability": lambda _: (9, 0),
                "nvmlDeviceGetName": lambda _: b"NVIDIA H100 80GB HBM3",
                "nvmlDeviceGetPciInfo": lambda index: SimpleNamespace(busId=f"00000000:{BUSES[index]}:00.0"),
                "nvmlDeviceGetMigMode": lambda _: (int(self._mig), 0),
                "nvmlDeviceGetTotalEccErrors": lambda *_: self._ecc_errors,
                "nvmlDeviceGetRemappedRows": lambda _: (0, 0, self._ecc_errors > 0, False),
                "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: self._slowed,
                "nvmlDeviceGetNvLinkState": self._link,
                "nvmlDeviceGetP2PStatus": lambda *_: pynvml.NVML_P2P_STATUS_OK,
            }[name]
        return getattr(pynvml, name)

    def _link(self, _handle: int, link: int) -> int:
        if link >= 18:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return int(link < self._links)


BUSES = ("1B", "43", "52", "61", "9D", "C3", "D1", "DF")


def test_gpus_by_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "import_module", lambda _: EightGpus(links=17))
    gpus = read_gpus(tree(tmp_path))
    assert (gpus.problem, gpus.driver, gpus.cuda, len(gpus.devices)) == ("", "550.90.07", (12, 4), 8)
    last = gpus.devices[7]
    assert (last.name, last.memory_mib, last.used_mib, last.numa_node) == ("NVIDIA H100 80GB HBM3", 81_559, 4, 1)
    assert (last.links, last.links_down, last.mig, last.compute_capability) == (17, 1, False, "9.0")
    assert len(gpus.peers) == 28


def test_errors_and_heat_by_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hot = pynvml.nvmlClocksThrottleReasonHwThermalSlowdown | pynvml.nvmlClocksThrottleReasonGpuIdle
    monkeypatch.setattr(nvidia, "import_module", lambda _: EightGpus(ecc_errors=2, slowed=hot))
    device = read_gpus(tree(tmp_path)).devices[0]
    assert (device.ecc_errors, device.remap_pending, device.slowed_by) == (2, True, "too hot")


def test_a_driver_without_the_binding_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(nvidia, "import_module", missing)
    assert read_gpus(tree(tmp_path)).problem == nvidia.NO_BINDING
    assert "no NVIDIA GPU" in read_gpus(tmp_path / "empty").problem


def test_a_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    found = measured(tmp_path / "not" / "yet", 1 << 20)
    assert found.problem == ""
    assert found.read_bytes_s is not None
    assert found.read_bytes_s > 0
    assert list(tmp_path.iterdir()) == []
    assert "has only" in measured(tmp_path, 1 << 60).problem


def test_files_of_the_store_are_its_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = SimpleNamespace(free=1 << 40)  # other programs write to the real disk meanwhile
    monkeypatch.setattr("warmroute_backend.doctor.host.shutil.disk_usage", lambda _: free)
    assert measured(tmp_path, 1 << 20).free_bytes == free.free
    (tmp_path / "mooncake" / "prefill-0").mkdir(parents=True)
    (tmp_path / "mooncake" / "prefill-0" / "bucket").write_bytes(bytes(64 << 20))
    assert 64 << 20 <= measured(tmp_path, 1 << 20).free_bytes - free.free < 66 << 20


def test_versions_are_those_of_the_python_that_is_asked(tmp_path: Path) -> None:
    import sys

    assert "pytest" not in read_versions(sys.executable).packages
    assert read_versions(sys.executable).modules == []
    assert read_versions(sys.executable).python.startswith("3.")
    assert "cannot be asked" in read_versions(str(tmp_path / "python")).problem
