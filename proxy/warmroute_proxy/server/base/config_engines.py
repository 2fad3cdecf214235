"""Reads the tables [[engine]] and [[discovery]] of a config: engines, and the sources that name further engines."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from warmroute.contract.providers import PROVIDERS, UNKNOWN, Provider, provider_of
from warmroute_proxy.core.base.role import ROLES
from warmroute_proxy.server.base.config import DiscoveryConfig, EngineConfig
from warmroute_proxy.server.base.config_table import Table, shown


def read_engine(table: Table, counters: dict[str, int], folder: Path) -> EngineConfig:
    """The engine of a table [[engine]]. `counters` counts engines by region and role, for default ids."""
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
    if engine.http_proxy and not url.startswith("https://"):
        table.problem("http_proxy", "is for engines whose url begins with https://")
    if engine.http_proxy.startswith("https://"):
        table.problem("http_proxy", "must begin with http://: the connection inside is encrypted")
    if kind == "openai" and table.has("admin_key_file"):
        table.problem("admin_key_file", 'is for SGLang: nothing is asked of an "openai" engine that wants it')
    table.close()
    return engine


def _provider(table: Table, url: str, kind: str) -> Provider:
    """The provider that the table names, else the provider whose host is in the URL, else `UNKNOWN`."""
    if kind == "sglang":
        for key in ("provider", "model_names"):
            if table.has(key):
                table.problem(key, 'is for engines with kind = "openai"')
    return PROVIDERS.get(table.choice("provider", tuple(PROVIDERS), provider_of(url)), UNKNOWN)


_OF_CLUSTER: Final = ("endpointslices", "inferencepool")
_IN_CLUSTER: Final = frozenset({"name", "scheme", "engine", "namespace", "api", "credentials", "deletion_cost"})
_KEYS: Final[dict[str, frozenset[str]]] = {
    "folder": frozenset({"path", "key_folder"}),
    "srv": frozenset({"name", "scheme", "servers", "engine"}),
    "endpointslices": _IN_CLUSTER | {"port"},
    "inferencepool": _IN_CLUSTER,
}
"""Kind of [[discovery]] -> its keys, except the keys that all kinds have."""

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_OF_RECORDS: Final = ("id", "url", "region")
"""Keys of an [[engine]] that follow from its SRV record or pod, so a config must not set them."""


def read_discoveries(found: object, folder: Path, region: str, problems: list[str]) -> tuple[DiscoveryConfig, ...]:
    """The sources in the tables [[discovery]]. `found`: the tables in the document; `region`: that of the proxy."""
    if not isinstance(found, list | None):
        problems.append("discovery: must be a list of tables, written [[discovery]]")
        return ()
    made: list[DiscoveryConfig] = []
    for at, values in enumerate(found or ()):
        table = Table(values, f"discovery[{at}]", problems)
        one = _read(table, f"{at}", folder)
        if one.id in [other.id for other in made]:
            table.problem("id", f"{shown(one.id)} is taken by another [[discovery]]")
        if one.engine:
            _check_engine(one, f"engine[of {one.id}]", folder, region, problems)
        made.append(one)
    return tuple(made)


def _read(table: Table, number: str, folder: Path) -> DiscoveryConfig:
    kind = table.of(DiscoveryConfig).choice("kind", tuple(_KEYS), "folder")
    for key in sorted(set().union(*_KEYS.values()) - _KEYS[kind]):
        if table.has(key):
            table.problem(key, "is for kind = " + " or ".join(f'"{one}"' for one, keys in _KEYS.items() if key in keys))
    of_folder = kind == "folder"
    key_folder = table.text("key_folder", "")
    made = table.read(
        DiscoveryConfig,
        folder,
        id=table.name("id", f"{kind}-{number}"),
        kind=kind,
        interval_s=table.number("interval_s", default=1.0 if of_folder else 5.0),
        path=folder / table.text("path") if of_folder else None,
        key_folder=folder / key_folder if of_folder and key_folder else None,
        name="" if of_folder else table.text("name"),
    )
    for server in made.servers:
        host, _, port = server.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            table.problem("servers", f'{shown(server)} is not an address, written like "127.0.0.1:8600"')
    if kind == "srv" and find_spec("dns") is None:
        table.problem("kind", "\"srv\" needs dnspython: pip install 'warmroute[discovery]'")
    _check_cluster(made, table)
    table.close()
    return made


def _check_cluster(made: DiscoveryConfig, table: Table) -> None:
    """Check a source in a Kubernetes cluster. Its names become parts of API paths, and its token must go over TLS."""
    if made.kind not in _OF_CLUSTER:
        return
    for key, value in (("name", made.name), ("namespace", made.namespace or "default")):
        if _NAME.fullmatch(value) is None:
            table.problem(key, f"{shown(value)} is not a name of Kubernetes")
    if made.api and not made.api.startswith("https://"):
        table.problem("api", "must start with https: the token is sent there")


def _check_engine(one: DiscoveryConfig, path: str, folder: Path, region: str, problems: list[str]) -> None:
    """Check the keys that all engines of a source share, by reading an invented engine that has them."""
    table = Table({**one.engine, **record_values("a", one.scheme, "a", 1, region)}, path, problems)
    for key in _OF_RECORDS:
        if key in one.engine:
            table.problem(key, "follows from the record")
    read_engine(table, {}, folder)


def record_values(engine_id: str, scheme: str, host: str, port: int, region: str) -> dict[str, Any]:
    """The keys of an [[engine]] that follow from an SRV record, and their values."""
    return {"id": engine_id, "url": f"{scheme}://{host}:{port}", "region": region}
