"""Recognises requests that repeat an idempotency key, and keeps recorded answers for them, in bounded memory.

A client that retries sends the key of its first attempt again. The key stands for one call. A call is *recorded* while
its answer is kept, and has these states:

    under way, recorded ──▶ ended, recorded ──(replay_s, or memory is needed)──▶ ended ──(remember_s)──▶ forgotten
          │                                                                      ▲
          └──(the answer outgrew its bound)──▶ under way ────────────────────────┤
          └──(all clients left for good)─────────────────────────────────────────┘
    under way ──(it failed, and is charged nothing)──▶ forgotten

While a call is recorded, every request with its key gets the answer from its first byte. Afterwards only the key is
remembered: the call was charged, and a key is charged at most once, so no request with it is computed again.
A call that failed is forgotten at once, so a client may try its key again.

Keys and answers are divided between tenants as the memory for bodies is (`core/queue/fair_budget.py`): a tenant may
hold as much as all tenants leave free, so a single tenant gets half. No tenant's entries are dropped to make room for
another tenant.

Bounds, and what is dropped first:
- An answer that grows beyond `answer_bytes` is no longer recorded.
- When a tenant exceeds its share of `total_bytes`, its ended answers are dropped, the oldest first, but not while a
  client reads them. If no such answer is left, the growing answer is no longer recorded.
- An answer for which its tenant's memory budget is too small is no longer recorded.
- When a tenant exceeds its share of `keys`, its keys without a recorded answer are forgotten, the oldest first, then
  its oldest answers with their keys. Calls under way stay; if all calls of the tenant are under way, no new call
  begins.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

CHUNK_OVERHEAD_BYTES: Final = 72
"""Memory of a chunk besides its bytes: the header of a bytes object, the allocator's rounding, a slot in a list."""


@dataclass(frozen=True, slots=True)
class IdempotencyBounds:
    """The bounds of `IdempotencyKeys`. `keys_each`: the number of keys that each tenant may always have. `replay_s`:
    how long after its end an answer can be replayed. `remember_s`: how long the key is remembered after that.
    """

    answer_bytes: int
    total_bytes: int
    keys: int
    replay_s: float
    remember_s: float
    keys_each: int = 0


class AnswerMemory(Protocol):
    """The part of a tenant's memory budget that one recording uses. It is freed together with the recording."""

    def grow(self, size_bytes: int) -> bool:
        """Reserve more bytes. Returns False if the budget has too few."""


class AnswerCopy:
    """The recording of an answer from its first byte: its head, and references to its chunks. `status`: 0 until the
    head arrives. `streamed`: the chunks came one by one. `whole`: no more chunks follow.
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


class IdempotentCall:
    """The call of one key. `body`: a hash of the request's body. `recording`: None once it is dropped."""

    __slots__ = ("body", "key", "queued", "readers", "recording", "tenant", "under_way", "until_s")

    def __init__(self, key: bytes, body: int, memory: AnswerMemory, tenant: str = "") -> None:
        self.key = key
        self.tenant = tenant
        self.body = body
        self.recording: AnswerCopy | None = AnswerCopy(memory)
        self.under_way = True
        self.queued = False
        self.readers = 0  # clients that read the answer after its call ended
        self.until_s = 0.0


class _OfTenant:
    """The calls of one tenant. `answers` and `spent` are sorted by `until_s`."""

    __slots__ = ("answers", "keys", "recorded_bytes", "spent")

    def __init__(self) -> None:
        self.keys = 0
        self.recorded_bytes = 0
        self.answers: deque[IdempotentCall] = deque()  # ended and recorded
        self.spent: deque[IdempotentCall] = deque()  # ended and not recorded


