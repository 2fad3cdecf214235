"""Reads the turns that all processes of a proxy have settled, without asking the other processes.

A turn is in the ledger file or in the journal of the process that served it. Each journal is *folded* (its records are
moved to the ledger file) up to a *position*, and the rest, its tail, is read here. So any process finds a receipt as
soon as its turn has ended, and totals include the last turn. A journal file may be deleted once it is folded to its
end. So if a position has moved during a read, everything is read again.

Limit: `TAIL_BYTES` of each journal file are read. As long as folding works, tails are much shorter.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.server.ledger.fold import ended_of
from warmroute_proxy.server.ledger.journal import folder_of, journal_path, journal_sequences, read_whole
from warmroute_proxy.server.ledger.schema import TenantTotals, connect

TAIL_BYTES: Final = 16 * 2**20
TRIES: Final = 5


class FoldPosition(NamedTuple):
    """The place up to which a process has folded its journal: the number of a file, and an offset in this file."""

    process: int
    sequence: int
    offset: int


class AllProcessesReader:
    """Reads the ledger file and all journals. Its methods may be called in any thread."""

    def __init__(self, state_dir: Path, database: Path) -> None:
        self._state_dir = state_dir
        self._db = connect(database)
        self._lock = threading.Lock()

    def close(self) -> None:
        self._db.close()

    def totals(self, tenant: str) -> TenantTotals:
        with self._lock:
            for _ in range(TRIES):
                positions, folded = self._positions(tenant)
                not_folded: dict[str, TenantTotals] = {}
                for tail in tails(self._state_dir, positions):
                    ended_of(tail.decode(errors="surrogateescape").split("\n"), {}, not_folded)
                if self._positions()[0] == positions:
                    break
        return folded.plus(not_folded.get(tenant, TenantTotals()))

    def find(self, tenant: str, id_: str) -> Entry | None:
        """A tenant's turn, settled or open, from the tails of the journals; None if it is not there."""
        found: Entry | None = None
        with self._lock:
            for _ in range(TRIES):
                positions, _ = self._positions()
                for entry in self._having(positions, id_.encode()):
                    if entry.id == id_ and entry.tenant == tenant and not (found is not None and found.ended):
                        found = entry
                if found is not None or self._positions()[0] == positions:
                    break
        return found

    def _positions(self, tenant: str = "") -> tuple[list[FoldPosition], TenantTotals]:
        """The position of each process, and the sums of the tenant's folded rows, read in one transaction."""
        with self._db:
            self._db.execute("BEGIN")
            rows = self._db.execute("SELECT process, sequence, offset FROM fold").fetchall()
            total = self._db.execute("SELECT * FROM total WHERE tenant = ?", (tenant,)).fetchone()
        positions = [FoldPosition(*row) for row in rows]
        return positions, TenantTotals() if total is None else TenantTotals(*total[1:])

    def _having(self, positions: list[FoldPosition], id_: bytes) -> Iterator[Entry]:
        """The entries in the tails whose line contains an id."""
        for tail in tails(self._state_dir, positions):
            for line in tail.split(b"\n") if id_ in tail else ():
                if id_ in line:
                    try:
                        yield Entry.read(line)
                    except msgspec.DecodeError:
                        continue


def tails(state_dir: Path, positions: list[FoldPosition]) -> Iterator[bytes]:
    for position in positions:
        folder = folder_of(state_dir, position.process)
        for sequence in [number for number in journal_sequences(folder) if number >= position.sequence]:
            offset = position.offset if sequence == position.sequence else 0
            yield read_whole(journal_path(folder, sequence), offset, TAIL_BYTES)
