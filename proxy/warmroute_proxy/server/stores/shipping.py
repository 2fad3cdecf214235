"""Sends the spool (ledger rows that the store does not have yet) to the store, in batches, and retries after failures.

Requests never wait for this. While the store is away, the spool grows on the proxy's disk.
"""

import asyncio
import logging
from collections.abc import Collection
from typing import Final, Protocol

from warmroute_proxy.server.stores.spool import Batch, Position, Spool
from warmroute_proxy.server.stores.store_state import StoreError

EVERY_S: Final = 0.25
REPORT_EVERY_S: Final = 5.0
BATCH_ROWS: Final = 4_000
LAST_TRY_S: Final = 3.0

_LOG: Final = logging.getLogger(__name__)


class RowStore(Protocol):
    """The store to which rows are sent. The methods raise: StoreError."""

    async def position(self) -> Position:
        """The position of the last row that the store has."""
        ...

    async def add(self, batch: Batch, unsent: int) -> bool:
        """Add a whole batch; False if the store is at another position. Each row uses up a lease of its start."""
        ...

    async def boots(self) -> frozenset[str]:
        """The starts of this proxy's processes that have leases on budgets."""
        ...

    async def give_back(self, boots: Collection[str]) -> None:
        """Give back the leases of these starts, which have ended. The store has all their rows."""
        ...

    async def drop_old(self) -> list[str]:
        """Drop tables that are too old. Returns their names."""
        ...

    async def close(self) -> None:
        """Note that no more rows will come."""
        ...


class OldFile(StoreError):
    """The rows in the database come from another ledger file."""


class Shipping:
    """Sends the rows of one proxy. All methods are called in the thread of the store."""

    def __init__(self, spool: Spool, store: RowStore, name: str = "the database") -> None:
        """`name`: what the log calls the store."""
        self._spool = spool
        self._store = store
        self._name = name
        self._position: Position | None = None  # of the store's last row; None if the store has to be asked
        self._running: frozenset[str] | None = None  # the starts that ran at the last look; None before the first
        self._ended: frozenset[str] = frozenset()  # starts whose leases are given back once the store has their rows
        self._ended_at = 0  # the number of their last row, or of a later row
        self._reported_s = 0.0
        self.problem = ""
        """Why rows cannot be sent, in words; empty if they can."""
        self.closing = asyncio.Event()
        self.sent = 0
        """Rows that this process has sent."""
        self.confirmed = 0
        """The number of the last row that the store is known to have."""
        self.unsent = 0
        self.unreadable = 0

    async def run(self) -> None:
        """Send rows until `closing` is set, then send the rest for at most `LAST_TRY_S`."""
        while not self.closing.is_set():
            more = await self._try()
            if not more:
                try:
                    await asyncio.wait_for(self.closing.wait(), EVERY_S)
                except TimeoutError:
                    continue
        try:
            async with asyncio.timeout(LAST_TRY_S):
                while await self._try():
                    pass
                if not self.unsent and not self.problem:
                    await self._store.close()
        except (TimeoutError, StoreError):
            pass
        self._spool.close()
        if self.unsent:
            rows = f"{self.unsent} rows of the ledger" if self.confirmed else "rows of the ledger"
            _LOG.warning("%s are not in %s yet; the next start sends them", rows, self._name)

    async def _try(self) -> bool:
        """Send a batch. Returns whether there may be more rows."""
        try:
            more = await self._send()
        except Exception as error:  # even a bug must not end the sending
            self._position = None
            problem = str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
            if problem != self.problem:
                _LOG.error("rows cannot be sent to %s, they wait in the ledger file: %s", self._name, problem)
            self.problem = problem
            self.unsent = self._spool.newest() - self.confirmed
            return False
        if self.problem:
            _LOG.info("rows are sent to %s again", self._name)
            self.problem = ""
        return more

    async def _send(self) -> bool:
        if self._position is None:
            self._position = self._checked(await self._store.position())
            self.confirmed = self._position.number
        await self._look_for_ended()
        more = await self._send_after(self._position)
        if self._ended and self._position is not None and self._position.number >= self._ended_at:
            await self._store.give_back(self._ended)
            self._ended = frozenset()
        return more

    async def _look_for_ended(self) -> None:
        if self._spool.running() == self._running:
            return
        with_leases = await self._store.boots()
        self._running = self._spool.running()  # read again: a start is there before it has leases
        self._ended = with_leases - self._running
        self._ended_at = self._spool.newest()

    async def _send_after(self, position: Position) -> bool:
        loop = asyncio.get_running_loop()
        batch = self._spool.read(position, BATCH_ROWS)
        idle = batch.up_to == batch.after
        if idle and loop.time() < self._reported_s + REPORT_EVERY_S:
            return False
        left = max(0, self._spool.newest() - batch.up_to.number)
        if not await self._store.add(batch, left):
            self._position = None
            return True
        self._reported_s = loop.time()
        self._position, self.confirmed = batch.up_to, batch.up_to.number
        self.unsent = left
        self.sent += len(batch.rows)
        if batch.unreadable:
            self.unreadable += batch.unreadable
            _LOG.error("%d rows of the ledger file are not entries, and were not sent", batch.unreadable)
        for name in await self._store.drop_old():
            _LOG.info("dropped %s: its day is older than the retention", name)
        return left > 0

    def _checked(self, position: Position) -> Position:
        """Return the position. Raises: OldFile, if this ledger file lacks the position's row, since new rows would then
        get numbers that the store has already.
        """
        if not self._spool.has(position):
            raise OldFile(
                f"the database has this proxy's rows up to number {position.number}, which is not in its ledger file:"
                " was an older copy of the state folder put back? Remove its file proxy-name, and start the proxy"
                " again; rows that the database has already are left out"
            )
        return position
