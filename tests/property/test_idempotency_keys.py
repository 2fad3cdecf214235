"""Calls with a key: a model of what must be had again, what must not be computed again, and how much may be kept."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.search import searched
from tests.subjects.body_memory import NoBudget

from warmroute_proxy.core.accounting.idempotency import (
    CHUNK_OVERHEAD_BYTES,
    IdempotencyBounds,
    IdempotencyKeys,
    IdempotentCall,
)

BOUNDS = IdempotencyBounds(answer_bytes=1_000, total_bytes=2_500, keys=6, replay_s=60.0, remember_s=600.0)
NAMES = st.integers(0, 9)
TENANTS = 2


class Keyed(RuleBasedStateMachine):
    """Requests come, answers grow and end, time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = IdempotencyKeys(BOUNDS)
        self.now = 0.0
        self.under_way: dict[int, IdempotentCall] = {}
        self.written: dict[int, bytes] = {}  # of calls under way and of those that ended
        self.ended: dict[int, tuple[IdempotentCall, float]] = {}  # with a whole answer, and when
        self.lost: dict[int, float] = {}  # without anybody, and when
        self.was_full = [False] * TENANTS  # by tenant: others cannot make room with what is its own
        self.reading: list[tuple[int, IdempotentCall, list[bytes]]] = []

    def key(self, name: int) -> bytes:
        return b"%d" % name

    @rule(name=NAMES)
    def ask(self, name: int) -> None:
        call = self.calls.find(self.key(name), self.now)
        if call is not None:
            if name in self.under_way:
                assert call is self.under_way[name]
            if call.recording is not None:
                assert b"".join(call.recording.chunks) == self.written[name]
                assert call.recording.whole == (name not in self.under_way)
            return
        assert name not in self.under_way
        tenant = name % TENANTS
        if not self.was_full[tenant]:  # what was charged is forgotten for its age, or for room
            # From its end on, where the answer was too long to be kept; else from when that went.
            assert name not in self.ended or self.now >= self.ended[name][1] + BOUNDS.remember_s
            assert name not in self.lost or self.now >= self.lost[name] + BOUNDS.remember_s
        own = sum(1 for other in range(tenant, 10, TENANTS) if self.calls.find(self.key(other), self.now))
        free = BOUNDS.keys - len(self.calls)
        self.was_full[tenant] |= own >= free
        call = IdempotentCall(self.key(name), name, NoBudget(), f"t{tenant}")
        if self.calls.begin(call, self.now):
            self.under_way[name] = call
            self.written[name] = b""
            self.ended.pop(name, None)
            self.lost.pop(name, None)
        else:
            busy = {*self.under_way, *(name for name, _, _ in self.reading)}
            assert len([other for other in busy if other % TENANTS == tenant]) >= free

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), size=st.integers(1, 400))
    def grow(self, data: st.DataObject, size: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.under_way)))
        call, part = self.under_way[name], bytes([65 + name]) * size
        was_recorded = call.recording is not None
        recorded = self.calls.add(call, part, self.now)
        self.written[name] += part
        assert recorded == (call.recording is not None)
        assert recorded <= was_recorded

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), how=st.sampled_from(["ended", "lost", "failed"]))
    def end(self, data: st.DataObject, how: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.under_way)))
        call = self.under_way.pop(name)
        if how == "ended":
            self.calls.ended(call, self.now)
            self.ended[name] = call, self.now
        elif how == "lost":
            self.calls.lost(call, self.now)
            self.lost[name] = self.now
        else:
            self.calls.failed(call)
            assert self.calls.find(call.key, self.now) is None

    @rule(name=NAMES)
    def read(self, name: int) -> None:
        call = self.calls.find(self.key(name), self.now)
        if call is not None and not call.under_way and call.recording is not None:
            self.calls.acquire(call)
            self.reading.append((name, call, call.recording.chunks))

    @precondition(lambda self: self.reading)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.reading) - 1))
        name, call, parts = self.reading.pop(index)
        assert call.recording is not None
        assert call.recording.chunks is parts
        assert b"".join(parts) == self.written[name]
        self.calls.release(call, self.now)

    @rule(seconds=st.sampled_from([1.0, 59.0, 61.0, 599.0, 601.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def memory_is_bounded(self) -> None:
        self.calls.expire(self.now)
        assert len(self.calls) <= BOUNDS.keys
        assert self.calls.recorded_bytes <= BOUNDS.total_bytes
        known = [call for name in range(10) if (call := self.calls.find(self.key(name), self.now))]
        assert len(known) == len(self.calls)
        sizes = [
            sum(len(part) + CHUNK_OVERHEAD_BYTES for part in call.recording.chunks)
            for call in known
            if call.recording is not None
        ]
        assert self.calls.recorded_bytes == sum(sizes)
        assert all(size <= BOUNDS.answer_bytes for size in sizes)

    @invariant()
    def what_is_under_way_is_known(self) -> None:
        for call in self.under_way.values():
            assert self.calls.find(call.key, self.now) is call

    @invariant()
    def an_answer_goes_with_its_time(self) -> None:
        self.calls.expire(self.now)
        read = {name for name, _, _ in self.reading}
        for name, (call, ended_s) in self.ended.items():
            if self.now >= ended_s + BOUNDS.replay_s and name not in read:
                assert call.recording is None
        for name, lost_s in self.lost.items():
            found = self.calls.find(self.key(name), self.now)
            assert found is None or (found.recording is None and self.now < lost_s + BOUNDS.remember_s)


TestKeyed = Keyed.TestCase
TestKeyed.settings = searched(60, stateful_step_count=60)
