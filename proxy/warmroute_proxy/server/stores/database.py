"""One connection to PostgreSQL that reopens itself, with a deadline for each call.

A call that fails or is late closes the connection and raises `StoreAway`. The caller then does not know what the server
did, and has to find out before it repeats the call. A connection is used only after the database's schema was checked.

Error texts of the server are logged and shown, since they name users and databases, but never a password.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import asyncpg

from warmroute_proxy.server.base.secrets import SPECIAL
from warmroute_proxy.server.stores.store_state import Connection, NotDone, StoreAway, StoreState, WrongSchema

REVISIONS: Final = ("0001", "0002", "0003", "0004", "0005", "0006")
"""Revisions of the schema; this proxy needs the last one."""

_OLDEST_READER: Final = "SELECT oldest FROM schema_readers"

MIGRATION_LOCK: Final = 7_283_001
CONNECT_S: Final = 5.0
RETRY_S: Final = 1.0
_CLOSE_S: Final = 1.0
_LOG: Final = logging.getLogger(__name__)

_IDENTITY: Final = """
SELECT system_identifier || '/' || oid FROM pg_control_system(), pg_database WHERE datname = current_database()
"""

T = TypeVar("T")

FAILURES: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # for example, a primary answers although `target_session_attrs` asks for a standby
    ValueError,
)


class KnownDatabase:
    """Remembers which database the connections of a proxy have reached. Refuses a new address that leads to another
    database, since that one lacks the rows and leases of this proxy. Another database at the old address is accepted,
    as after `pg_upgrade`.
    """

    def __init__(self) -> None:
        self._dsn = self._identity = ""

    async def check(self, made: Connection, dsn: str) -> None:
        """Check the database and the schema of a new connection. Raises: WrongSchema."""
        try:
            found = await made.fetchval(_IDENTITY)
        except (asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedFunctionError):
            found = ""  # a hosted database that does not reveal its identity
        if found and self._identity not in {"", found} and self._dsn != dsn:
            raise WrongSchema(StoreState.AWAY, "the address is that of another database, which needs a restart")
        await check_schema(made)
        self._dsn, self._identity = dsn, found


class Database:
    """A connection that is used in one event loop. Its calls run one after another."""

    def __init__(self, dsn: str, prepare: str = "", known: KnownDatabase | None = None) -> None:
        """`prepare`: SQL to run on each new connection. `known`: one object for all connections of a proxy."""
        self._dsn = dsn
        self._prepare = prepare
        self._known = known or KnownDatabase()
        self._connection: Connection | None = None
        self._opening: asyncio.Task[Connection] | None = None
        self._opening_dsn = dsn
        self._moving: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._not_before_s = 0.0
        self.state = StoreState.STARTING
        self.problem = ""
        """Why the connection is not ready, in words."""

    async def call(self, work: Callable[[Connection], Awaitable[T]], timeout_s: float) -> T:
        """Run `work` with the connection. Raises: StoreAway; WrongSchema; NotDone, if `work` raises it.

        `timeout_s`: for the whole call, including its wait for other calls.
        """
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._lock.acquire()
        except TimeoutError as error:
            raise StoreAway(failure_text(error)) from None
        try:
            return await self._work(work, deadline_s)
        finally:
            self._lock.release()

    async def _work(self, work: Callable[[Connection], Awaitable[T]], deadline_s: float) -> T:
        try:
            async with asyncio.timeout_at(deadline_s):
                connection = await self._connected()
                found = await work(connection)
        except (NotDone, StoreAway):  # StoreAway: an earlier call has just failed to connect, and this one did not try
            raise
        except WrongSchema as error:
            self._drop(error.state, str(error))
            raise
        except FAILURES as error:
            text = failure_text(error)
            self._drop(StoreState.AWAY, text)
            raise StoreAway(text) from None
        except BaseException:
            self._drop(StoreState.AWAY, "a call was given up")
            raise
        self.state, self.problem = StoreState.READY, ""
        return found

    def move_to(self, dsn: str) -> None:
        """Connect to the database by another address, and retry until that works. Until then, calls use the open
        connection. So a new password may be set in the database before or after the proxy gets it.
        """
        if dsn == self._dsn:
            return
        self._dsn = dsn
        if self._moving is not None:
            self._moving.cancel()
        self._moving = asyncio.get_running_loop().create_task(self._move())

    async def close(self) -> None:
        if self._moving is not None:
            self._moving.cancel()
            await asyncio.wait({self._moving}, timeout=_CLOSE_S)
        await self._replace(None)

    async def _move(self) -> None:
        logged = ""
        while True:
            try:
                await self._moved(self._dsn)
                break
            except (*FAILURES, WrongSchema) as error:
                text = str(error) if isinstance(error, WrongSchema) else failure_text(error)
            if text != logged:
                _LOG.error("the new address of the database does not work, and an open connection is kept: %s", text)
                logged = text
            await asyncio.sleep(RETRY_S)
        _LOG.info("a connection to the database has the new address")

    async def _moved(self, dsn: str) -> None:
        made = await asyncpg.connect(dsn, timeout=CONNECT_S)
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._prepared(made, dsn)
            async with self._lock:
                await self._replace(made)
                self._not_before_s = 0.0
        finally:
            if self._connection is not made:
                made.terminate()

    async def _replace(self, made: Connection | None) -> None:
        """Use `made`, or no connection, instead of the open connection and the one that is being opened."""
        opening, self._opening = self._opening, None
        old, self._connection = self._connection, made
        if opening is not None:
            await asyncio.wait({opening}, timeout=_CLOSE_S)
            if not opening.done():
                opening.cancel()
            elif not has_failed(opening):
                opening.result().terminate()
        if old is not None:
            try:
                await old.close(timeout=_CLOSE_S)
            except FAILURES:
                old.terminate()

    async def _connected(self) -> Connection:
        if self._connection is not None and self._connection.is_closed():  # closed by the server since the last call
            self._connection = None
        if self._connection is None:
            loop = asyncio.get_running_loop()
            if self._opening is not None and has_failed(self._opening):  # its call was given up before it failed
                self._opening = None
            opened = self._opening is not None and self._opening.done()
            if loop.time() < self._not_before_s and not opened:  # a call has just failed: do not wait in vain
                raise StoreAway(self.problem)
            self._not_before_s = loop.time() + RETRY_S
            if self._opening is None:
                if loop.get_exception_handler() is None:
                    loop.set_exception_handler(_log_all_but_unread)
                self._opening_dsn = self._dsn
                self._opening = loop.create_task(asyncpg.connect(self._dsn, timeout=CONNECT_S))
            # If this call is late, it does not cancel the opening of the connection, which the next call uses. Also,
            # if asyncpg is cancelled while it connects, one of its futures may fail unread, which the event loop logs
            # as an error.
            made = await asyncio.shield(self._opening)
            self._connection, self._opening = made, None
            await self._prepared(made, self._opening_dsn)
            self._not_before_s = 0.0
        return self._connection

    async def _prepared(self, made: Connection, dsn: str) -> None:
        """Check and set up a new connection. Raises: WrongSchema."""
        await self._known.check(made, dsn)
        if self._prepare:
            await made.execute(self._prepare)

    def _drop(self, state: StoreState, problem: str) -> None:
        connection, self._connection = self._connection, None
        self.state, self.problem = state, problem
        if connection is not None:
            connection.terminate()


def _log_all_but_unread(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log errors as the event loop does, except a failure of asyncpg's connection that no call waits for: the call that
    was given up has reported the failure.
    """
    is_future = isinstance(future := context.get("future"), asyncio.Future) and not isinstance(future, asyncio.Task)
    if not (is_future and isinstance(context.get("exception"), asyncpg.ConnectionDoesNotExistError)):
        loop.default_exception_handler(context)


