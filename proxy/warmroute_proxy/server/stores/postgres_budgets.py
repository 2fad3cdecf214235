"""Leases parts of budgets to proxies, and keeps the leases in PostgreSQL.

What was spent of a budget is read from the hourly sums of tenants or keys. A budget's row has the amount that is leased
but not spent yet; the row is locked while it changes. The transaction that adds ledger rows also subtracts their prices
from the leases, so each price counts exactly once. Once a process of a proxy has ended and the database has all its
rows, its leases are given back.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, date, datetime, time
from typing import Final

from warmroute_proxy.core.queue.budget import Budget, Span, Taken, span_of
from warmroute_proxy.server.stores import budgets
from warmroute_proxy.server.stores.database import Database
from warmroute_proxy.server.stores.store_state import Connection

_KNOW: Final = "INSERT INTO budget (name, period, starts) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
_LOCK: Final = "SELECT leased_nanousd FROM budget WHERE name = $1 AND period = $2 AND starts = $3 FOR UPDATE"
_TAKE: Final = """
WITH prices AS (
    SELECT price_nanousd AS nanousd FROM usage_hour WHERE tenant = ANY ($4) AND hour >= $3 AND hour < $5
    UNION ALL
    SELECT nanousd FROM key_hour WHERE key = ANY ($8) AND hour >= $3 AND hour < $5
), spent AS (
    SELECT coalesce(sum(nanousd), 0)::bigint AS nanousd FROM prices
)
UPDATE budget SET leased_nanousd = leased_nanousd + CASE WHEN $6 - leased_nanousd - spent.nanousd < $9 THEN 0
        ELSE greatest(0, least($7::bigint, $6 - leased_nanousd - spent.nanousd)) END
    FROM spent WHERE name = $1 AND period = $2 AND starts = $3
    RETURNING leased_nanousd, $6 - leased_nanousd - spent.nanousd
"""
_HOLD: Final = """
INSERT INTO budget_lease VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (proxy, boot, name, period, starts) DO UPDATE SET nanousd = budget_lease.nanousd + excluded.nanousd
"""
_HELD: Final = """
SELECT nanousd FROM budget_lease WHERE proxy = $1 AND boot = $2 AND name = $3 AND period = $4 AND starts = $5 FOR UPDATE
"""
_LESS_HELD: Final = """
UPDATE budget_lease SET nanousd = nanousd - $6
    WHERE proxy = $1 AND boot = $2 AND name = $3 AND period = $4 AND starts = $5
"""
_LESS: Final = """
UPDATE budget SET leased_nanousd = leased_nanousd - $4 WHERE name = $1 AND period = $2 AND starts = $3
"""
_BOOTS: Final = "SELECT DISTINCT boot FROM budget_lease WHERE proxy = $1"
_GIVE_BACK: Final = """
WITH gone AS (DELETE FROM budget_lease WHERE proxy = $1 AND boot = ANY ($2) RETURNING name, period, starts, nanousd)
UPDATE budget SET leased_nanousd = leased_nanousd - gone.nanousd
    FROM (SELECT name, period, starts, sum(nanousd)::bigint AS nanousd FROM gone GROUP BY 1, 2, 3) gone
    WHERE budget.name = gone.name AND budget.period = gone.period AND budget.starts = gone.starts
"""


class PostgresBudgets:
    """Takes leases for a process of a proxy. `boot`: the id of the process' start. Raises: StoreAway, WrongSchema."""

    def __init__(self, database: Database, proxy: str, boot: str = "") -> None:
        self._database = database
        self._proxy = proxy
        self._boot = boot

    async def take(self, budget: Budget, span: Span, amount: int, least: int = 0) -> Taken:
        key = budget.name, budget.period, span.starts_s

        async def lease(connection: Connection) -> Taken:
            async with connection.transaction():
                await connection.execute(_KNOW, *key)
                before = await connection.fetchval(_LOCK, *key)
                if amount < 0:
                    before -= await self._less(connection, key, self._boot, -amount)
                wanted = max(0, amount)
                tenants, keys = map(list, (budget.scope.tenants, budget.scope.keys))
                values = *key, tenants, span.ends_s, budget.limit, wanted, keys, least
                after, left = await connection.fetchrow(_TAKE, *values)
                if after > before:
                    await connection.execute(_HOLD, self._proxy, self._boot, *key, after - before)
            return Taken(max(0, after - before), left)

        return await self._database.call(lease, budgets.ASK_S)

    async def settle(
        self, connection: Connection, budgets: Sequence[Budget], prices: Iterable[tuple[str, str, date, str, int]]
    ) -> None:
        """Subtract the prices of rows from leases, in the transaction that adds the rows. `prices`: tenant, key id,
        day, start of the process, and price.
        """
        spent: dict[tuple[str, str, int, str], int] = {}
        for tenant, key_id, day, boot, price in prices:
            at_s = datetime.combine(day, time(), UTC).timestamp()
            for budget in budgets:
                if budget.scope.holds(tenant, key_id):
                    key = budget.name, budget.period, span_of(budget.period, at_s).starts_s, boot
                    spent[key] = spent.get(key, 0) + price
        for (name, period, starts_s, boot), price in sorted(spent.items()):
            each = name, period, starts_s
            if price > 0 and await connection.fetchval(_LOCK, *each) is not None:
                await self._less(connection, each, boot, price)

    async def boots(self, connection: Connection) -> frozenset[str]:
        """The starts of this proxy's processes that have leases."""
        return frozenset(boot for (boot,) in await connection.fetch(_BOOTS, self._proxy))

    async def give_back(self, connection: Connection, boots: Collection[str]) -> None:
        """Give back the leases of these starts, which have ended, and all their rows were added."""
        await connection.execute(_GIVE_BACK, self._proxy, list(boots))

    async def _less(self, connection: Connection, key: tuple[str, str, int], boot: str, amount: int) -> int:
        """Reduce a start's lease by `amount`, but at most to 0. Returns the reduction."""
        held = await connection.fetchval(_HELD, self._proxy, boot, *key)
        amount = min(held or 0, amount)
        if amount:
            await connection.execute(_LESS_HELD, self._proxy, boot, *key, amount)
            await connection.execute(_LESS, *key, amount)
        return amount
