"""Makes, rotates, changes, revokes and lists API keys in the database. Each change is in the audit log.

A key is shown only once, when it is made; the database has only its digest. One transaction makes the whole change and
raises the version of keys, by which proxies notice the change.
"""

import re
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from warmroute_proxy.server.base.config_table import NAME
from warmroute_proxy.server.base.secrets import config_key_id, new_api_key
from warmroute_proxy.server.stores.directory.changing import MAX_LISTED, Operator, next_version
from warmroute_proxy.server.stores.store_state import Connection, NotDone

ID: Final = re.compile(r"[ck]-[0-9a-f]{10}")
KeyId = Annotated[str, Meta(pattern=f"^{ID.pattern}$")]
MAX_KEYS: Final = 1_000
"""How many usable keys one tenant may have."""

MAX_NOTE_CHARS: Final = 200
MAX_LIFETIME_S: Final = 3_153_600_000.0
"""A hundred years."""

_MAKE: Final = """
INSERT INTO api_key (id, sha256, tenant, note, expires_at, version)
    VALUES ($1, $2, $3, $4, now() + make_interval(secs => $5::float8), $6) ON CONFLICT DO NOTHING RETURNING expires_at
"""
GOOD: Final = "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())"
"""The SQL condition for a row whose key can be used."""

_FIND: Final = f"SELECT tenant, note, expires_at FROM api_key WHERE id = $1 AND {GOOD}"
_COUNT: Final = f"SELECT count(*) FROM api_key WHERE tenant = $1 AND {GOOD}"
_END: Final = """
UPDATE api_key SET version = $3,
    expires_at = least(coalesce(expires_at, 'infinity'), now() + make_interval(secs => $2::float8))
    WHERE id = $1 RETURNING expires_at
"""
_CHANGE: Final = """
UPDATE api_key SET version = $2, note = $3,
    expires_at = CASE WHEN $4 THEN now() + make_interval(secs => $5::float8) ELSE expires_at END
    WHERE id = $1 RETURNING expires_at
"""
_REVOKE: Final = "UPDATE api_key SET revoked_at = now(), version = $2 WHERE id = $1"
_REVOKE_ALL: Final = f"UPDATE api_key SET revoked_at = now(), version = $2 WHERE tenant = $1 AND {GOOD} RETURNING id"
_LIST: Final = """
SELECT id, tenant, note, made_at, expires_at, CASE WHEN revoked_at IS NOT NULL THEN 'revoked'
    WHEN expires_at <= now() THEN 'expired' ELSE 'good' END AS state FROM api_key
    WHERE ($1::text IS NULL OR tenant = $1) AND ($2::text IS NULL OR id = $2) AND
        ($3::text IS NULL OR (made_at, id) < (SELECT made_at, id FROM api_key WHERE id = $3))
    ORDER BY made_at DESC, id DESC LIMIT $4
"""
_STORED: Final = "SELECT EXISTS (SELECT 1 FROM tenant WHERE name = $1 AND removed_at IS NULL)"


class MadeKey(Struct, frozen=True):
    """A new key. `key`: its text, which is shown only once; `expires_at`: None if it never expires."""

    id: KeyId
    key: str
    tenant: str
    expires_at: datetime | None


class ListedKey(Struct, frozen=True):
    """A key in a list, without its text and digest."""

    id: KeyId
    tenant: str
    note: str
    made_at: datetime
    expires_at: datetime | None
    state: Literal["good", "expired", "revoked"]


