"""What operators do with keys in the database: make, rotate, revoke, list. Each change is a row of the audit log.

A key is shown once, when it is made; the database has its digest. All of a change is one transaction, with the number
by which proxies see that something has changed.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final, NamedTuple, TypeVar

from warmroute_proxy.server.base.secrets import new_api_key
from warmroute_proxy.server.stores.database import Database
from warmroute_proxy.server.stores.store_state import Connection

CALL_S: Final = 10.0
MAX_LISTED: Final = 10_000

T = TypeVar("T")

_MAKE: Final = """
INSERT INTO api_key (id, sha256, tenant, note, expires_at)
    VALUES ($1, $2, $3, $4, now() + make_interval(secs => $5::float8))
"""
_END: Final = """
UPDATE api_key SET expires_at = least(coalesce(expires_at, 'infinity'), now() + make_interval(secs => $2::float8))
    WHERE id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now()) RETURNING tenant, note
"""
_REVOKE: Final = "UPDATE api_key SET revoked_at = now() WHERE id = $1 AND revoked_at IS NULL RETURNING tenant"
_LIST: Final = f"""
SELECT id, tenant, note, made_at, expires_at, CASE WHEN revoked_at IS NOT NULL THEN 'revoked'
    WHEN expires_at <= now() THEN 'expired' ELSE 'good' END FROM api_key
    WHERE $1::text IS NULL OR tenant = $1 ORDER BY made_at DESC LIMIT {MAX_LISTED}
"""
_AUDIT: Final = "INSERT INTO audit (who, action, subject, tenant, kind) VALUES ($1, $2, $3, $4, 'key')"
_AUDITED: Final = f"SELECT at, who, action, subject, tenant FROM audit ORDER BY at DESC LIMIT {MAX_LISTED}"


class NoSuchKey(Exception):
    """There is no good key of this id."""


class MadeKey(NamedTuple):
    """A new key: its id, and itself, which is shown once."""

    id: str
    key: str


class ListedKey(NamedTuple):
    """A key as it is listed. `state`: good, expired or revoked."""

    id: str
    tenant: str
    note: str
    made_at: datetime
    expires_at: datetime | None
    state: str


class Change(NamedTuple):
    """A row of the audit log."""

    at: datetime
    who: str
    action: str
    subject: str
    tenant: str


class KeyAdmin:
    """Changes of one operator. Its methods raise: StoreAway, WrongSchema."""

    def __init__(self, dsn: str, who: str) -> None:
        self._dsn = dsn
        self._who = who

    def make(self, tenant: str, note: str, lifetime_s: float | None) -> MadeKey:
        """Make a key of a tenant."""

        async def make(connection: Connection) -> MadeKey:
            made = await self._insert(connection, tenant, note, lifetime_s)
            await self._changed(connection, "make", made.id, tenant)
            return made

        return self._run(make)

    def rotate(self, id_: str, overlap_s: float, lifetime_s: float | None) -> MadeKey:
        """Make a key in place of another one, which is good for some time still. Raises: NoSuchKey."""

        async def rotate(connection: Connection) -> MadeKey:
            found = await connection.fetchrow(_END, id_, overlap_s)
            if found is None:
                raise NoSuchKey(id_)
            tenant, note = found
            made = await self._insert(connection, tenant, note, lifetime_s)
            await self._changed(connection, f"rotate to {made.id}", id_, tenant)
            return made

        return self._run(rotate)

    def revoke(self, id_: str) -> str:
        """Revoke a key. Returns its tenant. Raises: NoSuchKey."""

        async def revoke(connection: Connection) -> str:
            tenant: str | None = await connection.fetchval(_REVOKE, id_)
            if tenant is None:
                raise NoSuchKey(id_)
            await self._changed(connection, "revoke", id_, tenant)
            return tenant

        return self._run(revoke)

    def keys(self, tenant: str | None) -> list[ListedKey]:
        """The keys of a tenant, or of all, the newest first."""

        async def read(connection: Connection) -> list[ListedKey]:
            return [ListedKey(*row) for row in await connection.fetch(_LIST, tenant)]

        return self._run(read)

    def changes(self) -> list[Change]:
        """The audit log, the newest first."""

        async def read(connection: Connection) -> list[Change]:
            return [Change(*row) for row in await connection.fetch(_AUDITED)]

        return self._run(read)

    async def _insert(self, connection: Connection, tenant: str, note: str, lifetime_s: float | None) -> MadeKey:
        key, digest = new_api_key()
        id_ = f"k-{secrets.token_hex(5)}"
        await connection.execute(_MAKE, id_, digest, tenant, note, lifetime_s)
        return MadeKey(id_, key)

    async def _changed(self, connection: Connection, action: str, subject: str, tenant: str) -> None:
        await connection.execute("UPDATE directory_version SET version = version + 1 WHERE kind = 'key'")
        await connection.execute(_AUDIT, self._who, action, subject, tenant)

    def _run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        async def in_transaction(connection: Connection) -> T:
            async with connection.transaction():
                return await work(connection)

        async def run() -> T:
            database = Database(self._dsn)
            try:
                return await database.call(in_transaction, CALL_S)
            finally:
                await database.close()

        return asyncio.run(run())
