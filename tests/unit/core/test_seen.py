"""What the router saw of the caches in which a turn found less than expected: evictions, and prompts under way."""

import pytest
from tests.unit.core.test_router import PD, TOKENS, aggregated, routing, send

from warmroute_proxy.core.load.engine_loads import EngineLoads
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.router import Router

POOL = EngineLoads(max_tokens=1_000_000)


def test_nothing_was_seen_of_an_engine_with_room() -> None:
    router = Router("east", aggregated("a"))
    router.observe_loads("a", POOL, 0.0)
    router.settled(send(router, routing()), routing(), 1.0, TOKENS, 0, 100)
    seen = router.seen(send(router, routing()), TOKENS)
    assert (seen.evicted_here, seen.evicted, seen.waiting) == (False, False, 0)


@pytest.mark.parametrize(
    "loads",
    [
        EngineLoads(max_tokens=100_000, total_tokens=95_000),
        EngineLoads(max_tokens=100_000, prefill_uncached_tokens_total=150_000),
    ],
    ids=["full", "has computed more than fits"],
)
def test_a_full_pool_is_an_eviction_until_the_engine_restarts(loads: EngineLoads) -> None:
    router = Router("east", aggregated("a", "b"))
    router.observe_loads("a", loads, 0.0)
    ticket = send(router, routing())
    seen = router.seen(ticket, TOKENS)
    assert (seen.evicted_here, seen.evicted) == (ticket.cache_worker.id == "a", True)
    router.worker_restarted("a")
    assert not router.seen(send(router, routing()), TOKENS).evicted


def test_books_that_overflow_are_an_eviction() -> None:
    router = Router("east", aggregated("a"))
    router.observe_loads("a", EngineLoads(max_tokens=2 * TOKENS), 0.0)
    for name in range(3):
        asked = routing(name + 1)
        router.settled(send(router, asked), asked, 1.0, TOKENS, 0, 100)
    assert router.seen(send(router, routing(9)), TOKENS).evicted_here


def test_an_engine_with_events_is_only_blamed_for_what_was_removed() -> None:
    router = Router("east", aggregated("a"))
    router.cache_removed("a", routing(7).chain.hashes, "device")
    ticket = send(router, routing())
    assert not router.seen(ticket, TOKENS).evicted_here  # nothing was removed since it was placed
    router.cache_removed("a", routing().chain.hashes, "device")
    assert router.seen(ticket, TOKENS).evicted_here


@pytest.mark.parametrize("workers", [aggregated("a"), PD], ids=["aggregated", "pair"])
def test_a_beginning_that_another_prompt_computes_is_under_way(workers: list[Worker]) -> None:
    router = Router("east", workers)
    first = send(router, routing())
    second = send(router, routing())
    assert router.seen(second, 8_000).waiting == 8_000
    router.first_token(first, 1.0)
    assert router.seen(second, 8_000).waiting == 8_000  # it was under way when the second was sent
    assert router.seen(send(router, routing(2)), 8_000).waiting == 0


def test_a_beginning_that_another_worker_computes_is_under_way_too() -> None:
    router = Router("east", aggregated("a", "b"))
    first = send(router, routing())
    other = routing(2, chain=routing().chain)
    exclude = frozenset({first.cache_worker.id})
    second = router.dispatched(other, router.place(other, 0.0, exclude), 0.0)
    assert second.cache_worker is not first.cache_worker
    assert router.seen(second, TOKENS).waiting == TOKENS


def test_an_engine_that_reports_no_hit_is_known() -> None:
    router = Router("east", aggregated("a"))
    router.settled(send(router, routing()), routing(), 1.0, TOKENS, 0, 100)
    assert not router.reports_hits("a")
    router.settled(send(router, routing()), routing(), 1.0, TOKENS, 9_000, 100)
    assert router.reports_hits("a")
