"""Reads the rows of all processes of a proxy, newest first, a few thousand at a time and for a limited time.

Records that are still only in the journals are read first, then the rows of the ledger file. There, rows are only
roughly in the order in which their turns ended, since several processes move their journals' records to the file. A row
is never changed, so nothing is locked during a pass. Rows that are added during a pass are not read.

Limits of one question to a running proxy: `MAX_ROWS` rows and `MAX_S` seconds. After that, older rows are not read, and
`RowsPass.complete` is false.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from warmroute_proxy.server.ledger.all_processes import TRIES, FoldPosition, tails
from warmroute_proxy.server.ledger.fold import ended_of
from warmroute_proxy.server.ledger.schema import FIELD_AT, connect

MAX_ROWS: Final = 2_000_000
MAX_S: Final = 5.0
ROWS_AT_ONCE: Final = 4_096  # takes about 40 ms
DISORDER_S: Final = 60.0
"""How far rows may be out of order: the turn of a later row may have ended up to this much earlier."""

NOT_FOLDED: Final = "SELECT value AS record FROM json_each(:not_folded)"
FOLDED: Final = "SELECT record FROM turn_record WHERE rowid > :low AND rowid <= :high ORDER BY rowid DESC"
_NEWEST: Final = (
    f"SELECT json_extract(record, '$[{FIELD_AT['settled_at']}]') FROM turn_record"  # noqa: S608 - constants
    " WHERE rowid <= ? ORDER BY rowid DESC LIMIT 1"
)
_OLDEST: Final = (
    f"SELECT rowid, json_extract(record, '$[{FIELD_AT['settled_at']}]') FROM turn_record ORDER BY rowid LIMIT 1"  # noqa: S608
)


class Closed(Exception):
    """The reading was stopped, because the proxy shuts down."""


class RowsPass:
    """One pass over the rows, used by one thread. Between two portions, it calls `stopped` and ends if that is true."""

    def __init__(
        self,
        state_dir: Path,
        database: Path,
        since_s: float | None,
        stopped: Callable[[], bool],
        above: int = 0,
        *,
        bounded: bool = True,
    ) -> None:
        """Rows of turns that ended before `since_s` (unix seconds) and rows with a number up to `above` may be left
        out. `bounded`: False for a command, to which the limits do not apply.
        """
        self.db = connect(database, read_only=True)
        self.complete = True
        self.began_s: float | None = None
        """If the pass is not complete: when the newest turn that was left out ended, in unix seconds."""
        self._state_dir = state_dir
        self._since_s = since_s
        self._stopped = stopped
        self._above = above
        self._bounded = bounded

    def close(self) -> None:
        self.db.close()

    def portions(self) -> Iterator[tuple[str, dict[str, str | int]]]:
        """Yield a query for the records of each portion, and the values of the query's parameters."""
        not_folded, high = self._begin()
        yield NOT_FOLDED, {"not_folded": not_folded}
        deadline, first = time.monotonic() + MAX_S, high
        low = max(self._above, self._pruned())
        while high > low:
            if self._stopped():
                raise Closed
            newest = self._newest(high)
            if self._since_s is not None and newest is not None and newest < self._since_s - DISORDER_S:
                return
            if self._bounded and (time.monotonic() > deadline or first - high >= MAX_ROWS):
                self.complete, self.began_s = False, newest
                return
            yield FOLDED, {"low": max(high - ROWS_AT_ONCE, low), "high": high}
            high -= ROWS_AT_ONCE

    def _pruned(self) -> int:
        """The number of the last deleted row. If this pass needs deleted rows, mark it as not complete."""
        row: tuple[int, float] | None = self.db.execute(_OLDEST).fetchone()
        pruned = 0 if row is None else row[0] - 1
        if row is not None and pruned > self._above and (self._since_s is None or self._since_s < row[1]):
            self.complete, self.began_s = False, row[1]
        return pruned

    def _begin(self) -> tuple[str, int]:
        """The records that are only in the journals, as a JSON array, and the number of the ledger file's last row."""
        positions, last_row = self._positions()
        for _ in range(TRIES):
            rows: dict[str, str] = {}
            for tail in tails(self._state_dir, positions):
                ended_of(tail.decode(errors="surrogateescape").split("\n"), rows, {})
            before = positions
            positions, last_row = self._positions()
            if positions == before:
                break
        return f"[{','.join(rows.values())}]", last_row

    def _positions(self) -> tuple[list[FoldPosition], int]:
        """The position up to which each journal is in the ledger file, and the number of the file's last row."""
        with self.db:
            self.db.execute("BEGIN")
            rows = self.db.execute("SELECT process, sequence, offset FROM fold").fetchall()
            (last_row,) = self.db.execute("SELECT coalesce(max(rowid), 0) FROM turn_record").fetchone()
        return [FoldPosition(*row) for row in rows], last_row

    def _newest(self, number: int) -> float | None:
        row: tuple[float] | None = self.db.execute(_NEWEST, (number,)).fetchone()
        return None if row is None else row[0]


def field(name: str) -> str:
    """The SQL expression for a field of `record`."""
    return f"json_extract(record, '$[{FIELD_AT[name]}]')"
