"""The prefix index: what it says of who has computed what."""

import pytest

from warmroute_proxy.core.fingerprint import Chain
from warmroute_proxy.core.index import MAX_CUTS, MAX_SLOTS, PrefixIndex


def chain(*hashes: int) -> Chain:
    return Chain(list(hashes), [10 * (n + 1) for n in range(len(hashes))])


def test_a_worker_matches_up_to_the_first_cut_it_lacks() -> None:
    index = PrefixIndex()
    a, b, c = (index.slot_for(name) for name in "abc")
    index.insert(chain(1, 2, 3), a)
    index.insert(chain(1, 2, 9), b)
    match = index.walk(chain(1, 2, 3, 4), 1 << a | 1 << b | 1 << c)
    assert match.bytes_by_slot == {a: 30, b: 20}
    assert match.known_bytes == 30


def test_only_slots_of_the_mask_are_reported() -> None:
    index = PrefixIndex()
    a, b = index.slot_for("a"), index.slot_for("b")
    index.insert(chain(1, 2), a)
    assert index.walk(chain(1, 2), 1 << b).bytes_by_slot == {}
    assert index.known_bytes(chain(1, 2)) == 20


def test_what_was_never_computed_is_forgotten_and_the_rest_is_kept() -> None:
    index = PrefixIndex()
    a, b = index.slot_for("a"), index.slot_for("b")
    index.insert(chain(1, 2), a)
    index.insert(chain(1, 2, 3), b)
    index.forget(chain(1, 2, 3), b, from_cut=1)
    match = index.walk(chain(1, 2, 3), 1 << a | 1 << b)
    assert match.bytes_by_slot == {a: 20, b: 10}
    assert match.known_bytes == 20


def test_a_restarted_worker_has_nothing_but_its_prompts_are_still_known() -> None:
    index = PrefixIndex()
    before = index.slot_for("a")
    index.insert(chain(1, 2), before)
    index.retire("a")
    after = index.slot_for("a")
    assert after != before
    match = index.walk(chain(1, 2), 1 << after)
    assert match.bytes_by_slot == {}
    assert match.known_bytes == 20


def test_old_generations_go_and_what_is_used_stays() -> None:
    index = PrefixIndex(generations=3, entries_per_generation=10)
    slot = index.slot_for("a")
    index.insert(chain(1, 2), slot)
    index.insert(chain(7, 8), slot)
    for n in range(100):
        index.insert(chain(1000 + n), slot)
        index.insert(chain(1, 2), slot)
    assert index.known_bytes(chain(1, 2)) == 20
    assert index.known_bytes(chain(7, 8)) == 0
    assert index.entries <= 30
    assert index.rotations > 0


def test_a_retired_slot_is_reused_only_when_its_bits_are_gone() -> None:
    index = PrefixIndex(generations=2, entries_per_generation=4)
    old = index.slot_for("a")
    index.insert(chain(1), old)
    index.retire("a")
    slots = [index.slot_for(f"w{n}") for n in range(MAX_SLOTS - 1)]
    assert old not in slots
    for n in range(9):  # two rotations: the generation that held the old bit is gone, although 1 was used all the time
        index.insert(chain(1), slots[0])
        index.insert(chain(100 + n), slots[0])
    assert index.slot_for("new") == old
    assert index.walk(chain(1), 1 << old).bytes_by_slot == {}


def test_a_slot_whose_bits_are_still_there_is_not_taken_for_the_new_workers() -> None:
    index = PrefixIndex(generations=2, entries_per_generation=4)
    old = index.slot_for("a")
    index.insert(chain(1), old)
    index.retire("a")
    slots = [index.slot_for(f"w{n}") for n in range(MAX_SLOTS - 1)]
    for n in range(4):  # one rotation
        index.insert(chain(100 + n), slots[0])
    assert index.rotations == 1
    assert index.walk(chain(1), 1 << index.slot_for("new")).bytes_by_slot == {}


def test_without_a_free_slot_the_index_starts_again_empty() -> None:
    index = PrefixIndex()
    for _ in range(MAX_SLOTS + 1):
        index.insert(chain(1, 2), index.slot_for("a"))
        index.retire("a")
    slot = index.slot_for("a")
    assert index.walk(chain(1, 2), 1 << slot).bytes_by_slot == {}
    index.insert(chain(1, 2), slot)
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
    index.insert(long, index.slot_for("a"))
    assert index.entries == MAX_CUTS
    assert index.known_bytes(long) == 10 * MAX_CUTS
