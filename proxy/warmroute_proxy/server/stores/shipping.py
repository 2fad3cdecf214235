"""Sends the spool to the store, in order, a batch at a time, and goes on after every failure.

Requests never wait for this. While the store is away the spool grows on the disk of the proxy.
"""

import asyncio
import logging
from typing import Final

from warmroute_proxy.server.stores.database import StoreAway, WrongSchema
from warmroute_proxy.server.stores.postgres_store import PostgresStore
from warmroute_proxy.server.stores.spool import Spool

EVERY_S: Final = 0.25
REPORT_EVERY_S: Final = 5.0
BATCH_ROWS: Final = 4_000
LAST_TRY_S: Final = 3.0

_LOG: Final = logging.getLogger(__name__)


class Shipping:
    """One for each proxy. All methods but `status` are called in the thread of the store."""

    def __init__(self, spool: Spool, store: PostgresStore) -> None:
        self._spool = spool
        self._store = store
        self._position: int | None = None  # None: it has to be asked for
        self._reported_s = 0.0
        self._was_away = False
        self.closing = asyncio.Event()
        self.sent = 0
        """Rows that this process has sent."""
        self.unsent = 0
        self.unreadable = 0

    async def run(self) -> None:
        """Send until `closing`, then what is left, once."""
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
                if not self.unsent and not self._was_away:
                    await self._store.close()
        except (TimeoutError, StoreAway, WrongSchema):
            pass
        if self.unsent:
            _LOG.warning("%d rows of the ledger are not in the database yet; the next start sends them", self.unsent)

    async def _try(self) -> bool:
        """Send a batch. True where there may be more."""
        try:
            more = await self._send()
        except (StoreAway, WrongSchema) as error:
            self._position = None
            self.unsent = self._waiting()
            if not self._was_away:
                _LOG.error("the database of the ledger cannot be used: %s; rows wait in the ledger file", error)
            self._was_away = True
            return False
        except Exception as error:  # an error of ours must not end the sending
            self._position = None
            _LOG.error("sending rows to the database failed: %s: %s", type(error).__name__, error)
            return False
        if self._was_away:
            _LOG.info("the database of the ledger can be used again")
            self._was_away = False
        return more

    async def _send(self) -> bool:
        loop = asyncio.get_running_loop()
        if self._position is None:
            self._position = self._checked(await self._store.position())
        batch = self._spool.read(self._position, BATCH_ROWS)
        idle = batch.up_to == batch.after
        if idle and loop.time() < self._reported_s + REPORT_EVERY_S:
            return False
        left = max(0, self._spool.newest() - batch.up_to)
        if not await self._store.add(batch, left):
            self._position = None
            return True
        self._reported_s = loop.time()
        self._position, self.unsent = batch.up_to, left
        self.sent += len(batch.rows)
        if batch.unreadable:
            self.unreadable += batch.unreadable
            _LOG.error("%d rows of the ledger file are no entries, and were not sent", batch.unreadable)
        for name in await self._store.drop_old():
            _LOG.info("dropped %s: its day is older than what is kept", name)
        return left > 0

    def _checked(self, position: int) -> int:
        """A position that lies behind the last row is one of a ledger file that was lost: its rows have numbers again
        that were sent before.
        """
        newest = self._spool.newest()
        if position > newest:
            raise ValueError(
                f"the database has this proxy's rows up to number {position}, its ledger file ends at {newest}: was an"
                " older copy of the state folder put back? Remove its file proxy-name; rows that are there already are"
                " left out"
            )
        return position

    def _waiting(self) -> int:
        return max(0, self._spool.newest() - (self._position or 0)) if self._position is not None else self.unsent
