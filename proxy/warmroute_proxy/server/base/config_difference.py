"""Finds the differences between two configs, and those that can be applied while the proxy runs. Does no I/O.

A change names its table, element and keys, but no values, since a value may be secret. `merged` takes the fields that
may change from the new config, and all other fields from the running config. So comparing the merged config with the
new one lists the changes that wait for a restart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, Final, NamedTuple

from warmroute_proxy.core.prompt.addresses import Addresses
from warmroute_proxy.core.queue.budget import Budget
from warmroute_proxy.core.queue.quota import TenantLimits
from warmroute_proxy.core.queue.scope import Scope
from warmroute_proxy.server.base.config import Config, Limits, ModelConfig, ProxyConfig
from warmroute_proxy.server.base.config_bounds import live_fields
from warmroute_proxy.server.base.config_prices import CONFIG_BOOK, FREE

LIVE_LIMITS: Final = live_fields(Limits)
"""The keys of [limits] that may change while the proxy runs. Memory and connections are allotted once, at the start."""

_LIVE_FIELDS: Final = live_fields(ProxyConfig)
LIVE_PROXY: Final = _LIVE_FIELDS - {"media"} | {f"media_{name}" for name in Addresses._fields}
"""The keys of [proxy] that may change while the proxy runs."""

LIVE_LISTS: Final[Mapping[str, str]] = {
    "engine": "engines",
    "model": "models",
    "tenant": "tenants",
    "discovery": "discoveries",
}
"""Table -> its field of `Config`, for the lists that may change while a proxy runs. For budgets, see
`usd_budgets_live`.
"""

_LISTS: Final[Mapping[str, str]] = {"region": "regions", **LIVE_LISTS}
_NAMES: Final[Mapping[str, str]] = {"engine": "id", "discovery": "id"}
"""Table -> the field that names its elements, if that is not `name`."""


class Kind(Enum):
    """What happened to an element of a table."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    MOVED = "moved"
    """The elements are in another order. The order counts, since the first matching alias pattern wins."""


class ConfigChange(NamedTuple):
    """One difference. `name`: that of the element; empty if the whole table changed. `keys`: the keys that changed."""

    table: str
    name: str
    kind: Kind
    keys: tuple[str, ...]
    waits_for_restart: bool


def compare(running: Config, new: Config, usd_live: bool) -> list[ConfigChange]:
    """The changes of the new config, by table in the order of the reference. `usd_live`: see `usd_budgets_live`."""
    found = _single("proxy", _values(running.proxy), _values(new.proxy), LIVE_PROXY)
    found += _single("secret", {"file": running.secret_file}, {"file": new.secret_file}, frozenset())
    found += _single("ledger", _ledger_values(running), _ledger_values(new), frozenset())
    found += _single("redis", _values(running.redis), _values(new.redis), frozenset())
    found += _single("tracing", _values(running.tracing), _values(new.tracing), frozenset())
    found += _single("limits", _values(running.limits), _values(new.limits), LIVE_LIMITS)
    found += _single("prices", _price_table(running), _price_table(new), frozenset({"credit_moved"}))
    for table, attribute in _LISTS.items():
        found += _list(table, getattr(running, attribute), getattr(new, attribute), table not in LIVE_LISTS)
    applied = [*new.group_limits, *(new if usd_live else running).budgets]
    found += _list("budget", [*running.group_limits, *running.budgets], applied, False)
    return found + _list("budget", applied, [*new.group_limits, *new.budgets], True)


def merged(running: Config, new: Config, usd_live: bool) -> Config:
    """The running config with all changes of the new one that need no restart. `usd_live`: see `usd_budgets_live`."""
    return replace(
        running,
        proxy=replace(running.proxy, **{key: getattr(new.proxy, key) for key in _LIVE_FIELDS}),
        limits=Limits(
            **{
                field.name: getattr(new.limits if field.name in LIVE_LIMITS else running.limits, field.name)
                for field in fields(Limits)
            }
        ),
        **{attribute: getattr(new, attribute) for attribute in LIVE_LISTS.values()},
        budgets=(new if usd_live else running).budgets,
        group_limits=new.group_limits,
        model_by_name=new.model_by_name,
        tenant_by_name=new.tenant_by_name,
        credit_moved=new.credit_moved,
    )


def usd_budgets_live(started: Config) -> bool:
    """Whether budgets in USD may change: the proxy has a store for them if it started with a database or a budget."""
    return started.database is not None or bool(started.budgets)


def _single(
    table: str, before: Mapping[str, object], now: Mapping[str, object], live: frozenset[str]
) -> list[ConfigChange]:
    changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    by_effect = {waits: tuple(key for key in changed if (key not in live) is waits) for waits in (False, True)}
    return [ConfigChange(table, "", Kind.CHANGED, keys, waits) for waits, keys in by_effect.items() if keys]


def _list(table: str, before: Sequence[Any], now: Sequence[Any], waits: bool) -> list[ConfigChange]:
    old, new = _by_name(table, before), _by_name(table, now)
    found = [ConfigChange(table, name, Kind.ADDED, (), waits) for name in new if name not in old]
    found += [ConfigChange(table, name, Kind.REMOVED, (), waits) for name in old if name not in new]
    for name in old.keys() & new.keys() if old != new else ():
        keys = tuple(key for key in {**old[name], **new[name]} if old[name].get(key) != new[name].get(key))
        if keys:
            found.append(ConfigChange(table, name, Kind.CHANGED, keys, waits))
    if [name for name in old if name in new] != [name for name in new if name in old]:
        found.append(ConfigChange(table, "", Kind.MOVED, (), waits))
    return sorted(found, key=lambda change: (change.kind.value, change.name))


def _by_name(table: str, elements: Sequence[Any]) -> dict[str, dict[str, object]]:
    """Name of an element -> its values. Elements with the same name are merged, such as a budget with two periods."""
    found: dict[str, dict[str, object]] = {}
    for element in elements:
        values = _values(element)
        if isinstance(element, Budget):
            values = {f"usd_per_{element.period}": element.limit, **values, "limit": None, "period": None}
        found.setdefault(str(getattr(element, _NAMES.get(table, "name"))), {}).update(values)
    return found


def _values(record: Any) -> dict[str, object]:
    """The keys of a table with their values; empty without a table. The keys within limits, scopes, addresses and price
    books replace these.
    """
    if record is None:
        return {}
    names = [field.name for field in fields(record)] if is_dataclass(record) else record._fields
    found: dict[str, object] = {}
    for name in names:
        value = getattr(record, name)
        if name == "limits" and value is None:
            value = TenantLimits()
        if isinstance(record, ModelConfig) and name == "books":
            found |= _price_values(record)
        elif isinstance(value, Addresses):
            found |= {f"{name}_{key}": of_key for key, of_key in value._asdict().items()}
        else:
            found |= value._asdict() if isinstance(value, TenantLimits | Scope) else {name: value}
    return found


def _price_values(model: ModelConfig) -> dict[str, object]:
    """The config keys that define the price books of a model."""
    found: dict[str, object] = {}
    for book in model.books:
        if book == FREE:
            found["free"] = True
        elif book.name == CONFIG_BOOK:
            found |= book.rates.as_usd_per_mtok()
        else:
            found[f"price {book.name}"] = book
    return found


def _ledger_values(config: Config) -> dict[str, object]:
    return {"sync": config.ledger_sync, **_values(config.ledger_file), **_values(config.database)}


def _price_table(config: Config) -> dict[str, object]:
    return {"credit_moved": config.credit_moved}
