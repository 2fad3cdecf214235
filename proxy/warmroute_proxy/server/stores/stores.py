"""The stores that this proxy shares with others, as its config names them, and what they are to it now.

The client of PostgreSQL is imported only where the config names a database.
"""

from typing import TYPE_CHECKING

from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.metrics import Labels
from warmroute_proxy.server.base.secrets import load_dsn
from warmroute_proxy.server.ledger.ledger import LEDGER_FILE
from warmroute_proxy.server.ledger.schema import LedgerError
from warmroute_proxy.server.stores.spool import Spool, proxy_name

if TYPE_CHECKING:
    from warmroute_proxy.server.stores.fleet_ledger import FleetLedger
    from warmroute_proxy.server.stores.store_thread import StoreThread


class Stores:
    """What `opened` has opened; without a database nothing."""

    def __init__(self, thread: "StoreThread | None" = None, fleet_ledger: "FleetLedger | None" = None) -> None:
        self._thread = thread
        self.fleet_ledger = fleet_ledger
        """Reads what all proxies have sent; None: there is no database."""

    @classmethod
    async def opened(cls, config: Config, process: int | None) -> "Stores":
        """Open what the config names. `process`: the number of this process; None where it is the only one.

        Raises: LedgerError, where a database that answers cannot be used; SecretError.
        """
        if config.database is None:
            return cls()
        try:
            from warmroute_proxy.server.stores.database import WrongSchema
            from warmroute_proxy.server.stores.fleet_ledger import FleetLedger
            from warmroute_proxy.server.stores.postgres_store import Sender
            from warmroute_proxy.server.stores.store_thread import StoreThread
        except ModuleNotFoundError as error:
            raise LedgerError(
                f"{error.name} is missing: install warmroute[postgres] for a ledger in a database"
            ) from None
        state_dir, dsn = config.proxy.state_dir, load_dsn(config.database.dsn_file)
        name = proxy_name(state_dir)
        sender = Sender(name, config.proxy.region, closes=process is None)
        sends = not process
        open_spool = (lambda: Spool(state_dir / LEDGER_FILE)) if sends else None
        thread = StoreThread(dsn, sender, config.database.keep_days, open_spool)
        try:
            await thread.check()
        except WrongSchema as error:
            thread.close()
            raise LedgerError(str(error)) from None
        return cls(thread, FleetLedger(thread, name))

    def problems(self) -> list[str]:
        """What does not work as it should, in words; `state: why`."""
        thread = self._thread
        if thread is None or not thread.problem:
            return []
        waiting = f"; {thread.unsent} rows wait in the ledger file" if thread.unsent else ""
        return [f"postgres {thread.state.value}: {thread.problem}{waiting}"]

    def gauges(self) -> list[tuple[str, Labels, float]]:
        """What `/metrics` shows of them; nothing without a database."""
        thread = self._thread
        if thread is None:
            return []
        label: Labels = (("store", "postgres"),)
        return [
            ("warmroute_store_up", label, float(not thread.problem)),
            ("warmroute_ledger_unsent_rows", (), float(thread.unsent)),
        ]

    def close(self) -> None:
        """Send what is left, for some seconds, and close."""
        if self._thread is not None:
            self._thread.close()
