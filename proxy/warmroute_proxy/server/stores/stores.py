"""Opens the stores of the config (a database and Redis, which proxies share), and reports their state.

If the config has budgets but no database, the thread for the database keeps the budgets in a file of the proxy instead.
The PostgreSQL client is imported only if the config names a database.
"""

import contextlib
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from warmroute_proxy.core.base.trouble import Problem, Trouble
from warmroute_proxy.core.queue.budget import Budget, Span, Taken
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.config import Config, DatabaseConfig
from warmroute_proxy.server.base.config_file import ConfigError
from warmroute_proxy.server.base.config_stores import counts_limits_alone
from warmroute_proxy.server.base.metrics import GaugeRow, Metrics
from warmroute_proxy.server.base.secrets import SecretError, load_dsn
from warmroute_proxy.server.ledger.ledger import LEDGER_FILE
from warmroute_proxy.server.ledger.schema import LedgerError
from warmroute_proxy.server.stores.budgets import Budgets, BudgetStore
from warmroute_proxy.server.stores.directory.access import Access, key_records, tenant_records
from warmroute_proxy.server.stores.directory.polling import Directory
from warmroute_proxy.server.stores.limits.shared_limits import SharedLimits
from warmroute_proxy.server.stores.price_table import PRICES_FILE, StoredPrices
from warmroute_proxy.server.stores.prices import Prices
from warmroute_proxy.server.stores.shipping import Shipping
from warmroute_proxy.server.stores.spool import Spool, proxy_name
from warmroute_proxy.server.stores.sqlite_store import BUDGETS_FILE, SqliteStore
from warmroute_proxy.server.stores.store_state import Connection, StoreError, StoreState, WrongSchema
from warmroute_proxy.server.stores.store_thread import StoreThread

if TYPE_CHECKING:
    from warmroute_proxy.server.stores.fleet_ledger import FleetLedger
    from warmroute_proxy.server.stores.postgres_store import Connections


_TROUBLES: Final = {
    StoreState.OLD_SCHEMA: Trouble.DATABASE_OLD_SCHEMA,
    StoreState.NEW_SCHEMA: Trouble.DATABASE_NEW_SCHEMA,
    StoreState.OLD_FILE: Trouble.LEDGER_FILE_OLD,
}
"""The problem that operators see for each state of the database; for states that are not here, `DATABASE_AWAY`."""

T = TypeVar("T")
_LOG: Final = logging.getLogger(__name__)


class InThread:
    """A store of budgets whose calls run in the thread of the database."""

    def __init__(self, thread: StoreThread, store: BudgetStore) -> None:
        self._thread = thread
        self._store = store

    async def take(self, budget: Budget, span: Span, amount: int, least: int = 0) -> Taken:
        return await self._thread.run(self._store.take(budget, span, amount, least))


class OfDatabase(NamedTuple):
    """The parts of `Stores` that exist only with a database."""

    fleet_ledger: "FleetLedger | None" = None
    """Reads the rows and sums that all proxies have sent to the database."""

    access: Access | None = None
    """Keys and tenants of the config and of the database."""

    stored_prices: StoredPrices | None = None
    """Price books in the database."""

    dsn_file: Path | None = None
    """The file with the address of the database."""


NO_DATABASE: Final = OfDatabase()


