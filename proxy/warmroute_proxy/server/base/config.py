"""The configuration of a proxy, as frozen dataclasses whose values `config_file` reads and checks.

The server passes plain values to `core`, the package that makes decisions, and never these objects.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from warmroute.contract.providers import UNKNOWN, Provider
from warmroute_proxy.core.accounting.price_books import PriceBook
from warmroute_proxy.core.base.role import Role
from warmroute_proxy.core.prompt.addresses import PUBLIC, Addresses
from warmroute_proxy.core.queue.budget import Budget
from warmroute_proxy.core.queue.programs import Priority
from warmroute_proxy.core.queue.quota import ScopeLimits, TenantLimits
from warmroute_proxy.core.queue.scope import Scope
from warmroute_proxy.dialects.fields import Unlisted
from warmroute_proxy.dialects.openai_fields import GRANTABLE_FIELDS
from warmroute_proxy.normalising.rules import DEFAULT_NAMES, NAMES
from warmroute_proxy.server.base.config_bounds import ADDRESS, ADDRESSES, DIGEST, LIVE, NAME, among, within

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_STATE_DIR: Final = ".warmroute/proxy"
ANY: Final = "*"
MAX_PROCESSES: Final = 64


def authority(host: str, port: int | str) -> str:
    """The `host:port` part of an address, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """The proxy's region, and where it listens. With port 0 the OS chooses the port."""

    region: Annotated[str, NAME]
    host: str = DEFAULT_HOST
    port: Annotated[int, within(0, 65_535)] = 0
    admin_host: str = DEFAULT_HOST
    admin_port: Annotated[int, within(0, 65_535)] = 0
    policy: Literal["cost", "round_robin"] = "cost"
    state_dir: Path = Path(DEFAULT_STATE_DIR)
    admin_key_sha256: Annotated[str, DIGEST] | None = None
    record: Path | None = None
    """The file that records every decision with its input; None: the proxy records no decisions."""

    processes: Annotated[int, within(1, MAX_PROCESSES)] = 1
    other_proxies: Annotated[tuple[str, ...], ADDRESSES] = ()
    """The addresses of the other proxies of this region, which use the same engines."""

    counts_alone: bool = False
    """Whether each proxy of the region counts budgets and limits by itself. A budget can then be spent once by each."""

    log_format: Literal["text", "json"] = "text"
    tls_cert: Path | None = None
    """The certificate of the port for clients; None: no TLS. `tls_key` is the file of the certificate's key."""

    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    """The CAs of the certificates that gateways must show to a picker, which chooses engines for a gateway; None:
    gateways need no certificate.
    """

    picker_addresses: Annotated[int, within(1, 8)] = 3
    """How many engines a picker names to its gateway for a request, the cheapest first."""

    websockets: Annotated[bool, LIVE] = True
    """Whether the proxy serves `/v1/responses` over WebSockets, too."""

    cors_origins: Annotated[tuple[str, ...], LIVE] = ()
    """The origins whose web pages may read answers in a browser; `*`: all origins."""

    watch_config: Annotated[bool, LIVE] = False
    """Whether the proxy applies a changed config file without a request to do so."""

    media: Annotated[Addresses, LIVE] = PUBLIC
    """The addresses from which engines may load images, audio and files."""

    def others_than(self, host: str) -> tuple[str, ...]:
        """`other_proxies` without this proxy's own address, so that all pods of a StatefulSet can share a config.

        `host`: the machine's name. An address is this proxy's own if it begins with `host` and has `port`, or
        `admin_port` for a picker.
        """
        own, ports = host.partition(".")[0], {self.port, self.admin_port}
        return tuple(url for url in self.other_proxies if not _leads_to(url, own, ports))

    @property
    def tls_files(self) -> tuple[Path | None, ...]:
        """The TLS files, which an operator may replace at any time."""
        return self.tls_cert, self.tls_key, self.tls_client_ca


