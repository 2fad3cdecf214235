"""What all processes of a proxy have settled, as each of them sees it: nothing is asked of the others.

A turn is in the ledger file, or it stands in the journal of the process that served it, behind the position to which
that one is folded. Both are read: so a receipt is found by any process as soon as its turn has ended, and totals are
right to the last turn. Journal files are deleted only after the position has left them: if one has meanwhile, all is
read again.

Limits: `TAIL_BYTES` of a journal are read, which is more than the fold is ever behind while it works.
"""

import threading
from collections.abc import Iterator
from operator import add
from pathlib import Path
from typing import Final

import msgspec

from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.server.ledger.fold import TOTALS, ended_of
from warmroute_proxy.server.ledger.journal import folder_of, journal_path, journal_sequences, read_whole
from warmroute_proxy.server.ledger.schema import connect

TAIL_BYTES: Final = 16 * 2**20
TRIES: Final = 5


class LedgerOfAll:
    """Reads for one process. Any thread."""

    def __init__(self, state_dir: Path, database: Path) -> None:
        self._state_dir = state_dir
        self._db = connect(database)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Let the file go."""
        self._db.close()

    def totals(self, tenant: str) -> list[int]:
        """Turns, prompt, cached and completion tokens, list and charged nanodollars of a tenant."""
        with self._lock:
            for _ in range(TRIES):
                positions, folded = self._positions(tenant)
                not_folded: dict[str, list[int]] = {}
                for tail in self._tails(positions):
                    ended_of(tail.decode(errors="surrogateescape").split("\n"), {}, not_folded)
                if self._positions()[0] == positions:
                    break
        return list(map(add, folded, not_folded.get(tenant, [0] * len(TOTALS))))

    def find(self, tenant: str, id_: str) -> Entry | None:
        """A tenant's turn that is not folded: settled, or open; None if there is none."""
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

    def _positions(self, tenant: str = "") -> tuple[list[tuple[int, int, int]], list[int]]:
        """Process, journal file and offset of each, and what the tenant's folded rows add up to at that moment."""
        with self._db:
            self._db.execute("BEGIN")
            rows: list[tuple[int, int, int]] = self._db.execute("SELECT process, sequence, offset FROM fold").fetchall()
            total = self._db.execute("SELECT * FROM total WHERE tenant = ?", (tenant,)).fetchone()
        return rows, [0] * len(TOTALS) if total is None else list(total[1:])

    def _tails(self, positions: list[tuple[int, int, int]]) -> Iterator[bytes]:
        """What stands behind the positions, a journal file at a time."""
        for process, first, offset in positions:
            folder = folder_of(self._state_dir, process)
            for sequence in [number for number in journal_sequences(folder) if number >= first]:
                yield read_whole(journal_path(folder, sequence), offset if sequence == first else 0, TAIL_BYTES)

    def _having(self, positions: list[tuple[int, int, int]], some: bytes) -> Iterator[Entry]:
        """The entries behind the positions whose line has some bytes."""
        for tail in self._tails(positions):
            for line in tail.split(b"\n") if some in tail else ():
                if some in line:
                    try:
                        yield Entry.read(line)
                    except msgspec.DecodeError:
                        continue
