"""Runs `warmroute tenants` and `warmroute keys` against the database that a proxy's config names."""

import asyncio
import json
import os
import shlex
import sys
import time
import tomllib
from argparse import Namespace
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from warmroute_cli.installed import missing
from warmroute_cli.ledger import NEEDED, operator_name
from warmroute_cli.usage import print_rows
from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.config_file import ConfigError, load_config
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.secrets import SecretError, Secrets, load_dsn, load_secret, new_api_key
from warmroute_proxy.server.control.usage_question import read_question
from warmroute_proxy.server.stores.directory.changing import DirectoryChange, Operator
from warmroute_proxy.server.stores.directory.key_admin import KeyAdmin, ListedKey
from warmroute_proxy.server.stores.directory.tenant_admin import StoredTenant, TenantAdmin
from warmroute_proxy.server.stores.store_state import Connection, NotDone, StoreError


def print_keys(keys: Iterable[ListedKey]) -> None:
    rows = [(key.id, key.tenant, key.state, _when(key.made_at), _when(key.expires_at), key.note) for key in keys]
    print_rows(("id", "tenant", "state", "made", "expires", "note"), rows)


def print_tenants(of_config: Iterable[str], stored: Iterable[StoredTenant]) -> None:
    """Print a row for each tenant. A tenant of the config file (`of_config`) overrides a stored one with its name."""
    names = set(of_config)
    rows = [(name, "file", "", "as the file says") for name in names]
    rows += [
        (each.name, "database, not used" if each.name in names else "database", _when(each.changed_at), _settings(each))
        for each in stored
    ]
    print_rows(("name", "where", "changed", "settings"), sorted(rows))


def print_changes(changes: Iterable[DirectoryChange]) -> None:
    rows = [
        (f"{each.at:%Y-%m-%d %H:%M:%S}", each.who, each.kind, each.action, each.subject, each.tenant, _changed(each))
        for each in changes
    ]
    print_rows(("at (UTC)", "who", "what", "done", "which", "tenant", "from, to"), rows)


def _changed(change: DirectoryChange) -> str:
    return " -> ".join("" if value is None else _words(value) for value in (change.old, change.new))


def _settings(tenant: StoredTenant) -> str:
    return _words({key: value for key, value in tenant.settings.items() if key != "salt_epoch"})


def _words(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items())


def _when(time: datetime | None) -> str:
    return "never" if time is None else f"{time:%Y-%m-%d %H:%M}"


class WrongSetting(ValueError):
    """A word on the command line is not a tenant's setting."""


def read_settings(words: Sequence[str]) -> dict[str, Any]:
    """Read words such as `tokens_per_minute=100000`: key -> value, or None if the word has no value.

    A value is read as TOML. A text that is not TOML is a string, so a shell needs no additional quotes.
    Raises: WrongSetting.
    """
    found: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key.isidentifier():
            raise WrongSetting(f"{word!r} is not a setting like tokens_per_minute=100000")
        if key in found:
            raise WrongSetting(f"{key} is given twice")
        found[key] = _value(text) if text else None
    return found


def _value(text: str) -> Any:
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return table["value"] if len(table) == 1 else text


CALL_S: Final = 10.0
T = TypeVar("T")
Action = Callable[[Namespace, Config, Operator], Awaitable[None]]


class WrongQuestion(Exception):
    """The command names an unknown tenant, key or setting."""


def run_keys(arguments: Namespace) -> int:
    """Run `warmroute keys`. Exit status 0: done, 2: not done."""
    return _run(arguments, "keys", _KEYS[arguments.action])


def run_key(arguments: Namespace) -> int:
    """Run `warmroute key`: an action of `keys`, or print a key for a config."""
    if arguments.action is not None:
        return run_keys(arguments)
    if arguments.admin_of is not None:
        print(Secrets(load_secret(load_config(arguments.admin_of).secret_file, os.environ)).admin_key())
        return 0
    key, digest = new_api_key()
    print(f"API key, shown once:\n  {key}")
    print(f'for the [[tenant]] in the configuration:\n  key_sha256 = ["{digest}"]')
    return 0


def run_tenants(arguments: Namespace) -> int:
    """Run `warmroute tenants`. Exit status 0: done, 2: not done."""
    return _run(arguments, "tenants", _TENANTS[arguments.action])


def _run(arguments: Namespace, name: str, action: Action) -> int:
    if hint := missing(NEEDED, "postgres"):
        print(f"warmroute: {hint}", file=sys.stderr)
        return 2
    try:
        config = load_config(arguments.config)
        if config.database is None:
            raise WrongQuestion(
                f"{arguments.config} names no database: set dsn_file in [ledger], or put tenants and digests of keys"
                " into the config (`warmroute key` makes a key)"
            )
        asyncio.run(_do(arguments, config, load_dsn(config.database.dsn_file), action))
    except (ConfigError, SecretError, StoreError, WrongQuestion, WrongSetting, NotDone) as error:
        print(f"warmroute {name}: {error}", file=sys.stderr)
        return 2
    return 0