@dataclass(frozen=True, slots=True)
class Limits:
    """The table [limits]: how many bytes, seconds and requests clients and engines may use at most."""

    body_bytes: Annotated[int, within(1_024, 2**31 - 1, live=True)] = 33_554_432
    body_memory_bytes: Annotated[int, within(1_024, 2**40)] = 1_073_741_824
    header_bytes: Annotated[int, within(1_024, 16 * 2**20, live=True)] = 65_536
    header_count: Annotated[int, within(8, 10_000, live=True)] = 100
    connections: Annotated[int, within(1, 1_000_000)] = 4_096
    head_timeout_s: Annotated[float, within(0.05, 3_600.0, live=True)] = 10.0
    body_timeout_s: Annotated[float, within(0.05, 3_600.0, live=True)] = 60.0
    keepalive_s: Annotated[float, within(0.05, 86_400.0, live=True)] = 75.0
    connect_timeout_s: Annotated[float, within(0.05, 600.0)] = 2.0
    first_token_timeout_s: Annotated[float, within(0.05, 86_400.0, live=True)] = 600.0
    idle_timeout_s: Annotated[float, within(0.05, 86_400.0, live=True)] = 120.0
    head_hold_s: Annotated[float, within(0.0, 3_600.0, live=True)] = 15.0
    response_bytes: Annotated[int, within(1_024, 2**40)] = 67_108_864
    keyed_outlive_s: Annotated[float, within(0.0, 600.0)] = 10.0
    keyed_replay_s: Annotated[float, within(0.0, 3_600.0)] = 60.0
    keyed_answer_bytes: Annotated[int, within(1_024, 2**40)] = 16_777_216
    keyed_total_bytes: Annotated[int, within(1_024, 2**40)] = 268_435_456
    counted_tokens_per_minute: Annotated[int, within(0, 2**40, live=True)] = 500_000
    total_timeout_s: Annotated[float, within(0.05, 604_800.0, live=True)] = 3_600.0
    queue_requests: Annotated[int, within(0, 1_000_000, live=True)] = 1_024
    queue_bytes: Annotated[int, within(0, 2**40, live=True)] = 268_435_456
    queue_timeout_s: Annotated[float, within(0.05, 3_600.0, live=True)] = 30.0
    working_set_wait_s: Annotated[float, within(0.0, 3_600.0, live=True)] = 120.0
    new_sessions_wait: Annotated[bool, LIVE] = True
    """Whether a turn that begins a session waits while turns of running sessions wait for KV memory."""

    shutdown_grace_s: Annotated[float, within(0.0, 86_400.0, live=True)] = 25.0
    kept_prompt_bytes: Annotated[int, within(0, 2**40)] = 67_108_864
    prompt_parts_bytes: Annotated[int, within(0, 2**40)] = 33_554_432


@dataclass(frozen=True, slots=True)
class RegionConfig:
    """A region. `url`: the address of its proxy; empty for this proxy's region. `rtt_ms`: the round trip from here."""

    name: Annotated[str, NAME]
    url: Annotated[str, ADDRESS] = ""
    rtt_ms: Annotated[float, within(0.0, 60_000.0)] = 0.0


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine. `models` contains `*` if it serves all models."""

    id: str
    url: Annotated[str, ADDRESS]
    region: Annotated[str, NAME]
    role: Role = "aggregated"
    kind: Literal["sglang", "openai"] = "sglang"
    models: frozenset[str] = frozenset({ANY})
    bootstrap_host: str | None = None
    bootstrap_port: Annotated[int, within(1, 65_535)] | None = None
    store: Annotated[str, NAME] | None = None
    """The name of the KV store that the engine shares with other engines; None: it does not share a store."""

    kv_events: bool = True
    """Whether the proxy follows the engine's KV events, if the engine publishes any."""

    key_file: Path | None = None
    """The file with the key for requests to the engine; None: requests need no key."""

    admin_key_file: Path | None = None
    """The file with the key for aborting requests; None: the key of `key_file`, if any."""

    keys_within: tuple[Path, ...] = ()
    """The folders that must contain `key_file` and `admin_key_file`; empty: any folder. Discovery sets `keys_within`; a
    file that names engines cannot.
    """

    http_proxy: Annotated[str, ADDRESS] = ""
    """For `https` addresses: the HTTP proxy through which the engine is reached; empty: it is reached directly."""

    max_running: Annotated[int, within(1, 1_000_000)] | None = None
    """The maximum number of concurrent requests of each rank; None: the number that the engine reports."""

    provider: Provider = UNKNOWN
    """For `kind = "openai"`: the provider, which decides how a request names its session to the server."""

    model_names: Mapping[str, str] = field(default_factory=dict)
    """Model name in this config -> the engine's name of the model."""


SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclass(frozen=True, slots=True)
class DiscoveryConfig:
    """A source of engines besides those of the config.

    `kind`: a folder of files, SRV records of a DNS name, or a Service or InferencePool of a Kubernetes cluster.
    """

    id: str
    kind: Literal["folder", "srv", "endpointslices", "inferencepool"]
    interval_s: Annotated[float, within(0.1, 3_600.0)]
    path: Path | None = None
    """The folder."""

    key_folder: Path | None = None
    """Another folder that may contain the key files of the source's engines; None: the key files are in `path`."""

    name: str = ""
    """The DNS name, such as `_http._tcp.sglang.prod.svc.cluster.local`; or the name of the Service or InferencePool."""

    scheme: Literal["http", "https"] = "http"
    servers: tuple[str, ...] = ()
    """`host:port` of the DNS servers to ask; empty: the system's DNS servers."""

    engine: Mapping[str, Any] = field(default_factory=dict)
    """Keys of [[engine]] that all engines of the DNS name, Service or InferencePool have in common."""

    namespace: str = ""
    """The namespace of the Service or InferencePool; empty: the namespace of this pod."""

    port: str = ""
    """The port of a Service's endpoints, by name or number; empty: the port named `http`, or the only port."""

    api: Annotated[str, ADDRESS] = ""
    """The address of the API server; empty: the API server of the cluster that runs this process."""

    credentials: Path = Path(SERVICE_ACCOUNT)
    """The folder with the files `token`, `ca.crt` and `namespace` of a service account."""

    deletion_cost: bool = False
    """Whether the proxy sets `pod-deletion-cost` of each engine's pod by how much warm KV the engine's cache holds."""

    @property
    def keys_within(self) -> tuple[Path, ...]:
        """The folders that must contain the key files of the source's engines; empty if the config names the files."""
        return tuple(folder for folder in (self.path, self.key_folder) if folder is not None)


def copies_of_bodies(engines: Iterable[EngineConfig]) -> int:
    """The maximum number of copies of a request's body in memory: the body as received, and one for each engine that
    serves it."""
    return 3 if any(engine.role == "prefill" for engine in engines) else 2


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model and its price books. A price book has the model's rates from a date on."""

    name: Annotated[str, NAME]
    aliases: tuple[str, ...] = ()
    books: tuple[PriceBook, ...] = ()
    """The price books in the config file; the database may have more."""

    context_tokens: Annotated[int, within(1, 1_000_000_000)] | None = None
    continue_broken: bool = False
    """Whether another engine continues an answer whose engine has failed."""

    vocabulary_tokens: Annotated[int, within(1, 100_000_000)] | None = None
    """The number of the model's token ids; None: unknown, so requests with token ids are refused."""

    normalise: Annotated[frozenset[str], among(*NAMES)] = DEFAULT_NAMES
    """The normalising rules: each removes one kind of text that varies and so would spoil the prefixes of prompts."""

    has_own_rules: bool = False
    """Whether the config sets `normalise`; then `Config.with_rule` adds no rule for the engines' chat template."""


@dataclass(frozen=True, slots=True)
class TenantConfig:
    """A tenant, which shares cached prompts only with tenants of the same `share_group`."""

    name: Annotated[str, NAME]
    key_sha256: tuple[str, ...]
    share_group: str
    models: frozenset[str] = frozenset({ANY})
    regions: frozenset[str] = frozenset({ANY})
    salt_epoch: Annotated[int, within(0, 2**31 - 1)] = 0
    limits: TenantLimits | None = None
    """Per-minute limits and the limit of concurrent requests; None: no limit."""

    granted_fields: Annotated[frozenset[str], among(*sorted(GRANTABLE_FIELDS))] = frozenset()
    """The request fields that the tenant may use although they make an engine run a grammar of the client."""

    unlisted_fields: Unlisted = "drop"
    """What happens to unknown members of a request."""

    default_priority: Priority = "normal"
    """The priority of a request whose client states none."""

    def may_use(self, model: ModelConfig) -> bool:
        return ANY in self.models or model.name in self.models

    def may_be_served(self, region: str) -> bool:
        return ANY in self.regions or region in self.regions


@dataclass(frozen=True, slots=True)
class DatabaseConfig:
    """The PostgreSQL database with the ledger (one row for each turn), API keys and price books of a fleet."""

    dsn_file: Path
    """The file with the database's address, which may contain a password."""

    keep_days: Annotated[int, within(1, 36_500)] | None = None
    """How many days the database keeps ledger rows; None: for ever."""

    key_max_age_s: Annotated[float, within(2.0, 31_536_000.0)] = 3_600.0
    """How long API keys of the database stay valid while it cannot be reached."""


@dataclass(frozen=True, slots=True)
class LedgerFileConfig:
    """Limits of a proxy's ledger file. Without a database, it is the only ledger, and keeps all rows by default."""

    ledger_file_days: Annotated[int, within(1, 36_500)] | None = None
    """After how many days a row is deleted, but not before the database has it; None without a database: never."""

    ledger_file_bytes: Annotated[int, within(1_048_576, 2**50)] | None = None
    """The size of the file beyond which the oldest rows that may be deleted are deleted; None: no limit."""


@dataclass(frozen=True, slots=True)
class RedisConfig:
    """The Redis or Valkey that proxies share."""

    url_file: Path
    """The file with the address of Redis, which may contain a password."""

    timeout_s: Annotated[float, within(0.01, 5.0)] = 0.25
    """The time limit of each call."""


