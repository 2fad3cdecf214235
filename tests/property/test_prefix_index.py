"""The prefix index against a naive model of it, and its bounds."""

from hypothesis import given
from hypothesis import strategies as st
from tests.search import searched

from warmroute_proxy.core.cache.index import PrefixIndex
from warmroute_proxy.core.prompt.chain import Chain

WORKERS = ("a", "b", "c")
PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=6)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.sampled_from(WORKERS), PATHS),
        st.tuples(st.just("forget"), st.sampled_from(WORKERS), PATHS),
        st.tuples(st.just("retire"), st.sampled_from(WORKERS), st.just([0])),
    ),
    max_size=60,
)


def chain(path: list[int]) -> Chain:
    """A hash for each prefix of the path, as chained hashes are: equal only for equal prefixes."""
    hashes = [hash(tuple(path[: n + 1])) & 0xFFFFFFFFFFFFFFFF for n in range(len(path))]
    return Chain(hashes, [100 * (n + 1) for n in range(len(path))])


class Model:
    """What each worker holds, as sets of prefixes."""

    def __init__(self) -> None:
        self.held: dict[str, set[tuple[int, ...]]] = {worker: set() for worker in WORKERS}

    def apply(self, operation: str, worker: str, path: list[int]) -> None:
        prefixes = [tuple(path[: n + 1]) for n in range(len(path))]
        if operation == "insert":
            self.held[worker] |= set(prefixes)
        elif operation == "forget":
            self.held[worker] -= set(prefixes[len(path) // 2 :])
        else:
            self.held[worker] = set()

    def matched_bytes(self, worker: str, path: list[int]) -> int:
        length = 0
        while length < len(path) and tuple(path[: length + 1]) in self.held[worker]:
            length += 1
        return 100 * length


def apply(index: PrefixIndex, operation: str, worker: str, path: list[int]) -> None:
    if operation == "insert":
        index.insert(chain(path).hashes, 1 << index.slot_for(worker))
    elif operation == "forget":
        index.forget(chain(path).hashes[len(path) // 2 :], 1 << index.slot_for(worker))
    else:
        index.retire(worker)


def matched(index: PrefixIndex, path: list[int]) -> dict[str, int]:
    slots = {worker: index.slot_for(worker) for worker in WORKERS}
    found = index.walk(chain(path), sum(1 << slot for slot in slots.values())).bytes_by_slot
    assert set(found) <= set(slots.values())
    assert all(found.values())
    return {worker: found.get(slot, 0) for worker, slot in slots.items()}


@given(OPERATIONS, PATHS)
def test_with_room_for_all_it_says_what_the_model_says(
    operations: list[tuple[str, str, list[int]]], probe: list[int]
) -> None:
    index, model = PrefixIndex(), Model()
    for operation in operations:
        apply(index, *operation)
        model.apply(*operation)
    found = matched(index, probe)
    assert found == {worker: model.matched_bytes(worker, probe) for worker in WORKERS}
    assert index.known_bytes(chain(probe)) >= max(found.values())


@given(OPERATIONS, PATHS, st.integers(1, 4), st.integers(1, 12))
def test_without_room_it_never_says_more_than_the_model_and_keeps_its_bounds(
    operations: list[tuple[str, str, list[int]]], probe: list[int], generations: int, entries: int
) -> None:
    index, model = PrefixIndex(generations, entries), Model()
    for operation in operations:
        apply(index, *operation)
        model.apply(*operation)
        assert index.entries <= generations * entries
    for worker, length in matched(index, probe).items():
        assert length <= model.matched_bytes(worker, probe)


@searched(50)
@given(st.lists(PATHS, min_size=1, max_size=30))
def test_what_was_just_inserted_is_found_whole(paths: list[list[int]]) -> None:
    index = PrefixIndex(generations=2, entries_per_generation=6)
    for path in paths:
        index.insert(chain(path).hashes, 1 << index.slot_for("a"))
        assert matched(index, path)["a"] == 100 * len(path)
        assert index.known_bytes(chain(path)) == 100 * len(path)


@given(st.lists(st.tuples(OPERATIONS, st.sampled_from(WORKERS), PATHS), max_size=12), st.integers(2, 4), PATHS)
def test_what_a_walk_has_found_need_not_be_inserted_again(
    turns: list[tuple[list[tuple[str, str, list[int]]], str, list[int]]], generations: int, probe: list[int]
) -> None:
    """Whatever happens between a prompt's walk and its insertion."""
    told, untold = PrefixIndex(generations, 12), PrefixIndex(generations, 12)
    for between, worker, path in turns:
        cuts = chain(path)
        walked = told.walk(cuts, 1 << told.slot_for(worker)).bytes_by_slot
        cached = walked.get(told.slot_for(worker), 0) // 100
        for operation in between[:2]:
            apply(told, *operation)
            apply(untold, *operation)
        told.insert(cuts.hashes, 1 << told.slot_for(worker), cached=cached)
        untold.insert(cuts.hashes, 1 << untold.slot_for(worker))
        assert matched(told, path) == matched(untold, path)
    assert matched(told, probe) == matched(untold, probe)
    assert (told.entries, told.rotations) == (untold.entries, untold.rotations)
