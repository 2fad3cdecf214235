"""Keeps the budgets of a proxy without a database in a file beside its ledger, with the costs of ledger rows by hour.

A lease is a part of a budget that a process may use without asking again. As in PostgreSQL, one transaction moves the
position up to which rows were added, adds their costs, and subtracts these from leases. The processes of a proxy share
the file.
"""

import sqlite3
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from warmroute_proxy.core.queue.budget import Budget, Span, Taken, span_of
from warmroute_proxy.server.ledger.schema import LedgerError, connect
from warmroute_proxy.server.stores.spool import Batch, Position, SpooledRow

BUDGETS_FILE: Final = "budgets.sqlite"
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS spool (one INT PRIMARY KEY CHECK (one = 1), position INT NOT NULL, last_id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS spent (tenant TEXT, hour INT, nanousd INT NOT NULL, PRIMARY KEY (tenant, hour));
CREATE TABLE IF NOT EXISTS key_spent (key TEXT, hour INT, nanousd INT NOT NULL, PRIMARY KEY (key, hour));
CREATE TABLE IF NOT EXISTS lease (
    boot TEXT, name TEXT, period TEXT, starts INT, nanousd INT NOT NULL, PRIMARY KEY (boot, name, period, starts)
);
CREATE TABLE IF NOT EXISTS charged_hour (hour INT PRIMARY KEY);
INSERT OR IGNORE INTO spool VALUES (1, 0, '');
"""
_SPEND: Final = """
INSERT INTO spent VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET nanousd = nanousd + excluded.nanousd
"""
_KEY_SPENDS: Final = """
INSERT INTO key_spent VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET nanousd = nanousd + excluded.nanousd
"""
_TAKE: Final = """
INSERT INTO lease VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET nanousd = nanousd + excluded.nanousd
"""
_SETTLE: Final = """
UPDATE lease SET nanousd = max(0, nanousd - ?) WHERE boot = ? AND name = ? AND period = ? AND starts = ?
"""
_SPENT: Final = """
SELECT coalesce(sum(nanousd), 0) FROM (
    SELECT nanousd FROM spent WHERE tenant IN ({}) AND hour >= ? AND hour < ?
    UNION ALL
    SELECT nanousd FROM key_spent WHERE key IN ({}) AND hour >= ? AND hour < ?
)
"""
KEPT_HOURS: Final = 40 * 24
"""How many hours with costs are kept: more than a month has, which is the longest period of a budget."""

_NEW_HOUR: Final = "INSERT OR IGNORE INTO charged_hour VALUES (?)"
_OLDEST: Final = "SELECT hour FROM charged_hour ORDER BY hour DESC LIMIT 1 OFFSET ?"


class SqliteStore:
    """Adds the costs of rows, and leases parts of budgets. Used in the thread of the store."""

    def __init__(self, state_dir: Path, boot: str, budgets: Sequence[Budget]) -> None:
        """Raises: LedgerError."""
        path = state_dir / BUDGETS_FILE
        try:
            self._db: sqlite3.Connection = connect(path)
            self._db.executescript(_TABLES)
        except sqlite3.Error as error:
            raise LedgerError(f"{path} cannot be used: {error}") from None
        self._boot = boot
        self._budgets = budgets

    async def position(self) -> Position:
        return Position(*self._db.execute("SELECT position, last_id FROM spool").fetchone())

    async def add(self, batch: Batch, unsent: int) -> bool:
        """Add the costs of a batch, and subtract them from leases; False if the position is not `batch.after`."""
        del unsent
        budgets = tuple(self._budgets)  # a copy: the event loop of requests may replace them meanwhile
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            moved = self._db.execute(
                "UPDATE spool SET position = ?, last_id = ? WHERE position = ?", (*batch.up_to, batch.after.number)
            )
            if moved.rowcount != 1:
                return False
            costs = _costs(batch.rows)
            self._db.executemany(_SPEND, [(tenant, hour, cost) for (tenant, _, hour, _), (cost, _) in costs.items()])
            by_key = [(key_id, hour, cost) for (_, key_id, hour, _), (cost, _) in costs.items() if key_id]
            self._db.executemany(_KEY_SPENDS, by_key)
            for (tenant, key_id, hour, boot), (_, charged) in costs.items():
                for budget in budgets:
                    if charged and budget.scope.holds(tenant, key_id):
                        key = boot, budget.name, budget.period, span_of(budget.period, hour).starts_s
                        self._db.execute(_SETTLE, (charged, *key))
            self._delete_old({hour for _, _, hour, _ in costs})
        return True

    async def take(self, budget: Budget, span: Span, amount: int, least: int = 0) -> Taken:
        key = budget.name, budget.period, span.starts_s
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            if amount < 0:
                self._db.execute(_SETTLE, (-amount, self._boot, *key))
            left = budget.limit - self._spent(budget, span) - self._leased(key)
            taken = max(0, min(amount, left)) if left >= least else 0
            if taken:
                self._db.execute(_TAKE, (self._boot, *key, taken))
        return Taken(taken, left - taken)

    async def boots(self) -> frozenset[str]:
        """The starts of this proxy's processes that have leases."""
        return frozenset(boot for (boot,) in self._db.execute("SELECT DISTINCT boot FROM lease"))

    async def give_back(self, boots: Collection[str]) -> None:
        """Give back the leases of these starts, which have ended, and the costs of all their rows were added."""
        with self._db:
            self._db.executemany("DELETE FROM lease WHERE boot = ?", [(boot,) for boot in boots])

    async def drop_old(self) -> list[str]:
        return []

    async def close(self) -> None:
        self._db.close()

    def _delete_old(self, hours: Iterable[int]) -> None:
        """Delete all but the newest `KEPT_HOURS` hours that have costs. A turn adds at most one such hour, so a clock
        that is wrong for a while deletes at most as many hours as it adds.
        """
        if self._db.executemany(_NEW_HOUR, [(hour,) for hour in hours]).rowcount < 1:
            return
        oldest = self._db.execute(_OLDEST, (KEPT_HOURS - 1,)).fetchone()
        if oldest is not None:
            self._db.execute("DELETE FROM spent WHERE hour < ?", oldest)
            self._db.execute("DELETE FROM key_spent WHERE hour < ?", oldest)
            self._db.execute("DELETE FROM lease WHERE starts < ?", oldest)
            self._db.execute("DELETE FROM charged_hour WHERE hour < ?", oldest)

    def _spent(self, budget: Budget, span: Span) -> int:
        tenants, keys = budget.scope.tenants, budget.scope.keys
        query = _SPENT.format(_marks(tenants), _marks(keys))
        spent: int = self._db.execute(query, (*tenants, *span, *keys, *span)).fetchone()[0]
        return spent

    def _leased(self, key: tuple[str, str, int]) -> int:
        query = "SELECT coalesce(sum(nanousd), 0) FROM lease WHERE name = ? AND period = ? AND starts = ?"
        leased: int = self._db.execute(query, key).fetchone()[0]
        return leased


def _costs(rows: Iterable[SpooledRow]) -> dict[tuple[str, str, int, str], tuple[int, int]]:
    """Two sums for each tenant, key, hour and start: the cost of all rows, and the cost of rows with a positive price.
    Adding sums needs few statements; a statement for each row would take three to six times as long.
    """
    costs: dict[tuple[str, str, int, str], tuple[int, int]] = {}
    for row in rows:
        of, price = (row.tenant, row.key_id, row.hour, row.boot), row.price_nanousd
        cost, charged = costs.get(of, (0, 0))
        costs[of] = cost + price, charged + max(0, price)
    return costs


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))
