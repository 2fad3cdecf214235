"""Which requests repeat each other by their idempotency key, and their recorded answers: a bounded memory.

A client that retries sends the key of its first attempt again. The key stands for one call, which goes through

    under way, recorded ──▶ ended, recorded ──(replay_s, or memory is needed)──▶ ended ──(remember_s)──▶ forgotten
          │                                                                      ▲
          └──(the answer outgrew its bound)──▶ under way ────────────────────────┤
          └──(all clients left for good)─────────────────────────────────────────┘
    under way ──(it failed, and is charged nothing)──▶ forgotten

While a call is recorded, every request with its key gets the answer from its first byte. Afterwards only the key is
remembered, because the call was charged, and a second computation would be charged again: one key is charged once at
most. A call that failed is forgotten at once: its key may try again.

Bounds, and what is dropped first:
- an answer that grows beyond `answer_bytes` is no longer recorded;
- beyond `total_bytes`, answers that ended are dropped, the oldest first, but none that is being read; where none is
  left, the one that grows is no longer recorded;
- an answer that finds no memory in the budget of its tenant is no longer recorded;
- beyond `keys`, keys without an answer are forgotten, the oldest first, then the oldest answers with their keys; calls
  under way stay, and where all are under way no call is begun.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

CHUNK_OVERHEAD_BYTES: Final = 72
"""Of a chunk beside its bytes: the header of a bytes object, the allocator's rounding, its slot in a list."""


@dataclass(frozen=True, slots=True)
class IdempotencyBounds:
    """Bounds of the memory. `replay_s`: how long an answer can be replayed after its end; `remember_s`: how long its
    key is known after that.
    """

    answer_bytes: int
    total_bytes: int
    keys: int
    replay_s: float
    remember_s: float


class AnswerMemory(Protocol):
    """What a recording takes of the memory of its tenant; it is given back with the recording."""

    def grow(self, size_bytes: int) -> bool:
        """Reserve more bytes. Returns whether there were any."""


class Recording:
    """An answer from its first byte: its head, and its chunks by reference. `status` is 0 while there is no head;
    `streamed`: the chunks came one by one; `whole`: no chunk follows.
    """

    __slots__ = ("chunks", "headers", "memory", "size", "status", "streamed", "whole")

    def __init__(self, memory: AnswerMemory) -> None:
        self.memory = memory
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self.streamed = False
        self.chunks: list[bytes] = []
        self.size = 0
        self.whole = False


class Call:
    """The call of one key. `body` is a hash of the request's body; `recording` is None once it was dropped."""

    __slots__ = ("body", "key", "queued", "readers", "recording", "under_way", "until_s")

    def __init__(self, key: bytes, body: int, memory: AnswerMemory) -> None:
        self.key = key
        self.body = body
        self.recording: Recording | None = Recording(memory)
        self.under_way = True
        self.queued = False
        self.readers = 0  # of the answer of a call that ended
        self.until_s = 0.0


class IdempotencyKeys:
    """All calls of one proxy that have a key. Times are seconds of one clock, passed in."""

    def __init__(self, bounds: IdempotencyBounds) -> None:
        self.bounds = bounds
        self.recorded_bytes = 0
        self._calls: dict[bytes, Call] = {}
        self._answers: deque[Call] = deque()  # ended and recorded, in the order of `until_s`
        self._spent: deque[Call] = deque()  # ended and not recorded, in the order of `until_s`

    def __len__(self) -> int:
        return len(self._calls)

    def find(self, key: bytes, now: float) -> Call | None:
        """The call of a key."""
        self.expire(now)
        return self._calls.get(key)

    def begin(self, call: Call, now: float) -> bool:
        """A call that is not known yet is under way from now on; False where the memory is full."""
        assert call.key not in self._calls
        if len(self._calls) >= self.bounds.keys:
            while self._answers and not self._spent:
                self._drop(self._answers.popleft(), now)
            if not self._spent:
                return False
            del self._calls[self._spent.popleft().key]
        self._calls[call.key] = call
        return True

    def add(self, call: Call, chunk: bytes, now: float) -> bool:
        """Record a chunk of a call under way; False if the recording is dropped by that, or was before."""
        recording = call.recording
        if recording is None:
            return False
        cost = len(chunk) + CHUNK_OVERHEAD_BYTES
        fits = recording.memory.grow(cost)
        recording.chunks.append(chunk)
        recording.size += cost
        self.recorded_bytes += cost
        bounds = self.bounds
        if fits and recording.size <= bounds.answer_bytes:
            while self.recorded_bytes > bounds.total_bytes and self._answers:
                self._drop(self._answers.popleft(), now)
            if self.recorded_bytes <= bounds.total_bytes:
                return True
        self._forget_recording(call)
        return False

    def ended(self, call: Call, now: float) -> None:
        """A call has its whole answer, which can be replayed for `replay_s` if it was recorded."""
        assert call.under_way
        call.under_way = False
        if call.recording is None:
            self._remember(call, now)
            return
        call.recording.whole = True
        call.until_s = now + self.bounds.replay_s
        call.queued = True
        self._answers.append(call)

    def lost(self, call: Call, now: float) -> None:
        """A call ended without any client, and may be charged: only its key is remembered."""
        assert call.under_way
        call.under_way = False
        self._forget_recording(call)
        self._remember(call, now)

    def failed(self, call: Call) -> None:
        """A call failed and is charged nothing: it is forgotten."""
        assert call.under_way
        call.under_way = False
        self._forget_recording(call)
        del self._calls[call.key]

    def acquire(self, call: Call) -> None:
        """A client begins to read the answer of a call that ended: the answer stays until `release`."""
        call.readers += 1

    def release(self, call: Call, now: float) -> None:
        """The client has read it; an answer that was due to be dropped meanwhile is dropped now."""
        call.readers -= 1
        if not call.readers and not call.queued:
            self._drop(call, now)

    def expire(self, now: float) -> None:
        """Drop answers and keys whose time is over."""
        while self._answers and self._answers[0].until_s <= now:
            self._drop(self._answers.popleft(), now)
        while self._spent and self._spent[0].until_s <= now:
            del self._calls[self._spent.popleft().key]

    def _drop(self, call: Call, now: float) -> None:
        """Drop the answer of a call that ended and that is in no queue any more."""
        call.queued = False
        if not call.readers:
            self._forget_recording(call)
            self._remember(call, now)

    def _forget_recording(self, call: Call) -> None:
        if call.recording is not None:
            self.recorded_bytes -= call.recording.size
            call.recording = None

    def _remember(self, call: Call, now: float) -> None:
        call.until_s = now + self.bounds.remember_s
        self._spent.append(call)