class IdempotencyKeys:
    """All calls of one proxy that have a key. All times that are passed in come from one clock, in seconds."""

    def __init__(self, bounds: IdempotencyBounds) -> None:
        self.bounds = bounds
        self.recorded_bytes = 0
        self._calls: dict[bytes, IdempotentCall] = {}
        self._tenants: dict[str, _OfTenant] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def find(self, key: bytes, now: float) -> IdempotentCall | None:
        call = self._calls.get(key)
        if call is None:
            return None
        self._expire(self._tenants[call.tenant], now)
        return self._calls.get(key)

    def begin(self, call: IdempotentCall, now: float) -> bool:
        """Store a new call as under way. Returns False if its tenant may not have another key."""
        assert call.key not in self._calls
        own = self._tenants.setdefault(call.tenant, _OfTenant())
        self._expire(own, now)
        if own.keys >= max(self.bounds.keys - len(self._calls), self.bounds.keys_each):
            while own.answers and not own.spent:
                self._drop(own.answers.popleft(), now)
            if not own.spent:
                self._forget_if_idle(call.tenant, own)
                return False
            self._forget(own, own.spent.popleft())
        self._calls[call.key] = call
        own.keys += 1
        return True

    def add(self, call: IdempotentCall, chunk: bytes, now: float) -> bool:
        """Record a chunk of a call under way. Returns False if the recording is dropped now, or was dropped before."""
        recording = call.recording
        if recording is None:
            return False
        own, total_bytes = self._tenants[call.tenant], self.bounds.total_bytes
        cost = len(chunk) + CHUNK_OVERHEAD_BYTES
        fits = recording.memory.grow(cost)
        recording.chunks.append(chunk)
        recording.size += cost
        self.recorded_bytes += cost
        own.recorded_bytes += cost
        if fits and recording.size <= self.bounds.answer_bytes:
            while own.recorded_bytes > total_bytes - self.recorded_bytes and own.answers:
                self._drop(own.answers.popleft(), now)
            if own.recorded_bytes <= total_bytes - self.recorded_bytes:
                return True
        self._forget_recording(call)
        return False

    def ended(self, call: IdempotentCall, now: float, *, may_keep: bool = True) -> None:
        """A call has its whole answer. If the answer is recorded, it can be replayed for `replay_s`; or only until
        `drop_unqueued` is called, if `may_keep` is false.
        """
        assert call.under_way
        call.under_way = False
        if call.recording is None:
            self._remember(call, now)
            return
        call.recording.whole = True
        if not may_keep:
            return
        call.until_s = now + self.bounds.replay_s
        call.queued = True
        self._tenants[call.tenant].answers.append(call)

    def drop_unqueued(self, call: IdempotentCall, now: float) -> None:
        """Drop the answer of a call that ended without `may_keep`, as soon as no client reads it."""
        if not call.under_way and not call.queued and call.recording is not None:
            self._drop(call, now)

    def lost(self, call: IdempotentCall, now: float) -> None:
        """End a call whose clients have all left. It may be charged, so its key is remembered, but not its answer."""
        assert call.under_way
        call.under_way = False
        self._forget_recording(call)
        self._remember(call, now)

    def failed(self, call: IdempotentCall) -> None:
        """Forget a call that failed: it is charged nothing, so its key can be used again."""
        assert call.under_way
        call.under_way = False
        self._forget_recording(call)
        self._forget(self._tenants[call.tenant], call)

    def acquire(self, call: IdempotentCall) -> None:
        """A client begins to read the answer of a call that ended: the answer stays until `release`."""
        call.readers += 1

    def release(self, call: IdempotentCall, now: float) -> None:
        """A client has read the answer. If the answer was to be dropped meanwhile, it is dropped now."""
        call.readers -= 1
        if not call.readers and not call.queued:
            self._drop(call, now)

    def expire(self, now: float) -> None:
        for tenant, own in list(self._tenants.items()):
            self._expire(own, now)
            self._forget_if_idle(tenant, own)

    def _expire(self, own: _OfTenant, now: float) -> None:
        while own.answers and own.answers[0].until_s <= now:
            self._drop(own.answers.popleft(), now)
        while own.spent and own.spent[0].until_s <= now:
            self._forget(own, own.spent.popleft())

    def _forget(self, own: _OfTenant, call: IdempotentCall) -> None:
        del self._calls[call.key]
        own.keys -= 1

    def _forget_if_idle(self, tenant: str, own: _OfTenant) -> None:
        if not own.keys:
            del self._tenants[tenant]

    def _drop(self, call: IdempotentCall, now: float) -> None:
        """Drop the answer of an ended call that was taken out of its queue, unless a client reads it."""
        call.queued = False
        if not call.readers:
            self._forget_recording(call)
            self._remember(call, now)

    def _forget_recording(self, call: IdempotentCall) -> None:
        if call.recording is not None:
            self.recorded_bytes -= call.recording.size
            self._tenants[call.tenant].recorded_bytes -= call.recording.size
            call.recording = None

    def _remember(self, call: IdempotentCall, now: float) -> None:
        call.until_s = now + self.bounds.remember_s
        self._tenants[call.tenant].spent.append(call)
