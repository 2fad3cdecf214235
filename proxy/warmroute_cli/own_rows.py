"""Reads rows of ledgers on this machine, including rows in their journals, even while the proxies run."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.server.ledger.all_rows import RowsPass
from warmroute_proxy.server.ledger.ledger import LEDGER_FILE


def rows_of(state_dir: Path, since_s: float | None) -> Iterator[Entry]:
    """The rows of turns of one proxy that ended since `since_s`, unix seconds, and maybe some that ended earlier.

    Raises: sqlite3.Error.
    """
    reading = RowsPass(state_dir, state_dir / LEDGER_FILE, since_s, lambda: False, bounded=False)
    try:
        for records, values in reading.portions():
            for (record,) in reading.db.execute(f"SELECT record FROM ({records})", values):  # noqa: S608 - constants
                try:
                    yield Entry.read(record)
                except msgspec.DecodeError:
                    continue
    finally:
        reading.close()


def folders_in(folder: Path) -> list[Path]:
    """Folders with a ledger: `folder`, or else those directly in it. Raises: sqlite3.OperationalError, without any."""
    if (folder / LEDGER_FILE).exists():
        return [folder]
    found = sorted(file.parent for file in folder.glob(f"*/{LEDGER_FILE}"))
    if not found:
        raise sqlite3.OperationalError(f"{folder} has no {LEDGER_FILE}, and no folder in it has one")
    return found
