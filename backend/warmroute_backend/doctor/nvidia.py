"""Reads this machine's GPUs by NVML's Python binding (nvidia-ml-py, the extra `doctor`), without changing a setting."""

import contextlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from warmroute_backend.doctor.facts import Gpu, Gpus

MAX_LINKS: Final = 36
"""`NVML_NVLINK_MAX_LINKS`. GPUs have had 18 links since Hopper."""
NO_BINDING: Final = "NVML's Python binding is not installed"
MIB: Final = 1 << 20


def read_gpus(root: Path = Path("/")) -> Gpus:
    """All GPUs. `root`: the folder that has /sys."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return Gpus(problem=NO_BINDING if _has_driver(root) else "there is no NVIDIA GPU with a driver")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        driver = _has_driver(root)
        return Gpus(problem=f"NVML does not start: {error}" if driver else "there is no NVIDIA GPU with a driver")
    try:
        return _read(nvml, root)
    except nvml.NVMLError as error:
        return Gpus(problem=f"NVML does not answer: {error}")
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _has_driver(root: Path) -> bool:
    return (root / "proc/driver/nvidia/version").exists()


def _read(nvml: Any, root: Path) -> Gpus:
    cuda = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    return Gpus(
        driver=_text(nvml.nvmlSystemGetDriverVersion()),
        cuda=(cuda // 1000, cuda % 1000 // 10),
        devices=tuple(_gpu(nvml, index, handle, root) for index, handle in enumerate(handles)),
        peers=tuple(
            (first, second)
            for first in range(len(handles))
            for second in range(first + 1, len(handles))
            if _are_peers(nvml, handles[first], handles[second])
        ),
    )


def _gpu(nvml: Any, index: int, handle: Any, root: Path) -> Gpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    links = _links(nvml, handle)
    return Gpu(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_mib=int(memory.total) // MIB,
        used_mib=int(memory.used) // MIB,
        compute_capability=f"{major}.{minor}",
        links=sum(links),
        links_down=len(links) - sum(links),
        numa_node=_numa_node(_text(nvml.nvmlDeviceGetPciInfo(handle).busId), root),
        mig=_mig(nvml, handle),
        ecc_errors=_ecc_errors(nvml, handle),
        remap_pending=_remap_pending(nvml, handle),
        slowed_by=_slowed_by(nvml, handle),
    )


def _asked(nvml: Any, question: Callable[..., Any], *arguments: Any, otherwise: Any) -> Any:
    """The answer of NVML; `otherwise` if the GPU lacks what is asked for, such as ECC or MIG."""
    try:
        return question(*arguments)
    except nvml.NVMLError:
        return otherwise


def _ecc_errors(nvml: Any, handle: Any) -> int:
    kind, counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    return int(_asked(nvml, nvml.nvmlDeviceGetTotalEccErrors, handle, kind, counter, otherwise=0))


def _remap_pending(nvml: Any, handle: Any) -> bool:
    _, _, pending, _ = _asked(nvml, nvml.nvmlDeviceGetRemappedRows, handle, otherwise=(0, 0, 0, 0))
    return bool(pending)


def _slowed_by(nvml: Any, handle: Any) -> str:
    reasons = int(_asked(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle, otherwise=0))
    names = {
        nvml.nvmlClocksThrottleReasonHwThermalSlowdown: "too hot",
        nvml.nvmlClocksThrottleReasonSwThermalSlowdown: "too hot for its limit",
        nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "the power supply brakes it",
    }
    return ", ".join(name for bit, name in names.items() if reasons & bit)


def _links(nvml: Any, handle: Any) -> list[bool]:
    found = []
    for link in range(MAX_LINKS):
        try:
            found.append(nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED)
        except nvml.NVMLError:  # the GPU has no more links
            break
    return found


def _are_peers(nvml: Any, first: Any, second: Any) -> bool:
    link = nvml.NVML_P2P_CAPS_INDEX_NVLINK
    status = _asked(nvml, nvml.nvmlDeviceGetP2PStatus, first, second, link, otherwise=None)
    return bool(status == nvml.NVML_P2P_STATUS_OK)


def _mig(nvml: Any, handle: Any) -> bool:
    current, _ = _asked(nvml, nvml.nvmlDeviceGetMigMode, handle, otherwise=(None, None))
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _numa_node(bus_id: str, root: Path) -> int | None:
    """The NUMA node of a GPU. NVML writes the PCI domain with eight digits, /sys with four."""
    path = root / "sys/bus/pci/devices" / bus_id.lower()[-12:] / "numa_node"
    try:
        node = int(path.read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