@dataclass(frozen=True)
class TracingConfig:
    """Tracing: the collector that gets spans by OTLP over HTTP, and the share of requests that are traced."""

    endpoint: Annotated[str, ADDRESS]
    """The collector's address, to which `/v1/traces` is appended."""

    ratio: Annotated[float, within(0.0, 1.0)] = 0.01
    follow_clients: bool = False
    """Whether the `sampled` flag of a client's `traceparent` decides instead of `ratio`."""

    headers_file: Path | None = None
    """The file with further headers for the collector, which may contain a key; None: no further headers."""

    service_name: str = "warmroute"
    queue_requests: Annotated[int, within(64, 1_000_000)] = 1_024
    """The maximum number of finished requests that wait for the exporter."""

    timeout_s: Annotated[float, within(0.05, 60.0)] = 10.0
    """Time limit of one export including its retries, in seconds."""


@dataclass(frozen=True, slots=True)
class Config:
    """A whole, checked config file."""

    proxy: ProxyConfig
    secret_file: Path | None
    ledger_sync: Literal["process", "disk"]
    ledger_file: LedgerFileConfig
    database: DatabaseConfig | None
    """None: ledger rows stay in the ledger file of this proxy."""

    limits: Limits
    regions: tuple[RegionConfig, ...]
    engines: tuple[EngineConfig, ...]
    models: tuple[ModelConfig, ...]
    tenants: tuple[TenantConfig, ...]
    redis: RedisConfig | None
    """The Redis with limits and idempotency markers; None: each process keeps its own limits and markers."""

    budgets: tuple[Budget, ...]
    """The amounts of [[budget]], one for each period. Tenants of a budget always have `limits`, which may be empty."""

    group_limits: tuple[ScopeLimits, ...]
    """The per-minute limits and concurrency limits of [[budget]]."""

    discoveries: tuple[DiscoveryConfig, ...]
    model_by_name: dict[str, ModelConfig] = field(repr=False)
    """Name or alias -> model."""

    tenant_by_name: dict[str, TenantConfig] = field(repr=False)
    credit_moved: bool = False
    """Whether a turn that placement moves gets a credit for the tokens cached at the session's previous worker."""

    tracing: TracingConfig | None = None
    """None: requests are not traced."""

    @property
    def kept_prompt_bytes(self) -> int:
        """How many bytes of prompts each process may keep."""
        return self.limits.kept_prompt_bytes // self.proxy.processes

    @property
    def prompt_parts_bytes(self) -> int:
        """How many bytes each process may keep for the structure of prompts."""
        return self.limits.prompt_parts_bytes // self.proxy.processes

    @property
    def own_engines(self) -> list[EngineConfig]:
        return [engine for engine in self.engines if engine.region == self.proxy.region]

    def model_of(self, asked: str) -> ModelConfig | None:
        """The model with this name or alias; otherwise the first with a matching alias pattern, such as `claude-*`."""
        found = self.model_by_name.get(asked)
        if found is not None:
            return found
        patterns = [(alias, model) for model in self.models for alias in model.aliases if ANY in alias]
        return next((model for alias, model in patterns if fnmatchcase(asked, alias)), None)

    def with_rule(self, rule: str, names: frozenset[str]) -> "Config":
        """This config with one more normalising rule for the models `names` (`*`: all), except models whose rules the
        config sets.
        """

        def changed(model: ModelConfig) -> ModelConfig:
            has_it = not model.has_own_rules and names & {model.name, ANY}
            return replace(model, normalise=model.normalise | {rule}) if has_it else model

        models = {model.name: changed(model) for model in self.models}
        by_name = {name: models[model.name] for name, model in self.model_by_name.items()}
        return replace(self, models=tuple(models.values()), model_by_name=by_name)

    def models_of(self, tenant: TenantConfig) -> list[ModelConfig]:
        return [model for model in self.models if tenant.may_use(model)]

    def scope_limits(self) -> list[ScopeLimits]:
        """All per-minute limits and concurrency limits, of tenants and of budgets."""
        of_tenants = [
            ScopeLimits(Scope(tenant.name, (tenant.name,), kind="tenant"), tenant.limits)
            for tenant in self.tenants
            if tenant.limits is not None
        ]
        return [*of_tenants, *self.group_limits]

    def tenant_by_sha256(self) -> dict[str, str]:
        """SHA-256 of an API key -> name of its tenant, for `secrets.ApiKeys`."""
        return {digest: tenant.name for tenant in self.tenants for digest in tenant.key_sha256}


def _leads_to(url: str, host: str, ports: set[int]) -> bool:
    parts = urlsplit(url)
    return bool(host) and (parts.hostname or "").partition(".")[0] == host.lower() and parts.port in ports
