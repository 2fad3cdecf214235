"""The records of a plan: engines on GPUs of nodes, and choices with reasons.

`choose` makes a plan, and `check` finds its problems.
"""

from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from warmroute_backend.costs import Role
from warmroute_backend.plan.hardware import Cluster, Count
from warmroute_backend.plan.memory import EngineShape, Memory, memory
from warmroute_backend.plan.model import Model
from warmroute_backend.plan.words import (
    CACHE_DIR,
    LMCACHE_HTTP_PORT,
    LMCACHE_PORT,
    RDMA_RESOURCE,
    STORE_METRICS_PORT,
    STORE_PORT,
    Objective,
    Storage,
)
from warmroute_backend.ports import Port, Ports

AtLeastOne = Annotated[int, Meta(ge=1)]


@dataclass(frozen=True, slots=True)
class Traffic:
    """The average traffic: prompt and answer tokens of a request, requests a second, and the share of a prompt that an
    earlier turn of its session has computed already."""

    input_tokens: int
    output_tokens: int
    requests_per_s: float
    cached_share: float

    @property
    def uncached_tokens(self) -> float:
        return self.input_tokens * (1 - self.cached_share)


@dataclass(frozen=True, slots=True)
class HiCache:
    """Host memory as the cache tier below the GPU's pool. `size_gb` (in 1e9 bytes) is the size for each rank, like
    `--hicache-size` (`sglang/srt/mem_cache/pool_host/base.py:223`)."""

    size_gb: Count
    write_policy: str = "write_through"
    layout: str = "page_first"
    io_backend: str = "kernel"


@dataclass(frozen=True, slots=True)
class Speculation:
    """A draft model. `path` is None if layers of the target model draft (multi-token prediction, MTP)."""

    algorithm: str
    path: str | None = field(default=None, kw_only=True)
    steps: AtLeastOne
    topk: AtLeastOne
    draft_tokens: AtLeastOne
    accept_length: float
    """Tokens that a step brings for each sequence. `source` says where the figure comes from."""
    source: str
    largest_batch: int
    """The maximum number of sequences in a rank with which drafts still increase the tokens a second."""


@dataclass(frozen=True, slots=True)
class PlannedEngine:
    """One SGLang server: its GPUs and all of its settings."""

    name: str
    node: int
    nodes: int
    first_gpu: int
    shape: EngineShape
    ep: int
    fraction: float
    context_tokens: int
    ports: Ports
    hicache: HiCache | None = None
    storage: Storage = "none"
    lmcache: bool = False
    speculation: Speculation | None = None

    @property
    def role(self) -> Role:
        return self.shape.role

    @property
    def ranks(self) -> int:
        """The number of schedulers, each with a separate cache."""
        return self.shape.attention_dp

    @property
    def gpus_each_node(self) -> int:
        return self.shape.gpus // max(1, self.nodes)

    @property
    def all_nodes(self) -> range:
        """The numbers of the nodes that have a part of the engine's GPUs."""
        return range(self.node, self.node + self.nodes)


@dataclass(frozen=True, slots=True)
class Choice:
    topic: str
    value: str
    because: str


@dataclass(frozen=True, slots=True)
class Site:
    """Facts about the place where a plan runs. The planner cannot know them, and writes them to the files unchanged."""

    model_path: str = ""
    """The folder of the checkpoint on each node. If empty, SGLang downloads the model by the name of its repository."""
    hosts: tuple[str, ...] = ()
    """Addresses of the nodes, in order. A node without an address is called node-0, node-1, ... by its number."""
    ib_devices: str = ""
    image: str = "lmsysorg/sglang:v0.5.23"
    namespace: str = "default"
    storage_dir: str = "/var/lib/warmroute/hicache"
    store_disk_gb: int = 0
    """Disk space that the Mooncake store may use on each node, below `storage_dir`, in 1e9 bytes. 0: memory only."""
    store_port: Port = STORE_PORT
    """The port of the Mooncake master, on the first node."""
    store_metrics_port: Port = STORE_METRICS_PORT
    """The HTTP port of the Mooncake master, for its metrics and the list of its segments."""
    lmcache_port: Port = LMCACHE_PORT
    """The port of LMCache's daemon on each node, for the engines of that node."""
    lmcache_http_port: Port = LMCACHE_HTTP_PORT
    """The HTTP port of LMCache's daemon."""
    cache_dir: str = CACHE_DIR
    """A folder on each node in which pods keep kernels that SGLang compiles, and the checkpoint if `model_path` is
    empty."""
    rdma_resource: str = RDMA_RESOURCE
    """The resource name that a Kubernetes device plugin gives to network cards. If empty, pods are privileged and get
    the node's /dev/infiniband."""
    token_secret: str = ""
    """The name of a Kubernetes secret whose entry `token` opens a gated model at Hugging Face. Empty: no secret."""

    user: str = "sglang"
    python: str = "/opt/sglang/bin/python"
    """The Python of the environment with SGLang on each node, for systemd units."""

    environment: tuple[tuple[str, str], ...] = ()
    """Environment variables of every engine, such as the fabric's NCCL settings."""

    def host(self, node: int) -> str:
        return self.hosts[node] if node < len(self.hosts) else f"node-{node}"


def beside(python: str, program: str) -> str:
    """The path of a program that pip has installed with SGLang, next to a Python; its name if the Python is one too."""
    return f"{python.rpartition('/')[0]}/{program}" if "/" in python else program


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens, as decimal text, for the proxy's configuration. `why` explains how the prices were
    computed."""

    input: str
    cached: str
    output: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """A deployment. `model_name` is the name by which clients request the model."""

    model: Model
    model_name: str
    cluster: Cluster
    objective: Objective
    engines: tuple[PlannedEngine, ...]
    traffic: Traffic | None = None
    site: Site = field(default_factory=Site)
    choices: tuple[Choice, ...] = ()
    price: Price | None = None

    @property
    def is_split(self) -> bool:
        return any(engine.role == "decode" for engine in self.engines)

    @property
    def inside_node(self) -> bool:
        return len({node for engine in self.engines for node in engine.all_nodes}) == 1

    @property
    def has_store(self) -> bool:
        """Whether an engine uses the Mooncake store."""
        return any(engine.storage == "mooncake" for engine in self.engines)

    @property
    def has_lmcache(self) -> bool:
        return any(engine.lmcache for engine in self.engines)

    def keeps_files(self, engine: PlannedEngine) -> bool:
        """Whether an engine writes KV below the site's storage folder."""
        return engine.storage == "file" or (engine.storage == "mooncake" and self.site.store_disk_gb > 0)

    def of(self, role: Role) -> tuple[PlannedEngine, ...]:
        return tuple(engine for engine in self.engines if engine.role == role)

    def memory(self, engine: PlannedEngine) -> Memory:
        return memory(self.cluster.gpu, self.model, engine.shape, engine.fraction)