class KeyAdmin:
    """Changes keys for one operator. The methods raise: StoreAway, StoreBusy, WrongSchema, NotDone."""

    def __init__(self, operator: Operator, of_config: Sequence[str]) -> None:
        """`of_config`: the names of the config's tenants. Keys are made only for these and the database's tenants."""
        self._operator = operator
        self._of_config = frozenset(of_config)

    async def make(self, tenant: str, note: str, lifetime_s: float | None) -> MadeKey:
        _check_note(note)

        async def make(connection: Connection) -> MadeKey:
            version = await next_version(connection, "key")
            is_known = tenant in self._of_config or (
                NAME.fullmatch(tenant) and await connection.fetchval(_STORED, tenant)
            )
            if not is_known:
                raise NotDone(
                    f"there is no tenant {tenant[:128]!r}, in the config or in the database", code="not_found"
                )
            return await self._insert(connection, tenant, note, lifetime_s, version)

        return await self._operator.change(make)

    async def rotate(self, id_: str, overlap_s: float, lifetime_s: float | None) -> MadeKey:
        """Make a key that replaces key `id_`; the old key stays valid for `overlap_s`.

        The new key has another id, so budgets that name the old id do not apply to it.
        """

        async def rotate(connection: Connection) -> MadeKey:
            version = await next_version(connection, "key")
            tenant, note, before = await _found(connection, id_)
            after = await connection.fetchval(_END, id_, overlap_s, version)
            made = await self._insert(connection, tenant, note, lifetime_s, version)
            new = {"expires_at": _text(after), "replaced_by": made.id}
            await self._operator.note(connection, ("key", "rotate", id_), tenant, {"expires_at": _text(before)}, new)
            return made

        return await self._operator.change(rotate)

    async def change(self, id_: str, note: str | None, *, sets_end: bool, lifetime_s: float | None) -> ListedKey:
        """Change the note of a key, unless it is None. If `sets_end`, the key also expires after `lifetime_s`, or never
        if that is None.
        """
        _check_note(note or "")

        async def change(connection: Connection) -> ListedKey:
            version = await next_version(connection, "key")
            tenant, old_note, before = await _found(connection, id_)
            new_note = old_note if note is None else note
            after = await connection.fetchval(_CHANGE, id_, version, new_note, sets_end, lifetime_s)
            old, new = _described(old_note, before), _described(new_note, after)
            await self._operator.note(connection, ("key", "change", id_), tenant, old, new)
            return ListedKey(*await connection.fetchrow(_LIST, None, id_, None, 1))

        return await self._operator.change(change)

    async def revoke(self, id_: str) -> str:
        async def revoke(connection: Connection) -> str:
            version = await next_version(connection, "key")
            tenant, note, expires_at = await _found(connection, id_)
            await connection.execute(_REVOKE, id_, version)
            await self._operator.note(connection, ("key", "revoke", id_), tenant, _described(note, expires_at), None)
            return tenant

        return await self._operator.change(revoke)

    async def keys(self, tenant: str | None, after: str | None, limit: int) -> list[ListedKey]:
        """List the keys of one tenant, or (None) of all, newest first. `after`: the last id of the previous page."""

        if tenant is not None and not NAME.fullmatch(tenant):
            raise NotDone(f"tenant: {tenant[:128]!r} is not the name of a tenant", code="invalid_value")
        if after is not None and not ID.fullmatch(after):
            raise NotDone(f"after: {after[:64]!r} is not the id of a key", code="invalid_value")

        async def read(connection: Connection) -> list[ListedKey]:
            rows = await connection.fetch(_LIST, tenant, None, after, min(limit, MAX_LISTED))
            return [ListedKey(*row) for row in rows]

        return await self._operator.read(read)

    async def key(self, id_: str) -> ListedKey:
        async def read(connection: Connection) -> ListedKey | None:
            row = await connection.fetchrow(_LIST, None, id_, None, 1) if ID.fullmatch(id_) else None
            return None if row is None else ListedKey(*row)

        found = await self._operator.read(read)
        if found is None:
            raise NotDone(f"there is no key {id_[:64]!r}", code="not_found")
        return found

    async def revoke_all(self, connection: Connection, tenant: str, version: int) -> int:
        """Revoke all keys of a tenant in the transaction that removes the tenant. Returns how many were revoked."""
        revoked = await connection.fetch(_REVOKE_ALL, tenant, version)
        for row in revoked:
            await self._operator.note(connection, ("key", "revoke", row["id"]), tenant, None, None)
        return len(revoked)

    async def import_digests(self, connection: Connection, tenant: str, digests: Sequence[str], version: int) -> int:
        """Import the keys of a config's tenant, with their ids, which budgets may name. Returns how many were added."""
        added = 0
        for digest in digests:
            id_ = config_key_id(digest)
            if await connection.fetchrow(_MAKE, id_, digest, tenant, "imported", None, version) is not None:
                await self._operator.note(connection, ("key", "import", id_), tenant, None, {"note": "imported"})
                added += 1
        return added

    async def _insert(
        self, connection: Connection, tenant: str, note: str, lifetime_s: float | None, version: int
    ) -> MadeKey:
        if await connection.fetchval(_COUNT, tenant) >= MAX_KEYS:
            raise NotDone(f"tenant {tenant} has {MAX_KEYS} good keys already: revoke some first", code="conflict")
        key, digest = new_api_key()
        id_ = _new_id()
        row = await connection.fetchrow(_MAKE, id_, digest, tenant, note, lifetime_s, version)
        if row is None:
            raise NotDone("the key that was drawn is there already: try again", code="conflict")
        new = _described(note, row["expires_at"])
        await self._operator.note(connection, ("key", "make", id_), tenant, None, new)
        return MadeKey(id_, key, tenant, row["expires_at"])


def _check_note(note: str) -> None:
    """Raises: NotDone."""
    if len(note) > MAX_NOTE_CHARS or not note.isprintable():
        raise NotDone(f"note: must be one line of at most {MAX_NOTE_CHARS} printable characters", code="invalid_value")


def _new_id() -> str:
    return f"k-{secrets.token_hex(5)}"


async def _found(connection: Connection, id_: str) -> tuple[str, str, datetime | None]:
    """The tenant, the note and the expiry of a usable key. Raises: NotDone, if there is no such key."""
    row = await connection.fetchrow(_FIND, id_) if ID.fullmatch(id_) else None
    if row is None:
        raise NotDone(f"there is no good key {id_[:64]!r}; `warmroute keys list` shows them", code="not_found")
    return row["tenant"], row["note"], row["expires_at"]


def _described(note: str, expires_at: datetime | None) -> dict[str, Any]:
    return {"note": note, "expires_at": _text(expires_at)}


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat(timespec="seconds")
