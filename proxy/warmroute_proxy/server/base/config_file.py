"""Reads the config file, in TOML, into the frozen dataclasses of `config`. All problems are reported at once.

    [proxy] [secret] [ledger] [limits] [prices] [redis] [tracing]         one table each; all but [proxy] are optional
    [[region]] [[engine]] [[discovery]] [[model]] [[tenant]] [[budget]]   lists

An unknown key is an error that names the nearest known key: otherwise a misspelt limit would silently be left unset.
Paths are relative to the folder of the config file, so that a proxy can be started from anywhere.
"""

import os
import re
import tomllib
from ipaddress import ip_network
from math import ceil
from pathlib import Path
from typing import Any, Final, TypeVar

from warmroute_proxy.core.prompt.addresses import Addresses
from warmroute_proxy.server.base.config import (
    ANY,
    MAX_PROCESSES,
    Config,
    EngineConfig,
    Limits,
    ModelConfig,
    ProxyConfig,
    RegionConfig,
    TenantConfig,
    copies_of_bodies,
)
from warmroute_proxy.server.base.config_engines import read_discoveries, read_engine
from warmroute_proxy.server.base.config_prices import read_credit_moved, read_model_books
from warmroute_proxy.server.base.config_stores import (
    check_counted,
    read_budgets,
    read_database,
    read_ledger_file,
    read_redis,
    read_tenant_limits,
    read_tracing,
)
from warmroute_proxy.server.base.config_table import Table, nearest, shown

_Record = TypeVar("_Record")
_CGROUPS: Final = Path("/sys/fs/cgroup")


def usable_cores(cgroups: Path = _CGROUPS) -> int:
    """The CPU cores that this process may use, at least 1. A quota of 2.5 cores counts as 3."""
    cores = len(os.sched_getaffinity(0))
    quota = _quota(cgroups)
    return cores if quota is None else max(1, min(cores, ceil(quota)))


