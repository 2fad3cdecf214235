"""Deletes the oldest rows of the ledger file, a few at a time, and gives their space back to the volume.

Rows are deleted if they are older, or the file is larger, than the config allows. If rows are also sent to a central
store, a row is deleted only after the store has confirmed it. The last confirmed row and the newest row stay, because
new rows get the numbers after them. The sums of each tenant's turns are in a separate table, and stay complete.

A jump of the clock deletes nothing: a clock that is ahead is believed only after a day (`core.base.steady_time`).

A file that an earlier version created does not shrink; its freed pages are used again.
"""

import logging
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from warmroute_proxy.core.base.steady_time import SteadyTime, newest_steady
from warmroute_proxy.server.ledger.schema import FIELD_AT, connect

ROWS_AT_ONCE: Final = 2_000  # about 2.5 MB and 20 ms. Twice a second, this is more than a proxy adds
PAGES_AT_ONCE: Final = 512
ROWS_LOOKED_AT: Final = 2_000
"""How many of the newest rows are read at the start, to detect a jump of the clock since they were written."""
RESERVE_BYTES: Final = 32 * 2**20
"""The free space on the volume that is reserved for the rows of running turns. With less, no turn begins."""

_LOG: Final = logging.getLogger(__name__)
_DAY_S: Final = 86_400.0
_NEWEST: Final = "SELECT coalesce(max(rowid), 0) FROM turn_record"
_NEWEST_TIMES: Final = (
    f"SELECT json_extract(record, '$[{FIELD_AT['settled_at']}]') FROM turn_record ORDER BY rowid DESC LIMIT ?"  # noqa: S608
)
_OLDEST: Final = (
    f"SELECT max(rowid), max(json_extract(record, '$[{FIELD_AT['settled_at']}]')) FROM"  # noqa: S608 - constants
    " (SELECT rowid, record FROM turn_record WHERE rowid < ? ORDER BY rowid LIMIT ?)"
)


class Retention(NamedTuple):
    """How much the file keeps; None means without limit."""

    days: int | None = None
    size_bytes: int | None = None


class Pruner:
    """Deletes old rows of one file. Used by one thread."""

    def __init__(
        self,
        database: Path,
        retention: Retention,
        wall_clock: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = connect(database)
        self._clock = clock
        self._steady: SteadyTime | None = None
        self._retention = retention
        self._wall_clock = wall_clock

    def close(self) -> None:
        self._db.close()

    def step(self, confirmed: int | None) -> int:
        """Delete some rows numbered below `confirmed`, or below the newest if there is no store. Returns how many."""
        (newest,) = self._db.execute(_NEWEST).fetchone()
        below = newest if confirmed is None else min(confirmed, newest)
        up_to, settled_at = self._db.execute(_OLDEST, (below, ROWS_AT_ONCE)).fetchone()
        deleted = 0
        if up_to is not None and self._is_beyond(settled_at or 0.0):
            deleted = self._db.execute("DELETE FROM turn_record WHERE rowid <= ?", (up_to,)).rowcount
        self._db.execute(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})").fetchall()
        return deleted

    def _is_beyond(self, settled_at: float) -> bool:
        days, size_bytes = self._retention
        if days is not None and settled_at < self._steady_s() - days * _DAY_S:
            return True
        return size_bytes is not None and self._used_bytes() > size_bytes

    def _steady_s(self) -> float:
        if self._steady is None:
            rows = self._db.execute(_NEWEST_TIMES, (ROWS_LOOKED_AT,)).fetchall()
            self._steady = SteadyTime(newest_steady([settled_at for (settled_at,) in reversed(rows) if settled_at]))
        return self._steady.read(self._wall_clock(), self._clock())

    def _used_bytes(self) -> int:
        pages, free, page_bytes = (
            self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * page_bytes)


class Upkeep:
    """Prunes the file of a ledger. `step` and `close` are called in the thread that folds."""

    def __init__(self, database: Path, retention: Retention | None) -> None:
        """`retention`: None to delete nothing."""
        self._database = database
        self._retention = retention if retention is not None and any(retention) else None
        self._pruner: Pruner | None = None
        self.confirmed: Callable[[], int | None] = lambda: 0
        """Returns the number of the last row that the central store has; None if there is no store. Later rows stay."""

    def step(self) -> None:
        if self._retention is None:
            return
        try:
            if self._pruner is None:
                self._pruner = Pruner(self._database, self._retention, time.time)
            self._pruner.step(self.confirmed())
        except sqlite3.Error as error:  # the disk is full, or another process writes: the next step tries again
            _LOG.warning("old rows of the ledger file stay for now: %s", error)

    def close(self) -> None:
        if self._pruner is not None:
            self._pruner.close()


def file_bytes(database: Path) -> int:
    """The size of the file and its WAL on the volume."""
    return sum(_size(path) for path in (database, database.with_name(f"{database.name}-wal")))


def volume(folder: Path) -> tuple[int, int]:
    """The size of the folder's volume, and its free space, in bytes."""
    found = os.statvfs(folder)
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
