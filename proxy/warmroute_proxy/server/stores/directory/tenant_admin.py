"""Adds, changes, removes, imports and lists tenants in the database. Each change is in the audit log.

A tenant's cache salt, which keeps its cached prompts apart from those of others, is computed from the fleet secret, the
tenant's share group (tenants that share their cache) and its `salt_epoch` (`base.secrets`). The epoch is drawn at
random when a tenant is added, so a tenant that is added again under an old name finds no cache of its predecessor. All
tenants of a share group have the same epoch.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from msgspec import Struct

from warmroute_proxy.server.base.config import Config, TenantConfig
from warmroute_proxy.server.base.config_table import NAME
from warmroute_proxy.server.stores.directory.changing import MAX_LISTED, Operator, next_version
from warmroute_proxy.server.stores.directory.key_admin import KeyAdmin
from warmroute_proxy.server.stores.directory.stored_tenants import (
    MAX_SETTINGS_BYTES,
    WrongSettings,
    checked_tenant,
    decode_tenant,
)
from warmroute_proxy.server.stores.store_state import Connection, NotDone

MAX_TENANTS: Final = 10_000
SALT_EPOCHS: Final = 2**31 - 1

_FIND: Final = "SELECT settings::text FROM tenant WHERE name = $1 AND removed_at IS NULL"
_OTHERS: Final = "SELECT name, settings::text FROM tenant WHERE name <> $1 AND removed_at IS NULL"
_COUNT: Final = "SELECT count(*) FROM tenant WHERE removed_at IS NULL"
_EPOCH: Final = """
SELECT (settings->>'salt_epoch')::int FROM tenant
    WHERE removed_at IS NULL AND name <> $2 AND coalesce(settings->>'share_group', name) = $1
    ORDER BY made_at DESC LIMIT 1
"""
_ADD: Final = """
INSERT INTO tenant (name, settings, version) VALUES ($1, $2::jsonb, $3)
    ON CONFLICT (name) DO UPDATE SET settings = excluded.settings, version = excluded.version, made_at = now(),
        changed_at = now(), removed_at = NULL
"""
_CHANGE: Final = "UPDATE tenant SET settings = $2::jsonb, version = $3, changed_at = now() WHERE name = $1"
_REMOVE: Final = "UPDATE tenant SET removed_at = now(), version = $2 WHERE name = $1"
_LIST: Final = """
SELECT name, settings::text, made_at, changed_at FROM tenant
    WHERE removed_at IS NULL AND ($1::text IS NULL OR name COLLATE "C" > $1) AND ($2::text IS NULL OR name = $2)
    ORDER BY name COLLATE "C" LIMIT $3