def has_failed(opening: asyncio.Task[Connection]) -> bool:
    """Whether an attempt to connect has ended without a connection."""
    return opening.done() and (opening.cancelled() or opening.exception() is not None)


def ask_once(dsn: str, work: Callable[[Connection], Awaitable[T]], timeout_s: float) -> T:
    """Run `work` with a new connection, outside any event loop. Raises: StoreAway, WrongSchema."""

    async def run() -> T:
        database = Database(dsn)
        try:
            return await database.call(work, timeout_s)
        finally:
            await database.close()

    return asyncio.run(run())


async def check_schema(connection: Connection) -> None:
    """Check that this proxy can use the schema. Raises: WrongSchema, which says what to do."""
    if await connection.fetchval("SELECT to_regclass('alembic_version')") is None:
        raise WrongSchema(StoreState.OLD_SCHEMA, "the database has no tables yet: run `warmroute ledger migrate`")
    found = await connection.fetchval("SELECT version_num FROM alembic_version")
    if found == REVISIONS[-1]:
        return
    if found in REVISIONS:
        text = f"the database has schema {found}, this proxy needs {REVISIONS[-1]}: run `warmroute ledger migrate`"
        raise WrongSchema(StoreState.OLD_SCHEMA, text)
    if await _is_readable(connection):
        return
    text = (
        f"the database has schema {found}, which this proxy does not know (it needs {REVISIONS[-1]}): update the proxy"
    )
    raise WrongSchema(StoreState.NEW_SCHEMA, text)


async def _is_readable(connection: Connection) -> bool:
    """Whether a newer, unknown schema declares that this version of the proxy can read and write it."""
    if await connection.fetchval("SELECT to_regclass('schema_readers')") is None:
        return False
    return await connection.fetchval(_OLDEST_READER) in REVISIONS


def failure_text(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    if isinstance(error, ValueError):  # the error's text may quote a part of a password
        return f"its address cannot be read: {SPECIAL}"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens at its address"
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
