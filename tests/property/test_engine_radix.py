"""The radix cache against a plain model of it: prefixes, salts, pins, capacity."""

from hypothesis import given
from hypothesis import strategies as st

from warmroute_backend.engine.prompt import page_keys
from warmroute_backend.engine.radix import RadixCache

PAGE = 4
TOKEN = 4
prompts = st.lists(st.sampled_from([b"aaaa", b"bbbb"]), min_size=1, max_size=24).map(b"".join)
salts = st.sampled_from([b"one", b"two"])


def resident(cache: RadixCache, key: int) -> bool:
    return cache.match([key], 1)[0] == 1


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
        keys = page_keys(prompt, PAGE, its_salt)
        cache.insert(keys)
        cache.unpin(keys)
    matched, _ = cache.match(page_keys(wanted, PAGE, salt), limit=10_000)
    assert matched == max((common_pages(prompt, wanted) for prompt, s in inserted if s == salt), default=0)


@given(st.data())
def test_eviction_keeps_pins_and_never_orphans_a_page(data: st.DataObject) -> None:
    cache = RadixCache()
    parents: dict[int, int | None] = {}
    pinned: list[list[int]] = []
    for _ in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(["add", "release", "evict"]))
        if action == "add":
            keys = page_keys(data.draw(prompts), PAGE, data.draw(salts))
            matched, from_idle = cache.match(keys, len(keys))
            idle_before = cache.idle_pages
            cache.pin(keys[:matched])
            assert cache.idle_pages == idle_before - from_idle
            cache.insert(keys[matched:])
            pinned.append(keys)
            parents.update(zip(keys, [None, *keys], strict=False))
        elif action == "release" and pinned:
            cache.unpin(pinned.pop(data.draw(st.integers(0, len(pinned) - 1))))
        elif action == "evict":
            before = len(cache)
            pages = data.draw(st.integers(0, cache.idle_pages))
            cache.evict(pages)
            assert len(cache) == before - pages
        assert all(resident(cache, key) for keys in pinned for key in keys)
        for key, parent in parents.items():
            assert parent is None or not resident(cache, key) or resident(cache, parent)


@given(st.lists(prompts, min_size=2, max_size=6))
def test_eviction_takes_the_least_recently_used_first(used: list[bytes]) -> None:
    cache = RadixCache()
    for prompt in used:
        keys = page_keys(prompt, PAGE, b"")
        matched, _ = cache.match(keys, len(keys))
        cache.pin(keys[:matched])
        cache.insert(keys[matched:])
        cache.unpin(keys)
    newest = page_keys(used[-1], PAGE, b"")
    cache.evict(len(cache) - len(newest))
    assert all(resident(cache, key) for key in newest)
