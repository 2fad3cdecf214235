"""A plan: engines on GPUs of nodes, what was chosen and why. Values only; `choose` makes them, `check` judges them."""

from dataclasses import dataclass, field

from warmroute_backend.costs import Role
from warmroute_backend.plan.hardware import Cluster
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


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests on average: tokens in, tokens out, requests a second, and the share of a prompt that an earlier turn of
    its session has computed."""

    input_tokens: int
    output_tokens: int
    requests_per_s: float
    cached_share: float

    @property
    def uncached_tokens(self) -> float:
        return self.input_tokens * (1 - self.cached_share)


@dataclass(frozen=True, slots=True)
class HiCache:
    """Host memory below the GPU's pool. `size_gb` (1e9 bytes) is of each rank, as `--hicache-size` is
    (`sglang/srt/mem_cache/pool_host/base.py:223`)."""

    size_gb: int
    write_policy: str = "write_through"
    layout: str = "page_first"
    io_backend: str = "kernel"


@dataclass(frozen=True, slots=True)
class Speculation:
    """A draft model. `path` is None if the target's own layers draft (MTP)."""

    algorithm: str
    path: str | None = field(default=None, kw_only=True)
    steps: int
    topk: int
    draft_tokens: int
    accept_length: float
    """Tokens of a step, by the draft's own figures."""
    source: str
    largest_batch: int
    """Sequences in a rank up to which a step with drafts brings more tokens a second than without."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Of one engine on its node."""

    http: int
    bootstrap: int
    distributed: int
    kv_events: int
    kv_replay: int


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
        """Schedulers with a cache of their own."""
        return self.shape.attention_dp


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice and the sentence that explains it."""

    topic: str
    value: str
    because: str


@dataclass(frozen=True, slots=True)
class Site:
    """What a plan cannot know of the place where it runs. All of it goes into files as it is."""

    model_path: str = ""
    """Where the checkpoint lies on each node; empty: the repository's name, which SGLang downloads."""
    hosts: tuple[str, ...] = ()
    """Addresses of the nodes, in order; node-0, node-1, ... where there are fewer."""
    ib_devices: str = ""
    image: str = "lmsysorg/sglang:v0.5.23"
    namespace: str = "default"
    storage_dir: str = "/var/lib/warmroute/hicache"
    store_disk_gb: int = 0
    """What the Mooncake store may fill of each node's disk, below `storage_dir`, in 1e9 bytes. 0: memory only."""
    store_port: int = STORE_PORT
    """Of the Mooncake master, on the first node."""
    store_metrics_port: int = STORE_METRICS_PORT
    """Likewise, where it answers HTTP: its metrics, and which segments it has."""
    lmcache_port: int = LMCACHE_PORT
    """Of LMCache's daemon, on each node, for its own engines."""
    lmcache_http_port: int = LMCACHE_HTTP_PORT
    """Likewise, where it answers HTTP."""
    cache_dir: str = CACHE_DIR
    """On each node, for pods: kernels that SGLang compiles, and the checkpoint where `model_path` is empty."""
    rdma_resource: str = RDMA_RESOURCE
    """What a device plugin calls network cards; empty: pods are privileged and get /dev/infiniband of the node."""
    token_secret: str = ""
    """Of Kubernetes: the secret whose key `token` opens a gated model at Hugging Face; empty: none."""

    user: str = "sglang"
    python: str = "/opt/sglang/bin/python"
    """That of the environment with SGLang on each node, for units of systemd."""

    environment: tuple[tuple[str, str], ...] = ()
    """Of every engine: the fabric's NCCL settings, for instance."""

    def host(self, node: int) -> str:
        return self.hosts[node] if node < len(self.hosts) else f"node-{node}"


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens, as decimal text, for the config of the proxy. `why`: what they are made of."""

    input: str
    cached: str
    output: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """A deployment. `model_name` is what clients ask for."""

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
        return len({node for engine in self.engines for node in range(engine.node, engine.node + engine.nodes)}) == 1

    def keeps_files(self, engine: PlannedEngine) -> bool:
        """Whether an engine writes KV below the site's storage folder."""
        return engine.storage == "file" or (engine.storage == "mooncake" and self.site.store_disk_gb > 0)

    def of(self, role: Role) -> tuple[PlannedEngine, ...]:
        return tuple(engine for engine in self.engines if engine.role == role)

    def memory(self, engine: PlannedEngine) -> Memory:
        return memory(self.cluster.gpu, self.model, engine.shape, engine.fraction)
