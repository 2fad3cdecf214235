"""The ledger of turns: journalled in the event loop, folded into SQLite by a thread.

`open` writes, so that whatever an engine has been asked is on record. `settle` notes a record and returns: what one
turn of the event loop has noted is written at its end, by one write, and only then are those told whose entries it has
settled, so that no client sees the end of an answer before its row is safe.

A turn whose row cannot be written ends with an error, and is charged nothing. As `interrupted` its row waits in memory,
and is the first that is written once anything can be.

A row reaches `<state_dir>/ledger.sqlite` within `FOLD_EVERY_S`.
The journal position is committed in the transaction of the rows that it covers, so every record is folded once,
whenever the process dies. What was open when a process died, or when it closed, becomes an `interrupted` row. The
tables are in `ledger_schema`.

A state folder has one writer, held by a lock on the file `lock`; readers use SQLite's WAL. Where that is several
processes, their parent holds the lock, and each has a journal of its own that it folds itself (`process`).

Kept in memory: entries under way, as many as the limit on connections allows, and the rows that wait. An entry that has
ended is let go at once, since a thousand of them grow cold until they are folded; what is not folded yet is read from
the journal when somebody asks for it (`ledger_of_all`).
"""

import contextlib
import fcntl
import logging
import os
import sqlite3
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from warmroute_proxy.core.accounting.entry import COLUMNS, Entry
from warmroute_proxy.core.accounting.entry_steps import withdrawn
from warmroute_proxy.server.ledger.all_processes import LedgerOfAll
from warmroute_proxy.server.ledger.fold import TOTALS, Fold, recover_all
from warmroute_proxy.server.ledger.journal import Journal, JournalError, folder_of
from warmroute_proxy.server.ledger.schema import LedgerError, connect

FOLD_EVERY_S = 0.5
MAX_FOLD_FAILURES: Final = 3  # in a row, before the ledger calls itself unhealthy
LEDGER_FILE: Final = "ledger.sqlite"

_LOG: Final = logging.getLogger(__name__)
_OPEN: Final = {"state": "open"}
Told = Callable[[JournalError | None], None]
_VIEW: Final = ("state", "outcome", "model", "session", "opened_at", "settled_at", "usage")

__all__ = ["LEDGER_FILE", "Ledger", "LedgerError", "lock", "read_rows"]


_Ended = tuple[int, Told]
"""Where the record of an ended entry ends in what was noted, and who waits for it."""


