"""The JSON Schema of the config file and of tenants' settings, made from the fields of `config`'s classes. Does no I/O.

`_WRITTEN` has the schemas of fields whose form in the file differs from their form in the class.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from warmroute.contract.providers import PROVIDERS
from warmroute.contract.receipt import RATES
from warmroute_proxy.server.base.config import (
    DatabaseConfig,
    DiscoveryConfig,
    EngineConfig,
    LedgerFileConfig,
    Limits,
    ModelConfig,
    ProxyConfig,
    RedisConfig,
    RegionConfig,
    TenantConfig,
    TracingConfig,
)
from warmroute_proxy.server.base.config_bounds import annotated, bounds, fields_of
from warmroute_proxy.server.base.config_stores import PERIODS, BudgetKeys

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_TEXTS: Final[Schema] = {"type": "array", "items": _TEXT, "uniqueItems": True}
_FLAG: Final[Schema] = {"type": "boolean"}
_RATES: Final[Schema] = dict.fromkeys(RATES, _TEXT)


def _some_of(*words: str) -> Schema:
    return {"type": "array", "items": {"enum": list(words)}, "uniqueItems": True}


_PROCESSES: Final = bounds(ProxyConfig)["processes"]
_WRITTEN: Final[Mapping[str, Schema]] = {
    "media": {"media_schemes": _some_of("https", "http"), "media_networks": _TEXTS},
    "processes": {
        "processes": {
            "anyOf": [{"const": "auto"}, {"type": "integer", "minimum": _PROCESSES.low, "maximum": _PROCESSES.high}],
            "default": _PROCESSES.default,
        }
    },
    "kv_events": {"kv_events": {"enum": ["auto", "off"]}},
    "provider": {"provider": {"enum": sorted(PROVIDERS)}},
    "keys_within": {},
    "has_own_rules": {},
    "books": {
        **_RATES,
        "free": _FLAG,
        "price": {"type": "array", "items": {"properties": {"name": _TEXT, "from": {}, "source": _TEXT, **_RATES}}},
    },
    "scope": {"name": _TEXT, "tenants": _TEXTS, "keys": _TEXTS, **{key: _TEXT for _, key in PERIODS}},
}
_TABLES: Final[Mapping[str, tuple[type, tuple[str, ...]]]] = {
    "proxy": (ProxyConfig, ("region",)),
    "ledger": (DatabaseConfig, ()),
    "limits": (Limits, ()),
    "redis": (RedisConfig, ("url_file",)),
    "tracing": (TracingConfig, ("endpoint",)),
}
_LISTS: Final[Mapping[str, tuple[type, tuple[str, ...]]]] = {
    "region": (RegionConfig, ("name",)),
    "engine": (EngineConfig, ("url", "region")),
    "discovery": (DiscoveryConfig, ()),
    "model": (ModelConfig, ("name",)),
    "tenant": (TenantConfig, ("name",)),
    "budget": (BudgetKeys, ("name",)),
}
"""Table of the file -> the class whose fields are the table's keys, and the names of the required keys."""


def document_schema() -> Schema:
    tables = {name: _table(*one) for name, one in _TABLES.items()}
    tables["ledger"]["properties"] |= _properties(LedgerFileConfig)
    tables["ledger"]["properties"]["sync"] = {"enum": ["process", "disk"]}
    lists = {name: _table(*one) for name, one in _LISTS.items()}
    del lists["budget"]["properties"]["tokens_at_once"]
    tables |= {name: {"type": "array", "items": table} for name, table in lists.items()}
    tables["secret"] = _closed({"file": _TEXT})
    tables["prices"] = _closed({"credit_moved": _FLAG})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The configuration of a warmroute proxy",
        **_closed(tables, ("proxy",)),
    }


def settings_schema() -> Schema:
    """The schema of a tenant's settings in the database: the keys of a [[tenant]] without `name` and `key_sha256`."""
    found = _properties(TenantConfig)
    return _closed({key: schema for key, schema in found.items() if key not in {"name", "key_sha256"}})


def _table(kind: type, required: tuple[str, ...]) -> Schema:
    return _closed(_properties(kind), required)


def _closed(properties: Schema, required: tuple[str, ...] = ()) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False, "required": list(required)}


def _properties(kind: type) -> Schema:
    found: Schema = {}
    for name, hint, default in fields_of(kind):
        member, meta, extra = annotated(hint)
        if name in _WRITTEN:
            found |= _WRITTEN[name]
        elif hasattr(member, "_field_defaults"):
            found |= _properties(member)
        elif "among" in extra:
            found[name] = _some_of(*extra["among"])
        else:
            schema = msgspec.json.schema(Annotated[member, meta] if meta else member, schema_hook=lambda _: _TEXT)
            shown = {"default": default} if isinstance(default, bool | int | float | str) and default != "" else {}
            found[name] = {**schema, **shown}
    return found
