"""Writes the decision record, a replayable file of all calls to a router: `[proxy] record = "decisions.record"`.

The request path encodes each call and adds it to a list. A quarter of a second after the first call of the list, a
thread writes the list, so a slow disk delays no request. kill -9 loses at most that quarter of a second; what was
written before can be read. A record ends with a marker that says why it ends: the proxy stopped, or a limit was
reached.

The record of an earlier process is renamed to `<name>.old`, and replaces an older one. Anything else with the name of
the record (a folder, a device, a file of another kind) is left as it is, and the proxy does not start.

Limits: a record of `MAX_RECORD_BYTES` ends; dropping its beginning instead would leave a record that cannot be
replayed. A record also ends once `MAX_WAITING_BYTES` are encoded but not written, because the disk is too slow.
"""

import logging
import os
import queue
import threading
from asyncio import AbstractEventLoop
from errno import EEXIST
from pathlib import Path
from typing import Final

from warmroute_proxy.core.replicas.record import MAGIC, Closed, RecordedCall, frame

FLUSH_AFTER_S: Final = 0.25
MAX_RECORD_BYTES: Final = 2**30
MAX_WAITING_BYTES: Final = 64 * 2**20

_LOG: Final = logging.getLogger(__name__)


class Recording:
    """Writes one record. `write` and `close` are called in the event loop. Raises: OSError, if no file can be made."""

    def __init__(self, path: Path, loop: AbstractEventLoop, limit_bytes: int = MAX_RECORD_BYTES) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _set_aside(path)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        self._path = path
        self._loop = loop
        self._limit_bytes = limit_bytes
        self._frames: list[bytes] = [MAGIC]
        self._encoded_bytes = len(MAGIC)
        self._written_bytes = 0  # set only by the thread
        self._flushing = False
        self._ended = False
        self._pieces: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_on, name="record", daemon=True)
        self._thread.start()

    def write(self, call: RecordedCall) -> None:
        """Add a call. Never raises, since a request must not fail because its record does."""
        if self._ended:
            return
        try:
            made = frame(call)
        except Exception as error:
            self._end(f"a call cannot be written: {type(error).__name__}")
            return
        if self._encoded_bytes + len(made) > self._limit_bytes:
            self._end(f"the limit of {self._limit_bytes} bytes")
        elif self._encoded_bytes - self._written_bytes > MAX_WAITING_BYTES:
            self._end("the disk is too slow")
        else:
            self._add(made)

    def close(self) -> None:
        """End the record and close the file."""
        if not self._ended:
            self._ended = True
            self._add(frame(Closed("the proxy stopped")))
        self._flush()
        self._pieces.put(None)
        self._thread.join()
        os.close(self._fd)

    def _end(self, reason: str) -> None:
        self._ended = True
        self._add(frame(Closed(reason)))
        _LOG.warning("the record %s ends here: %s", self._path, reason)

    def _add(self, made: bytes) -> None:
        self._frames.append(made)
        self._encoded_bytes += len(made)
        if not self._flushing:
            self._flushing = True
            self._loop.call_later(FLUSH_AFTER_S, self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._frames:
            self._pieces.put(b"".join(self._frames))
            self._frames.clear()

    def _write_on(self) -> None:
        while (piece := self._pieces.get()) is not None:
            try:
                done = 0
                while done < len(piece):
                    done += os.write(self._fd, piece[done:] if done else piece)
            except OSError as error:
                self._ended = True  # a frame that was written in part is ignored by readers
                _LOG.warning("the record %s cannot be written on: %s", self._path, error.strerror)
                return
            self._written_bytes += len(piece)


def _set_aside(path: Path) -> None:
    """Rename an earlier record. Raises: OSError, if something else has its name."""
    if not path.exists():
        return
    if not path.is_file():
        raise FileExistsError(EEXIST, "there is something that is not a file", str(path))
    with path.open("rb") as file:
        if file.read(len(MAGIC)) not in {MAGIC, b""}:
            raise FileExistsError(EEXIST, "there is a file that is not a record", str(path))
    path.replace(path.with_name(f"{path.name}.old"))