"""


class StoredTenant(Struct, frozen=True):
    """A tenant of the database. `settings`: the members of a [[tenant]], without its name and API keys."""

    name: str
    settings: Mapping[str, Any]
    made_at: datetime
    changed_at: datetime


class ImportedTenant(NamedTuple):
    """The import of one tenant. `added`: False if the database had it already; `keys`: how many keys were added."""

    name: str
    added: bool
    keys: int


class TenantAdmin:
    """Changes tenants for one operator. The methods raise: StoreAway, StoreBusy, WrongSchema, NotDone."""

    def __init__(self, operator: Operator, config: Config) -> None:
        """`config`: without tenants of the database. Settings are checked against its models, regions and engines."""
        self._operator = operator
        self._config = config
        self._keys = KeyAdmin(operator, tuple(config.tenant_by_name))

    async def add(self, name: str, settings: Mapping[str, Any]) -> StoredTenant:
        _check_name(name)
        if name in self._config.tenant_by_name:
            text = (
                f"tenant {name} is in the config: `warmroute tenants import` puts those of a config into the database"
            )
            raise NotDone(text, code="conflict")

        async def add(connection: Connection) -> StoredTenant:
            version = await next_version(connection, "tenant")
            await self._insert(connection, name, settings, version, "add")
            return await _listed(connection, name)

        return await self._operator.change(add)

    async def change(self, name: str, changes: Mapping[str, Any]) -> StoredTenant:
        """Change some settings. None removes a setting, except that `salt_epoch` None draws a new epoch."""

        async def change(connection: Connection) -> StoredTenant:
            version = await next_version(connection, "tenant")
            before = await self._found(connection, name)
            after = {key: value for key, value in {**before, **changes}.items() if value is not None}
            if changes.get("salt_epoch", 0) is None:
                after["salt_epoch"] = _drawn_epoch()
            elif "salt_epoch" not in changes and _group(name, before) != _group(name, after):
                after["salt_epoch"] = await self._epoch(connection, name, _group(name, after))
            await self._check(connection, name, after)
            await connection.execute(_CHANGE, name, json.dumps(after), version)
            changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
            old = {key: before[key] for key in sorted(changed & before.keys())}
            new = {key: after[key] for key in sorted(changed & after.keys())}
            await self._operator.note(connection, ("tenant", "change", name), name, old, new)
            return await _listed(connection, name)

        return await self._operator.change(change)

    async def remove(self, name: str) -> int:
        """Remove a tenant, and revoke its keys. Returns the number of revoked keys."""

        async def remove(connection: Connection) -> int:
            of_keys = await next_version(connection, "key")
            version = await next_version(connection, "tenant")
            before = await self._found(connection, name)
            revoked = await self._keys.revoke_all(connection, name, of_keys)
            await connection.execute(_REMOVE, name, version)
            await self._operator.note(connection, ("tenant", "remove", name), name, before, None)
            return revoked

        return await self._operator.change(remove)

    async def import_tenants(self, tables: Sequence[Mapping[str, Any]]) -> list[ImportedTenant]:
        """Add all tenants of a config with their keys, or none. `tables`: the [[tenant]] tables of the config file, as
        checked. Cache salts and session hashes do not change, so caches stay warm.
        """

        async def add_all(connection: Connection) -> list[ImportedTenant]:
            of_keys = await next_version(connection, "key")
            version = await next_version(connection, "tenant")
            return [await self._import(connection, table, version, of_keys) for table in tables]

        return await self._operator.change(add_all)

    async def tenants(self, after: str | None, limit: int) -> list[StoredTenant]:
        """List the database's tenants by name. `after`: the name of the previous page's last tenant."""

        if after is not None and not NAME.fullmatch(after):
            raise NotDone(f"after: {after[:128]!r} is not the name of a tenant", code="invalid_value")

        async def read(connection: Connection) -> list[StoredTenant]:
            return [_stored(row) for row in await connection.fetch(_LIST, after, None, min(limit, MAX_LISTED))]

        return await self._operator.read(read)

    async def tenant(self, name: str) -> StoredTenant:
        async def read(connection: Connection) -> StoredTenant:
            return await _listed(connection, name)

        return await self._operator.read(read)

    async def _import(
        self, connection: Connection, table: Mapping[str, Any], version: int, of_keys: int
    ) -> ImportedTenant:
        name = str(table["name"])
        settings = {key: value for key, value in table.items() if key not in {"name", "key_sha256"}}
        added = await connection.fetchrow(_FIND, name) is None
        if added:
            await self._insert(connection, name, {"salt_epoch": 0, **settings}, version, "import")
        digests = [digest.lower() for digest in table.get("key_sha256", ())]
        return ImportedTenant(name, added, await self._keys.import_digests(connection, name, digests, of_keys))

    async def _insert(
        self, connection: Connection, name: str, settings: Mapping[str, Any], version: int, action: str
    ) -> None:
        if await connection.fetchrow(_FIND, name) is not None:
            raise NotDone(f"there is a tenant {name} already", code="conflict")
        if await connection.fetchval(_COUNT) >= MAX_TENANTS:
            raise NotDone(f"the database has {MAX_TENANTS} tenants already: remove some first", code="conflict")
        given = {key: value for key, value in settings.items() if value is not None}
        if "salt_epoch" not in given:
            given["salt_epoch"] = await self._epoch(connection, name, _group(name, given))
        await self._check(connection, name, given)
        await connection.execute(_ADD, name, json.dumps(given), version)
        await self._operator.note(connection, ("tenant", action, name), name, None, given)

    async def _epoch(self, connection: Connection, name: str, share_group: object) -> int:
        """The epoch of a share group's tenants in the database, else of those in the config, else a new epoch."""
        if isinstance(share_group, str) and NAME.fullmatch(share_group):
            found: int | None = await connection.fetchval(_EPOCH, share_group, name)
            if found is not None:
                return found
            of_config = [each.salt_epoch for each in self._config.tenants if each.share_group == share_group]
            if of_config:
                return of_config[0]
        return _drawn_epoch()

    async def _check(self, connection: Connection, name: str, settings: Mapping[str, Any]) -> None:
        """Check the settings of a tenant. Raises: NotDone, with all problems."""
        if len(json.dumps(settings)) > MAX_SETTINGS_BYTES:
            raise NotDone(f"the settings have more than {MAX_SETTINGS_BYTES} bytes", code="invalid_value")
        others: dict[str, TenantConfig] = {}
        if any(engine.kind == "openai" for engine in self._config.engines):  # who may use it depends on others
            for other, text in await connection.fetch(_OTHERS, name):
                try:
                    others[other] = decode_tenant(other, json.loads(text))
                except WrongSettings:
                    continue
        try:
            checked_tenant(name, settings, self._config, others)
        except WrongSettings as error:
            raise NotDone(str(error), code="invalid_value") from None

    async def _found(self, connection: Connection, name: str) -> dict[str, Any]:
        """The settings of a tenant. Raises: NotDone, if the database does not have the tenant."""
        text = await connection.fetchval(_FIND, name) if NAME.fullmatch(name) else None
        if text is None:
            in_config = name in self._config.tenant_by_name
            where = "is in the config, and not in the database: change it there" if in_config else "is not known"
            raise NotDone(f"tenant {name[:128]!r} {where}", code="not_found")
        settings: dict[str, Any] = json.loads(text)
        return settings


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise NotDone(f"{name[:128]!r} is not a name: up to 128 letters, digits and ._:/@+-", code="invalid_value")


def _group(name: str, settings: Mapping[str, Any]) -> object:
    return settings.get("share_group", name)


def _drawn_epoch() -> int:
    return 1 + secrets.randbelow(SALT_EPOCHS)


def _stored(row: Any) -> StoredTenant:
    return StoredTenant(row["name"], json.loads(row["settings"]), row["made_at"], row["changed_at"])


async def _listed(connection: Connection, name: str) -> StoredTenant:
    row = await connection.fetchrow(_LIST, None, name, 1) if NAME.fullmatch(name) else None
    if row is None:
        raise NotDone(f"there is no tenant {name[:128]!r} in the database", code="not_found")
    return _stored(row)
