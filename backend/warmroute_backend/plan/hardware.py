"""GPUs and their nodes: memory as the driver reports it, dense speeds, host memory, network cards.

A `[[gpu]]` table of a TOML file adds a GPU to the table of this module, or replaces values of a known GPU.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Final

from msgspec import Meta

from warmroute_backend.plan.errors import PlanError, unknown
from warmroute_backend.plan.tables import record

MIB: Final = 1 << 20
GIB: Final = 1 << 30
MAX_GPUS: Final = 512

Count = Annotated[int, Meta(ge=0)]
Speed = Annotated[float, Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class Gpu:
    """A kind of GPU. A node has `per_node` of these GPUs.

    `memory_mib` is `nvidia-smi --query-gpu=memory.total` (`rocm-smi` on AMD). `context_mib` is the memory that the
    driver and the first libraries have taken when weights begin to load: `memory_mib` less the `avail mem` of SGLang's
    log line `Load weight begin`, on one GPU. Speeds are dense peaks of the vendor's data sheet, in 1e12 operations and
    1e9 bytes a second; 0 if the GPU lacks the format. `link_gb_s` is one direction of NVLink or xGMI; `nic_gbit_s` is
    the rate of each card.
    """

    name: str
    memory_mib: Count
    context_mib: Count
    bandwidth_gb_s: Speed
    bf16_tflops: Speed
    fp8_tflops: Speed
    fp4_tflops: Speed
    link_gb_s: Speed
    host_memory_gib: Count
    nics: Count
    nic_gbit_s: Speed
    compute_capability: str
    vendor: str = "nvidia"
    per_node: Annotated[int, Meta(ge=1)] = 8
    bf16_share: Speed = 0.0
    """The share of the peak that matrix products in bf16 reach, as `python -m scripts.gpu` measures it. For this share
    and the following ones, 0 means the share of the GPU's generation (`kernels`).
    """
    fp8_share: Speed = 0.0
    attention_share: Speed = 0.0
    """The share of the bf16 peak that attention reaches in prompts, for models with heads of keys and values."""
    read_share: Speed = 0.0
    """The share of HBM's bandwidth that reads reach."""

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib * MIB

    def is_named(self, device: str) -> bool:
        """Whether a device's name, such as `NVIDIA H100 NVL` from NVML, has all words of this GPU's name."""
        words = device.upper().replace("-", " ").split()
        return all(word in words for word in self.name.upper().split("-"))

    @property
    def is_blackwell(self) -> bool:
        """Whether the GPU has compute capability 10. SGLang then prefers other kernels, and fp8 KV for sparse
        attention.
        """
        return self.compute_capability.startswith("10.")


GROUP_MIB: Final = 1024
"""Memory on each GPU for the communicators of a group: 137.9 GiB are free on each of 8 H200 before weights load
(SemiAnalysisAI/InferenceX#2128: 12.25 + 125.65), against 138.9 of the 140.4 GiB of a single H200."""

