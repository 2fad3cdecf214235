"""The journal: an append-only file that makes an entry durable before a client sees the end of its answer.

One record is one line of JSON. One `os.write`, which takes 2 us, writes all records of one iteration of the event loop.
Once written they survive kill -9 of the process, because the OS has them. A file is named by its sequence number,
`journal-000001.jsonl`. When a file exceeds `ROTATE_BYTES`, the next one is begun. The fold, which moves records to the
ledger file, deletes the old one.

    sync "process"   durable = written to the OS; callbacks run at once
    sync "disk"      durable = on the disk; a thread calls fdatasync for all records that came while it was last busy

A full disk or a crash of the machine can leave half a line (a torn one). The writer starts the next record on a new
line, the reader skips what is not a record, and an unfinished last line is not read until it is complete.

Records that a full disk has refused may wait in memory (`write_later`). They are written before any other records, once
writes succeed again. Until then the journal is not healthy.

At most one callback of each open request waits for the disk, so the limit on connections bounds the callbacks.
"""

import contextlib
import logging
import os
import queue
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from warmroute_proxy.core.base.compiled import mypyc_attr

ROTATE_BYTES = 64 * 2**20
STALLED_S = 5.0  # the journal is not healthy while one fdatasync takes longer
MAX_WAITING_BYTES = 16 * 2**20  # records beyond this are dropped, and the next start settles them as interrupted
RETRY_EVERY_S = 1.0  # the pause after a failed fdatasync
_LOG: Final = logging.getLogger(__name__)

_TORN_END: Final = b"#torn\n"  # ends a torn line, which then is not a record even if only its newline was missing

_NEWLINE: Final = 0x0A

Callback = Callable[[], None]


@mypyc_attr(native_class=False)
class JournalError(OSError):
    """Records could not be written, by a fault of the proxy or its disk. The request may be repeated elsewhere.

    `written_bytes`: how many bytes of the failed write the file has, counting whole lines only.
    """

    written_bytes = 0


def folder_of(state_dir: Path, process: int) -> Path:
    """The folder of a process' journal. Each process has its own folder."""
    return state_dir / f"process-{process}" if process else state_dir


def processes_in(state_dir: Path) -> list[int]:
    """The numbers of the processes that have left a folder in `state_dir`, and 0 for the first process."""
    return sorted({0, *(int(path.name.removeprefix("process-")) for path in state_dir.glob("process-[0-9]*"))})


def journal_path(folder: Path, sequence: int) -> Path:
    return folder / f"journal-{sequence:06d}.jsonl"


def journal_sequences(folder: Path) -> list[int]:
    """The sequence numbers of the files in a folder, ascending."""
    return sorted(int(path.stem.removeprefix("journal-")) for path in folder.glob("journal-[0-9]*.jsonl"))


