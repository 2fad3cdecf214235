"""Finds the tenant of a request by its API key, among the keys and tenants of the config and of the database.

If the config and the database have the same key or tenant, that of the config is used. A key of the database is valid
until it is revoked or expires, but at most until `max_age_s` after the database's last answer. A key of the config is
always valid, unless it was imported into the database and then revoked there, or has expired there. Only the newest
`MAX_ENDED` of such keys are read.
"""

import json
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from warmroute_proxy.server.base.config import Config, TenantConfig
from warmroute_proxy.server.base.secrets import ApiKeys
from warmroute_proxy.server.stores.directory.key_admin import GOOD
from warmroute_proxy.server.stores.directory.polling import Directory
from warmroute_proxy.server.stores.directory.records import Records
from warmroute_proxy.server.stores.directory.stored_tenants import decode_tenant, with_stored

_LOG: Final = logging.getLogger(__name__)
MAX_ENDED: Final = 10_000
"""How many revoked or expired keys are read, at most, beginning with the newest change."""

_KEYS: Final = f"""
SELECT sha256, json_build_object('id', id, 'tenant', tenant,
        'expires_at', CASE WHEN {GOOD} THEN extract(epoch FROM expires_at)::float8 ELSE 0 END)::text
    FROM api_key WHERE version > $1 AND ($1 >= 0 OR {GOOD} OR id IN
        (SELECT id FROM api_key WHERE NOT ({GOOD}) ORDER BY version DESC, id LIMIT {MAX_ENDED}))
"""
_TENANTS: Final = """
SELECT name, CASE WHEN removed_at IS NULL THEN settings::text END FROM tenant
    WHERE version > $1 AND (removed_at IS NULL OR $1 >= 0)
"""


class StoredKey(msgspec.Struct, frozen=True):
    """A key's id and tenant. `expires_at`: unix seconds; None if it never expires; 0 if it was revoked or expired."""

    id: str
    tenant: str
    expires_at: float | None = None

    def is_good(self, now_s: float) -> bool:
        """Whether the key is valid now. `now_s`: unix seconds."""
        return self.expires_at is None or self.expires_at > now_s


def key_records() -> Records[StoredKey]:
    decoder = msgspec.json.Decoder(StoredKey)
    return Records("key", _KEYS, lambda _, text: decoder.decode(text))


def tenant_records() -> Records[TenantConfig]:
    return Records("tenant", _TENANTS, lambda name, text: decode_tenant(name, json.loads(text)))


class Access:
    """The keys and tenants that are valid now. Used in the event loop of requests."""

    def __init__(
        self,
        config: Config,
        directory: Directory,
        keys: Records[StoredKey],
        tenants: Records[TenantConfig],
        max_age_s: float,
        wall_clock: Callable[[], float],
    ) -> None:
        """`wall_clock`: the clock by which keys expire, in unix seconds."""
        self.of_file = config
        self.directory = directory
        self._keys = keys
        self.tenants = tenants
        self._max_age_s = max_age_s
        self._wall_clock = wall_clock
        self._expires_at: float | None = None
        self._was_fresh = False
        self._unused: frozenset[str] = frozenset()
        self.problems: dict[str, str] = {}
        """The reasons why tenants of the database are not used, by their names."""

        self.nowhere: frozenset[str] = frozenset()
        """Tenants that a budget names although they are neither in the config nor in the database."""

        self.config = config
        """The config with the tenants of the database added."""

        self.api_keys = ApiKeys({})
        self.ids_by_tenant: dict[str, set[str]] = {}
        """The ids of the database's keys, also of keys that have ended."""

        self.on_keys: list[Callable[[], None]] = []
        """Functions to call when keys may have changed."""

        self.on_tenants: list[Callable[[Config], None]] = []
        """Functions to call with `config` when tenants may have changed, before those in `on_keys`."""

        self._merge()
        self._merge_keys()
        keys.on_change.append(self._merge_keys)
        tenants.on_change.append(self._replace_tenants)

    def replace(self, config: Config) -> Config:
        """Use the keys and tenants of another config. Returns that config with the tenants of the database added."""
        self.of_file = config
        self._merge()
        self._merge_keys()
        return self.config

    def newly_left_out(self, config: Config) -> list[str]:
        """List tenants of the database that are used now but would not be used with `config`, and the reasons."""
        left_out = with_stored(config, self.tenants.values)[1]
        return [
            f"tenant {name} of the database would be left out: {why}"
            for name, why in left_out.items()
            if name in self.config.tenant_by_name
        ]

    def _replace_tenants(self) -> None:
        self._merge()
        for call in self.on_tenants:
            call(self.config)
        self._merge_keys()

    def sweep(self) -> None:
        """Refuse keys that have expired, and all keys of a database that has not answered for too long. Called a few
        times a second.
        """
        expired = self._expires_at is not None and self._wall_clock() >= self._expires_at
        if expired or self._was_fresh != self._fresh():
            self._merge_keys()

    def _fresh(self) -> bool:
        return self.directory.age_s <= self._max_age_s

    def _merge(self) -> None:
        self.config, self.problems = with_stored(self.of_file, self.tenants.values)
        both = sorted(self.tenants.values.keys() & self.of_file.tenant_by_name.keys())
        unused = {f"tenant {name}: {why}" for name, why in self.problems.items()} | {
            f"tenant {name} is in the config, too: its settings there count" for name in both
        }
        for text in sorted(unused - self._unused):
            _LOG.warning("the database has a tenant that is not used: %s", text)
        self._unused = frozenset(unused)
        self._find_nowhere()

    def _find_nowhere(self) -> None:
        """Find tenants that budgets name but that do not exist, once the tenants of the database were read."""
        config = self.of_file
        scopes = [budget.scope for budget in config.budgets] + [of.scope for of in config.group_limits]
        named = {tenant for scope in scopes for tenant in scope.tenants}
        is_read = self.directory.age_s < float("inf")
        nowhere = named - config.tenant_by_name.keys() - self.tenants.texts.keys() if is_read else set[str]()
        for name in sorted(nowhere - self.nowhere):
            _LOG.warning("a [[budget]] names tenant %s, which is neither in the config nor in the database", name)
        self.nowhere = frozenset(nowhere)

    def _merge_keys(self) -> None:
        now_s, self._was_fresh = self._wall_clock(), self._fresh()
        if self._keys.values and not self._was_fresh:
            _LOG.error("the database has not answered for %g s: its API keys are refused", self._max_age_s)
        stored = self._keys.values if self._was_fresh else {}
        good = {sha256: key for sha256, key in stored.items() if key.is_good(now_s)}
        self._expires_at = min((key.expires_at for key in good.values() if key.expires_at is not None), default=None)
        known = self.config.tenant_by_name
        of_stored = {sha256: key.tenant for sha256, key in good.items() if key.tenant in known}
        ids = {sha256: key.id for sha256, key in self._keys.values.items()}  # also used for keys of the config
        self.ids_by_tenant = {}
        for key in self._keys.values.values():
            self.ids_by_tenant.setdefault(key.tenant, set()).add(key.id)
        ended = {sha256 for sha256, key in self._keys.values.items() if not key.is_good(now_s)}
        in_file = self.of_file.tenant_by_sha256()
        of_file = {sha256: tenant for sha256, tenant in in_file.items() if sha256.lower() not in ended}
        self.api_keys.replace(of_stored | of_file, ids)
        for call in self.on_keys:
            call()
