"""What all processes of a proxy have settled, as each of them sees it: nothing is asked of the others.

A turn is in the ledger file, or it stands in the journal of the process that served it, behind the position to which
that one is folded. Both are read: so a receipt is found by any process as soon as its turn has ended, and totals are
right to the last turn. Journal files are deleted only after the position has left them: if one has meanwhile, all is
read again.

Totals of what is folded are kept, and added up from row to row. Limits: `TAIL_BYTES` of a journal are
read, which is more than the fold is ever behind while it works.
"""

import threading
from pathlib import Path
from typing import Final

import msgspec

from warmroute_proxy.core.entry import SettleRecord
from warmroute_proxy.server.fold import DECODE, SUMS, Opened, add_sums, connect
from warmroute_proxy.server.journal import folder_of, journal_path, journal_sequences, read_lines

TAIL_BYTES: Final = 16 * 2**20
TRIES: Final = 5

_NEW: Final = f"SELECT tenant, {SUMS}, max(rowid) FROM turn WHERE rowid > ? GROUP BY tenant"  # noqa: S608 - a constant


class LedgerOfAll:
    """Reads for one process. Any thread."""

    def __init__(self, state_dir: Path, database: Path) -> None:
        self._state_dir = state_dir
        self._db = connect(database)
        self._lock = threading.Lock()
        self._rowid = 0  # the last row that `_totals` has
        self._totals: dict[str, list[int]] = {}
        self.catch_up()

    def catch_up(self) -> None:
        """Add up what was folded since the last time: the more often, the less there is to do when somebody asks."""
        with self._lock:
            self._add_new()

    def close(self) -> None:
        """Let the file go."""
        self._db.close()

    def totals(self, tenant: str) -> list[int]:
        """Turns, prompt, cached and completion tokens, list and charged nanodollars of a tenant."""
        with self._lock:
            for _ in range(TRIES):
                positions = self._positions(and_add=True)
                sums = list(self._totals.get(tenant) or [0] * 6)
                for record in self._beyond(positions, tenant.encode()):
                    if isinstance(record, SettleRecord) and record.tenant == tenant:
                        add_sums(sums, record)
                if self._positions() == positions:
                    break
        return sums

    def find(self, tenant: str, id_: str) -> SettleRecord | Opened | None:
        """A tenant's turn that is not folded: settled, or open; None if there is none."""
        found: SettleRecord | Opened | None = None
        with self._lock:
            for _ in range(TRIES):
                positions = self._positions()
                for record in self._beyond(positions, id_.encode()):
                    if record.id == id_ and record.tenant == tenant and not isinstance(found, SettleRecord):
                        found = record
                if found is not None or self._positions() == positions:
                    break
        return found

    def _positions(self, *, and_add: bool = False) -> list[tuple[int, int, int]]:
        """Process, journal file and offset of each; with `and_add` the totals are of the same moment."""
        with self._db:
            self._db.execute("BEGIN")
            if and_add:
                self._add_new()
            rows: list[tuple[int, int, int]] = self._db.execute("SELECT process, sequence, offset FROM fold").fetchall()
        return rows

    def _add_new(self) -> None:
        newest = self._rowid
        for tenant, *sums, rowid in self._db.execute(_NEW, (self._rowid,)):
            known = self._totals.get(tenant)
            self._totals[tenant] = sums if known is None else [a + b for a, b in zip(known, sums, strict=True)]
            newest = max(newest, rowid)
        self._rowid = newest

    def _beyond(self, positions: list[tuple[int, int, int]], having: bytes) -> list[SettleRecord | Opened]:
        """The records behind the positions whose line has some bytes."""
        records: list[SettleRecord | Opened] = []
        for process, first, offset in positions:
            folder = folder_of(self._state_dir, process)
            for sequence in [number for number in journal_sequences(folder) if number >= first]:
                begin = offset if sequence == first else 0
                lines, _ = read_lines(journal_path(folder, sequence), begin, TAIL_BYTES)
                for line in lines:
                    if having in line:
                        try:
                            records.append(DECODE(line))
                        except msgspec.DecodeError:
                            continue
        return records
