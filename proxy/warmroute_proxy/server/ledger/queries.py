"""Answers questions about many rows in a thread, one at a time, while the event loop goes on.

Limits: `MAX_WAITING` questions wait, of one tenant `MAX_OF_TENANT`; further ones are refused (`Busy`).
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from warmroute_proxy.server.ledger.usage_sums import By, Listed, Sums, Turns, add_up, newest

MAX_WAITING: Final = 16
MAX_OF_TENANT: Final = 4

T = TypeVar("T")


class Busy(Exception):
    """Too many questions wait. `own`: too many of this tenant."""

    def __init__(self, own: bool) -> None:
        super().__init__(own)
        self.own = own


class LedgerQueries:
    """Questions about the ledger of a proxy. Called in the event loop."""

    def __init__(self, state_dir: Path, database: Path) -> None:
        self._state_dir = state_dir
        self._database = database
        self._closing = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger-query")
        self._waiting: Counter[str] = Counter()  # by tenant; "" of operators

    def close(self) -> None:
        """Stop what is read now."""
        self._closing.set()
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def add_up(self, turns: Turns, by: By | None, above: int = 0) -> Sums:
        """What some turns add up to, of rows above a number. Raises: Busy, Closed, sqlite3.Error."""
        stopped = self._closing.is_set
        return await self.ask(turns.tenant, lambda: add_up(self._state_dir, self._database, turns, by, stopped, above))

    async def newest(self, turns: Turns, limit: int, above: int = 0) -> Listed:
        """The newest of some turns. Raises: as `add_up`."""
        stopped, where = self._closing.is_set, (self._state_dir, self._database)
        return await self.ask(turns.tenant, lambda: newest(*where, turns, limit, stopped, above))

    async def ask(self, tenant: str | None, question: Callable[[], T]) -> T:
        """The answer to another question of a tenant's, or of an operator's. Raises: Busy, and as the question."""
        tenant = tenant or ""
        if self._waiting[tenant] >= MAX_OF_TENANT:
            raise Busy(own=True)
        if self._waiting.total() >= MAX_WAITING:
            raise Busy(own=False)
        self._waiting[tenant] += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, question)
        finally:
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant]
