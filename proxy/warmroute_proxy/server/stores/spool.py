"""Reads the spool: the rows of this proxy's ledger file that the database does not have yet.

Rows have ascending numbers and never change, so one number says which rows were sent. The database knows a proxy by a
random name, which the proxy keeps in its state folder. If that folder is lost, the proxy counts as a new proxy.
"""

import contextlib
import os
import secrets
import sqlite3
import time
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from warmroute.contract.receipt import LOSS_CLASSES
from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.core.accounting.entry_steps import turns_in
from warmroute_proxy.server.ledger.schema import LedgerError, connect
from warmroute_proxy.server.ledger.usage_sums import SUMMED

NAME_FILE: Final = "proxy-name"
HOUR_S: Final = 3_600
LAST_S: Final = 4_102_444_800.0
"""The year 2100. A later time comes from a wrong clock, and is replaced by this time."""

_LINES_AT_ONCE: Final = 256
_BEHIND: Final = "SELECT rowid, id, record, start FROM turn_record WHERE rowid > ? ORDER BY rowid LIMIT ?"
_RUNNING: Final = "SELECT start FROM fold WHERE start <> 0"
_NEWEST: Final = "SELECT coalesce(max(rowid), 0) FROM turn_record"


class SpooledRow(NamedTuple):
    """An ended entry. `hour`: the start of the hour in which it ended, in unix seconds. `key_id`: the id of its API
    key, or empty without one. `sums`: what it adds to the sums named in `SUMMED`. `boot`: the start of the process that
    served it.
    """

    number: int
    hour: int
    id: str
    tenant: str
    session: str
    model: str
    region: str
    settled_at: float
    record: str
    key_id: str
    sums: tuple[int, ...]
    boot: str

    @property
    def price_nanousd(self) -> int:
        return self.sums[_PRICE_AT]


_PRICE_AT: Final = SUMMED.index("price_nanousd")


class Position(NamedTuple):
    """The number and the id of the last sent row. If the row with this number has another id, the ledger file was
    replaced."""

    number: int = 0
    id: str = ""


class Batch(NamedTuple):
    """The rows after `after` and up to `up_to`. `unreadable`: how many of them were left out, since they are not
    entries.
    """

    after: Position
    up_to: Position
    rows: list[SpooledRow]
    unreadable: int


class Spool:
    """Reads the ledger file. Used in one thread."""

    def __init__(self, database: Path) -> None:
        self._db: sqlite3.Connection = connect(database, read_only=True)

    def close(self) -> None:
        self._db.close()

    def newest(self) -> int:
        number: int = self._db.execute(_NEWEST).fetchone()[0]
        return number

    def running(self) -> frozenset[str]:
        """The starts of this proxy's processes that have not ended. All rows of other starts are in the file."""
        return frozenset(str(start) for (start,) in self._db.execute(_RUNNING))

    def has(self, position: Position) -> bool:
        """Whether this ledger file has the row of a position. Position 0, before the first row, is in every file."""
        row = self._db.execute("SELECT id FROM turn_record WHERE rowid = ?", (position.number,)).fetchone()
        return position.number == 0 or (row is not None and row[0] == position.id)

    def read(self, after: Position, limit: int) -> Batch:
        """Read at most `limit` rows after a position. Regularly lets the event loop take the interpreter lock."""
        rows: list[SpooledRow] = []
        up_to, unreadable = after, 0
        found = self._db.execute(_BEHIND, (after.number, limit)).fetchall()
        for at, (number, id_, record, start) in enumerate(found):
            if at % _LINES_AT_ONCE == 0:
                time.sleep(0)
            up_to = Position(number, id_)
            try:
                rows.append(_row(number, record, str(start)))
            except (msgspec.DecodeError, UnicodeEncodeError):
                unreadable += 1
        return Batch(after, up_to, rows, unreadable)


def _row(number: int, record: str, boot: str) -> SpooledRow:
    entry = Entry.read(record)
    settled_at = min(max(entry.settled_at, 0.0), LAST_S)
    receipt = entry.receipt()
    sums = (
        turns_in(entry.id),
        entry.prompt_tokens,
        entry.cached_tokens,
        entry.completion_tokens,
        entry.list_nanousd,
        entry.price_nanousd,
        *[receipt.loss.get(name, 0) for name in LOSS_CLASSES],
    )
    hour = int(settled_at) // HOUR_S * HOUR_S
    return SpooledRow(
        number=number,
        hour=hour,
        id=entry.id,
        tenant=entry.tenant,
        session=entry.session or "",
        model=entry.model,
        region=entry.region,
        settled_at=settled_at,
        record=record,
        key_id=receipt.key,
        sums=sums,
        boot=boot,
    )


def proxy_name(state_dir: Path) -> str:
    """Read the proxy's name from its state folder, or make a random one. Raises: LedgerError."""
    path = state_dir / NAME_FILE
    try:
        with contextlib.suppress(FileNotFoundError):
            if name := path.read_text().strip():
                return name
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(f"{secrets.token_hex(8)}\n")
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(new)  # fails if another process of this proxy was first
        new.unlink()
        return path.read_text().strip()
    except OSError as error:
        raise LedgerError(f"{path} cannot be written: {error.strerror}") from None
