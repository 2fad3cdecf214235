"""Finds the NUMA node and the network cards near each GPU by `nvidia-smi topo -m`, and passes them to engines.

The matrix that `nvidia-smi` prints has the link between each GPU and each card, from PIX (one PCI bridge) to SYS (over
the link between sockets), each GPU's NUMA node, and, in the second legend, the cards' names. GPUs have the numbers of
`nvidia-smi`. `CUDA_VISIBLE_DEVICES` changes these numbers, so nothing is passed to engines whose environment has it.
SGLang 0.5.23 accepts a NUMA node for each GPU of the machine (`utils/numa_utils.py`, by `numactl`), cards for each GPU
(`arg_groups/validation_hook.py`), and, for the Mooncake store, cards for each rank, or for all ranks
(`mem_cache/storage/mooncake_store/mooncake_store.py`).
"""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from warmroute_backend.plan.deployment import Plan, PlannedEngine
from warmroute_backend.plan.memory import EngineShape

LINKS: Final = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Kinds of links, from near to far."""
COMMAND: Final = ("nvidia-smi", "topo", "-m")
TIMEOUT_S: Final = 30.0
MAX_GPUS: Final = 64

_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")
_ROW: Final = re.compile(r"^GPU(\d+)\s")
_NAME: Final = re.compile(r"^\s*(NIC\d+): (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Near:
    """The surroundings of one GPU: its NUMA node (None if unknown), and the nearest network cards."""

    numa_node: int | None
    cards: tuple[str, ...]


def read_matrix() -> str:
    """The output of `nvidia-smi topo -m`; empty if the program cannot be run."""
    try:
        done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def near_gpus(matrix: str, gbit_s: Mapping[str, float]) -> tuple[Near, ...]:
    """The surroundings of each GPU, in order. `gbit_s`: the rate of each active RDMA card. Of a GPU's nearest cards
    only the fastest count, which leaves out a slow card that is there for storage.
    """
    matrix = _ESCAPES.sub("", matrix)
    names = dict(_NAME.findall(matrix))
    lines = matrix.splitlines()
    header = next((line for line in lines if "CPU Affinity" in line and "GPU0" in line), "")
    columns = header.partition("CPU Affinity")[0].split()
    found: list[Near] = []
    for line in lines:
        row = _ROW.match(line)
        if row is None or len(found) == MAX_GPUS:
            continue
        if int(row[1]) != len(found):
            return ()  # a GPU is missing, so the numbers would be wrong
        words = line.split()[1:]
        links = {names.get(column, column): link for column, link in zip(columns, words, strict=False)}
        numa = words[len(columns) + 1 :][:1]
        found.append(Near(int(numa[0]) if numa and numa[0].isdecimal() else None, tuple(_nearest(links, gbit_s))))
    return tuple(found)


def _nearest(links: Mapping[str, str], gbit_s: Mapping[str, float]) -> list[str]:
    for link in LINKS:
        near = [card for card, each in links.items() if each == link and card in gbit_s]
        if near:
            fastest = max(gbit_s[card] for card in near)
            return [card for card in near if gbit_s[card] == fastest]
    return []


@dataclass(frozen=True, slots=True)
class Affinity:
    """The NUMA nodes and cards that one engine gets on one node. `cards`: by GPU; empty if SGLang finds the cards, or
    if the plan names them.
    """

    numa_nodes: tuple[int, ...] = ()
    cards: tuple[tuple[int, str], ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of the engine's command line. SGLang looks up a GPU's NUMA node by the GPU's number on the machine."""
        return ("--numa-node", *map(str, self.numa_nodes)) if self.numa_nodes else ()

    @property
    def transfer_flags(self) -> tuple[str, ...]:
        if not self.cards:
            return ()
        return ("--disaggregation-ib-device", json.dumps({str(gpu): cards for gpu, cards in self.cards}))

    def store_device(self, shape: EngineShape, first_rank: int) -> str:
        """The `device` in the store's configuration: cards by rank, as JSON. `first_rank`: this node's first rank.

        SGLang looks up the rank inside an attention group or a pipeline stage (`cache_controller.py`,
        `_generate_storage_config`). With several of them a rank names no GPU, so all cards are listed, and Mooncake
        chooses among them.
        """
        if shape.attention_dp > 1 or shape.pp > 1:
            return ",".join(dict.fromkeys(card for _, cards in self.cards for card in cards.split(",")))
        return (
            json.dumps({str(first_rank + at): cards for at, (_, cards) in enumerate(self.cards)}) if self.cards else ""
        )


def affinity(plan: Plan, engine: PlannedEngine, found: tuple[Near, ...]) -> Affinity:
    """The NUMA nodes and cards that an engine gets. The site's choices win: cards in `ib_devices` stay, and with
    `CUDA_VISIBLE_DEVICES`, which renumbers GPUs, the engine gets neither.
    """
    gpus = range(engine.first_gpu, engine.first_gpu + engine.gpus_each_node)
    if len(found) < gpus.stop or "CUDA_VISIBLE_DEVICES" in dict(plan.site.environment):
        return Affinity()
    nodes = tuple(each.numa_node for each in found if each.numa_node is not None)
    are_known = len(nodes) == len(found) and len(set(nodes)) > 1
    over_network = not plan.inside_node or engine.storage == "mooncake"
    cards = [(gpu, ",".join(found[gpu].cards)) for gpu in gpus]
    has_cards = over_network and not plan.site.ib_devices and all(each for _, each in cards)
    return Affinity(nodes if are_known else (), tuple(cards) if has_cards else ())


def described(name: str, given: Affinity) -> Iterator[str]:
    if given.numa_nodes:
        yield f"{name}: NUMA nodes of the GPUs are {' '.join(map(str, given.numa_nodes))}"
    if given.cards:
        yield f"{name}: network cards are {', '.join(f'{cards} of GPU {gpu}' for gpu, cards in given.cards)}"
