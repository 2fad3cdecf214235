"""The settings with which an engine is started."""

from dataclasses import dataclass, field
from pathlib import Path

from warmroute_backend.costs import Costs, Role
from warmroute_lab.engine.events.kv_publisher import KvEventsConfig
from warmroute_lab.engine.model.hicache import BYTES_PER_TOKEN, HiCache


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one engine. `kv_tokens` is per data-parallel rank."""

    role: Role = "aggregated"
    engine_id: str = "engine"
    models: tuple[str, ...] = ("model",)
    page_size: int = 64
    kv_tokens: int = 600_000
    context_length: int = 200_000
    dp_size: int = 1
    speed: float = 1.0
    seed: int = 1
    max_running: int = 256
    max_queued: int = 4096
    bootstrap_timeout_s: float = 30.0
    header_overrides: bool = False
    api_key: str | None = None
    admin_api_key: str | None = None
    kv_events: KvEventsConfig | None = None
    hicache: HiCache | None = None
    kv_bytes_per_token: float = BYTES_PER_TOKEN
    kv_cache_dtype: str = "auto"
    speculative_algorithm: str | None = None
    obey_prompts: bool = False
    """Whether the engine obeys directives in the messages of a chat."""

    role_switch: bool = False
    """Whether the engine can switch between prefill and decode while it runs."""
    request_log: Path | None = None
    """The file to which a line of JSON is appended for each ended request: its entry of `/engine/finished`."""

    costs: Costs = field(default_factory=Costs)

    @property
    def bigram(self) -> bool:
        """Whether pages consist of pairs of tokens, as with draft models of the EAGLE family."""
        return self.speculative_algorithm is not None
