"""The prompts of hot lineages: what is kept, how long, and what goes first."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st
from tests.search import searched

from warmroute_proxy.core.placement.hot_prompts import MAX_AGE_S, MIN_BYTES, HotPrompt, HotPrompts

from .test_router import routing


def prompt(lineage: int, size: int = MIN_BYTES, cache_worker: str = "a") -> HotPrompt:
    return HotPrompt(routing(lineage), b"x" * size, "/v1", "salt", None, frozenset(), cache_worker)


def bodies(kept: HotPrompts, cache_worker: str = "a", now_s: float = 0.0) -> list[tuple[int, int]]:
    return [(found.routing.lineage, len(found.body)) for found in kept.hottest([cache_worker], now_s)]


def test_a_lineage_has_its_last_prompt() -> None:
    kept = HotPrompts(10**6)
    kept.keep(prompt(1), 0.0)
    kept.keep(prompt(1, 20_000, "b"), 1.0)
    assert (bodies(kept), bodies(kept, "b")) == ([], [(1, 20_000)])


def test_short_and_too_large_prompts_are_not_kept_and_their_predecessors_go() -> None:
    kept = HotPrompts(50_000)
    for size in (MIN_BYTES - 1, 60_000):
        kept.keep(prompt(1), 0.0)
        kept.keep(prompt(1, size), 0.0)
        assert (len(kept), kept.bytes) == (0, 0)


def test_nothing_is_kept_without_room() -> None:
    kept = HotPrompts(0)
    kept.keep(prompt(1, 2_000_000), 0.0)
    assert len(kept) == 0
    assert kept.min_bytes > 2**40, "a caller finds every body too short"


def test_the_hottest_is_long_and_recent() -> None:
    kept = HotPrompts(10**6)
    kept.keep(prompt(1, 40_000), 0.0)
    kept.keep(prompt(2, 20_000), 0.0)
    kept.keep(prompt(3, 30_000), 290.0)
    assert [lineage for lineage, _ in bodies(kept, now_s=300.0)] == [3, 1, 2]


def test_a_cold_lineage_is_forgotten() -> None:
    kept = HotPrompts(10**6)
    kept.keep(prompt(1), 0.0)
    kept.keep(prompt(2), 1.0)
    kept.expire(MAX_AGE_S)
    assert len(kept) == 2
    kept.expire(MAX_AGE_S + 0.5)
    assert bodies(kept) == [(2, MIN_BYTES)]
    kept.expire(MAX_AGE_S + 1.5)
    assert (len(kept), kept.bytes) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(MIN_BYTES - 5, MIN_BYTES * 3)), max_size=80))
@searched(80)
def test_it_is_the_newest_that_fit(steps: list[tuple[int, int]]) -> None:
    limit = MIN_BYTES * 8
    kept, model = HotPrompts(limit), OrderedDict[int, int]()
    overhead = prompt(0).size - MIN_BYTES
    for now, (lineage, size) in enumerate(steps):
        kept.keep(prompt(lineage, size), float(now))
        model.pop(lineage, None)
        if size >= MIN_BYTES:
            model[lineage] = size + overhead
        while sum(model.values()) > limit:
            model.popitem(last=False)
        assert kept.bytes == sum(model.values()) <= limit
        assert sorted(lineage for lineage, _ in bodies(kept)) == sorted(model)
