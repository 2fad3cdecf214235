"""An engine's report about itself at `/server_info`: its ranks, page size, cache tiers and KV events."""

from typing import Any, Final, Literal, NamedTuple

import msgspec

from warmroute_proxy.server.base.config import EngineConfig
from warmroute_proxy.server.engines.kv_events import KvSource, kv_source

DEFAULT_PAGE_TOKENS: Final = 64
NO_ENGINE: Final = "as no engine does: check its url, which ends before /v1"
_ALWAYS: Final = ("dp_size", "page_size")
MAX_DP_RANKS: Final = 64


class ServerInfo(NamedTuple):
    """One report. The defaults hold until the first report."""

    dp_size: int = 1
    page_tokens: int = DEFAULT_PAGE_TOKENS
    bootstrap_port: int | None = None
    host_cache: bool = False
    has_store: bool = False
    """Whether the engine's cache has a storage tier."""

    kv_source: KvSource | None = None
    role: Literal["prefill", "decode"] | None = None
    """The present role of an engine whose role can be switched. None: the role in the config holds."""

    priority_sign: int = 0
    """1 if a higher number is served first, -1 if a lower number is, 0 if the engine ignores priorities."""

    speculates: bool = False
    can_flip: bool = False
    """Whether the engine's role can be switched while it runs."""

    started_at: object = None
    """The start time as the engine writes it. A new value means that the engine has restarted, with an empty cache."""


def read_server_info(body: bytes, config: EngineConfig, host: str) -> ServerInfo | None:
    """The report in a body, or None if the body is not an engine's report. `host`: the host of the engine's URL."""
    info = json_object(body)
    if info is None or not any(name in info for name in _ALWAYS):
        return None
    host_cache = info.get("enable_hierarchical_cache") is True
    can_flip = info.get("enable_pd_role_switch") is True
    mode = info.get("disaggregation_mode")
    role: Literal["prefill", "decode"] | None = mode if can_flip and mode in ("prefill", "decode") else None
    return ServerInfo(
        dp_size=min(max(count(info, "dp_size") or 1, 1), MAX_DP_RANKS),
        page_tokens=max(count(info, "page_size") or 1, 1),
        bootstrap_port=config.bootstrap_port or count(info, "disaggregation_bootstrap_port"),
        host_cache=host_cache,
        has_store=host_cache and isinstance(info.get("hicache_storage_backend"), str),
        kv_source=_kv_source_of(config, info, host, role or config.role),
        role=role,
        priority_sign=_priority_sign(info),
        speculates=info.get("speculative_algorithm") is not None,
        can_flip=can_flip,
        started_at=info.get("start_time") or info.get("startup_time"),
    )


def _priority_sign(info: dict[str, Any]) -> int:
    if info.get("enable_priority_scheduling") is not True:
        return 0
    return -1 if info.get("schedule_low_priority_values_first") is True else 1


def _kv_source_of(config: EngineConfig, info: dict[str, Any], host: str, role: str) -> KvSource | None:
    """The address for a subscription to an engine's KV events, or None if the proxy does not use them.

    An engine with a session cache keeps tagged blocks from eviction, so the proxy sends it no tags, and ignores its
    events.
    """
    unwanted = not config.kv_events or role == "decode"
    if unwanted or info.get("enable_session_radix_cache") is True:
        return None
    return kv_source(info, host)


def json_object(body: bytes) -> dict[str, Any] | None:
    """The JSON object in a body, or None."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def count(report: dict[str, Any], name: str) -> int | None:
    """The value of a field if it is a whole number of 0 or more, else None."""
    value = report.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
