"""The prefix index: what it says of who has computed what."""

import pytest

from warmroute_proxy.core.cache.index import MAX_CUTS, MAX_SHARERS, MAX_SLOTS, PrefixIndex
from warmroute_proxy.core.prompt.chain import Chain


def chain(*hashes: int) -> Chain:
    return Chain(list(hashes), [10 * (n + 1) for n in range(len(hashes))])


def put(index: PrefixIndex, chain: Chain, slot: int) -> None:
    index.insert(chain.hashes, 1 << slot)


def test_only_slots_of_the_mask_are_reported() -> None:
    index = PrefixIndex()
    a, b = index.slot_for("a"), index.slot_for("b")
    put(index, chain(1, 2), a)
    assert index.walk(chain(1, 2), 1 << b).bytes_by_slot == {}
    assert index.known_bytes(chain(1, 2)) == 20


def test_old_generations_go_and_what_is_used_stays() -> None:
    index = PrefixIndex(generations=3, entries_per_generation=10)
    slot = index.slot_for("a")
    put(index, chain(1, 2), slot)
    put(index, chain(7, 8), slot)
    for n in range(100):
        put(index, chain(1000 + n), slot)
        put(index, chain(1, 2), slot)
    assert index.known_bytes(chain(1, 2)) == 20
    assert index.known_bytes(chain(7, 8)) == 0
    assert index.entries <= 30
    assert index.rotations > 0


def test_a_retired_slot_is_reused_only_when_its_bits_are_gone() -> None:
    index = PrefixIndex(generations=2, entries_per_generation=4)
    old = index.slot_for("a")
    put(index, chain(1), old)
    index.retire("a")
    slots = [index.slot_for(f"w{n}") for n in range(MAX_SLOTS - 1)]
    assert old not in slots
    for n in range(9):  # two rotations: the generation that held the old bit is gone, although 1 was used all the time
        put(index, chain(1), slots[0])
        put(index, chain(100 + n), slots[0])
    assert index.slot_for("new") == old
    assert index.walk(chain(1), 1 << old).bytes_by_slot == {}


def test_a_slot_whose_bits_are_still_there_is_not_taken_for_the_new_workers() -> None:
    index = PrefixIndex(generations=2, entries_per_generation=4)
    old = index.slot_for("a")
    put(index, chain(1), old)
    index.retire("a")
    slots = [index.slot_for(f"w{n}") for n in range(MAX_SLOTS - 1)]
    for n in range(4):  # one rotation
        put(index, chain(100 + n), slots[0])
    assert index.rotations == 1
    assert index.walk(chain(1), 1 << index.slot_for("new")).bytes_by_slot == {}


def test_without_a_free_slot_the_index_starts_again_empty() -> None:
    index = PrefixIndex()
    for _ in range(MAX_SLOTS + 1):
        put(index, chain(1, 2), index.slot_for("a"))
        index.retire("a")
    slot = index.slot_for("a")
    assert index.walk(chain(1, 2), 1 << slot).bytes_by_slot == {}
    put(index, chain(1, 2), slot)
    assert index.walk(chain(1, 2), 1 << slot).bytes_by_slot == {slot: 20}


def test_more_workers_than_slots_are_refused() -> None:
    index = PrefixIndex()
    for n in range(MAX_SLOTS):
        index.slot_for(f"w{n}")
    with pytest.raises(OverflowError):
        index.slot_for("one more")


def test_a_chain_is_kept_up_to_its_limit() -> None:
    index = PrefixIndex()
    long = chain(*range(1, MAX_CUTS + 100))
    put(index, long, index.slot_for("a"))
    assert index.entries == MAX_CUTS
    assert index.known_bytes(long) == 10 * MAX_CUTS


def test_prefixes_that_conversations_begin_with_are_counted_and_histories_are_not() -> None:
    index = PrefixIndex()
    a = index.slot_for("a")
    index.insert([1, 2, 3], 1 << a, begins=True)
    assert index.walk(chain(1, 2, 3), 1 << a).shared == []
    index.insert([1, 2, 3, 4], 1 << a)  # the same conversation goes on
    assert index.walk(chain(1, 2, 3, 4), 1 << a).shared == []
    index.insert([1, 2, 9], 1 << a, begins=True)
    index.insert([1, 8], 1 << a, begins=True)
    match = index.walk(chain(1, 2, 3, 4), 1 << a)
    assert match.shared == [(10, 2), (20, 1)]
    assert match.bytes_by_slot == {a: 40}


def test_sharers_are_counted_up_to_a_limit_and_survive_ageing_and_restarts() -> None:
    index = PrefixIndex(generations=3, entries_per_generation=10)
    a = index.slot_for("a")
    for _ in range(MAX_SHARERS + 10):
        index.insert([1], 1 << a, begins=True)
    index.retire("a")
    a = index.slot_for("a")
    index.insert(list(range(100, 115)), 1 << a)
    index.insert([1], 1 << a)
    match = index.walk(chain(1), 1 << a)
    assert match.shared == [(10, MAX_SHARERS)]
    assert match.bytes_by_slot == {a: 10}


def test_a_shared_prefix_that_nobody_computed_is_forgotten() -> None:
    index = PrefixIndex()
    a = index.slot_for("a")
    index.insert([1], 1 << a, begins=True)
    index.insert([1], 1 << a, begins=True)
    index.forget([1], 1 << a)
    assert index.known_bytes(chain(1)) == 0