GPUS: Final[Mapping[str, Gpu]] = {
    gpu.name: gpu
    for gpu in (
        # nvidia.com H100, H200 and DGX data sheets; 78.43 to 78.49 GiB free on one H100 (sglang logs: 62.08 + 16.41).
        Gpu("H100", 81_559, 1_200, 3_350, 989, 1_979, 0, 450, 2_048, 8, 400, "9.0"),
        Gpu("H200", 143_771, 1_536, 4_800, 989, 1_979, 0, 450, 2_048, 8, 400, "9.0"),
        # 175.34 GiB free before weights on a B200 of a group of four (sgl-project/sglang PR with "Weights processing").
        Gpu("B200", 183_359, 2_760, 8_000, 2_250, 4_500, 9_000, 900, 2_048, 8, 400, "10.0"),
        # An NVL72's tray has four of them; the memory of B200 and B300 (nvidia.com GB200 and GB300 NVL72).
        Gpu("GB200", 189_471, 2_760, 8_000, 2_500, 5_000, 10_000, 900, 960, 4, 400, "10.0", per_node=4),
        Gpu("GB300", 284_208, 3_200, 8_000, 2_500, 5_000, 15_000, 900, 960, 4, 800, "10.3", per_node=4),
        # nvidia.com data sheets of H100 NVL (a pair by NVLink, else PCIe), A100 80 GB SXM and L40S (PCIe 4.0).
        Gpu("H100-NVL", 95_830, 1_200, 3_900, 835, 1_671, 0, 64, 2_048, 8, 400, "9.0"),
        Gpu("A100", 81_920, 1_000, 2_039, 312, 0, 0, 300, 2_048, 8, 200, "8.0"),
        Gpu("L40S", 46_068, 800, 864, 362, 733, 0, 32, 1_024, 4, 400, "8.9"),
        Gpu("B300", 275_040, 3_200, 8_000, 2_250, 4_500, 13_500, 900, 4_096, 8, 800, "10.3"),
        # amd.com MI300X data sheet; the context is that of an MI355X log (283.55 of 287.98 GiB free in a group of 8).
        Gpu("MI300X", 196_592, 3_500, 5_300, 1_307, 2_614, 0, 448, 2_048, 8, 400, "9.4", "amd"),
        # Only for checks against published logs.
        Gpu("H20", 97_871, 600, 4_000, 148, 296, 0, 450, 2_048, 8, 400, "9.0"),
        Gpu("MI355X", 294_896, 3_500, 8_000, 2_516, 5_033, 10_066, 537, 3_072, 8, 400, "9.5", "amd"),
    )
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """GPUs of one kind, on `nodes` nodes with `per_node` GPUs each."""

    gpu: Gpu
    nodes: int
    per_node: int

    @property
    def gpus(self) -> int:
        return self.nodes * self.per_node

    def __str__(self) -> str:
        return f"{self.nodes}x{self.per_node}x{self.gpu.name}" if self.nodes > 1 else f"{self.per_node}x{self.gpu.name}"


_CLUSTER: Final = re.compile(r"(?:(?P<nodes>\d+)x)?(?P<gpus>\d+)x(?P<gpu>[A-Za-z][\w-]*)")


def parse_cluster(text: str, gpus: Mapping[str, Gpu] = GPUS) -> Cluster:
    """The cluster of a text such as `8xH200`, or `2x8xH200` for two nodes. Raises PlanError for another form, an
    unknown GPU or a bad number.
    """
    found = _CLUSTER.fullmatch(text.strip())
    if found is None:
        raise PlanError(f"{text!r} is not a number of GPUs such as 8xH200 or 2x8xH200.")
    by_name = {name.lower(): gpu for name, gpu in gpus.items()}
    gpu = by_name.get(found["gpu"].lower())
    if gpu is None:
        raise unknown("GPU", found["gpu"], gpus)
    nodes, count = int(found["nodes"] or 1), int(found["gpus"])
    if found["nodes"] is None and count > gpu.per_node and count % gpu.per_node == 0:
        nodes, count = count // gpu.per_node, gpu.per_node
    if not 1 <= count <= gpu.per_node or count & (count - 1) or not 1 <= nodes * count <= MAX_GPUS:
        raise PlanError(
            f"{text!r}: a node has 1, 2, 4 or {gpu.per_node} GPUs of this kind, and a plan at most {MAX_GPUS}."
        )
    return Cluster(gpu, nodes, count)


def gpus_with(tables: object, where: str) -> dict[str, Gpu]:
    """The known GPUs, with changes and additions from the `[[gpu]]` tables of a file. A table with a known name changes
    that GPU; any other table must have every key. Raises PlanError with the key that is wrong."""
    if not isinstance(tables, list):
        raise PlanError(f"{where}: gpu is not a list of tables [[gpu]].")
    found = dict(GPUS)
    for number, table in enumerate(tables):
        gpu = _gpu(table, f"{where}: gpu[{number}]", found)
        found[gpu.name] = gpu
    return found


def _gpu(table: object, where: str, gpus: Mapping[str, Gpu]) -> Gpu:
    if not isinstance(table, dict):
        raise PlanError(f"{where} is not a table.")
    base = gpus.get(str(table.get("name")))
    return record(Gpu, table if base is None else asdict(base) | table, where)
