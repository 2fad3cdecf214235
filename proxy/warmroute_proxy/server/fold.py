"""Folds journal files into SQLite: the other half of the ledger, run in its thread and at start and close.

A step reads some whole lines, and commits their rows together with the position behind them. So a record is folded
once: killed before the commit, the step is done again; killed after it, the position is past. Lines that are no record
(torn by a full disk) are counted and skipped. A file is deleted once a later one exists, all of it is folded, and the
rows are checkpointed, because SQLite's WAL with `synchronous = NORMAL` may lose its last commits with the power.

Where a proxy is several processes, each folds its own journal into the one file, at its own position: SQLite has one
writer at a time, and a commit takes a few ms twice a second. What it interrupts is its own too.
"""

import sqlite3
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from warmroute_proxy.core.entry import Entry, SettleRecord
from warmroute_proxy.server.journal import folder_of, journal_path, journal_sequences, processes_in, read_lines

SCHEMA_VERSION: Final = 2
STEP_BYTES: Final = 524_288  # some hundred records: a commit writes each page that they touch, however many on it
LINES_AT_ONCE: Final = 64  # read, then the loop may have the interpreter lock: it never waits long for it
ROWS_AT_ONCE: Final = 32  # of 26 values: SQLite takes 999 values in a statement wherever it was built, 32,766 today

_SCHEMA: Final = """
CREATE TABLE turn (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, session TEXT, lineage TEXT NOT NULL, turn INT NOT NULL,
    region TEXT NOT NULL, model TEXT NOT NULL, route TEXT NOT NULL, stream INT NOT NULL, state TEXT NOT NULL,
    outcome TEXT NOT NULL, status INT NOT NULL, rids TEXT NOT NULL, workers TEXT NOT NULL, prompt_tokens INT NOT NULL,
    cached_tokens INT NOT NULL, completion_tokens INT NOT NULL, usage TEXT NOT NULL, list_nanousd INT NOT NULL,
    price_nanousd INT NOT NULL, opened_at REAL NOT NULL, settled_at REAL NOT NULL, proxy_ms REAL, ttft_ms REAL,
    forwarded_from TEXT, predicted_cached INT NOT NULL
);
CREATE INDEX turn_tenant ON turn (tenant);
CREATE TABLE open_turn (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, record TEXT NOT NULL, process INT NOT NULL DEFAULT 0
);
CREATE TABLE fold (
    process INT PRIMARY KEY, sequence INT NOT NULL, offset INT NOT NULL, skipped INT NOT NULL
);
PRAGMA user_version = 2;
"""
_FROM_1: Final = """
ALTER TABLE open_turn ADD COLUMN process INT NOT NULL DEFAULT 0;
ALTER TABLE fold RENAME TO fold_1;
CREATE TABLE fold (
    process INT PRIMARY KEY, sequence INT NOT NULL, offset INT NOT NULL, skipped INT NOT NULL
);
INSERT INTO fold SELECT 0, sequence, offset, skipped FROM fold_1;
DROP TABLE fold_1;
PRAGMA user_version = 2;
"""


class LedgerError(RuntimeError):
    """The ledger cannot be used: its folder is in use, unreadable or of another version."""


class Opened(msgspec.Struct, tag_field="k", tag="open", gc=False):
    """An open record, as far as it is looked at before a restart needs it."""

    id: str
    tenant: str


class Folded(NamedTuple):
    """What a step has committed: ids of entries that are rows now."""

    settled: list[str]


