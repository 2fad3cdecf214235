"""Adds the ledger rows of a proxy to PostgreSQL, each row once.

One transaction moves the proxy's position (its last sent row) from the batch's start to its end, adds the rows and
their sums, and subtracts their cost from the proxy's leases on budgets. If the position is not at the batch's start,
the batch was added before, and nothing changes. So after a call with an unknown outcome, the batch can be sent again.

Rows that the database has already are not changed, and not summed again. They are sent again if a ledger file was
restored from a backup.
"""

import time
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from warmroute_proxy.core.queue.budget import Budget
from warmroute_proxy.server.ledger.usage_sums import SUMMED
from warmroute_proxy.server.stores.database import Database, KnownDatabase
from warmroute_proxy.server.stores.partitions import Partitions, day_of
from warmroute_proxy.server.stores.postgres_budgets import PostgresBudgets
from warmroute_proxy.server.stores.spool import Batch, Position
from warmroute_proxy.server.stores.store_state import Connection, StoreAway

ADD_S: Final = 30.0
"""The deadline for adding a batch."""

CLOSE_S: Final = 1.0
_COLUMNS: Final = (
    "day", "id", "tenant", "session", "model", "region", "settled_at", "record", "key", "hour", *SUMMED, "boot",
)  # fmt: skip
_NAMED: Final = ", ".join(f'"{name}"' for name in SUMMED)
_SUMMED: Final = ", ".join(f'sum("{name}")' for name in SUMMED)
_KINDS: Final = (
    "day date, id text, tenant text, session text, model text, region text, settled_at float8, record text, key text"
)
INCOMING: Final = f"""
SET synchronous_commit = on;
CREATE TEMP TABLE incoming ({_KINDS}, hour bigint, {", ".join(f'"{name}" bigint' for name in SUMMED)}, boot text)
    ON COMMIT DELETE ROWS
"""
"""The SQL to run on a new connection, before any `add`."""


def _add_up(table: str) -> str:
    return ", ".join(f'"{name}" = {table}."{name}" + excluded."{name}"' for name in SUMMED)


_MOVE: Final = """
UPDATE spool SET "position" = $3, last_id = $4, unsent = $5, seen_at = now() WHERE proxy = $1 AND "position" = $2
"""
_KNOW: Final = """
INSERT INTO spool (proxy, region) VALUES ($1, $2)
    ON CONFLICT (proxy) DO UPDATE SET region = excluded.region, closed = false, seen_at = now()
    RETURNING "position", last_id
"""
_ADD: Final = f"""
WITH added AS (
    INSERT INTO turn (day, id, tenant, session, model, region, proxy, settled_at, record)
        SELECT day, id, tenant, session, model, region, $1, settled_at, record FROM incoming
        ON CONFLICT DO NOTHING RETURNING day, id
), known AS (
    SELECT incoming.* FROM incoming JOIN added USING (day, id)
), of_hour AS (
    INSERT INTO usage_hour (tenant, hour, model, proxy, {_NAMED})
        SELECT tenant, hour, model, $1, {_SUMMED} FROM known GROUP BY 1, 2, 3
        ON CONFLICT (tenant, hour, model, proxy) DO UPDATE SET {_add_up("usage_hour")}
), of_session AS (
    INSERT INTO usage_session (day, tenant, session, hour, model, proxy, {_NAMED})
        SELECT day, tenant, session, hour, model, $1, {_SUMMED} FROM known GROUP BY 1, 2, 3, 4, 5
        ON CONFLICT (day, tenant, session, hour, model, proxy) DO UPDATE SET {_add_up("usage_session")}
), of_key AS (
    INSERT INTO key_hour (key, hour, proxy, nanousd)
        SELECT key, hour, $1, sum(price_nanousd) FROM known WHERE key <> '' GROUP BY 1, 2
        ON CONFLICT (key, hour, proxy) DO UPDATE SET nanousd = key_hour.nanousd + excluded.nanousd
)
SELECT tenant, key, day, boot, sum(greatest(price_nanousd, 0))::bigint FROM known
    GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
"""
"""Adds the rows and their sums. Returns the prices to subtract from leases, without the negative prices of voids."""


class Sender(NamedTuple):
    """The sending proxy. `closes`: whether no other process of the proxy runs when the sender ends."""

    proxy: str
    region: str
    closes: bool = True


class Connections(NamedTuple):
    """Separate connections to one database, so a long query delays neither keys nor rows nor budgets."""

    directory: Database
    questions: Database
    rows: Database
    leases: Database

    @classmethod
    def to(cls, dsn: str) -> "Connections":
        """Connections to the database at `dsn`. Each is opened by its first call."""
        known = KnownDatabase()
        directory, questions, rows, leases = (Database(dsn, prepare, known) for prepare in ("", "", INCOMING, ""))
        return cls(directory, questions, rows, leases)


class PostgresStore:
    """Sends rows to the database. The methods raise: StoreAway, WrongSchema."""

    def __init__(
        self, database: Database, sender: Sender, keep_days: int | None, budgets: Sequence[Budget] = ()
    ) -> None:
        """`database`: a connection that runs `INCOMING` when it opens."""
        self.database = database
        self._sender = sender
        self._budgets = budgets
        self._leases = PostgresBudgets(database, sender.proxy)
        self._partitions = Partitions(keep_days)

    async def position(self) -> Position:
        async def know(connection: Connection) -> Position:
            return Position(*await connection.fetchrow(_KNOW, self._sender.proxy, self._sender.region))

        return await self.database.call(know, ADD_S)

    async def add(self, batch: Batch, unsent: int) -> bool:
        """Add a batch; False if the position is not `batch.after`. `unsent`: how many rows wait after the batch."""

        async def send(connection: Connection) -> bool:
            rows = [(day_of(row.hour), *row[2:9], row.key_id, row.hour, *row.sums, row.boot) for row in batch.rows]
            await self._partitions.make(connection, {day_of(row.hour) for row in batch.rows})
            async with connection.transaction():
                move = self._sender.proxy, batch.after.number, *batch.up_to, unsent
                moved = await connection.execute(_MOVE, *move)
                if moved != "UPDATE 1":
                    return False
                await connection.copy_records_to_table("incoming", records=rows, columns=_COLUMNS)
                prices = await connection.fetch(_ADD, self._sender.proxy)
                budgets = tuple(self._budgets)  # a copy: the event loop of requests may replace them meanwhile
                if budgets:
                    await self._leases.settle(connection, budgets, prices)
            return True

        try:
            return await self.database.call(send, ADD_S)
        except StoreAway:
            self._partitions.forget()  # the cause may be that another proxy has dropped a table
            raise

    async def boots(self) -> frozenset[str]:
        return await self.database.call(self._leases.boots, ADD_S)

    async def give_back(self, boots: Collection[str]) -> None:
        async def give_back(connection: Connection) -> None:
            await self._leases.give_back(connection, boots)

        await self.database.call(give_back, ADD_S)

    async def close(self) -> None:
        """Note that the database has all rows of this proxy, and that no more will come."""

        async def note(connection: Connection) -> None:
            await connection.execute("UPDATE spool SET closed = true WHERE proxy = $1", self._sender.proxy)

        if self._sender.closes:
            await self.database.call(note, CLOSE_S)

    async def drop_old(self) -> list[str]:
        async def drop(connection: Connection) -> list[str]:
            return await self._partitions.drop_old(connection, time.time())

        return await self.database.call(drop, ADD_S)