async def _do(arguments: Namespace, config: Config, dsn: str, action: Action) -> None:
    from warmroute_proxy.server.stores.database import Database

    database = Database(dsn)

    async def ask(work: Callable[[Connection], Awaitable[T]]) -> T:
        return await database.call(work, CALL_S)

    try:
        await action(arguments, config, Operator(ask, operator_name()))
    finally:
        await database.close()


async def _make(arguments: Namespace, config: Config, operator: Operator) -> None:
    made = await _key_admin(config, operator).make(arguments.tenant, arguments.note, arguments.lifetime)
    print(f"API key {made.id} of {made.tenant}, shown once:\n  {made.key}")


async def _rotate(arguments: Namespace, config: Config, operator: Operator) -> None:
    made = await _key_admin(config, operator).rotate(arguments.key, arguments.overlap, arguments.lifetime)
    print(f"API key {made.id} in place of {arguments.key}, shown once:\n  {made.key}")
    print(f"a [[budget]] that names {arguments.key} has to name {made.id}, too")


async def _revoke(arguments: Namespace, config: Config, operator: Operator) -> None:
    tenant = await _key_admin(config, operator).revoke(arguments.key)
    print(f"revoked {arguments.key} of {tenant}; every proxy refuses it within 2 s")


def _first(rows: list[T], limit: int) -> list[T]:
    if len(rows) > limit:
        print(f"only the first {limit} are listed: --limit N lists more", file=sys.stderr)
    return rows[:limit]


async def _list_keys(arguments: Namespace, config: Config, operator: Operator) -> None:
    keys = await _key_admin(config, operator).keys(arguments.tenant, None, arguments.limit + 1)
    print_keys(_first(keys, arguments.limit))


async def _audit_keys(arguments: Namespace, config: Config, operator: Operator) -> None:
    del config
    print_changes(await operator.changes(("key",), _since_s(arguments.since), None, arguments.limit))


async def _add(arguments: Namespace, config: Config, operator: Operator) -> None:
    await TenantAdmin(operator, config).add(arguments.tenant, read_settings(arguments.settings))
    makes = shlex.join(["warmroute", "keys", "make", arguments.tenant, "--config", str(arguments.config)])
    print(f"added {arguments.tenant}; `{makes}` makes a key of it")


async def _change(arguments: Namespace, config: Config, operator: Operator) -> None:
    await TenantAdmin(operator, config).change(arguments.tenant, read_settings(arguments.settings))
    print(f"changed {arguments.tenant}; every proxy knows within 2 s")


async def _remove(arguments: Namespace, config: Config, operator: Operator) -> None:
    revoked = await TenantAdmin(operator, config).remove(arguments.tenant)
    print(f"removed {arguments.tenant} and revoked its keys: {revoked}; every proxy refuses them within 2 s")


async def _import(arguments: Namespace, config: Config, operator: Operator) -> None:
    tables: list[dict[str, Any]] = tomllib.loads(arguments.config.read_text()).get("tenant", [])
    for found in await TenantAdmin(operator, config).import_tenants(tables):
        what = "added" if found.added else "is there already"
        print(f"{found.name}: {what}, keys added: {found.keys}")
    print("tenants of the file count until they are taken out of it")


async def _list_tenants(arguments: Namespace, config: Config, operator: Operator) -> None:
    stored = await TenantAdmin(operator, config).tenants(None, arguments.limit + 1)
    print_tenants(config.tenant_by_name, _first(stored, arguments.limit))


async def _audit_tenants(arguments: Namespace, config: Config, operator: Operator) -> None:
    del config
    print_changes(await operator.changes(("tenant",), _since_s(arguments.since), None, arguments.limit))


_KEYS: Final[dict[str, Action]] = {
    "make": _make,
    "rotate": _rotate,
    "revoke": _revoke,
    "list": _list_keys,
    "audit": _audit_keys,
}
_TENANTS: Final[dict[str, Action]] = {
    "add": _add,
    "change": _change,
    "remove": _remove,
    "import": _import,
    "list": _list_tenants,
    "audit": _audit_tenants,
}


def _key_admin(config: Config, operator: Operator) -> KeyAdmin:
    return KeyAdmin(operator, tuple(config.tenant_by_name))


def _since_s(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return read_question([("since", text)], ("since",), time.time()).since_s
    except Refusal as refusal:
        raise WrongQuestion(str(refusal)) from None
