"""What a proxy is configured with: frozen, checked values. `config_file` reads them.

The core never sees these objects: the server gives it plain values.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from warmroute.contract.money import Rates
from warmroute_proxy.core.queue.quota import TenantLimits

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_STATE_DIR: Final = ".warmroute/proxy"
ANY: Final = "*"
MAX_PROCESSES: Final = 64
ROLES: Final = ("aggregated", "prefill", "decode")


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """Who this proxy is and where it listens; port 0 lets the OS choose."""

    region: str
    host: str = DEFAULT_HOST
    port: int = 0
    admin_host: str = DEFAULT_HOST
    admin_port: int = 0
    policy: Literal["cost", "round_robin"] = "cost"
    state_dir: Path = Path(DEFAULT_STATE_DIR)
    admin_key_sha256: str | None = None
    record: Path | None = None
    """Where every decision is recorded with its input; None: nowhere."""

    processes: int = 1
    tls_cert: Path | None = None
    """The certificate of the port that clients reach, and its key; None: no TLS."""

    tls_key: Path | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may use up. Every path holds them."""

    body_bytes: int = 33_554_432
    header_bytes: int = 65_536
    header_count: int = 100
    connections: int = 4_096
    head_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    keepalive_s: float = 75.0
    connect_timeout_s: float = 2.0
    first_token_timeout_s: float = 600.0
    idle_timeout_s: float = 120.0
    head_hold_s: float = 15.0
    response_bytes: int = 67_108_864
    keyed_outlive_s: float = 10.0
    keyed_replay_s: float = 60.0
    keyed_answer_bytes: int = 16_777_216
    keyed_total_bytes: int = 268_435_456
    total_timeout_s: float = 3_600.0
    queue_requests: int = 1_024
    queue_bytes: int = 268_435_456
    queue_timeout_s: float = 30.0
    shutdown_grace_s: float = 25.0
    kept_prompt_bytes: int = 67_108_864


@dataclass(frozen=True, slots=True)
class RegionConfig:
    """A region; `url` is the address of its proxy, empty for the own region; `rtt_ms` is measured from here."""

    name: str
    url: str
    rtt_ms: float


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine. `models` holds `*` where it serves all."""

    id: str
    url: str
    region: str
    role: Literal["aggregated", "prefill", "decode"]
    kind: Literal["sglang", "openai"]
    models: frozenset[str]
    bootstrap_host: str | None
    bootstrap_port: int | None
    store: str | None = None
    """The name of the KV store that it shares with engines of the same; None: it shares none."""

    kv_events: bool = True
    """Whether its KV events are followed, where it publishes any."""

    key_file: Path | None = None
    """Holds the key that it wants of everybody; None: it wants none."""

    admin_key_file: Path | None = None
    """Holds the key that it wants of who ends requests; None: the other one, if any."""

    max_running: int | None = None
    """Requests that each of its ranks is sent at once, whatever it says of itself; None: what it says."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model and its prices."""

    name: str
    aliases: tuple[str, ...]
    rates: Rates
    context_tokens: int | None
    continue_broken: bool = False
    """Whether another engine goes on with an answer whose engine dies."""


@dataclass(frozen=True, slots=True)
class TenantConfig:
    """A tenant. Its cache is shared with the tenants of the same `share_group` and no others."""

    name: str
    key_sha256: tuple[str, ...]
    share_group: str
    models: frozenset[str]
    regions: frozenset[str]
    salt_epoch: int
    limits: TenantLimits | None = None
    """What it may use, by the minute and at once; None: whatever there is."""


@dataclass(frozen=True, slots=True)
class Config:
    """A config file, whole and checked."""

    proxy: ProxyConfig
    secret_file: Path | None
    ledger_sync: Literal["process", "disk"]
    limits: Limits
    regions: tuple[RegionConfig, ...]
    engines: tuple[EngineConfig, ...]
    models: tuple[ModelConfig, ...]
    tenants: tuple[TenantConfig, ...]
    model_by_name: dict[str, ModelConfig] = field(repr=False)
    """Names and aliases."""

    tenant_by_name: dict[str, TenantConfig] = field(repr=False)

    def tenant_by_sha256(self) -> dict[str, str]:
        """API key digest -> tenant name, for `secrets.ApiKeys`."""
        return {digest: tenant.name for tenant in self.tenants for digest in tenant.key_sha256}
