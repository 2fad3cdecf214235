"""The facts that the doctor reads from a machine, as plain values. None means that a fact could not be read."""

from dataclasses import dataclass, field
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is. Only a problem makes the exit status 1."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding on a topic, and what to do about it, if anything."""

    level: Level
    topic: str
    text: str
    todo: str = ""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `used_mib`: memory in use now; `links`: NVLinks that are up; `numa_node`: the node of its slot."""

    index: int
    name: str
    memory_mib: int
    used_mib: int
    compute_capability: str
    links: int
    links_down: int
    numa_node: int | None
    mig: bool
    ecc_errors: int = 0
    """Uncorrected errors since the driver's start."""
    remap_pending: bool = False
    """Whether rows of the GPU's memory wait to be remapped, which the next reset does."""
    slowed_by: str = ""
    """Why the GPU is slowed, in words: heat or power."""


@dataclass(frozen=True, slots=True)
class Gpus:
    """All GPUs. `problem`: why the GPUs could not be read; if it is set, the other fields are empty."""

    problem: str = ""
    driver: str = ""
    cuda: tuple[int, int] = (0, 0)
    """The newest CUDA version that the driver supports."""
    devices: tuple[Gpu, ...] = ()
    peers: tuple[tuple[int, int], ...] = ()
    """Pairs of GPUs that reach each other's memory by NVLink."""


@dataclass(frozen=True, slots=True)
class Rdma:
    """A port of an RDMA device. `state`: as the kernel writes it (`4: ACTIVE`); `gbit_s`: the rate."""

    device: str
    port: int
    state: str
    link_layer: str
    gbit_s: float | None
    numa_node: int | None
    gid_types: tuple[str, ...] = ()
    mtu: int | None = None
    """The MTU of the port's network interface, if it has one."""

    @property
    def is_active(self) -> bool:
        return self.state.endswith("ACTIVE")


@dataclass(frozen=True, slots=True)
class Host:
    """Memory and limits of the system, in bytes."""

    cpus: int
    cpu_model: str
    memory_bytes: int | None
    available_bytes: int | None
    numa_nodes: dict[int, int]
    """NUMA node -> bytes of its memory."""
    huge_pages: int | None
    huge_page_bytes: int | None
    transparent_huge_pages: str | None
    numa_balancing: bool | None
    shm_bytes: int | None
    memlock_bytes: float
    """`inf`: unlimited."""
    open_files: float
    clock_synchronised: bool | None
    clocksource: str | None
    kernel: str | None
    peer_memory: str | None
    """The kernel module that lets RDMA devices read GPU memory; None if no such module is loaded."""
    has_numactl: bool = False


@dataclass(frozen=True, slots=True)
class Isolation:
    """What slows traffic between devices (IOMMU, PCI bridges), and the limits of this process' cgroup. A limit of None
    means unlimited.

    `redirecting_bridges`: addresses of PCI bridges. `xids`: bus address and number of errors that the driver logged.
    """

    has_iommu: bool = False
    passes_through: bool = False
    redirecting_bridges: tuple[str, ...] = ()
    cgroup_memory_bytes: int | None = None
    cgroup_cpus: float | None = None
    has_open_driver: bool = False
    xids: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Disk:
    """How fast a folder is written and read on its disk, in bytes a second. `free_bytes`: bytes that are free there,
    plus those that the shared KV store has taken already.
    """

    folder: str
    write_bytes_s: float | None
    read_bytes_s: float | None
    problem: str = ""
    free_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of packages in the Python that has SGLang. `cuda`: the CUDA version of its torch; None if torch is
    missing or built for a CPU. `modules`: those of `reading.MODULES` that this Python finds.
    """

    python: str
    packages: dict[str, str] = field(default_factory=dict)
    cuda: str | None = None
    modules: tuple[str, ...] | list[str] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    gpus: Gpus
    rdma: tuple[Rdma, ...]
    host: Host
    disk: Disk | None
    versions: Versions
    isolation: Isolation = field(default_factory=Isolation)
