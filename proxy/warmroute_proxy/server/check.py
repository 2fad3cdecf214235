"""`warmroute proxy --check`: finds problems of a config that can be read; with `--probe`, also asks its servers.

The check reads files and starts nothing. A probe asks each engine of this region what it is, including engines that a
discovery source names. It asks each other region's proxy whether it is ready, and the stores whether they answer. No
question makes an engine compute tokens.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from warmroute_proxy.server.base.config import (
    Config,
    DatabaseConfig,
    DiscoveryConfig,
    EngineConfig,
    RedisConfig,
    RegionConfig,
)
from warmroute_proxy.server.base.secrets import (
    SecretError,
    bearer,
    is_exposed,
    load_dsn,
    load_headers,
    load_redis_url,
    load_secret,
)
from warmroute_proxy.server.discovery.discovery import candidates, source_of
from warmroute_proxy.server.discovery.source import DiscoveredEngines, SourceError
from warmroute_proxy.server.engines.server_info import NO_ENGINE, json_object, read_server_info
from warmroute_proxy.server.engines.small_get import ask
from warmroute_proxy.server.engines.upstream import Upstream
from warmroute_proxy.server.http.tls import TlsError, tls_of
from warmroute_proxy.server.regions.versions import misunderstood, spoken_by
from warmroute_proxy.server.stores.prices import Prices

PROBE_TIMEOUT_S: Final = 5.0
_NO_KEY: Final = "0" * 64  # the digest in examples of a config


class ServerAnswer(NamedTuple):
    who: str
    text: str
    ok: bool


def problems_of(config: Config, environ: Mapping[str, str]) -> list[str]:
    """The problems of a config that would keep a proxy from starting, or would be unsafe."""
    found = [*_unreadable(config, environ), *_exposed(config), *_unwritable(config.proxy.state_dir)]
    if config.database is None:  # a database may have the price books that the config lacks
        found += Prices((), time.time).problems(config.models)
    found += zero_digests(config)
    found += [
        f"engine {engine.id}: url: {engine.url} ends in /v1, and requests would go to /v1/v1/...; it ends before /v1"
        for engine in config.own_engines
        if urlsplit(engine.url).path.rstrip("/").endswith("/v1")
    ]
    return found


def _unreadable(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    try:
        tls_of(config.proxy)
    except TlsError as error:
        yield str(error)
    loads: dict[str, Callable[[], object]] = {"secret.file": lambda: load_secret(config.secret_file, environ)}
    if (database := config.database) is not None:
        loads["ledger.dsn_file"] = lambda: load_dsn(database.dsn_file)
    if (redis := config.redis) is not None:
        loads["redis.url_file"] = lambda: load_redis_url(redis.url_file)
    if (tracing := config.tracing) is not None:
        loads["tracing.headers_file"] = lambda: load_headers(tracing.headers_file)
    for engine in config.own_engines:
        loads[f"engine {engine.id}: key_file"] = partial(bearer, engine.key_file)
        loads[f"engine {engine.id}: admin_key_file"] = partial(bearer, engine.admin_key_file)
    for key, load in loads.items():
        try:
            load()
        except SecretError as error:
            yield f"{key}: {error}"


def _exposed(config: Config) -> Iterator[str]:
    """A problem for each file with a secret that every user of the machine may read."""
    keys = [file for engine in config.own_engines for file in (engine.key_file, engine.admin_key_file)]
    dsn_file = config.database.dsn_file if config.database is not None else None
    redis_file = config.redis.url_file if config.redis is not None else None
    headers_file = config.tracing.headers_file if config.tracing is not None else None
    for file in dict.fromkeys([config.secret_file, config.proxy.tls_key, dsn_file, redis_file, headers_file, *keys]):
        try:
            exposed = file is not None and is_exposed(file)
        except OSError:  # `_unreadable` names it
            continue
        if exposed:
            yield f"{file}: holds a secret, and others can read it: chmod 600 {file}"


def _unwritable(folder: Path) -> Iterator[str]:
    """A problem, if this user cannot write to a folder, or cannot make it."""
    there = next(each for each in (folder, *folder.parents) if os.access(each, os.F_OK))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        yield f"proxy.state_dir: {folder} cannot be used: this user cannot write to {there}"


def zero_digests(config: Config) -> list[str]:
    """A problem for each key digest that was copied from an example."""
    fields = ["proxy.admin_key_sha256"] if config.proxy.admin_key_sha256 == _NO_KEY else []
    fields += [f"tenant {tenant.name}: key_sha256" for tenant in config.tenants if _NO_KEY in tenant.key_sha256]
    return [f"{field}: is all zeros, as in examples: no key matches; `warmroute key` makes a key" for field in fields]


def probe(config: Config) -> list[ServerAnswer]:
    """The answers of the certificate file, the stores, discovery sources, this region's engines, and other regions."""
    return [*_certificate(config), *_stores(config), *asyncio.run(_probe(config))]


