"""Changes the directory (tenants and keys in the database) in a transaction, with a new version and an audit log.

A change first raises the version of its kind of record, which locks the kind. So changes of a kind follow one another,
and a proxy that has read up to a version has missed no change. A change of two kinds locks `key` before `tenant`.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, Protocol, TypeVar

from msgspec import Struct

from warmroute_proxy.server.stores.store_state import Connection

MAX_LISTED: Final = 10_000
"""The maximum number of records in one page."""

T = TypeVar("T")

_NEXT: Final = "UPDATE directory_version SET version = version + 1 WHERE kind = $1 RETURNING version"
_NOTE: Final = """
INSERT INTO audit (who, kind, action, subject, tenant, old, new) VALUES ($1, $2, $3, $4, $5, $6::jsonb, $7::jsonb)
"""
_CHANGES: Final = """
SELECT id, at, who, kind, action, subject, tenant, old::text, new::text FROM audit
    WHERE kind = ANY ($1) AND ($2::float8 IS NULL OR at >= to_timestamp($2)) AND ($3::bigint IS NULL OR id < $3)
    ORDER BY id DESC LIMIT $4
"""


class Ask(Protocol):
    """Runs `work` with a connection to the database. Raises: StoreAway, StoreBusy, WrongSchema, NotDone."""

    def __call__(self, work: Callable[[Connection], Awaitable[T]], /) -> Awaitable[T]: ...


class DirectoryChange(Struct, frozen=True):
    """A row of the audit log. `old`, `new`: the changed members of the record, never a secret."""

    id: int
    at: datetime
    who: str
    kind: Literal["key", "price", "tenant"]
    action: str
    subject: str
    tenant: str
    old: Mapping[str, Any] | None = None
    new: Mapping[str, Any] | None = None


class Operator:
    """Changes the directory in the name of one operator. The methods raise: StoreAway, StoreBusy, WrongSchema."""

    def __init__(self, ask: Ask, who: str) -> None:
        self.read = ask
        self._who = who

    async def change(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run `work` in a transaction. Also raises: NotDone."""

        async def in_transaction(connection: Connection) -> T:
            async with connection.transaction():
                return await work(connection)

        return await self.read(in_transaction)

    async def note(
        self,
        connection: Connection,
        what: tuple[str, str, str],
        tenant: str,
        old: Mapping[str, Any] | None,
        new: Mapping[str, Any] | None,
    ) -> None:
        """Add a row to the audit log. `what`: the kind of record, the action, and the id of the record."""
        kind, action, subject = what
        await connection.execute(_NOTE, self._who, kind, action, subject, tenant, _json(old), _json(new))

    async def changes(
        self, kinds: Sequence[str], since_s: float | None, before: int | None, limit: int
    ) -> list[DirectoryChange]:
        """Read the audit log of some kinds of record, newest first. `since_s`: unix seconds; `before`: a row's id."""

        async def read(connection: Connection) -> list[DirectoryChange]:
            rows = await connection.fetch(_CHANGES, list(kinds), since_s, before, min(limit, MAX_LISTED))
            return [DirectoryChange(**{**row, "old": _value(row["old"]), "new": _value(row["new"])}) for row in rows]

        return await self.read(read)


async def next_version(connection: Connection, kind: str) -> int:
    """Raise the version of a kind of record, and return it. The kind is locked until the transaction ends."""
    version: int = await connection.fetchval(_NEXT, kind)
    return version


def _json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value)


def _value(text: str | None) -> Mapping[str, Any] | None:
    value: Mapping[str, Any] | None = None if text is None else json.loads(text)
    return value
