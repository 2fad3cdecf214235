"""Folds journal files: moves their records to an SQLite file.

The ledger folds in a thread while it runs, and also at its start and close. A row is the record of an ended entry,
exactly as the journal has it. The columns are computed when they are queried (by the view `turn`), so folding a turn
costs one JSON check and the insertion of one text. The sums of each tenant's turns are in a separate table (`total`).

A step reads some whole lines, and commits their rows together with the position after these lines. So each record is
folded once: after a kill, the process repeats only a step that was not committed. Lines that are not records (torn by a
full disk) are counted and skipped. A file is deleted once all of its lines are folded, a later file exists, and the
rows are checkpointed: SQLite's WAL with `synchronous = NORMAL` may lose its last commits in a power failure.

The journal has a record when a turn is opened, and another when it ends. Most turns end in the step that opens them, so
the records of ended turns are decoded first; they end in an object, `usage`. Records of open turns end in `null`. They
are decoded only if the turn has not ended in the step, and are kept in `open_turn`.

If a proxy has several processes, each one folds its own journal into the same file, and has its own position. SQLite
has one writer at a time, which is enough: a commit takes a few ms twice a second. At its start and close, a process
settles its own open turns as interrupted.

Each row names the start of the process that served it. `fold` names a start from its beginning until all its rows are
there. So a start that `fold` does not name any more has ended, and has no rows to come.
"""

import sqlite3
import time
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Final

import msgspec

from warmroute_proxy.core.accounting.entry import UNDER_WAY, UNDER_WAY_END, Entry
from warmroute_proxy.core.accounting.entry_steps import VOID_SUFFIX, interrupt, turns_in
from warmroute_proxy.server.ledger.journal import folder_of, journal_path, journal_sequences, processes_in, read_whole
from warmroute_proxy.server.ledger.schema import ADD_TO_TOTAL, LedgerError, TenantTotals, connect, prepare

STEP_BYTES: Final = 4_194_304
"""How much a commit folds, about 3,400 turns. Smaller commits would cost more: each writes every page that it touches.
"""

LINES_AT_ONCE: Final = 256
"""After this number of lines, the thread gives up the interpreter lock, so that the event loop never waits long."""

ROWS_AT_ONCE: Final = 320
"""Rows of one statement, with at most 3 values each. Every build of SQLite accepts 999 values in a statement; current
builds accept 32,766."""


class _Line(msgspec.Struct, array_like=True, gc=False):
    """The fields of an entry that folding uses. The other fields are only checked to be JSON, and stored unchanged."""

    id: str
    tenant: str
    session: msgspec.Raw
    lineage: msgspec.Raw
    turn: msgspec.Raw
    region: msgspec.Raw
    model: msgspec.Raw
    route: msgspec.Raw
    stream: msgspec.Raw
    rates: msgspec.Raw
    opened_at: msgspec.Raw
    forwarded_from: msgspec.Raw
    state: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    list_nanousd: int
    price_nanousd: int


_LINE: Final = msgspec.json.Decoder(_Line).decode
_NO_RECORD: Final = (msgspec.DecodeError, UnicodeEncodeError)
_Ended = _Line | Entry


class Fold:
    """Folds the journal of one process. Used by one thread at a time."""

    _sequence: int
    _offset: int
    _skipped: int
    _start: int  # whose rows are folded
    interrupted = 0  # open turns that `recover` has settled
    _open: set[str]  # ids in `open_turn`, at most as many as there are connections

    def __init__(self, folder: Path, database: Path, process: int = 0) -> None:
        """`folder`: the folder of the process' journal."""
        self._folder = folder
        self._process = process
        try:
            self._db = connect(database)
        except sqlite3.Error as error:
            raise LedgerError(f"cannot use {database}: {error}") from None
        try:
            prepare(self._db, database)
            self._load()
        except BaseException as error:
            self._db.close()
            if isinstance(error, sqlite3.Error):
                raise LedgerError(f"cannot use {database}: {error}") from None
            raise

    def _load(self) -> None:
        own = (self._process,)
        self._db.execute("INSERT OR IGNORE INTO fold VALUES (?, 1, 0, 0, 0)", own)
        row = self._db.execute("SELECT sequence, offset, skipped, start FROM fold WHERE process = ?", own).fetchone()
        self._sequence, self._offset, self._skipped, self._start = row
        self._open = {id_ for (id_,) in self._db.execute("SELECT id FROM open_turn WHERE process = ?", own)}

    def step(self) -> bool:
        """Fold some records, or begin the next file. False if there is nothing to do now."""
        path = journal_path(self._folder, self._sequence)
        found = read_whole(path, self._offset, STEP_BYTES)
        if not found:
            later = [number for number in journal_sequences(self._folder) if number > self._sequence]
            if not later:
                return False
            # Read once more, since lines may have been added before the later file was begun; now no more can come.
            found = read_whole(path, self._offset, STEP_BYTES)
        if found:
            self._commit(found)
        else:
            self._move_to(later[0])
            self._delete_folded()
        return True

    def recover(self, now_s: float, start: int = 0) -> int:
        """Fold what is left, and settle open turns as interrupted. Returns the number for the next journal file.

        `start`: names the start of the process that goes on here; 0 if the process ends.
        """
        while self.step():
            pass
        self.interrupted = self._interrupt_open(now_s, start)
        self._move_to(self._sequence + 1)
        self._delete_folded()
        return self._sequence

    def close(self) -> None:
        """Close the ledger file, so that no WAL is left beside it."""
        self._db.close()

    def _commit(self, found: bytes) -> None:
        rows: dict[str, str] = {}
        sums: dict[str, TenantTotals] = {}
        texts = found.decode(errors="surrogateescape").split("\n")
        under_way, skipped = ended_of(texts, rows, sums)
        opened, more = _still_open(under_way, rows)
        offset, skipped = self._offset + len(found), self._skipped + skipped + more
        closed = self._open.intersection(rows)  # few: most turns end in the step that opens them
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._leave_out_second_voids(rows, sums)
            self._insert(rows, sums)
            self._many("DELETE FROM open_turn WHERE id IN (%s)", "?", zip(closed))
            self._many("INSERT OR REPLACE INTO open_turn VALUES %s", f"(?, ?, ?, {self._process:d})", opened.values())
            position = offset, skipped, self._process
            self._db.execute("UPDATE fold SET offset = ?, skipped = ? WHERE process = ?", position)
        self._offset, self._skipped = offset, skipped
        self._open -= closed
        self._open.update(opened)

    def _leave_out_second_voids(self, rows: dict[str, str], sums: dict[str, TenantTotals]) -> None:
        """Leave out voids of rows that are already voided, since two processes may have been asked at the same time."""
        for id_ in [id_ for id_ in rows if id_.endswith(VOID_SUFFIX)]:
            if self._db.execute("SELECT 1 FROM turn_record WHERE id = ?", (id_,)).fetchone() is not None:
                _add_up(_LINE(rows.pop(id_)), sums, -1)

    def _insert(self, rows: dict[str, str], sums: dict[str, TenantTotals]) -> None:
        self._many("INSERT INTO turn_record VALUES %s ON CONFLICT DO NOTHING", f"(?, ?, {self._start:d})", rows.items())
        self._db.executemany(ADD_TO_TOTAL, [(tenant, *totals.values()) for tenant, totals in sums.items()])

    def _many(self, statement: str, values: str, rows: Iterable[tuple[str, ...]]) -> None:
        """Execute a statement for many rows, `ROWS_AT_ONCE` at a time, because each call gives up the interpreter lock
        and has to wait for the event loop to get it back. `values`: the placeholders of one row.
        """
        left = iter(rows)
        while some := list(islice(left, ROWS_AT_ONCE)):
            self._db.execute(statement % ", ".join([values] * len(some)), list(chain.from_iterable(some)))

    def _interrupt_open(self, now_s: float, start: int) -> int:
        rows: dict[str, str] = {}
        sums: dict[str, TenantTotals] = {}
        own = (self._process,)
        for (text,) in self._db.execute("SELECT record FROM open_turn WHERE process = ? ORDER BY rowid", own):
            try:
                entry = Entry.read(text)
            except msgspec.DecodeError:  # written by version 1 or 2 of the ledger
                continue
            interrupt(entry, now_s)
            rows[entry.id] = entry.record().decode()
            _add_up(entry, sums)
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._insert(rows, sums)
            self._db.execute("DELETE FROM open_turn WHERE process = ?", own)
            self._db.execute("UPDATE fold SET start = ? WHERE process = ?", (start, *own))
        self._start = start
        self._open.clear()
        return len(rows)

    def _move_to(self, sequence: int) -> None:
        self._db.execute("UPDATE fold SET sequence = ?, offset = 0 WHERE process = ?", (sequence, self._process))
        self._sequence, self._offset = sequence, 0

    def _delete_folded(self) -> None:
        busy, _, _ = self._db.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
        if busy:
            return  # a reader uses the WAL; the next call deletes the files
        for sequence in journal_sequences(self._folder):
            if sequence < self._sequence:
                journal_path(self._folder, sequence).unlink(missing_ok=True)


def _add_up(turn: _Ended, sums: dict[str, TenantTotals], times: int = 1) -> None:
    """Add an ended turn to the sums of its tenant `times` times; -1 subtracts it. The values of a void are negative, so
    adding a void subtracts the row that it voids.
    """
    totals = sums.get(turn.tenant)
    if totals is None:
        totals = sums[turn.tenant] = TenantTotals()
    totals.turns += times * turns_in(turn.id)
    totals.prompt_tokens += times * turn.prompt_tokens
    totals.cached_tokens += times * turn.cached_tokens
    totals.completion_tokens += times * turn.completion_tokens
    totals.list_nanousd += times * turn.list_nanousd
    totals.price_nanousd += times * turn.price_nanousd


def _yielding_lock(texts: list[str]) -> Iterator[str]:
    """Yield all texts. Before each `LINES_AT_ONCE` of them, let the event loop take the interpreter lock."""
    for at in range(0, len(texts), LINES_AT_ONCE):
        time.sleep(0)
        yield from texts[at : at + LINES_AT_ONCE]


def ended_of(texts: list[str], rows: dict[str, str], sums: dict[str, TenantTotals]) -> tuple[list[str], int]:
    """Collect ended entries in `rows`, and add them up in `sums`. Each decoded line is dropped at once, while it is in
    the processor's cache. Returns the lines of open entries without decoding them, and how many lines are not records.
    """
    under_way: list[str] = []
    skipped = 0
    for text in _yielding_lock(texts):
        if text.endswith(UNDER_WAY_END):
            under_way.append(text)
            continue
        line: _Ended
        record = text
        try:
            line = _LINE(text)
        except _NO_RECORD:
            try:
                line = Entry.read(text)  # written by a version of the ledger before 4
            except _NO_RECORD:
                skipped += text != ""
                continue
            record = line.record().decode()
        if line.state in UNDER_WAY:
            under_way.append(record)
        elif line.id not in rows:
            rows[line.id] = record
            _add_up(line, sums)
    return under_way, skipped


def _still_open(under_way: list[str], rows: dict[str, str]) -> tuple[dict[str, tuple[str, str, str]], int]:
    """The turns that have not ended, as id -> (id, tenant, record), and how many lines are not records."""
    opened: dict[str, tuple[str, str, str]] = {}
    skipped = 0
    for text in _yielding_lock(under_way):
        if text[2 : text.find('"', 2)] in rows:  # the id comes first, and has no escapes
            continue
        try:
            line = _LINE(text)
        except _NO_RECORD:
            skipped += 1
            continue
        if line.id not in rows:
            opened[line.id] = line.id, line.tenant, text
    return opened, skipped


def recover_all(state_dir: Path, database: Path, now_s: float) -> int:
    """Fold the journals of all processes that ran here, and settle their open turns as interrupted. No process may be
    running. Returns the number of interrupted turns.
    """
    interrupted = 0
    for process in processes_in(state_dir):
        folder = folder_of(state_dir, process)
        fold = Fold(folder, database, process)
        try:
            fold.recover(now_s)
            interrupted += fold.interrupted
        finally:
            fold.close()
        if process and not any(folder.iterdir()):
            folder.rmdir()
    return interrupted