class Stores:
    def __init__(
        self,
        thread: StoreThread | None,
        budgets: Budgets,
        prices: Prices,
        limits: SharedLimits | None = None,
        settled: list[Budget] | None = None,
        database: OfDatabase = NO_DATABASE,
    ) -> None:
        """`settled`: the budgets from whose leases the thread subtracts the cost of rows."""
        self._thread = thread
        self.budgets = budgets
        self.prices = prices
        self.limits = SharedLimits.none() if limits is None else limits
        """Per-minute and concurrency limits shared by all proxies, and idempotency markers; empty without Redis."""

        self._settled = [] if settled is None else settled
        self.fleet_ledger, self.access, self._stored_prices, self._dsn_file = database

    @classmethod
    async def opened(cls, config: Config, process: int | None, metrics: Metrics, start: int) -> "Stores":
        """Open what the config names. `process`: the number of this process; None if it is the only one. `start`: the
        name of its start, from its ledger.

        Raises: LedgerError, if a database that answers cannot be used; SecretError; ConfigError, if a model has no
        price.
        """
        prices = Prices(config.models, time.time, credit_moved=config.credit_moved)
        limits = SharedLimits.none() if config.redis is None else SharedLimits.opened(config, config.redis, metrics)
        if config.database is not None:
            made = await _with_database(config, config.database, process, metrics, str(start), prices, limits)
        elif config.budgets:
            made = _without_database(config, process, metrics, str(start), prices, limits)
        else:
            made = cls(None, _budgets(config, metrics), prices, limits)
        if problems := prices.problems(config.models):
            made.close()
            raise ConfigError("price books", [*problems, *[problem.text for problem in made.problems()]])
        return made

    def problems(self) -> list[Problem]:
        """The present problems. Anybody may read them, so the reasons, which contain addresses, are only in the log."""
        found = self.limits.problems()
        if self.access is not None and (left_out := len(self.access.problems)):
            text = f"{left_out} tenants of the database are not used: the log says why"
            found.append(Problem(Trouble.TENANTS_LEFT_OUT, text))
        if self.access is not None and (nowhere := len(self.access.nowhere)):
            text = f"budgets name {nowhere} tenants that are not there: the log says which"
            found.append(Problem(Trouble.BUDGETS_WITHOUT_TENANTS, text))
        if self.access is not None and counts_limits_alone(self.access.config):
            text = "tenants of the database have limits that each proxy counts alone: they need [redis]"
            found.append(Problem(Trouble.LIMITS_COUNTED_ALONE, text))
        thread = self._thread
        if thread is None or not thread.problem:
            return found
        waiting = f"; {thread.unsent} rows wait in the ledger file" if thread.unsent else ""
        if self.fleet_ledger is None:
            return [*found, Problem(Trouble.BUDGET_FILE_UNUSABLE, "the file of budgets cannot be used")]
        state = thread.state
        return [*found, Problem(_TROUBLES.get(state, Trouble.DATABASE_AWAY), f"postgres {state.value}{waiting}")]

    def gauges(self) -> list[GaugeRow]:
        """The gauges of the stores for `/metrics`."""
        rows = self.budgets.gauges()
        if self._thread is not None and self.fleet_ledger is not None:
            rows.append((declared.STORE_UP, (("store", "postgres"),), float(not self._thread.problem)))
            rows.append((declared.LEDGER_UNSENT_ROWS, (), float(self._thread.unsent)))
        return [*rows, *self.limits.gauges()]

    def confirmed(self) -> int | None:
        """The number of the last ledger row that the store has; None if rows are not sent to a store."""
        return None if self._thread is None else self._thread.confirmed

    async def ask(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run `work` with a connection to the database. Raises: StoreAway, StoreBusy, WrongSchema, NotDone."""
        assert self._thread is not None
        return await self._thread.ask(work)

    def sweep(self) -> None:
        """Ask the stores what is due about budgets and limits, and drop expired keys. Called a few times a second."""
        self.budgets.sweep()
        self.limits.sweep()
        if self.access is not None:
            self.access.sweep()

    def watching(self) -> list[Coroutine[Any, Any, None]]:
        """Coroutines that look for changes in the database until cancelled."""
        directory = None if self.access is None else self.access.directory
        return [each.watch() for each in (directory, self._stored_prices) if each is not None]

    def replace(self, config: Config) -> None:
        self.prices.use_models(config.models)
        self.prices.credit_moved = config.credit_moved
        if self._thread is not None:
            self._settled[:] = config.budgets
            self.budgets.replace(config.budgets)
        self.limits.replace(config)

    @property
    def address_files(self) -> tuple[Path | None, ...]:
        return self._dsn_file, self.limits.url_file

    def read_addresses(self) -> None:
        """Read the addresses of the stores again. If a new address cannot be read or used, the old one stays in use."""
        for name, read in (("the database", self._read_dsn), ("redis", self.limits.read_url)):
            try:
                read()
            except SecretError as error:
                _LOG.error("the address of %s stays as it was: %s", name, error)

    def _read_dsn(self) -> None:
        if self._thread is not None and self._dsn_file is not None:
            self._thread.move_to(load_dsn(self._dsn_file))

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()


def send_rest(config: Config) -> None:
    """Send the rows that the processes of a proxy have left, and give back their leases on budgets, for a few seconds
    at most. No process may be running. What fails is left to the next start.
    """
    try:
        if not (config.proxy.state_dir / LEDGER_FILE).exists():
            return
        if config.database is not None:
            connections, make_shipping = _to_database(config, config.database, config.budgets, closes=True)
            StoreThread(connections, make_shipping).close()
        elif config.budgets:
            StoreThread(None, _to_file(config, SqliteStore(config.proxy.state_dir, "", config.budgets))).close()
    except (SecretError, LedgerError, sqlite3.Error) as error:
        _LOG.error("the last rows of the ledger were not sent, the next start sends them: %s", error)


async def _with_database(
    config: Config,
    database: DatabaseConfig,
    process: int | None,
    metrics: Metrics,
    boot: str,
    prices: Prices,
    limits: SharedLimits,
) -> Stores:
    name, settled = proxy_name(config.proxy.state_dir), list(config.budgets)
    connections, make_shipping = _to_database(config, database, settled, closes=process is None)
    from warmroute_proxy.server.stores.fleet_ledger import FleetLedger
    from warmroute_proxy.server.stores.postgres_budgets import PostgresBudgets

    thread = StoreThread(connections, None if process else make_shipping)
    try:
        answers = await thread.check()
    except WrongSchema as error:
        thread.close()
        raise LedgerError(str(error)) from None
    leases = InThread(thread, PostgresBudgets(connections.leases, name, boot))
    keys, tenants = key_records(), tenant_records()
    directory = Directory(thread, (keys, tenants), config.proxy.state_dir, time.monotonic, time.time)
    access = Access(config, directory, keys, tenants, database.key_max_age_s, time.time)
    stored_prices = StoredPrices(thread, prices, config.proxy.state_dir / PRICES_FILE)
    if answers:
        with contextlib.suppress(StoreError):
            await directory.look()
        with contextlib.suppress(StoreError):
            await stored_prices.look()
    of_database = OfDatabase(FleetLedger(thread, name), access, stored_prices, database.dsn_file)
    return Stores(thread, _budgets(config, metrics, leases), prices, limits, settled, of_database)


def _without_database(
    config: Config, process: int | None, metrics: Metrics, boot: str, prices: Prices, limits: SharedLimits
) -> Stores:
    settled = list(config.budgets)
    store = SqliteStore(config.proxy.state_dir, boot, settled)
    thread = StoreThread(None, None if process else _to_file(config, store))
    return Stores(thread, _budgets(config, metrics, InThread(thread, store)), prices, limits, settled)


def _to_database(
    config: Config, database: DatabaseConfig, settled: Sequence[Budget], *, closes: bool
) -> tuple["Connections", Callable[[], Shipping]]:
    """Connections to the database, and what makes the sender of the ledger's rows. Raises: SecretError, LedgerError."""
    try:
        from warmroute_proxy.server.stores.postgres_store import Connections, PostgresStore, Sender
    except ModuleNotFoundError as error:
        raise LedgerError(f"{error.name} is missing: install warmroute[postgres] for a ledger in a database") from None
    state_dir = config.proxy.state_dir
    sender = Sender(proxy_name(state_dir), config.proxy.region, closes)
    connections = Connections.to(load_dsn(database.dsn_file))

    def make_shipping() -> Shipping:
        rows = PostgresStore(connections.rows, sender, database.keep_days, settled)
        return Shipping(Spool(state_dir / LEDGER_FILE), rows)

    return connections, make_shipping


def _to_file(config: Config, store: SqliteStore) -> Callable[[], Shipping]:
    """What makes the sender of the ledger's rows to the file of budgets."""
    return lambda: Shipping(Spool(config.proxy.state_dir / LEDGER_FILE), store, BUDGETS_FILE)


def _budgets(config: Config, metrics: Metrics, store: BudgetStore | None = None) -> Budgets:
    return Budgets(config.budgets, store, metrics, time.time)
