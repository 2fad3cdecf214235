"""Bounded tables are divided between tenants: who holds most loses first, however much anybody stores."""

from collections import Counter, OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from warmroute.contract.shares import Division, Shares

steps = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 30), st.booleans()), max_size=200)


@given(steps, st.integers(1, 12))
def test_what_goes_is_the_oldest_of_the_owner_that_holds_most(steps: list[tuple[str, int, bool]], room: int) -> None:
    table: OrderedDict[tuple[str, int], None] = OrderedDict()
    division: Division[tuple[str, int], None] = Division(lambda key, _: key[0])
    for owner, number, drops in steps:
        key = owner, number
        if drops:
            if table.pop(key, 0) != 0:
                division.discard(key)
            continue
        table[key] = None
        table.move_to_end(key)
        if division.begun or 2 * len(table) > room:
            division.stored(key, table)
        if len(table) > room:
            held = Counter(name for name, _ in table)
            gone = division.next_to_go()
            assert held[gone[0]] == max(held.values())
            assert gone == next(each for each in table if each[0] == gone[0])
            del table[gone]
            division.discard(gone)
        assert len(table) <= room


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 10_000)), max_size=300))
def test_weights_add_up_and_nobody_below_half_of_the_largest_goes(stored: list[tuple[int, int]]) -> None:
    shares: Shares[tuple[int, int]] = Shares()
    held: Counter[str] = Counter()
    for at, (owner, weight) in enumerate(stored):
        shares.add((owner, at), str(owner), weight)
        held[str(owner)] += weight
    while len(shares):
        owner, at = key = shares.next_to_go()
        most = max(held.values())
        assert held[str(owner)] * 2 > most
        assert len(held) > 64 or held[str(owner)] == most
        held[str(owner)] -= stored[at][1]
        held += Counter()
        shares.discard(key)
        assert shares.held(str(owner)) == held[str(owner)]
