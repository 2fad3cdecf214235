"""The radix cache against a plain model of it: prefixes, salts, holders, capacity."""

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.search import searched

from warmroute_lab.engine.model.prompt import page_keys
from warmroute_lab.engine.model.radix import Node, RadixCache

PAGE = 4
TOKEN = 4
ALL = 10_000
prompts = st.lists(st.sampled_from([b"aaaa", b"bbbb"]), min_size=1, max_size=24).map(b"".join)
salts = st.sampled_from([b"one", b"two"])
paths = st.builds(page_keys, prompts.map(lambda prompt: prompt * PAGE), st.just(PAGE), salts)


def put(cache: RadixCache, keys: list[int]) -> None:
    """One request: held, computed, let go."""
    path = cache.hold(keys)
    cache.fill(path, len(keys))
    cache.release(path)


def common_pages(left: bytes, right: bytes) -> int:
    page = PAGE * TOKEN
    pages = 0
    while (pages + 1) * page <= min(len(left), len(right)) and left[: (pages + 1) * page] == right[
        : (pages + 1) * page
    ]:
        pages += 1
    return pages


@given(st.lists(st.tuples(prompts, salts), max_size=12), prompts, salts)
def test_a_lookup_finds_the_longest_page_aligned_prefix_inserted_under_its_salt(
    inserted: list[tuple[bytes, bytes]], wanted: bytes, salt: bytes
) -> None:
    cache = RadixCache()
    for prompt, its_salt in inserted:
        put(cache, page_keys(prompt, PAGE, its_salt))
    matched, idle = cache.match(page_keys(wanted, PAGE, salt), ALL)
    assert matched == idle == max((common_pages(prompt, wanted) for prompt, s in inserted if s == salt), default=0)


@given(st.lists(prompts, min_size=2, max_size=6))
def test_eviction_takes_the_least_recently_used_first(used: list[bytes]) -> None:
    cache = RadixCache()
    for prompt in used:
        put(cache, page_keys(prompt, PAGE, b""))
    newest = page_keys(used[-1], PAGE, b"")
    cache.evict(len(cache) - len(newest))
    assert cache.match(newest, ALL) == (len(newest), len(newest))


class AgainstPages(RuleBasedStateMachine):
    """The compressed tree does what a map of single pages with counts and a recency order does."""

    def __init__(self) -> None:
        super().__init__()
        self.removed: list[int] = []
        self.cache = RadixCache(self.removed.extend)
        self.resident: set[int] = set()
        self.idle: list[int] = []  # oldest first
        self.held: list[tuple[list[int], Node | None]] = []
        self.seen: list[list[int]] = []

    def _holders(self, key: int) -> int:
        return sum(key in keys for keys, _ in self.held)

    def _matched(self, keys: list[int]) -> list[int]:
        return list(takewhile(self.resident.__contains__, keys))

    @rule(keys=paths)
    def hold(self, keys: list[int]) -> None:
        self.held.append((keys, self.cache.hold(keys)))
        self.seen.append(keys)
        self.idle = [key for key in self.idle if key not in keys]

    @rule(keys=paths, data=st.data())
    def hold_in_two_parts(self, keys: list[int], data: st.DataObject) -> None:
        path = self.cache.hold(keys, data.draw(st.integers(0, len(keys))))
        self.held.append((keys, self.cache.hold(keys, after=path)))
        self.seen.append(keys)
        self.idle = [key for key in self.idle if key not in keys]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fill(self, data: st.DataObject) -> None:
        keys, path = data.draw(st.sampled_from(self.held))
        pages = data.draw(st.integers(0, len(keys)))
        assert self.cache.fill(path, pages) == len(set(keys[:pages]) - self.resident)
        self.resident.update(keys[:pages])
        assert self.cache.resident(path) == len(self._matched(keys))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        keys, path = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.cache.release(path)
        self.idle += [key for key in reversed(keys) if key in self.resident and not self._holders(key)]

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        pages = data.draw(st.integers(0, len(self.idle)))
        self.removed.clear()
        self.cache.evict(pages)
        assert sorted(self.removed) == sorted(self.idle[:pages])
        self.resident -= set(self.idle[:pages])
        del self.idle[:pages]

    @rule()
    def flush(self) -> None:
        self.cache.flush()
        self.resident -= set(self.idle)
        self.idle.clear()

    @invariant()
    def the_same_is_resident(self) -> None:
        assert len(self.cache) == len(self.resident)
        assert self.cache.idle_pages == len(self.idle)
        for keys in self.seen[-6:]:
            matched = self._matched(keys)
            assert self.cache.match(keys, ALL) == (len(matched), sum(key in self.idle for key in matched))
            assert self.cache.match(keys, 2)[0] == min(2, len(matched))
            wanted = {key for held, _ in self.held for key in held} | self.resident
            assert self.cache.known(keys, ALL) == len(list(takewhile(wanted.__contains__, keys)))


TestAgainstPages = AgainstPages.TestCase
TestAgainstPages.settings = searched(60, stateful_step_count=40)
