"""Folds journal files into SQLite: the other half of the ledger, run in its thread and at start and close.

A row is the record of an ended entry as it stands in the journal; its columns are read from it when somebody asks (the
view `turn`), so that folding a turn costs one JSON check and the insertion of one text. What tenants add up to
is a table of its own.

A step reads some whole lines, and commits their rows together with the position behind them. So a record is folded
once: killed before the commit, the step is done again; killed after it, the position is past. Lines that are no record
(torn by a full disk) are counted and skipped. A file is deleted once a later one exists, all of it is folded, and the
rows are checkpointed, because SQLite's WAL with `synchronous = NORMAL` may lose its last commits with the power.

Where a proxy is several processes, each folds its own journal into the one file, at its own position: SQLite has one
writer at a time, and a commit takes a few ms twice a second. What it interrupts is its own too.
"""

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from warmroute_proxy.core.entry import COLUMNS, UNDER_WAY, Entry
from warmroute_proxy.server.journal import folder_of, journal_path, journal_sequences, processes_in, read_lines

SCHEMA_VERSION: Final = 3
STEP_BYTES: Final = 1_048_576  # some hundred turns: a commit writes each page that they touch, however many on it
LINES_AT_ONCE: Final = 64  # read, then the loop may have the interpreter lock: it never waits long for it
ROWS_AT_ONCE: Final = 64  # of 3 values: SQLite takes 999 values in a statement wherever it was built, 32,766 today

_JSON: Final = frozenset({"rids", "workers", "usage"})
_READ: Final = ", ".join(f"json_extract(record, '$.{name}') AS {name}" for name in COLUMNS)
_TURNS: Final = f"""
CREATE TABLE turn_record (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, record TEXT NOT NULL);
CREATE VIEW turn AS SELECT rowid AS number, {_READ} FROM turn_record;
CREATE TABLE total (
    tenant TEXT PRIMARY KEY, turns INT NOT NULL, prompt_tokens INT NOT NULL, cached_tokens INT NOT NULL,
    completion_tokens INT NOT NULL, list_nanousd INT NOT NULL, price_nanousd INT NOT NULL
);
PRAGMA user_version = {SCHEMA_VERSION};
"""  # noqa: S608 - constants
_SCHEMA: Final = f"""{_TURNS}
CREATE TABLE open_turn (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, record TEXT NOT NULL, process INT NOT NULL DEFAULT 0
);
CREATE TABLE fold (
    process INT PRIMARY KEY, sequence INT NOT NULL, offset INT NOT NULL, skipped INT NOT NULL
);
"""
_FROM_1: Final = """
ALTER TABLE open_turn ADD COLUMN process INT NOT NULL DEFAULT 0;
ALTER TABLE fold RENAME TO fold_1;
CREATE TABLE fold (
    process INT PRIMARY KEY, sequence INT NOT NULL, offset INT NOT NULL, skipped INT NOT NULL
);
INSERT INTO fold SELECT 0, sequence, offset, skipped FROM fold_1;
DROP TABLE fold_1;
"""
_COPIED: Final = ", ".join(f"'{name}', {f'json({name})' if name in _JSON else name}" for name in COLUMNS)
_FROM_2: Final = f"""
ALTER TABLE turn RENAME TO turn_2;
{_TURNS}
INSERT INTO turn_record SELECT id, tenant, json_object({_COPIED}) FROM turn_2 ORDER BY rowid;
INSERT INTO total SELECT tenant, count(*), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens),
    sum(list_nanousd), sum(price_nanousd) FROM turn_2 GROUP BY tenant;
DROP TABLE turn_2;
"""  # noqa: S608 - constants


class LedgerError(RuntimeError):
    """The ledger cannot be used: its folder is in use, unreadable or of another version."""


class _Line(msgspec.Struct, gc=False):
    """What folding looks at; the rest is checked to be JSON, and kept as it is."""

    id: str
    tenant: str
    state: str = "open"  # as open records of schema version 2 have it
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    list_nanousd: int = 0
    price_nanousd: int = 0


class Folded(NamedTuple):
    """What a step has committed: ids of entries that are rows now."""

    settled: list[str]


