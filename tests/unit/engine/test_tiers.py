"""Cache tiers: what each serves, what it costs, what is told, and what an eviction leaves."""

from collections.abc import Sequence
from typing import Any

import pytest

from warmroute_lab.engine.model.model import Costs, Scheduler, Work
from warmroute_lab.engine.model.tiers import HostTier

PAGE = 64
COSTS = Costs(host_load_s_per_token=1e-6, storage_fetch_s_per_token=1e-5)


class Teller:
    """Writes down what a cache tells."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def stored(self, work: Work, start: int, stop: int, tier: str, *, computed: bool) -> None:
        self.told.append(("stored", list(work.keys[start:stop]), tier, computed))

    def removed(self, keys: Sequence[int], tier: str) -> None:
        self.told.append(("removed", list(keys), tier))

    def cleared(self) -> None:
        self.told.append(("cleared",))

    def take(self) -> list[Any]:
        told, self.told = self.told, []
        return told


def rank(
    *, pages: int = 20, host_pages: int = 100, storage: set[int] | None = None, listener: Teller | None = None
) -> Scheduler:
    return Scheduler(
        role="aggregated",
        kv_tokens=pages * PAGE,
        page_size=PAGE,
        max_running=8,
        costs=COSTS,
        host=HostTier(host_pages * PAGE, storage),
        listener=listener,
    )


def ask(model: Scheduler, tree: int, pages: int, at_s: float | None = None) -> Work:
    """A prompt of `pages` complete pages and one token, to its end."""
    work = Work(pages * PAGE + 1, 1, [tree * 1000 + page for page in range(pages)])
    model.add(work, model.clock_s if at_s is None else at_s)
    model.advance(float("inf"))
    assert work.first_token_s is not None
    return work


def tiers_of(work: Work) -> tuple[int, int, int]:
    host, storage = work.cached_host_tokens // PAGE, work.cached_storage_tokens // PAGE
    return work.cached_tokens // PAGE - host - storage, host, storage


def test_a_host_hit_costs_its_copy_and_not_its_computation() -> None:
    model = rank(pages=20)
    ask(model, 1, 15)
    ask(model, 2, 18)
    again = ask(model, 1, 15, at_s=100.0)
    host_tokens = again.cached_host_tokens
    assert host_tokens == 14 * PAGE
    assert again.first_token_s == pytest.approx(100.0 + COSTS.prefill_s(1) + host_tokens * 1e-6)


def test_storage_serves_an_engine_that_starts_empty() -> None:
    storage: set[int] = set()
    ask(rank(storage=storage), 1, 15)
    model = rank(storage=storage)
    work = ask(model, 1, 15, at_s=5.0)
    assert tiers_of(work) == (0, 0, 15)
    assert model.totals.cached_storage_tokens == model.totals.load_back_tokens == 15 * PAGE
    assert work.first_token_s == pytest.approx(5.0 + COSTS.prefill_s(1) + 15 * PAGE * (1e-6 + 1e-5))


def test_a_fetch_from_storage_passes_while_a_request_waits() -> None:
    storage: set[int] = set()
    ask(rank(storage=storage), 1, 15)
    model = rank(pages=200, storage=storage)
    first = Work(8192, 1, [])
    stored = Work(15 * PAGE + 1, 1, [1000 + page for page in range(15)])
    model.add(first, 0.0)
    model.add(stored, 0.0)
    model.advance(float("inf"))
    assert first.first_token_s is not None
    assert stored.first_token_s == pytest.approx(first.first_token_s + COSTS.prefill_s(1) + 15 * PAGE * 1e-6)


@pytest.mark.parametrize(("pages", "found"), [(3, 0), (4, 4)])
def test_a_short_hit_in_storage_is_not_fetched(pages: int, found: int) -> None:
    storage: set[int] = set()
    ask(rank(storage=storage), 1, pages)
    assert tiers_of(ask(rank(storage=storage), 1, 10)) == (0, 0, found)  # 256 tokens are 4 pages


def test_pages_are_told_when_their_step_has_ended_and_evictions_before_those_who_need_the_room() -> None:
    teller = Teller()
    model = rank(pages=12, listener=teller)
    model.add(Work(4 * PAGE + 1, 1, [1, 2, 3, 4]), 0.0)
    model.advance(0.001)
    assert teller.take() == []
    model.advance(1.0)
    assert teller.take() == [("stored", [1, 2, 3, 4], "host", True), ("stored", [1, 2, 3, 4], "device", True)]
    model.add(Work(6 * PAGE + 1, 1, [1, 2, 13, 14, 15, 16]), 2.0)
    model.advance(3.0)
    new = [13, 14, 15, 16]
    assert teller.take() == [("stored", new, "host", True), ("stored", new, "device", True)]
    model.add(Work(8 * PAGE, 1, list(range(20, 28))), 4.0)  # needs nine pages, four are free
    model.advance(5.0)
    new = list(range(20, 28))
    assert teller.take() == [
        ("removed", [3, 4], "device"),
        ("removed", [14, 15, 16], "device"),
        ("stored", new, "host", True),
        ("stored", new, "device", True),
    ]


def test_what_is_loaded_back_is_told_apart_from_what_was_computed() -> None:
    teller = Teller()
    storage: set[int] = set()
    ask(rank(storage=storage), 1, 6)
    model = rank(storage=storage, listener=teller)
    ask(model, 1, 8)
    loaded, computed = [1000, 1001, 1002, 1003, 1004, 1005], [1006, 1007]
    assert teller.take() == [
        ("stored", loaded, "host", False),
        ("stored", computed, "host", True),
        ("stored", loaded, "device", False),
        ("stored", computed, "device", True),
    ]


def test_a_full_host_forgets_what_was_used_longest_ago_deepest_first() -> None:
    teller = Teller()
    model = rank(pages=12, host_pages=20, listener=teller)
    for tree in (1, 2):
        ask(model, tree, 10)
    teller.take()
    ask(model, 3, 4)
    assert ("removed", [1006, 1007, 1008, 1009], "host") in teller.take()
    assert tiers_of(ask(model, 1, 10)) == (0, 6, 0)
