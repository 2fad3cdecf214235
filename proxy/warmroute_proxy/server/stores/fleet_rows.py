"""Reads the rows of all proxies from the database, one after another, for a command that compares them.

A cursor fetches the rows in batches, so memory does not grow with their number. Each fetch has a deadline.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

import asyncpg

from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.server.stores.database import CONNECT_S, FAILURES, check_schema, failure_text
from warmroute_proxy.server.stores.partitions import day_of
from warmroute_proxy.server.stores.store_state import StoreAway

FETCHED_ROWS: Final = 2_000
FETCH_S: Final = 60.0
_ROWS: Final = "SELECT record FROM turn WHERE day >= $1 AND settled_at >= $2"
_UNSENT: Final = "SELECT coalesce(sum(unsent), 0)::bigint FROM spool"


async def unsent_rows(dsn: str) -> int:
    """How many rows the proxies have not sent, as they last reported. Raises: StoreAway, WrongSchema."""
    async with _connected(dsn) as connection:
        count: int = await connection.fetchval(_UNSENT)
        return count


async def rows_since(dsn: str, since_s: float) -> AsyncIterator[Entry]:
    """The entries that were settled at `since_s` (unix seconds) or later. Raises: StoreAway, WrongSchema."""
    async with _connected(dsn) as connection, connection.transaction(readonly=True):
        cursor = await connection.cursor(_ROWS, day_of(since_s) - timedelta(days=1), since_s)
        while fetched := await cursor.fetch(FETCHED_ROWS):
            for (record,) in fetched:
                yield Entry.read(record)


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    try:
        made = await asyncpg.connect(dsn, timeout=CONNECT_S, command_timeout=FETCH_S)
        try:
            await check_schema(made)
            yield made
        finally:
            made.terminate()
    except FAILURES as error:
        raise StoreAway(failure_text(error)) from None
