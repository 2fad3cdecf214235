"""Keeps `counters.sqlite`: how much each engine's counters of requests and tokens grew in each hour (a *span*).

The last reading of each engine's counters is kept beside its spans. So a killed proxy loses nothing: the difference
between the last and the next reading is what the engine counted meanwhile.

Limits: the spans of the last `KEPT_DAYS` days, and of these the newest `MAX_SPANS`.
"""

import logging
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from warmroute_proxy.core.accounting.engine_counts import CounterReading, EngineCounts, Span, advance
from warmroute_proxy.server.ledger.schema import LedgerError, connect

COUNTERS_FILE: Final = "counters.sqlite"
KEPT_DAYS: Final = 35
MAX_SPANS: Final = 200_000
_DAY_S: Final = 86_400
_LOG: Final = logging.getLogger(__name__)
_VERSION: Final = 2
_TABLES: Final = f"""
BEGIN;
CREATE TABLE IF NOT EXISTS span (
    engine TEXT NOT NULL, role TEXT NOT NULL, began_s REAL NOT NULL, ended_s REAL NOT NULL, requests INT NOT NULL,
    prompt_tokens INT NOT NULL, cached_tokens INT NOT NULL, completion_tokens INT NOT NULL, restarts INT NOT NULL,
    PRIMARY KEY (engine, began_s)
);
DROP TABLE IF EXISTS reading;
CREATE TABLE reading (
    engine TEXT PRIMARY KEY, url TEXT NOT NULL, role TEXT NOT NULL, at_s REAL NOT NULL, requests INT NOT NULL,
    prompt_tokens INT NOT NULL, cached_tokens INT NOT NULL, completion_tokens INT NOT NULL
);
PRAGMA user_version = {_VERSION};
COMMIT;
"""
_SPANS: Final = "SELECT * FROM span WHERE ended_s >= ? ORDER BY engine, began_s"
_OPEN: Final = "SELECT * FROM span WHERE rowid IN (SELECT max(rowid) FROM span GROUP BY engine)"
_PUT_SPAN: Final = """
INSERT INTO span VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    role = excluded.role, ended_s = excluded.ended_s, requests = excluded.requests,
    prompt_tokens = excluded.prompt_tokens, cached_tokens = excluded.cached_tokens,
    completion_tokens = excluded.completion_tokens, restarts = excluded.restarts
"""
_PUT_READING: Final = "INSERT OR REPLACE INTO reading VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_DROP_OLD: Final = "DELETE FROM span WHERE ended_s < ?"
_DROP_MANY: Final = "DELETE FROM span WHERE rowid <= (SELECT max(rowid) FROM span) - ?"


class CounterFile:
    """Keeps the spans and last readings of all engines. `note` may be called in any thread."""

    def __init__(self, state_dir: Path) -> None:
        """Raises: LedgerError."""
        path = state_dir / COUNTERS_FILE
        try:
            self._db = connect(path)
            if self._db.execute("PRAGMA user_version").fetchone()[0] < _VERSION:
                self._db.executescript(_TABLES)
            self._newest = {row[0]: _reading(row) for row in self._db.execute("SELECT * FROM reading")}
            self._open = {row[0]: _span(row) for row in self._db.execute(_OPEN)}
        except sqlite3.Error as error:
            raise LedgerError(f"{path} cannot be used: {error}") from None
        self._lock = threading.Lock()
        self._closed = False
        self._failed = False

    def note(self, reading: CounterReading) -> None:
        """Add a reading. If the file cannot be written, nothing is lost, since counters only grow: the next reading
        includes what this one counted.
        """
        with self._lock:
            if self._closed:
                return
            before = self._open.get(reading.engine)
            grown, now_open = advance(before, self._newest.get(reading.engine), reading)
            changed = [now_open] if grown is None or grown is now_open else [grown, now_open]
            try:
                self._write(reading, changed)
            except sqlite3.Error as error:
                if not self._failed:
                    _LOG.error("counters of engines cannot be kept in %s: %s", COUNTERS_FILE, error)
                self._failed = True
                return
            self._failed = False
            self._newest[reading.engine], self._open[reading.engine] = reading, now_open

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._db.close()

    def _write(self, reading: CounterReading, spans: Sequence[Span]) -> None:
        with self._db:
            self._db.execute("BEGIN")
            for span in spans:
                self._db.execute(_PUT_SPAN, (*span[:4], *span.counts, span.restarts))
            self._db.execute(_PUT_READING, (*reading[:4], *reading.counts))
            if len(spans) > 1:  # an hour has ended: time to delete old spans
                self._db.execute(_DROP_OLD, (reading.at_s - KEPT_DAYS * _DAY_S,))
                self._db.execute(_DROP_MANY, (MAX_SPANS,))


def read_spans(state_dir: Path, since_s: float) -> list[Span]:
    """The spans that ended at `since_s` (unix seconds) or later. Works while a proxy runs. Raises: LedgerError."""
    path = state_dir / COUNTERS_FILE
    if not path.exists():
        raise LedgerError(f"{path} does not exist: the proxy makes it when it first reads the metrics of an engine")
    try:
        db = connect(path, read_only=True)
        try:
            return [_span(row) for row in db.execute(_SPANS, (since_s,))]
        finally:
            db.close()
    except sqlite3.Error as error:
        raise LedgerError(f"{path} cannot be read: {error}") from None


def _span(row: Sequence[object]) -> Span:
    engine, role, began_s, ended_s, *counts, restarts = row
    return Span(engine, role, began_s, ended_s, EngineCounts(*counts), restarts)  # type: ignore[arg-type]


def _reading(row: Sequence[object]) -> CounterReading:
    engine, url, role, at_s, *counts = row
    return CounterReading(engine, url, role, at_s, EngineCounts(*counts))  # type: ignore[arg-type]
