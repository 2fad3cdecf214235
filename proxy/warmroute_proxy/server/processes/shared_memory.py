"""Memory that the processes of one proxy share, to tell each other things without locks, sockets or files.

Each process has a lane, which it alone writes and all read:

    words    life (which start of the process it is; 0: it is dead), written, tail, row number
    row      what the process says of itself, whole: written anew each time, two copies in turn
    ring     messages, one behind the other; `written` and `tail` count bytes since the beginning of time

A reader never waits for a writer, nor the reverse, however and whenever either is killed. It may read while the bytes
are written over, so what it has copied counts only if its digest is right: no torn row or message is ever seen, on
processors that reorder writes neither. A row is then read again (the writer is at the other copy); a message is gone,
and the reader is told that it has missed some.

The memory is anonymous: it has no name, is inherited by fork, and goes with the last process.

Limits: a ring holds `RING_BYTES` of messages, the oldest go; a row or message has at most `MAX_BYTES`.
"""

import mmap
from collections.abc import Iterator
from struct import Struct
from typing import Final

from xxhash import xxh3_64_intdigest

RING_BYTES: Final = 4 * 2**20
MAX_BYTES: Final = 2**20
ROW_TRIES: Final = 100

_WORDS: Final = 8
_LIFE, _WRITTEN, _TAIL, _ROW = range(4)
_HEAD: Final = Struct("=QQ")  # length, digest
_ROW_BYTES: Final = _HEAD.size + MAX_BYTES


class SharedMemory:
    """The lanes of all processes, by number."""

    def __init__(self, processes: int, ring_bytes: int = RING_BYTES) -> None:
        size = _WORDS * 8 + 2 * _ROW_BYTES + ring_bytes
        self._memory = memoryview(mmap.mmap(-1, size * processes))  # pages are there once they are written
        self.lanes = [Lane(self._memory[at * size : (at + 1) * size]) for at in range(processes)]


class Lane:
    """What one process writes. `begin`, `tell` and `publish` are its own, `life` is set by who starts and reaps it."""

    def __init__(self, memory: memoryview) -> None:
        self._words = memory[: _WORDS * 8].cast("Q")
        rows = _WORDS * 8
        self._rows = [memory[at : at + _ROW_BYTES] for at in (rows, rows + _ROW_BYTES)]
        self._ring = memory[rows + 2 * _ROW_BYTES :]

    @property
    def life(self) -> int:
        """Which start of the process it is that lives; 0: none."""
        return self._words[_LIFE]

    @life.setter
    def life(self, life: int) -> None:
        self._words[_LIFE] = life

    @property
    def written(self) -> int:
        """Bytes told so far: the one number that a reader looks at to see whether there is anything new."""
        return self._words[_WRITTEN]

    @property
    def tail(self) -> int:
        """Where the oldest message begins that is still there."""
        return self._words[_TAIL]

    def tell(self, message: bytes) -> bool:
        """Add a message. False if it is too long, and nothing was told."""
        words, size = self._words, len(self._ring)
        needed = _HEAD.size + len(message)
        if len(message) > MAX_BYTES or needed > size // 4:
            return False
        written, tail = words[_WRITTEN], words[_TAIL]
        while written + needed - tail > size:
            tail += _HEAD.size + _HEAD.unpack(self._copied(tail, _HEAD.size))[0]
        words[_TAIL] = tail  # first: what is written over is no longer there
        self._put(written, _HEAD.pack(len(message), xxh3_64_intdigest(message)))
        self._put(written + _HEAD.size, message)
        words[_WRITTEN] = written + needed
        return True

    def message(self, at: int) -> tuple[bytes, int] | None:
        """The message at a place below `written`, and the place behind it; None if it has been written over."""
        head = self._copied(at, _HEAD.size)
        if self._words[_TAIL] > at:
            return None
        length, digest = _HEAD.unpack(head)
        message = self._copied(at + _HEAD.size, min(length, MAX_BYTES))
        if self._words[_TAIL] > at or xxh3_64_intdigest(message) != digest:
            return None
        return message, at + _HEAD.size + length

    def publish(self, row: bytes) -> bool:
        """Put a row in the place of the last one. False if it is too long, and the last one stays."""
        if len(row) > MAX_BYTES:
            return False
        number = self._words[_ROW] + 1
        into = self._rows[number % 2]
        _HEAD.pack_into(into, 0, len(row), xxh3_64_intdigest(row))
        into[_HEAD.size : _HEAD.size + len(row)] = row
        self._words[_ROW] = number
        return True

    def row(self) -> bytes | None:
        """The last row that was published whole; None if there was none yet."""
        for _ in range(ROW_TRIES):  # each is lost only if two rows were written meanwhile
            number = self._words[_ROW]
            if not number:
                return None
            found = self._rows[number % 2]
            length, digest = _HEAD.unpack_from(found)
            row = bytes(found[_HEAD.size : _HEAD.size + min(length, MAX_BYTES)])
            if xxh3_64_intdigest(row) == digest:
                return row
        return None

    def _put(self, at: int, data: bytes) -> None:
        ring = self._ring
        at %= len(ring)
        room = len(ring) - at
        if len(data) <= room:
            ring[at : at + len(data)] = data
        else:
            ring[at:] = data[:room]
            ring[: len(data) - room] = data[room:]

    def _copied(self, at: int, length: int) -> bytes:
        ring = self._ring
        at %= len(ring)
        found = bytes(ring[at : at + length])
        return found if len(found) == length else found + bytes(ring[: length - len(found)])


class LaneReader:
    """One reader's place in a lane. It begins with the oldest message that is still there."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.missed = False  # since the reader of this flag has cleared it
        self._at = lane.tail

    @property
    def behind(self) -> bool:
        """Whether there is anything to read."""
        return self.lane.written != self._at

    def read(self) -> Iterator[bytes]:
        """All messages from the last one on. Before the first one after some that were missed, `missed` is set."""
        lane = self.lane
        while self._at != (written := lane.written):
            found = lane.message(self._at)
            if found is None:
                self.missed = True
                # The oldest one that is there; where its digest was wrong all the same, nothing before the end is sure.
                self._at = lane.tail if lane.tail > self._at else written
                continue
            message, self._at = found
            yield message