_LINE: Final = msgspec.json.Decoder(_Line).decode
ENTRY: Final = msgspec.json.Decoder(Entry).decode
_VALUES: Final = "(?, ?, ?)"
_INSERT: Final = f"INSERT INTO turn_record VALUES {_VALUES} ON CONFLICT DO NOTHING"  # noqa: S608 - constants
_INSERT_MANY: Final = _INSERT.replace(_VALUES, ", ".join([_VALUES] * ROWS_AT_ONCE))
TOTALS: Final = ("turns", "prompt_tokens", "cached_tokens", "completion_tokens", "list_nanousd", "price_nanousd")
_ADD_UP: Final = f"""INSERT INTO total VALUES (?{", ?" * len(TOTALS)})
    ON CONFLICT DO UPDATE SET {", ".join(f"{name} = {name} + excluded.{name}" for name in TOTALS)}"""  # noqa: S608 - constants

_Row = tuple[str, str, str]
"""Id, tenant, record."""

_Ended = _Line | Entry


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
        elif version in {1, 2}:
            self._db.executescript(f"BEGIN; {_FROM_1 if version == 1 else ''} {_FROM_2} COMMIT;")
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
        return {tenant: list(sums) for tenant, *sums in self._db.execute("SELECT * FROM total")}

    def close(self) -> None:
        """Leaves one file behind, without a WAL."""
        self._db.close()

    def _commit(self, lines: list[bytes], offset: int) -> Folded:
        opened: dict[str, tuple[str, str, str, int]] = {}
        rows: dict[str, _Row] = {}
        ended: list[_Line] = []
        skipped = self._skipped
        for number, text in enumerate(lines):
            if number % LINES_AT_ONCE == 0:
                time.sleep(0)
            if not text:
                continue
            try:
                line = _LINE(text)
                row = line.id, line.tenant, text.decode()
            except (msgspec.DecodeError, UnicodeDecodeError):
                skipped += 1
                continue
            if line.state in UNDER_WAY:
                opened[line.id] = (*row, self._process)
            elif line.id not in rows:
                opened.pop(line.id, None)
                rows[line.id] = row
                ended.append(line)
        closed = self._open.intersection(rows)  # few: most turns end in the step that opens them
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._insert(list(rows.values()), ended)
            self._db.executemany("DELETE FROM open_turn WHERE id = ?", [(id_,) for id_ in closed])
            self._db.executemany("INSERT OR REPLACE INTO open_turn VALUES (?, ?, ?, ?)", opened.values())
            position = offset, skipped, self._process
            self._db.execute("UPDATE fold SET offset = ?, skipped = ? WHERE process = ?", position)
        self._offset, self._skipped = offset, skipped
        self._open -= closed
        self._open.update(opened)
        return Folded(list(rows))

    def _insert(self, rows: list[_Row], ended: Sequence[_Ended]) -> None:
        """Insert rows and add them up. Each statement gives up the interpreter lock and has to wait for it again, while
        the loop wants it too: so one statement takes `ROWS_AT_ONCE`.
        """
        at = 0
        while len(rows) - at >= ROWS_AT_ONCE:
            many = rows[at : at + ROWS_AT_ONCE]
            self._db.execute(_INSERT_MANY, [value for row in many for value in row])
            at += ROWS_AT_ONCE
        self._db.executemany(_INSERT, rows[at:])
        self._db.executemany(_ADD_UP, [(tenant, *sums) for tenant, sums in _sums(ended).items()])

    def _interrupt_open(self, now_s: float) -> None:
        rows: list[_Row] = []
        ended: list[Entry] = []
        own = (self._process,)
        for (text,) in self._db.execute("SELECT record FROM open_turn WHERE process = ? ORDER BY rowid", own):
            try:
                entry = ENTRY(text)
            except msgspec.DecodeError:  # of an earlier version of the ledger
                continue
            entry.interrupt(now_s)
            rows.append((entry.id, entry.tenant, entry.record().decode()))
            ended.append(entry)
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._insert(rows, ended)
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


def add_sums(sums: list[int], turn: _Ended) -> None:
    """Add an ended turn to sums as `TOTALS` has them."""
    sums[0] += 1
    sums[1] += turn.prompt_tokens
    sums[2] += turn.cached_tokens
    sums[3] += turn.completion_tokens
    sums[4] += turn.list_nanousd
    sums[5] += turn.price_nanousd


def _sums(ended: Sequence[_Ended]) -> dict[str, list[int]]:
    """What ended turns add to the totals of their tenants."""
    found: dict[str, list[int]] = {}
    for turn in ended:
        add_sums(found.setdefault(turn.tenant, [0] * len(TOTALS)), turn)
    return found


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
