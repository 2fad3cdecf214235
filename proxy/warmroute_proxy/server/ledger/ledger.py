"""The ledger of turns: the event loop writes a journal, and a thread folds it (moves its records) into an SQLite file.

An entry is the record of one request. `open` writes it to the journal at once, so every dispatched request is on
record. `settle` adds the ended entry to a buffer and returns. The buffer is written once at the end of each iteration
of the event loop. The callbacks of the settled entries run only then, so no client sees the end of an answer before its
entry is safe.

A turn whose entry cannot be written ends with an error, and is charged nothing. The entry waits in memory, as
`interrupted`. Entries that wait are written before any others, once writes succeed again.

An entry becomes a row of `<state_dir>/ledger.sqlite` within `FOLD_EVERY_S`. One transaction commits rows and the
journal position after them, so every entry is folded once, whenever the process dies. A turn that was open when a
process died or closed becomes an `interrupted` row. `schema` has the tables.

A state folder has one writer, which holds a lock on the file `lock`; readers use SQLite's WAL. If a proxy has several
processes, their supervisor holds the lock, and each process folds its own journal (`process`).

Memory holds open entries, as many as the limit on connections allows, and the entries that wait. An ended entry is
dropped at once; a receipt that is not folded yet is read from the journal on request (`all_processes`).
"""

import contextlib
import fcntl
import logging
import os
import secrets
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
from warmroute_proxy.core.accounting.entry_steps import turns_in, void_id, voiding, withdrawn
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.metrics import GaugeRow
from warmroute_proxy.server.ledger.all_processes import AllProcessesReader
from warmroute_proxy.server.ledger.earlier_turns import EarlierTurn, read_earlier_turns
from warmroute_proxy.server.ledger.fold import Fold, recover_all
from warmroute_proxy.server.ledger.journal import Journal, JournalError, folder_of
from warmroute_proxy.server.ledger.queries import LedgerQueries
from warmroute_proxy.server.ledger.retention import RESERVE_BYTES, Retention, Upkeep, file_bytes, volume
from warmroute_proxy.server.ledger.schema import TOTALS, LedgerError, connect

FOLD_EVERY_S = 0.5
SWEEPS_A_LOOK: Final = 4  # sweeps between two looks at the volume's free space: one second
MAX_FOLD_FAILURES: Final = 3  # in a row, before the ledger calls itself unhealthy
LEDGER_FILE: Final = "ledger.sqlite"

_LOG: Final = logging.getLogger(__name__)
_OPEN: Final = {"state": "open"}
Voided = Literal["voided", "free", "open", "unknown"]
"""voided: the row is voided now; free: it was voided or free before; open: its turn goes on; unknown: not found."""

OnDurable = Callable[[JournalError | None], None]
_VIEW: Final = (
    "state", "outcome", "model", "session", "opened_at", "settled_at", "forwarded_from", "rids", "usage"
)  # fmt: skip

__all__ = ["LEDGER_FILE", "Ledger", "LedgerError", "lock", "read_rows", "receipt_of"]


_Ended = tuple[int, OnDurable]
"""For an ended entry in the buffer: the offset at which its record ends, and its callback."""


class Ledger:
    """The one writer of a state folder. Methods that write are called in the event loop, the others in any thread."""

    def __init__(
        self,
        state_dir: Path,
        sync: Literal["process", "disk"],
        loop: AbstractEventLoop,
        process: int | None = None,
        retention: Retention | None = None,
    ) -> None:
        """`process`: the number of this process; None if it is the only one. The first process prunes the file."""
        folder = folder_of(state_dir, process or 0)
        folder.mkdir(parents=True, exist_ok=True)
        self._closed = contextlib.ExitStack()  # closes everything that was opened, in reverse order
        self._state_dir = state_dir
        self.start = secrets.randbits(62) + 1
        """Names this start of the process. Its rows have this name, and its leases on budgets."""

        self.interrupted = 0
        """How many turns were open when an earlier process died."""

        self._journal = self._open(folder, process, sync, loop)
        self.earlier_turns: dict[str, EarlierTurn] = {}
        """The newest turn of each lineage (conversation branch) from before this process began; empty until read."""
        self._reader_lock = threading.Lock()
        self._under_way: dict[str, Entry] = {}
        self._call_soon = loop.call_soon
        self._encode_into = msgspec.json.Encoder().encode_into
        self._unwritten = bytearray()  # at most one record of each open request
        self._ended: list[_Ended] = []
        self._callbacks: list[tuple[OnDurable, JournalError | None]] = []  # to run once durable
        self._fold_failures = 0
        self.short_of_space = False  # the volume has less free space than running turns may need
        self._sweeps, self._blocked = 0, False  # blocked: the volume is full, or folding fails
        self.upkeep = Upkeep(state_dir / LEDGER_FILE, None if process else retention)
        self._closing = threading.Event()
        self._fold_thread = threading.Thread(target=self._fold_on, name="ledger-fold", daemon=True)
        self._fold_thread.start()

    def _open(
        self, folder: Path, process: int | None, sync: Literal["process", "disk"], loop: AbstractEventLoop
    ) -> Journal:
        """Recover what an earlier process has left, and open all files. Returns the journal of this process."""
        state_dir, file = self._state_dir, self._state_dir / LEDGER_FILE
        with ledger_errors(state_dir), contextlib.ExitStack() as opened:
            if process is None:
                opened.callback(os.close, lock(state_dir))
                self.interrupted = recover_all(state_dir, file, time.time())
            self._fold = Fold(folder, file, process or 0)
            opened.callback(self._fold.close)
            sequence = self._fold.recover(time.time(), self.start)
            self.interrupted += self._fold.interrupted
            self._reader = connect(file)
            opened.callback(self._reader.close)
            self._all_processes = AllProcessesReader(state_dir, file)
            opened.callback(self._all_processes.close)
            self.queries = LedgerQueries(state_dir, file)
            """Answers questions about many rows in a thread."""
            opened.callback(self.queries.close)
            journal = Journal(folder, sequence, sync, loop)
            self._closed = opened.pop_all()
        return journal

    @property
    def healthy(self) -> bool:
        """False while entries cannot be written or folded. After a failed write, reading this property tries again."""
        return not self._blocked and self._journal.healthy

    @property
    def waiting(self) -> int:
        """How many ended turns wait in memory, since the journal cannot be written."""
        return self._journal.waiting

    def sweep(self) -> None:
        """Try again to write entries that wait, and look at the volume's free space. Called several times a second."""
        self._journal.write_waiting()
        self._sweeps += 1
        if self._sweeps % SWEEPS_A_LOOK == 0:
            self._look_at_volume()
        self._blocked = self.short_of_space or self._fold_failures >= MAX_FOLD_FAILURES

    def _look_at_volume(self) -> None:
        free = volume(self._state_dir)[1]
        if (short := free < RESERVE_BYTES) != self.short_of_space:
            self.short_of_space = short
            if short:
                _LOG.error(
                    "the ledger: the volume of state_dir is full, with %d MiB free; new turns are refused", free >> 20
                )
            else:
                _LOG.warning("the ledger: the volume of state_dir has space again: %d MiB are free", free >> 20)

    def open(self, entry: Entry) -> None:
        """Journal an entry before its request is sent, and again before each retry. Raises: JournalError."""
        unwritten = self._unwritten
        self._encode_into(entry, unwritten, -1)  # after earlier records, so an entry's records stay in order
        unwritten += b"\n"
        self._write()
        self._under_way[entry.id] = entry

    def settle(self, entry: Entry, on_durable: OnDurable) -> None:
        """Journal an ended entry. `on_durable` is called in the event loop, with None once the entry is durable, or
        with an error.
        """
        self._under_way.pop(entry.id, None)
        if not self._ended and not self._callbacks:
            self._call_soon(self.flush)
        unwritten = self._unwritten
        self._encode_into(entry, unwritten, -1)
        unwritten += b"\n"
        self._ended.append((len(unwritten), on_durable))

    def flush(self) -> None:
        """Write the buffer, and run the callbacks. `settle` schedules this for the end of the loop's iteration."""
        try:
            self._write()
        except JournalError:
            pass  # each callback gets the error
        callbacks, self._callbacks = self._callbacks, []
        if callbacks:
            self._journal.when_durable(partial(_run, callbacks))

    def _write(self) -> None:
        """Write the buffer. Raises: JournalError, if the buffer's last record is not written."""
        unwritten = self._unwritten
        if not unwritten:
            return
        try:
            self._journal.write(unwritten)
        except JournalError as error:
            self._keep_unwritten(error, len(unwritten))
        else:
            if self._ended:
                self._callbacks += [(on_durable, None) for _, on_durable in self._ended]
        finally:
            self._ended.clear()
            unwritten.clear()

    def _keep_unwritten(self, error: JournalError, size: int) -> None:
        """Keep ended entries that were not written, as interrupted. `size`: that of the buffer, of which
        `error.written_bytes` were written.
        """
        written = error.written_bytes
        self._callbacks += [(on_durable, None if end <= written else error) for end, on_durable in self._ended]
        for end, _ in self._ended:
            if end > written:
                record = bytes(self._unwritten[self._unwritten.rfind(b"\n", 0, end - 1) + 1 : end])
                entry = Entry.read(record)
                if entry.outcome not in {"voided", "credited"}:  # voids and credits are asked for again
                    self._journal.write_later(withdrawn(entry).record() + b"\n")
        if written < size:
            raise error

    def receipt(self, tenant: str, receipt_id: str) -> dict[str, Any] | None:
        """The body of a receipt answer; `{"state": "open"}` for an open turn; None if unknown or another tenant's.

        `usage` is a `msgspec.Raw` with the bytes that the client got, so the answer has to be encoded with msgspec.
        """
        entry = self._under_way.get(receipt_id)
        if entry is not None:
            return _OPEN if entry.tenant == tenant else None
        stored = self._stored(tenant, receipt_id)
        if stored is not None and stored != _OPEN:
            return stored
        found = self._all_processes.find(tenant, receipt_id)
        if found is not None and found.ended:
            return receipt_of(found)
        return self._stored(tenant, receipt_id) or (_OPEN if found is not None else None)  # or it was folded meanwhile

    def void(self, tenant: str, receipt_id: str, on_durable: OnDurable) -> Voided:
        """Void a tenant's row (cancel its price), unless it is voided already. `on_durable` is called only if this
        returns "voided".
        """
        if receipt_id in self._under_way:
            return "open"
        entry = self._entry(tenant, receipt_id) if turns_in(receipt_id) == 1 else None
        if entry is None:
            return "unknown"
        if not entry.ended:
            return "open"
        return self.void_entry(entry, on_durable)

    def void_entry(self, entry: Entry, on_durable: OnDurable) -> Voided:
        """Void the row of an ended entry as `void` does, even if the row was deleted from this file."""
        if not entry.price_nanousd or self._entry(entry.tenant, void_id(entry.id)) is not None:
            return "free"
        self.settle(voiding(entry, time.time()), on_durable)
        return "voided"

    def _entry(self, tenant: str, entry_id: str) -> Entry | None:
        found = self._all_processes.find(tenant, entry_id)
        if found is not None and found.ended:
            return found
        for table in ("turn_record", "open_turn"):  # the entry may have been folded, even just now
            with self._reader_lock:
                row = self._reader.execute(f"SELECT record FROM {table} WHERE id = ?", (entry_id,)).fetchone()  # noqa: S608
            if row is not None:
                entry = Entry.read(row[0])
                return entry if entry.tenant == tenant else None
        return found

    def totals(self, tenant: str) -> dict[str, Any]:
        """The body of an answer with a tenant's totals, which include the last settled entry."""
        sums = dict(zip(TOTALS, self._all_processes.totals(tenant).values(), strict=True))
        prompt = sums["prompt_tokens"]
        return {
            "object": "warmroute.usage",
            **sums,
            "hit_ratio": round(sums["cached_tokens"] / prompt, 6) if prompt else None,
            "saved_nanousd": sums["list_nanousd"] - sums["price_nanousd"],
        }

    def gauges(self) -> list[GaugeRow]:
        """What `/metrics` shows of the ledger file and its volume."""
        size, free = volume(self._state_dir)
        return [
            (declared.LEDGER_FILE_BYTES, (), float(file_bytes(self._state_dir / LEDGER_FILE))),
            (declared.STATE_VOLUME_BYTES, (), float(size)),
            (declared.STATE_VOLUME_FREE_BYTES, (), float(free)),
        ]

    def close(self) -> None:
        """Fold everything, settle open turns as interrupted, and release the folder."""
        self.flush()
        self.sweep()
        self._closing.set()
        self._fold_thread.join()
        self._journal.close()
        with ledger_errors(self._state_dir), self._closed:
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
            void = void_id(receipt_id)
            voided = self._reader.execute("SELECT 1 FROM turn_record WHERE id = ?", (void,)).fetchone() is not None
        view = _view(receipt_id, [*row[:-1], msgspec.Raw(row[-1].encode())])
        return view | {"voided_by": void} if voided else view

    def _fold_on(self) -> None:
        try:
            self.earlier_turns = read_earlier_turns(self._state_dir / LEDGER_FILE)
        except Exception as error:  # without earlier turns, losses are only explained less precisely
            _LOG.error("reading the turns before the start failed: %s", type(error).__name__)
        while not self._closing.wait(FOLD_EVERY_S):
            self._fold_all()
            self.upkeep.step()
        self.upkeep.close()

    def _fold_all(self) -> None:
        try:
            while self._fold.step():
                pass
            self._fold_failures = 0
        except Exception as error:  # try again later: the journal keeps what could not be folded
            self._fold_failures += 1
            _LOG.error("folding the journal failed: %s: %s", type(error).__name__, error)