DECODE: Final = msgspec.json.Decoder(SettleRecord | Opened).decode
SUMS: Final = (
    "count(*), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens), sum(list_nanousd), sum(price_nanousd)"
)
_VALUES: Final = f"({', '.join('?' * len(SettleRecord.__struct_fields__))})"
_INSERT: Final = f"INSERT INTO turn VALUES {_VALUES} ON CONFLICT DO NOTHING"  # noqa: S608 - a constant
_INSERT_MANY: Final = _INSERT.replace(_VALUES, ", ".join([_VALUES] * ROWS_AT_ONCE))


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection in autocommit mode, whose user sees to it that one thread at a time uses it."""
    uri = f"{path.resolve().as_uri()}?mode={'ro' if read_only else 'rwc'}"
    connection = sqlite3.connect(uri, uri=True, timeout=10.0, isolation_level=None, check_same_thread=False)
    try:
        if not read_only:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


class Fold:
    """The folding end of the journal. Used by one thread at a time."""

    _sequence: int
    _offset: int
    _skipped: int
    _open: set[str]  # ids in `open_turn`: turns under way, so the limit on connections bounds them

    def __init__(self, folder: Path, database: Path, process: int = 0) -> None:
        """`folder` has the journal of a process."""
        self._folder = folder
        self._process = process
        try:
            self._db = connect(database)
        except sqlite3.Error as error:
            raise LedgerError(f"cannot use {database}: {error}") from None
        try:
            self._load(database)
        except BaseException as error:
            self._db.close()
            if isinstance(error, sqlite3.Error):
                raise LedgerError(f"cannot use {database}: {error}") from None
            raise

    def _load(self, database: Path) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            self._db.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
        elif version == 1:
            self._db.executescript(f"BEGIN; {_FROM_1} COMMIT;")
        elif version != SCHEMA_VERSION:
            raise LedgerError(f"{database} has schema version {version}, this proxy needs {SCHEMA_VERSION}")
        own = (self._process,)
        self._db.execute("INSERT OR IGNORE INTO fold VALUES (?, 1, 0, 0)", own)
        row = self._db.execute("SELECT sequence, offset, skipped FROM fold WHERE process = ?", own).fetchone()
        self._sequence, self._offset, self._skipped = row
        self._open = {id_ for (id_,) in self._db.execute("SELECT id FROM open_turn WHERE process = ?", own)}

    def step(self) -> Folded | None:
        """Folds some records, or begins the next file; None when there is nothing to do now."""
        later = [number for number in journal_sequences(self._folder) if number > self._sequence]
        # Looked up before reading: once a later file is there, nothing is added to this one.
        lines, offset = read_lines(journal_path(self._folder, self._sequence), self._offset, STEP_BYTES)
        if lines:
            return self._commit(lines, offset)
        if not later:
            return None
        self._move_to(later[0])
        self._delete_folded()
        return Folded([])

    def recover(self, now_s: float) -> int:
        """Folds all that is left, interrupts what is open; returns the number for the next journal file."""
        while self.step() is not None:
            pass
        self._interrupt_open(now_s)
        self._move_to(self._sequence + 1)
        self._delete_folded()
        return self._sequence

    def totals(self) -> dict[str, list[int]]:
        """Tenant -> turns, prompt, cached, completion tokens, list and charged nanodollars."""
        rows = self._db.execute(
            f"SELECT tenant, {SUMS} FROM turn GROUP BY tenant"  # noqa: S608 - a constant
        )
        return {tenant: list(sums) for tenant, *sums in rows}

    def close(self) -> None:
        """Leaves one file behind, without a WAL."""
        self._db.close()

    def _commit(self, lines: list[bytes], offset: int) -> Folded:
        opened: dict[str, tuple[str, str, str, int]] = {}
        rows: list[tuple[Any, ...]] = []
        skipped = self._skipped
        for number, line in enumerate(lines):
            if number % LINES_AT_ONCE == 0:
                time.sleep(0)
            try:
                record = DECODE(line) if line else None
            except msgspec.DecodeError:
                skipped += 1
                continue
            if isinstance(record, Opened):
                opened[record.id] = (record.id, record.tenant, line.decode(), self._process)
            elif record is not None:
                opened.pop(record.id, None)
                rows.append(_row(record))
        ids = [row[0] for row in rows]
        ended = self._open.intersection(ids)  # few: most turns end in the step that opens them
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._insert(rows)
            self._db.executemany("DELETE FROM open_turn WHERE id = ?", [(settled,) for settled in ended])
            self._db.executemany("INSERT OR REPLACE INTO open_turn VALUES (?, ?, ?, ?)", opened.values())
            position = offset, skipped, self._process
            self._db.execute("UPDATE fold SET offset = ?, skipped = ? WHERE process = ?", position)
        self._offset, self._skipped = offset, skipped
        self._open -= ended
        self._open.update(opened)
        return Folded(ids)

    def _insert(self, rows: list[tuple[Any, ...]]) -> None:
        """Insert rows. Each statement gives up the interpreter lock and has to wait for it again, while the loop wants
        it too: so one statement takes `ROWS_AT_ONCE`.
        """
        at = 0
        while len(rows) - at >= ROWS_AT_ONCE:
            many = rows[at : at + ROWS_AT_ONCE]
            self._db.execute(_INSERT_MANY, [value for row in many for value in row])
            at += ROWS_AT_ONCE
        self._db.executemany(_INSERT, rows[at:])

    def _interrupt_open(self, now_s: float) -> None:
        rows = []
        own = (self._process,)
        for (text,) in self._db.execute("SELECT record FROM open_turn WHERE process = ? ORDER BY rowid", own):
            entry = Entry.from_open_record(msgspec.json.decode(text))
            rows.append(_row(entry.settle_record(entry.interrupt(now_s))))
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._insert(rows)
            self._db.execute("DELETE FROM open_turn WHERE process = ?", own)
        self._open.clear()

    def _move_to(self, sequence: int) -> None:
        self._db.execute("UPDATE fold SET sequence = ?, offset = 0 WHERE process = ?", (sequence, self._process))
        self._sequence, self._offset = sequence, 0

    def _delete_folded(self) -> None:
        busy, _, _ = self._db.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
        if busy:
            return  # a reader holds the WAL back; the files go with the next one
        for sequence in journal_sequences(self._folder):
            if sequence < self._sequence:
                journal_path(self._folder, sequence).unlink(missing_ok=True)


def add_sums(sums: list[int], record: SettleRecord) -> None:
    """Add a record to sums as `SUMS` has them."""
    row = (1, record.prompt_tokens, record.cached_tokens, record.completion_tokens)
    for at, value in enumerate((*row, record.list_nanousd, record.price_nanousd)):
        sums[at] += value


def recover_all(state_dir: Path, database: Path, now_s: float) -> None:
    """Fold what all processes that ran here have left, and interrupt what they left open. None may run."""
    for process in processes_in(state_dir):
        folder = folder_of(state_dir, process)
        fold = Fold(folder, database, process)
        try:
            fold.recover(now_s)
        finally:
            fold.close()
        if process and not any(folder.iterdir()):
            folder.rmdir()


def _row(record: SettleRecord) -> tuple[Any, ...]:
    """The columns, JSON as text."""
    record.rids, record.workers, record.usage = _text(record.rids), _text(record.workers), _text(record.usage)
    return msgspec.structs.astuple(record)


def _text(raw: Any) -> Any:
    return str(raw, "utf-8")