def read_whole(path: Path, offset: int, limit_bytes: int) -> bytes:
    """Read whole lines from `offset` on, about `limit_bytes` in all; empty if there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            found = file.read(limit_bytes)
            if len(found) == limit_bytes and not found.endswith(b"\n"):
                found += file.readline()
    except FileNotFoundError:
        return b""
    return found if found.endswith(b"\n") else found[: found.rfind(b"\n") + 1]


class Journal:
    """Writes the journal. All methods are called in the event loop."""

    def __init__(
        self,
        folder: Path,
        sequence: int,
        sync: Literal["process", "disk"],
        loop: AbstractEventLoop,
    ) -> None:
        self._folder = folder
        self._sequence = sequence
        self._loop = loop
        self._fd, self._size = _open_file(folder, sequence)
        self._broken = False  # the last write failed
        self._waiting = b""  # whole lines from `write_later`; empty unless the last write failed
        self._torn = False  # the file may end in the middle of a line
        self._disk = _DiskSync(loop) if sync == "disk" else None
        self._retry_at_s = 0.0
        self._sync_folder()

    @property
    def healthy(self) -> bool:
        """Whether records can be written. After a failure, reading this property tries to write."""
        if self._broken:
            try:
                self._append(b"\n", 0)
            except JournalError:
                return False
        return self._disk is None or self._disk.healthy or self._recovers(self._disk)

    def _recovers(self, disk: "_DiskSync") -> bool:
        """Begin another file after a failed fdatasync, because a later success with the old file would say nothing
        about pages that the failed fdatasync gave up. Returns False, but `healthy` may be True once the new file is
        synced. The records in the old file are safe once they are folded into the ledger file.
        """
        now = self._loop.time()
        if disk.failed and not disk.busy and now >= self._retry_at_s:
            self._retry_at_s = now + RETRY_EVERY_S
            before = self._fd
            self._rotate()
            if self._fd != before:
                with contextlib.suppress(JournalError):
                    self._append(b"\n", 0)
                    disk.wait(self._fd, _do_nothing)
        return False

    @property
    def waiting(self) -> int:
        return self._waiting.count(b"\n")

    def write_later(self, lines: bytes) -> None:
        """Keep records in memory until they can be written, after `write` has failed."""
        if len(self._waiting) + len(lines) > MAX_WAITING_BYTES:
            _LOG.error("too many rows wait: those of %d turns are left to the next start", lines.count(b"\n"))
            return
        self._waiting += lines

    def write_waiting(self) -> None:
        if self._waiting:
            with contextlib.suppress(JournalError):
                self._append(b"", 0)

    def write(self, lines: bytes | bytearray) -> None:
        """Append records, each of them a line of JSON. Raises: JournalError, which says how much was written."""
        done = 0
        if not self._broken:
            try:
                done = os.write(self._fd, lines)
            except OSError as error:
                raise self._failed(error, lines, 0, 0) from None
        if done < len(lines):
            self._append(lines, done)
        else:
            self._size += done
        if self._size > ROTATE_BYTES:
            self._rotate()

    def when_durable(self, callback: Callback) -> None:
        """Call back once everything written so far is durable: at once, or from the loop after the next fdatasync."""
        if self._disk is None:
            callback()
        else:
            self._disk.wait(self._fd, callback)

    def close(self) -> None:
        """Run all callbacks that wait, after a last fdatasync."""
        if self._disk is not None:
            self._disk.close(self._fd)
        os.close(self._fd)

    def _append(self, lines: bytes | bytearray, done: int) -> None:
        """Write the records that wait, then `lines` from byte `done` on."""
        was_broken, waiting = self._broken, self._waiting
        start = 0
        if was_broken:
            before = _TORN_END + waiting if self._torn else waiting
            lines = before + lines
            start = len(before)
        try:
            while done < len(lines):
                done += os.write(self._fd, lines[done:])
        except OSError as error:
            raise self._failed(error, lines, done, start) from None
        self._broken = self._torn = False
        self._waiting = b""
        self._size += done
        if was_broken:
            _LOG.warning("the ledger is written again, with the rows of %d turns that waited", waiting.count(b"\n"))

    def _failed(self, error: OSError, lines: bytes | bytearray, done: int, start: int) -> JournalError:
        """Note a failed write, and return its error. The first `done` bytes of `lines` are in the file. In `lines`, new
        records begin at `start`, after those that waited.
        """
        if not self._broken:
            _LOG.error("the ledger cannot be written: %s; new turns are refused until it can", error.strerror)
        self._broken = True
        if self._waiting:
            first = start - len(self._waiting)
            self._waiting = self._waiting[max(0, lines.rfind(b"\n", first, max(first, min(done, start))) + 1 - first) :]
        self._torn = (self._torn and not done) or (done > 0 and lines[done - 1] != _NEWLINE)
        self._size += done
        failure = JournalError(error.errno, f"cannot write the journal: {error.strerror}")
        failure.written_bytes = max(0, lines.rfind(b"\n", start, max(start, done)) + 1 - start)
        return failure

    def _rotate(self) -> None:
        """Begin the next file, or go on with the old one if that fails. The last record stays in the old file."""
        try:
            fd, size = _open_file(self._folder, self._sequence + 1)
        except OSError as error:
            _LOG.warning("cannot begin the next journal file: %s", error.strerror)
            self._size = 0
            return
        old, self._fd, self._size = self._fd, fd, size
        self._sequence += 1
        if self._disk is None:
            os.close(old)
        else:
            self._disk.retire(old)
            try:
                self._sync_folder()
            except OSError as error:  # too late to go back: the fold may have moved on to the new file
                self._disk.has_failed(fd, error)

    def _sync_folder(self) -> None:
        """Sync the folder, so that a new file's name is on the disk before a record in it counts as durable."""
        if self._disk is None:
            return
        fd = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class _DiskSync:
    """Groups fdatasync calls: one runs at a time, and serves all callbacks that came before it began."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.failed = False
        self.busy = False
        self._failed_fd = -1  # the file whose fdatasync failed last
        self._began_s = 0.0
        self._loop = loop
        self._waiting: list[Callback] = []
        self._retired: list[int] = []
        self._fd = -1  # the file that is written now
        self._jobs: queue.SimpleQueue[tuple[int, list[int], list[Callback]] | None] = queue.SimpleQueue()
        self._sync_thread = threading.Thread(target=self._run, name="journal-sync", daemon=True)
        self._sync_thread.start()

    @property
    def healthy(self) -> bool:
        """False while an fdatasync is stuck, and from a failed fdatasync until another file is synced."""
        return not self.failed and not (self.busy and self._loop.time() - self._began_s > STALLED_S)

    def wait(self, fd: int, callback: Callback) -> None:
        """Call back after the next fdatasync of the file, not counting one that is running."""
        self._fd = fd
        self._waiting.append(callback)
        if not self.busy:
            self._begin()

    def has_failed(self, fd: int, error: OSError) -> None:
        """Note that some bytes of a file may never reach the disk."""
        self.failed, self._failed_fd = True, fd
        _LOG.error("the journal cannot be synced to the disk: %s", error.strerror)

    def retire(self, fd: int) -> None:
        """Hand over a file that is no longer written. The next job syncs it once more, and closes it."""
        self._retired.append(fd)

    def close(self, fd: int) -> None:
        self._jobs.put(None)
        self._sync_thread.join()
        self._sync(fd, self._retired)
        self._retired = []
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def _begin(self) -> None:
        self.busy = True
        self._began_s = self._loop.time()
        self._jobs.put((self._fd, self._retired, self._waiting))
        self._retired, self._waiting = [], []

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            fd, retired, callbacks = job
            self._sync(fd, retired)
            try:
                self._loop.call_soon_threadsafe(self._synced, callbacks)
            except RuntimeError:
                return  # the loop is closed: there are no callbacks to run

    def _sync(self, fd: int, retired: list[int]) -> None:
        """Sync files. The callbacks run even after a failure, since the OS still has the bytes; but the journal is then
        not healthy until another file is synced.
        """
        try:
            for old in retired:
                os.fdatasync(old)
            os.fdatasync(fd)
            if fd != self._failed_fd:
                self.failed = False
        except OSError as error:
            self.has_failed(fd, error)
        for old in retired:
            os.close(old)

    def _synced(self, callbacks: list[Callback]) -> None:
        self.busy = False
        for callback in callbacks:
            self._loop.call_soon(callback)  # a callback that raises must not stop the others
        if self._waiting:
            self._begin()


def _do_nothing() -> None:
    """Do nothing: the callback of a sync that only tests the disk."""


def _open_file(folder: Path, sequence: int) -> tuple[int, int]:
    fd = os.open(journal_path(folder, sequence), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    return fd, os.fstat(fd).st_size