class Ledger:
    """One writer a state folder. `open`, `settle` and `close` are called in the event loop, the rest anywhere."""

    def __init__(
        self,
        state_dir: Path,
        sync: Literal["process", "disk"],
        loop: AbstractEventLoop,
        process: int | None = None,
    ) -> None:
        """`process`: which one of several it is; None: the only one."""
        folder = folder_of(state_dir, process or 0)
        folder.mkdir(parents=True, exist_ok=True)
        self._closed = contextlib.ExitStack()  # what is to be closed, the last one first
        self._state_dir = state_dir
        self.interrupted = 0
        """Turns that were open when the process before this one died."""

        with explained(state_dir), contextlib.ExitStack() as opened:
            if process is None:
                opened.callback(os.close, lock(state_dir))
                self.interrupted = recover_all(state_dir, state_dir / LEDGER_FILE, time.time())
            self._fold = Fold(folder, state_dir / LEDGER_FILE, process or 0)
            opened.callback(self._fold.close)
            sequence = self._fold.recover(time.time())
            self.interrupted += self._fold.interrupted
            self._reader = connect(state_dir / LEDGER_FILE)
            opened.callback(self._reader.close)
            self._of_all = LedgerOfAll(state_dir, state_dir / LEDGER_FILE)
            opened.callback(self._of_all.close)
            self._journal = Journal(folder, sequence, sync, loop)
            self._closed = opened.pop_all()
        self._reader_lock = threading.Lock()
        self._under_way: dict[str, Entry] = {}
        self._call_soon = loop.call_soon
        self._note = msgspec.json.Encoder().encode_into
        self._noted = bytearray()  # not written yet: at most one record of each request under way
        self._ended: list[_Ended] = []
        self._to_tell: list[tuple[Told, JournalError | None]] = []
        self._fold_failures = 0
        self._closing = threading.Event()
        self._worker = threading.Thread(target=self._fold_on, name="ledger-fold", daemon=True)
        self._worker.start()

    @property
    def healthy(self) -> bool:
        """False while entries cannot be written, or folded; asked after a failed write, it tries again."""
        return self._fold_failures < MAX_FOLD_FAILURES and self._journal.healthy

    @property
    def waiting(self) -> int:
        """Turns that have ended, and whose rows cannot be written yet."""
        return self._journal.owed

    def sweep(self) -> None:
        """Try again to write what waits; called several times a second."""
        self._journal.pay()

    def open(self, entry: Entry) -> None:
        """Journals an entry before its request is sent, again before each retry. Raises: JournalError."""
        noted = self._noted
        self._note(entry, noted, -1)  # behind what was noted before: the records of an entry stay in order
        noted += b"\n"
        self._write()
        self._under_way[entry.id] = entry

    def settle(self, entry: Entry, told: Told) -> None:
        """Journals an ended entry. `told` runs in the loop once it is durable, or with why it cannot be."""
        self._under_way.pop(entry.id, None)
        if not self._ended and not self._to_tell:
            self._call_soon(self.flush)
        noted = self._noted
        self._note(entry, noted, -1)
        noted += b"\n"
        self._ended.append((len(noted), told))

    def flush(self) -> None:
        """Write what was noted, and tell those who wait for it. Runs by itself at the end of the loop's turn."""
        with contextlib.suppress(JournalError):  # each is told
            self._write()
        to_tell, self._to_tell = self._to_tell, []
        if to_tell:
            self._journal.settled_durably(partial(_tell, to_tell))

    def _write(self) -> None:
        """Raises: JournalError when the last of what was noted is not written."""
        noted = self._noted
        if not noted:
            return
        try:
            self._journal.write(noted)
        except JournalError as error:
            self._not_written(error, len(noted))
        else:
            if self._ended:
                self._to_tell += [(told, None) for _, told in self._ended]
        finally:
            self._ended.clear()
            noted.clear()

    def _not_written(self, error: JournalError, noted: int) -> None:
        """Of what was noted, only the first `error.kept` bytes are in the journal."""
        self._to_tell += [(told, None if end <= error.kept else error) for end, told in self._ended]
        for end, _ in self._ended:
            if end > error.kept:
                record = bytes(self._noted[self._noted.rfind(b"\n", 0, end - 1) + 1 : end])
                self._journal.owe(withdrawn(Entry.read(record)).record() + b"\n")
        if error.kept < noted:
            raise error

    def receipt(self, tenant: str, receipt_id: str) -> dict[str, Any] | None:
        """The body of a receipt answer, `{"state": "open"}` while under way; None if unknown or not the tenant's.

        `usage` is a `msgspec.Raw`: the bytes that the client got; encode the answer with msgspec.
        """
        entry = self._under_way.get(receipt_id)
        if entry is not None:
            return _OPEN if entry.tenant == tenant else None
        stored = self._stored(tenant, receipt_id)
        if stored is not None and stored != _OPEN:
            return stored
        found = self._of_all.find(tenant, receipt_id)
        if found is not None and found.ended:
            return _view(receipt_id, [getattr(found, name) for name in _VIEW])
        return self._stored(tenant, receipt_id) or (_OPEN if found is not None else None)  # folded meanwhile, perhaps

    def totals(self, tenant: str) -> dict[str, Any]:
        """The body of a usage answer, up to date with the last settled entry."""
        sums = dict(zip(TOTALS, self._of_all.totals(tenant), strict=True))
        prompt = sums["prompt_tokens"]
        return {
            "object": "warmroute.usage",
            **sums,
            "hit_ratio": round(sums["cached_tokens"] / prompt, 6) if prompt else None,
            "saved_nanousd": sums["list_nanousd"] - sums["price_nanousd"],
        }

    def close(self) -> None:
        """Folds everything, settles what is open as interrupted, and lets the folder go."""
        self.flush()
        self.sweep()
        self._closing.set()
        self._worker.join()
        self._journal.close()
        with explained(self._state_dir), self._closed:
            self._fold.recover(time.time())

    def _stored(self, tenant: str, receipt_id: str) -> dict[str, Any] | None:
        query = f"SELECT {', '.join(_VIEW)} FROM turn WHERE number ="  # noqa: S608 - constants
        query += " (SELECT rowid FROM turn_record WHERE id = ?) AND tenant = ?"
        with self._reader_lock:
            row = self._reader.execute(query, (receipt_id, tenant)).fetchone()
            if row is None:
                query = "SELECT 1 FROM open_turn WHERE id = ? AND tenant = ?"
                is_open = self._reader.execute(query, (receipt_id, tenant)).fetchone() is not None
                return _OPEN if is_open else None
        return _view(receipt_id, [*row[:-1], msgspec.Raw(row[-1].encode())])

    def _fold_on(self) -> None:
        while not self._closing.wait(FOLD_EVERY_S):
            try:
                while self._fold.step():
                    pass
                self._fold_failures = 0
            except Exception as error:  # the thread must go on: the journal keeps what could not be folded
                self._fold_failures += 1
                _LOG.error("folding the journal failed: %s: %s", type(error).__name__, error)


@contextlib.contextmanager
def explained(state_dir: Path) -> Iterator[None]:
    """Errors of SQLite, a full disk foremost, as a `LedgerError` that says where. Nothing is lost by one."""
    try:
        yield
    except sqlite3.Error as error:
        raise LedgerError(f"the ledger in {state_dir} cannot be written: {error}; its journal is kept") from None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All rows of a ledger file in the order in which they were folded; `rids`, `workers`, `usage` are JSON text."""
    connection = connect(path, read_only=True)
    try:
        cursor = connection.execute(f"SELECT {', '.join(COLUMNS)} FROM turn ORDER BY number")  # noqa: S608 - constants
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]
    finally:
        connection.close()


def _tell(to_tell: list[tuple[Told, JournalError | None]]) -> None:
    for told, failure in to_tell:
        try:
            told(failure)
        except Exception as error:  # one that fails must not keep the others from being told
            _LOG.error("the end of a turn failed: %s", type(error).__name__)


def _view(receipt_id: str, values: list[Any]) -> dict[str, Any]:
    return {"object": "warmroute.receipt", "id": receipt_id, **dict(zip(_VIEW, values, strict=True))}


def lock(state_dir: Path) -> int:
    """Holds the folder for this process and those that it forks; the OS lets go of it when the last of them ends."""
    state_dir.mkdir(parents=True, exist_ok=True)
    fd = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(fd, 32).decode("ascii", "replace").strip()
        os.close(fd)
        raise LedgerError(f"state_dir {state_dir} is in use by another proxy (pid {holder or 'unknown'})") from None
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd
