"""Folds journal files into SQLite: the other half of the ledger, run in its thread and at start and close.

A row is the record of an ended entry as it stands in the journal; its columns are read from it when somebody asks (the
view `turn`), so that folding a turn costs one JSON check and the insertion of one text. What tenants add up to
is a table of its own.

A step reads some whole lines, and commits their rows together with the position behind them. So a record is folded
once: killed before the commit, the step is done again; killed after it, the position is past. Lines that are no record
(torn by a full disk) are counted and skipped. A file is deleted once a later one exists, all of it is folded, and the
rows are checkpointed, because SQLite's WAL with `synchronous = NORMAL` may lose its last commits with the power.

Most turns end in the step that opens them. So ended entries are read first: they end in an object, `usage`, where those
under way end in `null`. Of the others only what is still under way is read, and kept in `open_turn`.

Where a proxy is several processes, each folds its own journal into the one file, at its own position: SQLite has one
writer at a time, and a commit takes a few ms twice a second. What it interrupts is its own too.
"""

import sqlite3
import time
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Final

import msgspec

from warmroute_proxy.core.accounting.entry import UNDER_WAY, UNDER_WAY_END, Entry
from warmroute_proxy.core.accounting.entry_steps import interrupt
from warmroute_proxy.server.ledger.journal import folder_of, journal_path, journal_sequences, processes_in, read_whole
from warmroute_proxy.server.ledger.schema import LedgerError, connect, prepare

STEP_BYTES: Final = (
    4_194_304  # about 3,400 turns: a commit has a price of its own, and writes each page that they touch
)
LINES_AT_ONCE: Final = 256  # read, then the loop may have the interpreter lock: it never waits long for it
ROWS_AT_ONCE: Final = (
    320  # of at most 3 values: SQLite takes 999 values in a statement wherever it was built, 32,766 today
)


class _Line(msgspec.Struct, array_like=True, gc=False):
    """What folding looks at: the first fields of an entry; the rest is checked to be JSON, and kept as it is."""

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
TOTALS: Final = ("turns", "prompt_tokens", "cached_tokens", "completion_tokens", "list_nanousd", "price_nanousd")
_ADD_UP: Final = f"""INSERT INTO total VALUES (?{", ?" * len(TOTALS)})
    ON CONFLICT DO UPDATE SET {", ".join(f"{name} = {name} + excluded.{name}" for name in TOTALS)}"""  # noqa: S608 - constants

_Ended = _Line | Entry


class Fold:
    """The folding end of the journal. Used by one thread at a time."""

    _sequence: int
    _offset: int
    _skipped: int
    interrupted = 0  # turns that `recover` found open
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
            prepare(self._db, database)
            self._load()
        except BaseException as error:
            self._db.close()
            if isinstance(error, sqlite3.Error):
                raise LedgerError(f"cannot use {database}: {error}") from None
            raise

    def _load(self) -> None:
        own = (self._process,)
        self._db.execute("INSERT OR IGNORE INTO fold VALUES (?, 1, 0, 0)", own)
        row = self._db.execute("SELECT sequence, offset, skipped FROM fold WHERE process = ?", own).fetchone()
        self._sequence, self._offset, self._skipped = row
        self._open = {id_ for (id_,) in self._db.execute("SELECT id FROM open_turn WHERE process = ?", own)}

    def step(self) -> bool:
        """Folds some records, or begins the next file; False when there is nothing to do now."""
        path = journal_path(self._folder, self._sequence)
        found = read_whole(path, self._offset, STEP_BYTES)
        if not found:
            later = [number for number in journal_sequences(self._folder) if number > self._sequence]
            if not later:
                return False
            found = read_whole(
                path, self._offset, STEP_BYTES
            )  # once a later file is there, nothing is added to this one
        if found:
            self._commit(found)
        else:
            self._move_to(later[0])
            self._delete_folded()
        return True

    def recover(self, now_s: float) -> int:
        """Folds all that is left, interrupts what is open; returns the number for the next journal file."""
        while self.step():
            pass
        self.interrupted = self._interrupt_open(now_s)
        self._move_to(self._sequence + 1)
        self._delete_folded()
        return self._sequence

    def close(self) -> None:
        """Leaves one file behind, without a WAL."""
        self._db.close()

    def _commit(self, found: bytes) -> None:
        rows: dict[str, str] = {}
        sums: dict[str, list[int]] = {}
        texts = found.decode(errors="surrogateescape").split("\n")
        under_way, skipped = ended_of(texts, rows, sums)
        opened, more = _still_open(under_way, rows)
        offset, skipped = self._offset + len(found), self._skipped + skipped + more
        closed = self._open.intersection(rows)  # few: most turns end in the step that opens them
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._insert(rows, sums)
            self._many("DELETE FROM open_turn WHERE id IN (%s)", "?", zip(closed))
            self._many("INSERT OR REPLACE INTO open_turn VALUES %s", f"(?, ?, ?, {self._process:d})", opened.values())
            position = offset, skipped, self._process
            self._db.execute("UPDATE fold SET offset = ?, skipped = ? WHERE process = ?", position)
        self._offset, self._skipped = offset, skipped
        self._open -= closed
        self._open.update(opened)

    def _insert(self, rows: dict[str, str], sums: dict[str, list[int]]) -> None:
        """Insert rows and add them up."""
        self._many("INSERT INTO turn_record VALUES %s ON CONFLICT DO NOTHING", "(?, ?)", rows.items())
        self._db.executemany(_ADD_UP, [(tenant, *numbers) for tenant, numbers in sums.items()])

    def _many(self, statement: str, place: str, rows: Iterable[tuple[str, ...]]) -> None:
        """A statement for many rows. Each gives up the interpreter lock and has to wait for it again, while the loop
        wants it too: so one takes `ROWS_AT_ONCE`.
        """
        left = iter(rows)
        while some := list(islice(left, ROWS_AT_ONCE)):
            self._db.execute(statement % ", ".join([place] * len(some)), list(chain.from_iterable(some)))

    def _interrupt_open(self, now_s: float) -> int:
        rows: dict[str, str] = {}
        sums: dict[str, list[int]] = {}
        own = (self._process,)
        for (text,) in self._db.execute("SELECT record FROM open_turn WHERE process = ? ORDER BY rowid", own):
            try:
                entry = Entry.read(text)
            except msgspec.DecodeError:  # of version 1 or 2 of the ledger
                continue
            interrupt(entry, now_s)
            rows[entry.id] = entry.record().decode()
            _add_up(entry, sums)
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._insert(rows, sums)
            self._db.execute("DELETE FROM open_turn WHERE process = ?", own)
        self._open.clear()
        return len(rows)

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


def _add_up(turn: _Ended, sums: dict[str, list[int]]) -> None:
    """Add an ended turn to the sums of its tenant, as `TOTALS` has them."""
    of_tenant = sums.get(turn.tenant)
    if of_tenant is None:
        of_tenant = sums[turn.tenant] = [0] * len(TOTALS)
    of_tenant[0] += 1
    of_tenant[1] += turn.prompt_tokens
    of_tenant[2] += turn.cached_tokens
    of_tenant[3] += turn.completion_tokens
    of_tenant[4] += turn.list_nanousd
    of_tenant[5] += turn.price_nanousd


def _in_turns(texts: list[str]) -> Iterator[str]:
    """All of them; now and then the loop gets the interpreter lock."""
    for at in range(0, len(texts), LINES_AT_ONCE):
        time.sleep(0)
        yield from texts[at : at + LINES_AT_ONCE]


def ended_of(texts: list[str], rows: dict[str, str], sums: dict[str, list[int]]) -> tuple[list[str], int]:
    """Find the rows, and add them up: what is decoded is let go at once, while it is warm. Returns the lines that are
    under way, unread, and how many are no records.
    """
    under_way: list[str] = []
    skipped = 0
    for text in _in_turns(texts):
        if text.endswith(UNDER_WAY_END):
            under_way.append(text)
            continue
        line: _Ended
        record = text
        try:
            line = _LINE(text)
        except _NO_RECORD:
            try:
                line = Entry.read(text)  # as it was written before version 4
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
    """Of what began: id -> id, tenant and record of what has not ended; and how many are no records."""
    opened: dict[str, tuple[str, str, str]] = {}
    skipped = 0
    for text in _in_turns(under_way):
        if text[2 : text.find('"', 2)] in rows:  # an id is plain
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
    """Fold what all processes that ran here have left, and interrupt what they left open: so many. None may run."""
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
