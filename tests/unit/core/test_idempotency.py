"""Which answers of calls with a key are kept, and which go first."""

import pytest
from tests.subjects.body_memory import NoBudget

from warmroute_proxy.core.accounting.idempotency import (
    CHUNK_OVERHEAD_BYTES,
    IdempotencyBounds,
    IdempotencyKeys,
    IdempotentCall,
)

PART = b"x" * (100 - CHUNK_OVERHEAD_BYTES)  # costs 100


def calls(keys: int = 10) -> IdempotencyKeys:
    """Room for `keys` keys and 500 bytes of one tenant: half of all, since the other half is for others."""
    return IdempotencyKeys(
        IdempotencyBounds(answer_bytes=300, total_bytes=1000, keys=2 * keys, replay_s=60.0, remember_s=600.0)
    )


def begun(memory: IdempotencyKeys, name: str, parts: int = 1, now: float = 0.0) -> IdempotentCall:
    call = IdempotentCall(name.encode(), 1, NoBudget())
    assert memory.begin(call, now)
    for _ in range(parts):
        assert memory.add(call, PART, now)
    return call


def answered(memory: IdempotencyKeys, name: str, parts: int = 1, now: float = 0.0) -> IdempotentCall:
    call = begun(memory, name, parts, now)
    memory.ended(call, now)
    return call


def kept(call: IdempotentCall) -> bool:
    """Whether its whole answer can be had."""
    return call.recording is not None and call.recording.whole


def test_an_answer_is_had_for_its_time_and_then_only_its_key_is_known() -> None:
    memory = calls()
    call = answered(memory, "a", now=5.0)
    assert memory.find(b"a", 64.9) is call
    assert kept(call)
    assert memory.find(b"a", 65.0) is call
    assert not kept(call)
    assert memory.recorded_bytes == 0
    assert memory.find(b"a", 664.9) is call
    assert memory.find(b"a", 665.0) is None


def test_the_answer_that_ended_first_makes_room() -> None:
    memory = calls()
    first, second, third = (answered(memory, name, 2 - (name == "c")) for name in "abc")
    begun(memory, "d")
    assert [call.recording is None for call in (first, second, third)] == [True, False, False]
    assert memory.recorded_bytes == 400


def test_an_answer_that_is_read_stays_and_the_one_that_grows_gives_way() -> None:
    memory = calls()
    kept = [answered(memory, name, 2) for name in "ab"]
    for call in kept:
        memory.acquire(call)
    growing = begun(memory, "c")
    assert not memory.add(growing, PART, 0.0)
    assert all(call.recording is not None for call in kept)
    memory.release(kept[0], 0.0)  # its time was up when room was needed
    assert kept[0].recording is None
    assert memory.find(b"a", 0.0) is kept[0]


def test_a_key_whose_answer_went_first_makes_room() -> None:
    memory = calls(keys=3)
    memory.lost(begun(memory, "lost"), 0.0)
    answered(memory, "answered")
    begun(memory, "under way")
    begun(memory, "one more")
    assert memory.find(b"lost", 0.0) is None
    assert memory.find(b"answered", 0.0) is not None
    begun(memory, "and one")
    assert memory.find(b"answered", 0.0) is None
    assert not memory.begin(IdempotentCall(b"too many", 1, NoBudget()), 0.0)


@pytest.mark.parametrize("size", [0, 1, 10_000])
def test_parts_are_kept_by_reference(size: int) -> None:
    memory = IdempotencyKeys(IdempotencyBounds(100_000, 100_000, 10, 60.0, 600.0))
    call = IdempotentCall(b"a", 1, NoBudget())
    memory.begin(call, 0.0)
    part = bytes(size)
    memory.add(call, part, 0.0)
    assert call.recording is not None
    assert call.recording.chunks[0] is part
