"""Prints lists of tenants, keys and changes."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich import box
from rich.table import Table

from warmroute_cli.usage import console
from warmroute_proxy.server.stores.directory.changing import DirectoryChange
from warmroute_proxy.server.stores.directory.key_admin import ListedKey
from warmroute_proxy.server.stores.directory.tenant_admin import StoredTenant


def print_keys(keys: Iterable[ListedKey]) -> None:
    rows = [(key.id, key.tenant, key.state, _when(key.made_at), _when(key.expires_at), key.note) for key in keys]
    _print(("id", "tenant", "state", "made", "expires", "note"), rows)


def print_tenants(of_config: Iterable[str], stored: Iterable[StoredTenant]) -> None:
    """A row for each tenant, by name. `of_config`: those of the file, which count where both have one."""
    names = set(of_config)
    rows = [(name, "file", "", "as the file says") for name in names]
    rows += [
        (each.name, "database, not used" if each.name in names else "database", _when(each.changed_at), _settings(each))
        for each in stored
    ]
    _print(("name", "where", "changed", "settings"), sorted(rows))


def print_changes(changes: Iterable[DirectoryChange]) -> None:
    rows = [
        (f"{each.at:%Y-%m-%d %H:%M:%S}", each.who, each.kind, each.action, each.subject, each.tenant, _changed(each))
        for each in changes
    ]
    _print(("at (UTC)", "who", "what", "done", "which", "tenant", "from, to"), rows)


def _changed(change: DirectoryChange) -> str:
    return " -> ".join("" if value is None else _words(value) for value in (change.old, change.new))


def _settings(tenant: StoredTenant) -> str:
    return _words({key: value for key, value in tenant.settings.items() if key != "salt_epoch"})


def _words(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items())


def _when(time: datetime | None) -> str:
    return "never" if time is None else f"{time:%Y-%m-%d %H:%M}"


def _print(names: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console().print(table)