@contextlib.contextmanager
def ledger_errors(state_dir: Path) -> Iterator[None]:
    """Turn errors of SQLite, such as a full disk, into a `LedgerError` that names the folder. They lose no row."""
    try:
        yield
    except sqlite3.Error as error:
        raise LedgerError(f"the ledger in {state_dir} cannot be written: {error}; its journal is kept") from None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All rows of a ledger file, in the order of their numbers; `rids`, `workers` and `usage` are JSON text."""
    with contextlib.closing(connect(path, read_only=True)) as connection:
        rows = connection.execute(f"SELECT {', '.join(COLUMNS)} FROM turn ORDER BY number")  # noqa: S608 - constants
        return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


def _run(callbacks: list[tuple[OnDurable, JournalError | None]]) -> None:
    for on_durable, failure in callbacks:
        try:
            on_durable(failure)
        except Exception as error:  # a callback that fails must not stop the others
            _LOG.error("the end of a turn failed: %s", type(error).__name__)


def receipt_of(entry: Entry) -> dict[str, Any]:
    """The body of a receipt answer for an ended entry."""
    return _view(entry.id, [getattr(entry, name) for name in _VIEW])


def _view(receipt_id: str, values: list[Any]) -> dict[str, Any]:
    view = {"object": "warmroute.receipt", "id": receipt_id, **dict(zip(_VIEW, values, strict=True))}
    rids = view.pop("rids")
    view["attempts"] = len(msgspec.json.decode(rids) if isinstance(rids, str) else rids)
    return view


def lock(state_dir: Path) -> int:
    """Lock the folder for this process and those that it forks. The OS releases the lock when the last of them ends."""
    state_dir.mkdir(parents=True, exist_ok=True)
    fd = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner_pid = os.read(fd, 32).decode("ascii", "replace").strip()
        os.close(fd)
        raise LedgerError(f"state_dir {state_dir} is in use by another proxy (pid {owner_pid or 'unknown'})") from None
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd
