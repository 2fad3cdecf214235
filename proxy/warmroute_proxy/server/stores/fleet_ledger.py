"""Reads what all proxies of a fleet have sent to the database: sums, the newest turns, one receipt.

Sums are read from the tables of hourly sums, never from rows, so they begin at a full hour. The database lacks the rows
that this proxy has not sent yet. So each answer has the number of this proxy's last row in the database, and the caller
adds the later rows.

Limits: `MAX_GROUPS` groups of a sum, and the deadline of each query.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

import msgspec

from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.core.accounting.entry_steps import void_id
from warmroute_proxy.server.ledger.usage_sums import (
    LISTED,
    MAX_GROUPS,
    OF_RECEIPT,
    SUMMED,
    By,
    Group,
    Listed,
    Sums,
    Turns,
)
from warmroute_proxy.server.stores.partitions import day_of
from warmroute_proxy.server.stores.spool import HOUR_S
from warmroute_proxy.server.stores.store_state import Connection
from warmroute_proxy.server.stores.store_thread import StoreThread

SEEN_S: Final = 15.0
"""A proxy that has not reported for this time may have rows that are not in the database."""

FORGOTTEN_DAYS: Final = 7
LONGEST_DAYS: Final = 8
"""A turn ends at most this number of days after its id was made."""

_NAMED: Final = ", ".join(f'coalesce(sum("{name}"), 0)::bigint' for name in SUMMED)
_PRICE: Final = 2 + SUMMED.index("price_nanousd")
_KEYS: Final[dict[By | None, str]] = {
    None: "''",
    "session": "session",
    "model": "model",
    "tenant": "tenant",
    "day": "to_char(to_timestamp(hour) AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
    "hour": "to_char(to_timestamp(hour) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24')",
}
_REGIONS: Final = f"""
SELECT region, bool_and(closed OR (unsent = 0 AND seen_at > now() - interval '{SEEN_S} s')) FROM spool
    WHERE seen_at > now() - interval '{FORGOTTEN_DAYS} d' GROUP BY region
"""
_POSITION: Final = 'SELECT coalesce(max("position"), 0) FROM spool WHERE proxy = $1'


class SentSums(NamedTuple):
    """Sums of the sent rows of all proxies. `position`: the number of this proxy's last row that they include."""

    sums: Sums
    position: int


class SentTurns(NamedTuple):
    """The newest turns that proxies have sent. `position`: as in `SentSums`."""

    listed: Listed
    position: int


def full_hour(since_s: float | None) -> float | None:
    """The start of the hour that contains a time, in unix seconds, since sums begin at full hours."""
    return None if since_s is None else float(since_s // HOUR_S * HOUR_S)


class FleetLedger:
    """Queries the database. Every method raises: StoreAway, StoreBusy, WrongSchema."""

    def __init__(self, store: StoreThread, proxy: str) -> None:
        """`proxy`: the name of this proxy in the database."""
        self._store = store
        self._proxy = proxy

    async def regions(self) -> dict[str, bool]:
        """The regions that reported in the last `FORGOTTEN_DAYS`, each with whether the database has all its rows."""

        async def read(connection: Connection) -> dict[str, bool]:
            return dict(await connection.fetch(_REGIONS))

        return await self._store.ask(read)

    async def add_up(self, turns: Turns, by: By | None) -> SentSums:
        """Add up the turns that `turns` selects, from the start of its first hour on."""

        async def read(connection: Connection) -> SentSums:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                position = await connection.fetchval(_POSITION, self._proxy)
                return SentSums(await _sums(connection, turns, by), position)

        return await self._store.ask(read)

    async def newest(self, turns: Turns, limit: int) -> SentTurns:
        async def read(connection: Connection) -> SentTurns:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                position = await connection.fetchval(_POSITION, self._proxy)
                condition, values = _condition(turns, "settled_at", turns.since_s)
                query = f"SELECT record FROM turn WHERE {condition} ORDER BY day DESC, settled_at DESC LIMIT {limit:d}"
                found = await connection.fetch(query, *values)
            return SentTurns(Listed([_listed(Entry.read(record)) for (record,) in found], complete=True), position)

        return await self._store.ask(read)

    async def entry(self, tenant: str, id_: str, drawn_s: float) -> tuple[Entry, bool] | None:
        """A turn, and whether it was voided; None if not found. `drawn_s`: when its id was made, in unix seconds."""
        days = day_of(drawn_s) - timedelta(days=1), day_of(drawn_s) + timedelta(days=LONGEST_DAYS)

        async def read(connection: Connection) -> tuple[Entry, bool] | None:
            query = "SELECT id, record FROM turn WHERE id = ANY($1) AND tenant = $2 AND day BETWEEN $3 AND $4"
            found = dict(await connection.fetch(query, [id_, void_id(id_)], tenant, *days))
            return (Entry.read(found[id_]), void_id(id_) in found) if id_ in found else None

        return await self._store.ask(read)


async def _sums(connection: Connection, turns: Turns, by: By | None) -> Sums:
    of_session = turns.session is not None or by == "session"
    table = "usage_session" if of_session else "usage_hour"
    condition, values = _condition(turns, "hour", full_hour(turns.since_s), with_day=of_session)
    grouped = f"SELECT {_KEYS[by]} AS key, {_NAMED} FROM {table} WHERE {condition} GROUP BY 1"
    columns = ", ".join(f'"{name}"' for name in ("key", *SUMMED))
    all_of = f"WITH grouped (key, {columns.partition(', ')[2]}) AS ({grouped}) SELECT count(*), {_NAMED} FROM grouped"
    count, *total = await connection.fetchrow(all_of, *values)
    if by is None:
        return Sums(_by_name(total))
    dearest = f"{grouped} ORDER BY {_PRICE} DESC, 1 LIMIT {MAX_GROUPS}"
    groups = [Group(key, _by_name(sums)) for key, *sums in await connection.fetch(dearest, *values)]
    return Sums(_by_name(total), groups, count - len(groups))


def _condition(
    turns: Turns, time_column: str, since_s: float | None, *, with_day: bool = True
) -> tuple[str, list[Any]]:
    parts: list[str] = ["true"]
    values: list[Any] = []
    for column, value in (("tenant", turns.tenant), ("session", turns.session), (time_column, since_s)):
        if value is not None:
            values.append(int(value) if column == "hour" and isinstance(value, float) else value)
            parts.append(f"{column} {'=' if column in {'tenant', 'session'} else '>='} ${len(values)}")
    if since_s is not None and with_day:
        values.append(day_of(min(max(since_s, 0.0), _LAST_S)))
        parts.append(f"day >= ${len(values)}")
    return " AND ".join(parts), values


_LAST_S: Final = 253_370_764_800.0  # the year 9999


def _listed(entry: Entry) -> dict[str, Any]:
    receipt: dict[str, Any] = msgspec.json.decode(entry.usage).get("warmroute", {})
    of_receipt = {name: receipt.get(name) for name in OF_RECEIPT}
    return {**{name: getattr(entry, name) for name in LISTED}, **of_receipt, "loss": receipt.get("loss") or {}}


def _by_name(values: list[int]) -> dict[str, int]:
    return dict(zip(SUMMED, values, strict=True))


def merged(one: Sums, other: Sums) -> Sums:
    """Add two sums. Groups with the same key become one group."""
    groups = {group.key: group for group in one.groups}
    for group in other.groups:
        known = groups.get(group.key)
        groups[group.key] = group if known is None else Group(group.key, _added(known.sums, group.sums), group.about)
    return Sums(
        _added(one.all, other.all),
        list(groups.values()),
        one.groups_left_out + other.groups_left_out,
        one.complete and other.complete,
        other.counted_since,
    )


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: value + other[name] for name, value in one.items()}