def _stores(config: Config) -> Iterator[ServerAnswer]:
    """The answers of the database, whose schema is checked, and of Redis."""
    if config.database is not None:
        yield _asked("database", partial(_ask_database, config.database))
    if config.redis is not None:
        yield _asked("redis", partial(_ask_redis, config.redis))


def _asked(who: str, prepared: Callable[[], Callable[[], str]]) -> ServerAnswer:
    """The answer of a store, and how long it took. `prepared` imports what the question needs, which is not timed."""
    try:
        ask = prepared()
        began_s = time.monotonic()
        text = ask()
    except ModuleNotFoundError as error:
        return ServerAnswer(who, f"{error.name} is missing", ok=False)
    except (OSError, RuntimeError) as error:
        return ServerAnswer(who, str(error), ok=False)
    return ServerAnswer(who, f"{text} in {(time.monotonic() - began_s) * 1000:.0f} ms", ok=True)


def _ask_database(database: DatabaseConfig) -> Callable[[], str]:
    """A function that asks the database, and may raise SecretError or StoreError. Raises: ModuleNotFoundError."""
    from warmroute_proxy.server.stores.database import ask_once

    async def sizes(connection: Any) -> str:
        used = await connection.fetchval("SELECT count(*) FROM pg_stat_activity")
        most = await connection.fetchval("SELECT current_setting('max_connections')")
        return f"answered, {used} of {most} connections are used,"

    return lambda: ask_once(load_dsn(database.dsn_file), sizes, PROBE_TIMEOUT_S)


def _ask_redis(redis: RedisConfig) -> Callable[[], str]:
    """A function that asks Redis, and may raise SecretError or RedisAway. Raises: ModuleNotFoundError."""
    from warmroute_proxy.server.redis.calls import PROBE, PROBE_KEY, RedisCalls

    async def run() -> str:
        calls = RedisCalls(load_redis_url(redis.url_file), PROBE_TIMEOUT_S)
        try:
            await calls.run(PROBE, (PROBE_KEY,))
        finally:
            await calls.close()
        return "answered"

    return lambda: asyncio.run(run())


def _certificate(config: Config) -> Iterator[ServerAnswer]:
    cert = config.proxy.tls_cert
    try:
        if tls := tls_of(config.proxy):
            yield ServerAnswer(f"certificate {cert}", f"valid until {tls.valid_until}", ok=True)
    except TlsError as error:
        yield ServerAnswer(f"certificate {cert}", str(error), ok=False)


async def _probe(config: Config) -> list[ServerAnswer]:
    sources, found = await _discovered(config)
    engines = [_probe_engine(engine) for engine in (*config.own_engines, *found)]
    regions = [_probe_region(region) for region in config.regions if region.url and region.name != config.proxy.region]
    return [*sources, *await asyncio.gather(*engines, *regions)]


async def _discovered(config: Config) -> tuple[list[ServerAnswer], list[EngineConfig]]:
    """What each discovery source answers, and which of the engines that the sources name can be used."""
    region = config.proxy.region
    read = await asyncio.gather(*(_read_source(one, region) for one in config.discoveries))
    named = {one.id: each for one, each in zip(config.discoveries, read, strict=True)}
    engines = {name: each.engines for name, each in named.items() if isinstance(each, DiscoveredEngines)}
    found = candidates(config, engines)
    answers = []
    for name, each in named.items():
        who = f"discovery {name}"
        if isinstance(each, str):
            answers.append(ServerAnswer(who, each, ok=False))
            continue
        wrong = [*each.problems, *(f"{one.engine} is not used: {one.reason}" for one in found.refused[name])]
        text = "; ".join([f"names {len(each.engines) or 'no'} engine{'s' * (len(each.engines) != 1)}", *wrong])
        answers.append(ServerAnswer(who, text, ok=bool(each.engines) and not wrong))
    return answers, found.used


