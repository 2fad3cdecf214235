"""Reads one `[[engine]]` of a configuration."""

from pathlib import Path

from warmroute.contract.providers import PROVIDERS, UNKNOWN, Provider, provider_of
from warmroute_proxy.core.base.role import ROLES
from warmroute_proxy.server.base.config import EngineConfig
from warmroute_proxy.server.base.config_table import Table


def read_engine(table: Table, counters: dict[str, int], folder: Path) -> EngineConfig:
    """`counters` numbers the engines of a region and role, for those without an id."""
    url, region = table.url("url"), table.name("region")
    role, kind = table.choice("role", ROLES, "aggregated"), table.choice("kind", ("sglang", "openai"), "sglang")
    group = f"{region}-{role}"
    number = counters[group] = counters.get(group, -1) + 1
    engine = table.read(
        EngineConfig,
        folder,
        id=table.name("id", f"{group}-{number}"),
        url=url,
        region=region,
        role=role,
        kind=kind,
        kv_events=table.choice("kv_events", ("auto", "off"), "auto") == "auto",
        keys_within=(),
        provider=_provider(table, url, kind),
    )
    if role == "prefill" and not table.has("bootstrap_port"):
        table.problem("bootstrap_port", "is missing: decode engines fetch the KV cache there")
    for key in ("bootstrap_host", "bootstrap_port"):
        if role != "prefill" and table.has(key):
            table.problem(key, f"is for prefill engines, this one is {role}")
    if kind == "openai" and role != "aggregated":
        table.problem("kind", f'"openai" cannot be {role}: only SGLang splits prefill from decode')
    if kind == "openai" and table.has("admin_key_file"):
        table.problem("admin_key_file", 'is for SGLang: nothing is asked of an "openai" engine that wants it')
    table.close()
    return engine


def _provider(table: Table, url: str, kind: str) -> Provider:
    """The named one, else the one whose host the URL has."""
    if kind == "sglang":
        for key in ("provider", "model_names"):
            if table.has(key):
                table.problem(key, 'is for engines with kind = "openai"')
    return PROVIDERS.get(table.choice("provider", tuple(PROVIDERS), provider_of(url)), UNKNOWN)
