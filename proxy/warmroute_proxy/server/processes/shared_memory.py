"""Memory that the processes of one proxy share, to send each other messages without locks, sockets or files.

Each process has a lane. Only that process writes the lane, and all processes read it:

    words    generation (the number of the process' start; 0 if it is dead), written, tail, report number
    report   what the process reports of itself; there are two copies, and each new report overwrites the older one
    ring     messages, one after another; `written` and `tail` (where the oldest message begins) count bytes since the
             start

Readers and writers never wait for each other, even if one of them is killed. A reader may copy bytes while they are
overwritten. So a copy is used only if its digest is right. This excludes torn (partly overwritten) reports and
messages, even on processors that reorder writes. A torn report is read again, from the other copy. A torn message is
lost, and its reader learns that it has missed messages.

The memory is anonymous: it has no name, is inherited by fork, and is freed with the last process.

Limits: a ring holds `RING_BYTES` of messages, and the oldest are overwritten; a report or message has at most
`MAX_BYTES`.
"""

import mmap
from collections.abc import Iterator
from struct import Struct
from typing import Final

from xxhash import xxh3_64_intdigest

RING_BYTES: Final = 4 * 2**20
MAX_BYTES: Final = 2**20
REPORT_TRIES: Final = 100

_WORDS: Final = 8
_GENERATION, _WRITTEN, _TAIL, _REPORT = range(4)
_HEAD: Final = Struct("=QQ")  # length, digest
_REPORT_BYTES: Final = _HEAD.size + MAX_BYTES


class SharedMemory:
    """The lanes of all processes, by number."""

    def __init__(self, processes: int, ring_bytes: int = RING_BYTES) -> None:
        size = _WORDS * 8 + 2 * _REPORT_BYTES + ring_bytes
        self._memory = memoryview(mmap.mmap(-1, size * processes))  # takes no memory for pages that were never written
        self.lanes = [Lane(self._memory[at * size : (at + 1) * size]) for at in range(processes)]


class Lane:
    """The memory that one process writes. Only that process calls `append` and `publish`; the supervisor sets
    `generation`.
    """

    def __init__(self, memory: memoryview) -> None:
        self._words = memory[: _WORDS * 8].cast("Q")
        reports = _WORDS * 8
        self._reports = [memory[at : at + _REPORT_BYTES] for at in (reports, reports + _REPORT_BYTES)]
        self._ring = memory[reports + 2 * _REPORT_BYTES :]

    @property
    def generation(self) -> int:
        """The number of the process' start; 0 if the process is dead."""
        return self._words[_GENERATION]

    @generation.setter
    def generation(self, generation: int) -> None:
        self._words[_GENERATION] = generation

    @property
    def written(self) -> int:
        """How many bytes of messages were written since the start. Readers at a smaller position have new messages."""
        return self._words[_WRITTEN]

    @property
    def tail(self) -> int:
        """The position at which the oldest message in the ring begins."""
        return self._words[_TAIL]

    def append(self, message: bytes) -> bool:
        """Add a message. Returns False, and writes nothing, if the message is too long."""
        words, size = self._words, len(self._ring)
        needed = _HEAD.size + len(message)
        if len(message) > MAX_BYTES or needed > size // 4:
            return False
        written, tail = words[_WRITTEN], words[_TAIL]
        while written + needed - tail > size:
            tail += _HEAD.size + _HEAD.unpack(self._copied(tail, _HEAD.size))[0]
        words[_TAIL] = tail  # set first, so that readers do not use the bytes that are overwritten next
        self._put(written, _HEAD.pack(len(message), xxh3_64_intdigest(message)))
        self._put(written + _HEAD.size, message)
        words[_WRITTEN] = written + needed
        return True

    def message(self, at: int) -> tuple[bytes, int] | None:
        """The message at position `at`, and the position after it; None if the message was overwritten."""
        head = self._copied(at, _HEAD.size)
        if self._words[_TAIL] > at:
            return None
        length, digest = _HEAD.unpack(head)
        message = self._copied(at + _HEAD.size, min(length, MAX_BYTES))
        if self._words[_TAIL] > at or xxh3_64_intdigest(message) != digest:
            return None
        return message, at + _HEAD.size + length

    def publish(self, report: bytes) -> bool:
        """Replace the report. Returns False, and keeps the earlier report, if the new one is too long."""
        if len(report) > MAX_BYTES:
            return False
        number = self._words[_REPORT] + 1
        into = self._reports[number % 2]
        _HEAD.pack_into(into, 0, len(report), xxh3_64_intdigest(report))
        into[_HEAD.size : _HEAD.size + len(report)] = report
        self._words[_REPORT] = number
        return True

    def report(self) -> bytes | None:
        """The last report that is intact; None if nothing was published yet."""
        for _ in range(REPORT_TRIES):  # a try fails only if two reports are written during it
            number = self._words[_REPORT]
            if not number:
                return None
            found = self._reports[number % 2]
            length, digest = _HEAD.unpack_from(found)
            report = bytes(found[_HEAD.size : _HEAD.size + min(length, MAX_BYTES)])
            if xxh3_64_intdigest(report) == digest:
                return report
        return None

    def _put(self, at: int, data: bytes) -> None:
        ring = self._ring
        at %= len(ring)
        until_end = len(ring) - at
        if len(data) <= until_end:
            ring[at : at + len(data)] = data
        else:
            ring[at:] = data[:until_end]
            ring[: len(data) - until_end] = data[until_end:]

    def _copied(self, at: int, length: int) -> bytes:
        ring = self._ring
        at %= len(ring)
        found = bytes(ring[at : at + length])
        return found if len(found) == length else found + bytes(ring[: length - len(found)])


class LaneReader:
    """One reader of a lane. It begins at the oldest message."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.missed = False
        """Whether messages were overwritten before they were read. The caller resets it to False."""

        self._at = lane.tail

    @property
    def behind(self) -> bool:
        return self.lane.written != self._at

    def read(self) -> Iterator[bytes]:
        """Yield the messages since the last call. `missed` is set before the first message after a gap."""
        lane = self.lane
        while self._at != (written := lane.written):
            found = lane.message(self._at)
            if found is None:
                self.missed = True
                # Go on at the oldest message. If the message at that position was the torn one, skip all messages.
                self._at = lane.tail if lane.tail > self._at else written
                continue
            message, self._at = found
            yield message
