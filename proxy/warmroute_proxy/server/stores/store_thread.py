"""Runs the thread in which a proxy process talks to its database; the event loop of requests calls into it.

Limits: `MAX_WAITING` queries wait; further queries are refused (`StoreBusy`).
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from warmroute_proxy.server.stores.shipping import Shipping
from warmroute_proxy.server.stores.store_state import Connection, StoreAway, StoreState

if TYPE_CHECKING:
    from warmroute_proxy.server.stores.postgres_store import Connections

MAX_WAITING: Final = 32
QUESTION_S: float = 5.0
START_S: Final = 5.0
_CLOSE_S: Final = 8.0
_LOG: Final = logging.getLogger(__name__)

T = TypeVar("T")


class StoreBusy(Exception):
    """Too many queries wait for the database."""


class StoreThread:
    """A thread with its own event loop. `state` and `problem` come from the last call to the database."""

    def __init__(self, connections: "Connections | None", make_shipping: Callable[[], Shipping] | None) -> None:
        """`connections`: None without a database; `make_shipping`: None if another process sends the rows."""
        self._loop = asyncio.new_event_loop()
        self._connections = connections
        self._make_shipping = make_shipping
        self._shipping: Shipping | None = None
        self._done = asyncio.Event()
        self._waiting = 0
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    @property
    def state(self) -> StoreState:
        if self._connections is None:
            return StoreState.READY
        if self._make_shipping is None:
            return self._connections.questions.state
        ready = self._connections.rows.state is StoreState.READY
        return StoreState.OLD_FILE if ready and self.problem else self._connections.rows.state

    @property
    def problem(self) -> str:
        """Why the store is not ready; empty if it is."""
        of_rows = self._shipping.problem if self._shipping is not None else ""
        if self._connections is None:
            return of_rows
        if self._make_shipping is None:
            return self._connections.questions.problem
        return self._connections.rows.problem or of_rows

    @property
    def unsent(self) -> int:
        """How many rows waited to be sent at the last attempt."""
        return self._shipping.unsent if self._shipping is not None else 0

    @property
    def confirmed(self) -> int:
        """The number of the last row that the store is known to have; 0 before it has answered."""
        return self._shipping.confirmed if self._shipping is not None else 0

    @property
    def sent(self) -> int:
        return self._shipping.sent if self._shipping is not None else 0

    async def check(self) -> bool:
        """Check whether the database can be used. Returns False if it is away, since it may come back. Raises:
        WrongSchema.
        """
        try:
            await self.ask(_nothing, START_S)
        except StoreAway as error:
            _LOG.error("the database of the ledger is away: %s; rows wait in the ledger file until it is back", error)
            return False
        return True

    async def ask(self, work: Callable[[Connection], Awaitable[T]], timeout_s: float | None = None) -> T:
        """Run `work` with a connection, for a caller in another event loop. Raises: StoreAway, StoreBusy, WrongSchema.

        `timeout_s`: None means `QUESTION_S`.
        """
        if self._waiting >= MAX_WAITING:
            raise StoreBusy
        self._waiting += 1
        try:
            assert self._connections is not None
            return await self.run(
                self._connections.questions.call(work, QUESTION_S if timeout_s is None else timeout_s)
            )
        finally:
            self._waiting -= 1

    async def look(self, work: Callable[[Connection], Awaitable[T]], timeout_s: float) -> T:
        """Run `work` with the connection that is reserved for tenants and keys. Raises: StoreAway, WrongSchema."""
        assert self._connections is not None
        return await self.run(self._connections.directory.call(work, timeout_s))

    async def run(self, call: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))

    def move_to(self, dsn: str) -> None:
        for database in self._connections or ():
            self._loop.call_soon_threadsafe(database.move_to, dsn)

    def close(self) -> None:
        """Send the rows that are left, for a few seconds at most, and end the thread."""
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
        if self._make_shipping is not None:
            self._shipping = self._make_shipping()
            if self._done.is_set():  # `close` was called before the thread began
                self._shipping.closing.set()
            await self._shipping.run()
        await self._done.wait()
        for database in self._connections or ():
            await database.close()

    def _end(self) -> None:
        self._done.set()
        if self._shipping is not None:
            self._shipping.closing.set()


async def _nothing(_connection: Connection) -> None:
    """Do nothing: the call only tests that the connection works."""