def _quota(cgroups: Path) -> float | None:
    """The CPU quota in cores, from version 2 or 1 of Linux control groups; None without a quota."""
    try:
        given, period = (cgroups / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            given, period = [
                (cgroups / "cpu" / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")
            ]
        except OSError:
            return None
    try:
        quota = int(given) / int(period)
    except (ValueError, ZeroDivisionError):  # "max" means no quota
        return None
    return quota if quota > 0 else None


MAX_FILE_BYTES: Final = 16_777_216
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*+://[!-.0-~]{1,512}")
_TABLES: Final = ("proxy", "secret", "ledger", "limits", "prices")
_LISTS: Final = ("region", "engine", "model", "tenant")


class ConfigError(ValueError):
    """A config that cannot be used. Each line of `problems` is `table[i].key: what is wrong`."""

    def __init__(self, source: str, problems: list[str]) -> None:
        super().__init__("\n".join([f"{source}: {len(problems)} problem{'s' * (len(problems) != 1)}", *problems]))
        self.problems = problems


def load_config(path: Path) -> Config:
    """The config in a file. Raises: ConfigError with all problems."""
    return read_config(read_file(path), path.absolute().parent, str(path))


def read_file(path: Path) -> bytes:
    """The content of a config file. Raises: ConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(str(path), [f"cannot be read: {error.strerror}"]) from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(str(path), [f"is larger than {MAX_FILE_BYTES} bytes"])
    return content


def read_config(content: bytes, folder: Path, source: str, instead: dict[str, Any] | None = None) -> Config:
    """The config in a file's `content`. `instead`: values that replace keys of [proxy]. Raises: ConfigError."""
    try:
        document = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(source, [f"is not TOML: {error}"]) from None
    except RecursionError:
        raise ConfigError(source, ["is nested too deeply"]) from None
    if instead and isinstance(document.get("proxy"), dict):
        document["proxy"] |= instead
    return parse_config(document, folder, source)


def parse_config(document: dict[str, Any], folder: Path, source: str) -> Config:
    """The config in a parsed TOML document. Relative paths start at `folder`."""
    problems: list[str] = []
    _check_top(document, problems)
    secret, ledger = (Table(document.get(name, {}), name, problems) for name in ("secret", "ledger"))
    proxy = _proxy(Table(document.get("proxy", {}), "proxy", problems), folder)
    secret_file, sync = secret.file("file", folder), ledger.choice("sync", ("process", "disk"), "process")
    database = read_database(ledger, folder)
    ledger_file = read_ledger_file(ledger, has_database=database is not None)
    for table in (secret, ledger):
        table.close()
    limits = _read(Limits, Table(document.get("limits", {}), "limits", problems))
    regions = tuple(_read(RegionConfig, table) for table in _tables(document, "region", problems))
    discoveries = read_discoveries(document.get("discovery"), folder, proxy.region, problems)
    engines = _read_engines(document, folder, problems, may_lack=bool(discoveries))
    models = tuple(_model(table, database is None) for table in _tables(document, "model", problems))
    tenants = _read_tenants(document, database is None, problems)
    read = read_budgets(document.get("budget"), tenants, problems, others=database is not None)
    model_by_name = _model_names(models, problems)
    _check_regions(proxy, regions, problems)
    _check_all_engines(limits, engines, regions, models, read.tenants, problems)
    check_tenants(read.tenants, regions, model_by_name, problems)
    credit_moved = read_credit_moved(document.get("prices"), problems)
    redis = read_redis(document.get("redis"), folder, problems)
    names = [region.name for region in regions]
    check_counted(proxy, names, read, has_database=database is not None, has_redis=redis is not None, problems=problems)
    tracing = read_tracing(document.get("tracing"), folder, problems)
    if problems:
        raise ConfigError(source, problems)
    return Config(
        proxy=proxy,
        secret_file=secret_file,
        ledger_sync="disk" if sync == "disk" else "process",
        ledger_file=ledger_file,
        database=database,
        limits=limits,
        regions=regions,
        engines=engines,
        models=models,
        tenants=read.tenants,
        redis=redis,
        budgets=read.budgets,
        group_limits=read.limits,
        discoveries=discoveries,
        model_by_name=model_by_name,
        tenant_by_name={tenant.name: tenant for tenant in read.tenants},
        credit_moved=credit_moved,
        tracing=tracing,
    )


def _read_engines(
    document: dict[str, Any], folder: Path, problems: list[str], *, may_lack: bool
) -> tuple[EngineConfig, ...]:
    counters: dict[str, int] = {}
    listed = [] if may_lack and "engine" not in document else _tables(document, "engine", problems)
    return tuple(read_engine(table, counters, folder) for table in listed)


def _check_all_engines(
    limits: Limits,
    engines: tuple[EngineConfig, ...],
    regions: tuple[RegionConfig, ...],
    models: tuple[ModelConfig, ...],
    tenants: tuple[TenantConfig, ...],
    problems: list[str],
) -> None:
    check_memory(limits, engines, problems)
    _check_engines(engines, regions, problems)
    check_engine_models(engines, models, problems)
    check_unsalted(engines, tenants, problems)


def check_memory(limits: Limits, engines: tuple[EngineConfig, ...], problems: list[str]) -> None:
    """Check that half of the memory for bodies holds one body of the largest size: one tenant may use half of it."""
    least = 2 * copies_of_bodies(engines) * limits.body_bytes
    if limits.body_memory_bytes < least:
        why = f"a body of body_bytes could never be received; it must be at least {least}"
        problems.append(f"limits.body_memory_bytes: {limits.body_memory_bytes} is too small: {why}")


def _check_top(document: dict[str, Any], problems: list[str]) -> None:
    known = (*_TABLES, *_LISTS, "budget", "redis", "discovery", "tracing")
    problems += [f"{key}: unknown table{nearest(key, known)}" for key in document if key not in known]
    if "proxy" not in document:
        problems.append("proxy: is missing, written [proxy]")


def _tables(document: dict[str, Any], key: str, problems: list[str]) -> list[Table]:
    found = document.get(key)
    if not isinstance(found, list) or not found:
        wrong = "is missing" if found is None else "must be a list of tables"
        problems.append(f"{key}: {wrong}, written [[{key}]]")
        return []
    return [Table(values, f"{key}[{at}]", problems) for at, values in enumerate(found)]


def _media(table: Table) -> Addresses:
    schemes = table.names_among("media_schemes", ("https", "http"), frozenset(("https", "http")))
    networks = []
    for written in table.names("media_networks", ()):
        try:
            networks.append(ip_network(written))
        except ValueError:
            table.problem("media_networks", f'{shown(written)} is not a network, written like "10.0.0.0/8"')
    return Addresses(tuple(sorted(schemes, reverse=True)), tuple(networks))


def _origins(table: Table) -> tuple[str, ...]:
    found = table.names("cors_origins", ())
    for origin in found:
        if origin != "*" and _ORIGIN.fullmatch(origin) is None:
            table.problem("cors_origins", f'{shown(origin)} is not an origin, written like "https://app.example.com"')
    return found


def _proxy(table: Table, folder: Path) -> ProxyConfig:
    table.of(ProxyConfig)
    proxy = table.read(
        ProxyConfig,
        folder,
        processes=table.integer_or("processes", "auto") or min(usable_cores(), MAX_PROCESSES),
        cors_origins=_origins(table),
        media=_media(table),
    )
    if (proxy.tls_cert is None) != (proxy.tls_key is None):
        missing, given = ("tls_cert", "tls_key") if proxy.tls_cert is None else ("tls_key", "tls_cert")
        table.problem(missing, f"is missing: {given} is given, and TLS needs both")
    if proxy.tls_client_ca is not None and proxy.tls_cert is None:
        table.problem("tls_client_ca", "needs TLS, which tls_cert and tls_key give")
    if proxy.port and (proxy.host, proxy.port) == (proxy.admin_host, proxy.admin_port):
        table.problem("admin_port", f"{proxy.port} is the port of the proxy itself")
    table.close()
    return proxy


def _read(kind: type[_Record], table: Table) -> _Record:
    """A record read from a table, which may have no other keys than the record's fields."""
    record = table.read(kind)
    table.close()
    return record


def _model(table: Table, needs_price: bool) -> ModelConfig:
    name = table.name("name")
    books = read_model_books(table, name, is_needed=needs_price)
    model = table.read(ModelConfig, name=name, books=books, has_own_rules=table.has("normalise"))
    table.close()
    return model


def _read_tenants(document: dict[str, Any], needed: bool, problems: list[str]) -> tuple[TenantConfig, ...]:
    """The tenants of the file. `needed`: the file must have tenants with keys, since there is no database."""
    if not needed and "tenant" not in document:
        return ()
    return tuple(read_tenant(table, needed) for table in _tables(document, "tenant", problems))


def read_tenant(table: Table, needs_key: bool) -> TenantConfig:
    """The tenant of a table [[tenant]]. `needs_key`: the table must have a key, since there is no database for keys."""
    name = table.of(TenantConfig).name("name")
    tenant = table.read(
        TenantConfig,
        name=name,
        key_sha256=table.digests("key_sha256", required=needs_key),
        share_group=table.name("share_group", name),
        limits=read_tenant_limits(table),
    )
    table.close()
    return tenant


def _model_names(models: tuple[ModelConfig, ...], problems: list[str]) -> dict[str, ModelConfig]:
    found: dict[str, ModelConfig] = {}
    for at, model in enumerate(models):
        for where, name in (("name", model.name), *(("aliases", alias) for alias in model.aliases)):
            if name and name in found:
                problems.append(f"model[{at}].{where}: {shown(name)} already names model {shown(found[name].name)}")
            found.setdefault(name, model)
    return found


def _check_regions(proxy: ProxyConfig, regions: tuple[RegionConfig, ...], problems: list[str]) -> None:
    _check_unique("region", "name", [region.name for region in regions], problems)
    names = [region.name for region in regions]
    if proxy.region and regions and proxy.region not in names:
        problems.append(f"proxy.region: {shown(proxy.region)} is not a [[region]]{nearest(proxy.region, names)}")
    for at, region in enumerate(regions):
        if proxy.region and not region.url and region.name != proxy.region:
            problems.append(f"region[{at}].url: is missing; only the own region ({proxy.region}) has none")


def _check_engines(engines: tuple[EngineConfig, ...], regions: tuple[RegionConfig, ...], problems: list[str]) -> None:
    _check_unique("engine", "id", [engine.id for engine in engines], problems)
    _check_unique("engine", "url", [engine.url for engine in engines], problems)
    names = [region.name for region in regions]
    roles: dict[str, set[str]] = {}
    for at, engine in enumerate(engines):
        roles.setdefault(engine.region, set()).add(engine.role)
        if engine.region and regions and engine.region not in names:
            problems.append(
                f"engine[{at}].region: {shown(engine.region)} is not a [[region]]{nearest(engine.region, names)}"
            )
    for region, present in roles.items():
        for role, partner in (("prefill", "decode"), ("decode", "prefill")):
            if role in present and partner not in present:
                problems.append(
                    f"engine: region {shown(region)} has {role} engines but none with role {shown(partner)}"
                )


def check_engine_models(
    engines: tuple[EngineConfig, ...], models: tuple[ModelConfig, ...], problems: list[str]
) -> None:
    names = [model.name for model in models]
    for at, engine in enumerate(engines):
        problems += [
            f"engine[{at}].models: {shown(model)} is the name of no [[model]]{nearest(model, names)}"
            for model in sorted(engine.models - {ANY, *names})
        ]
        problems += [
            f"engine[{at}].model_names: {shown(model)} is the name of no [[model]]{nearest(model, names)}"
            for model in sorted(set(engine.model_names) - set(names))
        ]


def check_unsalted(engines: tuple[EngineConfig, ...], tenants: tuple[TenantConfig, ...], problems: list[str]) -> None:
    """Check that only tenants of one share group use a server without cache salts, which has one cache for all."""
    for at, engine in enumerate(engines):
        if engine.kind != "openai" or engine.provider.salted:
            continue
        groups = {tenant.share_group for tenant in tenants if may_reach(tenant, engine)}
        if len(groups) > 1:
            problems.append(
                f'engine[{at}].kind: "openai" takes no cache salt, so its cache would be shared by the tenants of'
                f" {', '.join(sorted(groups))}; put them in one share_group, or keep all but one from it by"
                " models or regions"
            )


def may_reach(tenant: TenantConfig, engine: EngineConfig) -> bool:
    """Whether requests of a tenant may go to an engine."""
    in_region = not {ANY, engine.region}.isdisjoint(tenant.regions)
    return in_region and bool(ANY in engine.models | tenant.models or engine.models & tenant.models)


def check_tenants(
    tenants: tuple[TenantConfig, ...],
    regions: tuple[RegionConfig, ...],
    models: dict[str, ModelConfig],
    problems: list[str],
) -> None:
    """Check that no two tenants share a name or a key, and that their regions and models exist."""
    _check_unique("tenant", "name", [tenant.name for tenant in tenants], problems)
    names = [region.name for region in regions]
    owner: dict[str, str] = {}
    for at, tenant in enumerate(tenants):
        for number, digest in enumerate(tenant.key_sha256):
            if digest in owner:
                problems.append(f"tenant[{at}].key_sha256[{number}]: is also a key of tenant {shown(owner[digest])}")
            owner.setdefault(digest, tenant.name)
        problems += [
            f"tenant[{at}].regions: {shown(region)} is not a [[region]]{nearest(region, names)}"
            for region in sorted(tenant.regions - {ANY, *names})
        ]
        problems += [
            f"tenant[{at}].models: {shown(model)} is not a [[model]]{nearest(model, list(models))}"
            for model in sorted(tenant.models - {ANY, *models})
        ]


def _check_unique(table: str, key: str, values: list[str], problems: list[str]) -> None:
    first: dict[str, int] = {}
    for at, value in enumerate(values):
        if value and value in first:
            problems.append(f"{table}[{at}].{key}: {shown(value)} is taken by {table}[{first[value]}]")
        first.setdefault(value, at)