async def _read_source(config: DiscoveryConfig, region: str) -> DiscoveredEngines | str:
    try:
        source = source_of(config, region, [])
    except ModuleNotFoundError as error:
        return f"{error.name} is missing"
    try:
        return await asyncio.wait_for(source.read(), PROBE_TIMEOUT_S)
    except (OSError, SourceError) as error:
        return _reason(error)
    finally:
        source.close()


async def _probe_engine(engine: EngineConfig) -> ServerAnswer:
    who = f"engine {engine.id}, {engine.url}"
    path = "/server_info" if engine.kind == "sglang" else "/v1/models"
    try:
        key = bearer(engine.key_file, engine.keys_within)
        status, body, until = await _get(engine.url, path, key, engine.http_proxy)
    except (OSError, SecretError) as error:
        return ServerAnswer(who, _reason(error), ok=False)
    if status in {401, 403}:
        return ServerAnswer(who, f"answered {status} at {path}: its key_file is missing or wrong", ok=False)
    if engine.kind == "openai":
        ok = status == 200 and json_object(body) is not None
        return ServerAnswer(who, f"answered {status or 'nothing'} at {path}{until}", ok=ok)
    info, report = read_server_info(body, engine, ""), json_object(body) or {}
    if status != 200 or info is None:
        return ServerAnswer(who, f"answered {status or 'nothing'} at {path}, {NO_ENGINE}", ok=False)
    mode = {None: "aggregated", "null": "aggregated"}.get(found := report.get("disaggregation_mode"), str(found))
    ranks = f"{info.dp_size} rank{'s' * (info.dp_size != 1)}"
    version = report.get("version", "unknown")
    text = f"{mode} engine, version {version}, {ranks}, pages of {info.page_tokens} tokens{until}"
    if mode != engine.role:
        return ServerAnswer(who, f"{text}; the config says role {engine.role}", ok=False)
    return ServerAnswer(who, text, ok=True)


async def _probe_region(region: RegionConfig) -> ServerAnswer:
    who = f"region {region.name}, {region.url}"
    try:
        status, body, until = await _get(region.url, "/ready", "")
    except OSError as error:
        return ServerAnswer(who, _reason(error), ok=False)
    found = json_object(body) or {}
    if "region" not in found:
        return ServerAnswer(who, f"answered {status or 'nothing'} at /ready, which is not a proxy of ours", ok=False)
    if found["region"] != region.name:
        return ServerAnswer(who, f"is the proxy of region {found['region']}", ok=False)
    spoken = spoken_by(found)
    if spoken.common() is None:
        return ServerAnswer(who, misunderstood(region.name, spoken), ok=False)
    reasons = found.get("reasons") or []
    return ServerAnswer(
        who, f"{found.get('status')}{until}{''.join(f'; {reason}' for reason in reasons)}", status == 200
    )


async def _get(url: str, path: str, headers: str, http_proxy: str = "") -> tuple[int, bytes, str]:
    """The status and body of a small GET, and until when the server's certificate is valid. Raises: OSError."""
    upstream = Upstream(url, PROBE_TIMEOUT_S, time.monotonic, http_proxy)
    async with asyncio.timeout(PROBE_TIMEOUT_S):
        transport = await upstream.open_transport(asyncio.Protocol)
    certificate = transport.get_extra_info("peercert")
    transport.close()
    try:
        status, body = await ask(upstream, path, headers, PROBE_TIMEOUT_S)
    finally:
        upstream.close()
    return status, body, f", certificate valid until {certificate['notAfter']}" if certificate else ""


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {PROBE_TIMEOUT_S:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    return str(error)


def shown(path: Path | str, answers: list[ServerAnswer]) -> str:
    lines = [f"{answer.who}: {answer.text}" for answer in answers]
    bad = sum(not answer.ok for answer in answers)
    verdict = f"{bad} of {len(answers)} answers are not as they should be" if bad else "ok"
    return "\n".join([*lines, f"{path}: {verdict}"])
