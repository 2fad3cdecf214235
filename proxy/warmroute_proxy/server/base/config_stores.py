"""Reads what a config says of the stores that several proxies share: the database of the ledger."""

from pathlib import Path

from warmroute_proxy.server.base.config import DatabaseConfig
from warmroute_proxy.server.base.config_table import Table


def read_database(ledger: Table, folder: Path) -> DatabaseConfig | None:
    """The database of a table [ledger]; None where it names none."""
    dsn_file, keep_days = ledger.text("dsn_file", ""), ledger.integer("keep_days", None, 1, 36_500)
    if not dsn_file:
        if ledger.has("keep_days"):
            ledger.problem("keep_days", "is for a database, and there is no dsn_file")
        return None
    return DatabaseConfig(folder / dsn_file, keep_days)
