"""Reads all facts of this machine."""

import json
import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from warmroute_backend.doctor.facts import Finding, Isolation, Level, Machine, Versions
from warmroute_backend.doctor.host import measured, number_of, read_host, read_rdma, text_of
from warmroute_backend.doctor.nvidia import read_gpus
from warmroute_backend.launch.program import Program
from warmroute_backend.launch.readiness import by_listener, is_taken
from warmroute_backend.plan.deployment import Plan

# What stands between GPUs, network cards and this process: IOMMU, PCI bridges, the cgroup, errors of the driver.
#
# Sources: Linux, Documentation/admin-guide/cgroup-v2.rst; PCI Express Base Specification, 7.7.11 (Access Control
# Services); docs.nvidia.com/deploy/xid-errors.

MAX_BRIDGES: Final = 1024
MAX_LOG_BYTES: Final = 4 << 20
MAX_XIDS: Final = 8
_BRIDGE: Final = "0x0604"
_ACS: Final = 0x000D
_FIRST_EXTENDED: Final = 0x100
_CONTROL: Final = 6
_REDIRECTS: Final = 0b0_1100
"""The bits of P2P request redirect and completion redirect, which send packets between two devices through the root
complex."""
_XID: Final = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")


def read_isolation(root: Path = Path("/")) -> Isolation:
    """What slows traffic between devices, and the cgroup's limits. Without root, some facts are empty."""
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
    """Addresses of PCI bridges whose ACS sends traffic between devices through the root complex."""
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
    """The CPUs that a file with `QUOTA PERIOD` allows; None for `max PERIOD`, which sets no limit."""
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
    except OSError:  # the log has no more records, or one was overwritten meanwhile
        pass
    finally:
        os.close(descriptor)
    return tuple(found[-MAX_XIDS:])


PACKAGES: Final = (
    "sglang",
    "torch",
    "mooncake-transfer-engine",
    "mooncake-transfer-engine-cuda13",
    "mooncake-transfer-engine-non-cuda",
    "lmcache",
    "nixl",
    "nixl-cu12",
    "nixl-cu13",
    "sgl-kernel",
    "flashinfer-python",
)
MODULES: Final = ("mooncake", "nixl", "lmcache")
TIMEOUT_S: Final = 60.0
_ASK: Final = """
import importlib.metadata as metadata, importlib.util as util, json, re, sys
names, modules = (each.split() for each in sys.argv[1:])
found = {}
for name in names:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
cuda = None
if "torch" in found:
    try:
        path = metadata.distribution("torch").locate_file("torch/version.py")
        cuda = (re.search(r"^cuda[^=]*= *['\\"]([\\d.]+)", open(path).read(), re.M) or [None, None])[1]
    except OSError:
        pass
modules = [name for name in modules if util.find_spec(name) is not None]
print(json.dumps({"python": sys.version.split()[0], "packages": found, "cuda": cuda, "modules": modules}))
"""


def read_versions(python: str) -> Versions:
    """Versions of the packages of a Python program. If it cannot be run, only `problem` is set."""
    try:
        done = subprocess.run(  # noqa: S603 (the operator's own Python)
            [python, "-c", _ASK, " ".join(PACKAGES), " ".join(MODULES)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            return Versions("", problem=done.stderr.strip().rpartition("\n")[2])
        return Versions(**json.loads(done.stdout))
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return Versions("", problem=f"{python} cannot be asked: {error}")


def read(python: str, plan: Plan | None, disk: Path | None, root: Path = Path("/")) -> Machine:
    """Read everything. `disk`: the folder to measure; None: the folder in which the plan keeps KV in files, if any."""
    folder = disk
    if folder is None and plan is not None and any(plan.keeps_files(engine) for engine in plan.engines):
        folder = Path(plan.site.storage_dir)
    return Machine(
        gpus=read_gpus(root),
        rdma=read_rdma(root),
        host=read_host(root),
        disk=None if folder is None else measured(folder),
        versions=read_versions(python),
        isolation=read_isolation(root),
    )


def ports(programs: tuple[Program, ...]) -> list[Finding]:
    """The ports of a plan's programs on this node, and the processes that have taken them."""
    found = []
    for program in programs:
        for what, port in program.ports:
            if is_taken(port):
                text = f"{program.name}: port {port} ({what}) is in use{by_listener(port)}"
                found.append(Finding(Level.PROBLEM, "ports", text, "end that, or change it in the plan"))
    count = sum(len(program.ports) for program in programs)
    return found or [Finding(Level.OK, "ports", f"all {count} of the plan are free")]


def model(plan: Plan) -> list[Finding]:
    """A finding on whether the checkpoint is at the plan's path."""
    path = plan.site.model_path
    if not path:
        return [Finding(Level.NOTE, "model", f"{plan.model.path} is downloaded at the first start", "site.model_path")]
    if (Path(path) / "config.json").is_file():
        return [Finding(Level.OK, "model", path)]
    return [Finding(Level.PROBLEM, "model", f"{path} has no config.json", "site.model_path of the plan")]
