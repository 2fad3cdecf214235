"""Whose request it is, by keys and tenants of the config and of the database together.

A key or tenant of the config counts where the database has the same one. Keys of the database are good until they are
revoked or expire, and for `max_age_s` after the database has answered last; those of the config always are.
"""

import json
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from warmroute_proxy.server.base.config import Config, TenantConfig
from warmroute_proxy.server.base.secrets import ApiKeys
from warmroute_proxy.server.stores.directory.polling import Directory
from warmroute_proxy.server.stores.directory.records import Records
from warmroute_proxy.server.stores.directory.stored_tenants import decode_tenant, with_stored

_LOG: Final = logging.getLogger(__name__)
_KEYS: Final = """
SELECT sha256, CASE WHEN revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now()) THEN
    json_build_object('id', id, 'tenant', tenant, 'expires_at', extract(epoch FROM expires_at)::float8)::text END
    FROM api_key WHERE version > $1 AND (revoked_at IS NULL OR $1 >= 0)
"""
_TENANTS: Final = """
SELECT name, CASE WHEN removed_at IS NULL THEN settings::text END FROM tenant
    WHERE version > $1 AND (removed_at IS NULL OR $1 >= 0)
"""


class StoredKey(msgspec.Struct, frozen=True):
    """Whose key it is. `expires_at`: unix seconds; None: never."""

    id: str
    tenant: str
    expires_at: float | None = None


def key_records() -> Records[StoredKey]:
    """The keys of the database, by their digests."""
    decoder = msgspec.json.Decoder(StoredKey)
    return Records("key", _KEYS, lambda _, text: decoder.decode(text))


def tenant_records() -> Records[TenantConfig]:
    """The tenants of the database, by their names."""
    return Records("tenant", _TENANTS, lambda name, text: decode_tenant(name, json.loads(text)))


class Access:
    """The keys and tenants that are good now. Used in the event loop of requests."""

    def __init__(
        self,
        config: Config,
        directory: Directory,
        keys: Records[StoredKey],
        tenants: Records[TenantConfig],
        max_age_s: float,
        wall_clock: Callable[[], float],
    ) -> None:
        """`wall_clock`: unix seconds, by which keys expire."""
        self.of_file = config
        self.directory = directory
        self._keys = keys
        self._tenants = tenants
        self._max_age_s = max_age_s
        self._wall_clock = wall_clock
        self._expires_at: float | None = None
        self._was_fresh = False
        self._unused: frozenset[str] = frozenset()
        self.problems: list[str] = []
        """Why some tenants of the database are not used."""

        self.config = config
        """The config, with the tenants of the database beside its own."""

        self.api_keys = ApiKeys({})
        self.on_keys: list[Callable[[], None]] = []
        """Called when keys are no longer what they were."""

        self.on_tenants: list[Callable[[Config], None]] = []
        """Called with `config` when tenants are no longer what they were; before the keys."""

        self._merge()
        self._merge_keys()
        keys.on_change.append(self._merge_keys)
        tenants.on_change.append(self._replace_tenants)

    def replace(self, config: Config) -> Config:
        """Know the keys and tenants of another config. Returns it with the tenants of the database."""
        self.of_file = config
        self._merge()
        self._merge_keys()
        return self.config

    def _replace_tenants(self) -> None:
        self._merge()
        for call in self.on_tenants:
            call(self.config)
        self._merge_keys()

    def sweep(self) -> None:
        """Drop keys that have expired; called a few times a second."""
        expired = self._expires_at is not None and self._wall_clock() >= self._expires_at
        if expired or self._was_fresh != self._fresh():
            self._merge_keys()

    def _fresh(self) -> bool:
        return self.directory.age_s <= self._max_age_s

    def _merge(self) -> None:
        """Put the tenants together."""
        self.config, self.problems = with_stored(self.of_file, self._tenants.values)
        both = sorted(self._tenants.values.keys() & self.of_file.tenant_by_name.keys())
        unused = frozenset(self.problems) | {
            f"tenant {name} is in the config, too: its settings there count" for name in both
        }
        for text in sorted(unused - self._unused):
            _LOG.warning("the database has a tenant that is not used: %s", text)
        self._unused = unused

    def _merge_keys(self) -> None:
        now_s, self._was_fresh = self._wall_clock(), self._fresh()
        if self._keys.values and not self._was_fresh:
            _LOG.error("the database has not answered for %g s: its API keys are refused", self._max_age_s)
        stored = self._keys.values if self._was_fresh else {}
        good = {sha256: key for sha256, key in stored.items() if key.expires_at is None or key.expires_at > now_s}
        self._expires_at = min((key.expires_at for key in good.values() if key.expires_at is not None), default=None)
        known = self.config.tenant_by_name
        of_stored = {sha256: key.tenant for sha256, key in good.items() if key.tenant in known}
        ids = {sha256: key.id for sha256, key in self._keys.values.items()}  # one of the config keeps its id
        self.api_keys.replace(of_stored | self.of_file.tenant_by_sha256(), ids)
        for call in self.on_keys:
            call()
