"""The thread in which a proxy talks to its database, and questions to it from the event loop.

Limits: `MAX_WAITING` questions wait; further ones are refused (`StoreBusy`).
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from warmroute_proxy.server.stores.database import Connection, Database, StoreAway, StoreState
from warmroute_proxy.server.stores.postgres_store import INCOMING, PostgresStore, Sender
from warmroute_proxy.server.stores.shipping import Shipping
from warmroute_proxy.server.stores.spool import Spool

MAX_WAITING: Final = 32
QUESTION_S: Final = 5.0
START_S: Final = 5.0
_CLOSE_S: Final = 8.0
_LOG: Final = logging.getLogger(__name__)

T = TypeVar("T")


class StoreBusy(Exception):
    """Too many questions wait for the database."""


class StoreThread:
    """A thread with an event loop, one connection for questions and one for the rows that are sent."""

    def __init__(self, dsn: str, sender: Sender, keep_days: int | None, open_spool: Callable[[], Spool] | None) -> None:
        """`open_spool`: None where another process of this proxy sends the rows."""
        self._loop = asyncio.new_event_loop()
        self._questions = Database(dsn)
        self._sending = Database(dsn, INCOMING)
        self._store = PostgresStore(self._sending, sender, keep_days)
        self._open_spool = open_spool
        self._shipping: Shipping | None = None
        self._done: asyncio.Event | None = None
        self._waiting = 0
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    @property
    def state(self) -> StoreState:
        """What the database is to this proxy, by the last call."""
        if self._open_spool is None:
            return self._questions.state
        ready = self._sending.state is StoreState.READY
        return StoreState.OLD_FILE if ready and self.problem else self._sending.state

    @property
    def problem(self) -> str:
        """Why it is not ready."""
        if self._open_spool is None:
            return self._questions.problem
        return self._sending.problem or (self._shipping.problem if self._shipping is not None else "")

    @property
    def unsent(self) -> int:
        """How many rows wait to be sent, at the last look."""
        return self._shipping.unsent if self._shipping is not None else 0

    @property
    def sent(self) -> int:
        """How many rows this process has sent."""
        return self._shipping.sent if self._shipping is not None else 0

    async def check(self) -> None:
        """Look whether the database can be used. Raises: WrongSchema. One that is away may come later."""
        try:
            await self.ask(_nothing, START_S)
        except StoreAway as error:
            _LOG.error("the database of the ledger is away: %s; rows wait in the ledger file until it is back", error)

    async def ask(self, work: Callable[[Connection], Awaitable[T]], timeout_s: float = QUESTION_S) -> T:
        """Ask the database something, from another event loop. Raises: StoreAway, StoreBusy, WrongSchema."""
        if self._waiting >= MAX_WAITING:
            raise StoreBusy
        self._waiting += 1
        try:
            call = self._questions.call(work, timeout_s)
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Send what is left, for some seconds at most, and end the thread."""
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            _LOG.error("the thread of the database does not end")

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._done = asyncio.Event()
        if self._open_spool is not None:
            spool = self._open_spool()
            self._shipping = Shipping(spool, self._store)
            try:
                await self._shipping.run()
            finally:
                spool.close()
        await self._done.wait()
        for database in (self._questions, self._sending):
            await database.close()

    def _end(self) -> None:
        if self._done is not None:
            self._done.set()
        if self._shipping is not None:
            self._shipping.closing.set()


async def _nothing(_connection: Connection) -> None:
    """That the connection is there is the answer."""
