"""Tiers of a cache in placement: what is predicted where, and what it costs."""

from typing import Any

import pytest
from tests.subjects.routing import routing_of

from warmroute_proxy.core.cache.tiers import FETCH_S_PER_TOKEN_PRIOR, LOAD_S_PER_TOKEN_PRIOR, MOVE_S_PER_TOKEN_MAX
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest

TOKENS = 10_000
KEYS = [5000 + n for n in range(10)]


def routing(tokens: int = TOKENS, **changed: Any) -> RoutingRequest:
    blocks = tokens // 1000  # of 4,000 bytes, by the prior of 4 bytes a token
    return routing_of(**{"chain": Chain(KEYS[:blocks], [4000 * (n + 1) for n in range(blocks)]), **changed})


def tiered(*ids: str, store: str | None = "shared") -> Router:
    return Router("east", [Worker(id_, id_, 0, "aggregated", host_cache=True, store=store) for id_ in ids])


def serve(router: Router, request: RoutingRequest, on: str | None = None, tokens: int = TOKENS) -> str:
    others = frozenset(router.snapshot(0.0)["workers"]) - {on} if on else frozenset()
    decision = router.place(request, 0.0, frozenset(others))
    router.settled(router.dispatched(request, decision, 0.0), request, 0.0, tokens, 0, 5)
    return decision.cache_worker


def test_what_the_device_evicted_is_expected_from_the_host_at_its_price() -> None:
    router = tiered("a")
    serve(router, routing())
    router.cache_removed("a", KEYS[4:], "device")
    decision = router.place(routing(), 0.0)
    assert decision.predicted == (4000, 5999, 0)
    assert decision.predicted_cached_tokens == 9999
    assert decision.reasons[0].load_s == pytest.approx(5999 * LOAD_S_PER_TOKEN_PRIOR)
    assert (decision.reasons[0].host_tokens, decision.reasons[0].storage_tokens) == (5999, 0)
    router.cache_stored("a", KEYS[4:], "device")
    assert router.place(routing(), 0.0).predicted == (9999, 0, 0)


def test_what_one_worker_wrote_to_a_store_another_of_the_same_store_can_fetch() -> None:
    router = tiered("a", "b")
    warm = serve(router, routing(), on="a")
    decision = router.place(routing(), 0.0, frozenset({warm}))
    assert decision.cache_worker == "b"
    assert decision.predicted == (0, 0, 9999)
    assert decision.reasons[0].load_s == pytest.approx(9999 * FETCH_S_PER_TOKEN_PRIOR)
    router.add_worker(Worker("c", "c", 0, "aggregated", host_cache=True, store="another"))
    assert router.place(routing(), 0.0, frozenset({"a", "b"})).predicted_cached_tokens == 0


def test_a_worker_with_the_prefix_on_its_device_wins_over_one_that_would_fetch_it() -> None:
    router = tiered("a", "b")
    serve(router, routing(), on="b")
    assert router.place(routing(), 0.0).cache_worker == "b"


def test_a_restart_empties_device_and_host_but_not_the_store() -> None:
    router = tiered("a")
    serve(router, routing())
    router.worker_restarted("a")
    assert router.place(routing(), 0.0).predicted == (0, 0, 9999)
    router = tiered("a", store=None)
    serve(router, routing())
    router.cache_cleared("a")
    assert router.place(routing(), 0.0).predicted == (0, 0, 0)


def test_a_store_is_not_asked_for_less_than_a_fetch_is_worth() -> None:
    router = tiered("a")
    short = routing(chain=Chain(KEYS[:2], [800, 1600]))  # 400 tokens
    serve(router, short, tokens=400)
    for tier in ("device", "host"):
        router.cache_removed("a", KEYS[1:2], tier)
    assert router.place(short, 0.0).predicted == (200, 0, 0)


def test_what_is_only_on_its_way_is_not_in_the_store_yet() -> None:
    router = tiered("a", "b")
    router.dispatched(routing(), router.place(routing(), 0.0, frozenset({"b"})), 0.0)
    assert router.place(routing(), 0.0, frozenset({"a"})).predicted_cached_tokens == 0
    assert router.place(routing(), 0.0, frozenset({"b"})).predicted_cached_tokens == 9999


def test_an_evicted_prefix_is_still_known_text() -> None:
    router = Router("east", [Worker("a", "a", 0, "aggregated")])
    serve(router, routing())
    router.cache_removed("a", KEYS, "device")
    decision = router.place(routing(), 0.0)
    assert (decision.predicted_cached_tokens, decision.known_tokens) == (0, 9999)


def test_the_price_of_moves_is_learned_within_bounds() -> None:
    router = tiered("a")
    router.observe_moves("a", "host", 20_000, 0.2)  # 10 us a token: half of the way there
    worker = router.snapshot(0.0)["workers"]["a"]
    assert worker["load_s_per_token"] == pytest.approx((LOAD_S_PER_TOKEN_PRIOR + 1e-5) / 2)
    router.observe_moves("a", "storage", 10**9, 1e9)
    router.observe_moves("a", "storage", 0, 1.0)
    worker = router.snapshot(0.0)["workers"]["a"]
    assert worker["fetch_s_per_token"] == pytest.approx(MOVE_S_PER_TOKEN_MAX, rel=0.01)
    serve(router, routing())
    router.cache_removed("a", KEYS, "device")
    assert router.place(routing(), 0.0).reasons[0].load_s == pytest.approx(9999 * worker["load_s_per_token"])


def test_news_of_unknown_workers_and_missing_tiers_are_ignored() -> None:
    router = Router("east", [Worker("a", "a", 0, "aggregated")])
    for tier in ("device", "host", "storage"):
        router.cache_stored("nobody", KEYS, tier)
        router.cache_removed("nobody", KEYS, tier)
    router.cache_stored("a", KEYS, "host")
    router.cache_cleared("nobody")
    router.observe_moves("nobody", "host", 1, 1.0)
    assert router.place(routing(), 0.0).known_tokens == 0


def test_round_robin_predicts_tiers_too() -> None:
    router = Router("east", [Worker("a", "a", 0, "aggregated", host_cache=True)], policy="round_robin")
    serve(router, routing())
    router.cache_removed("a", KEYS[5:], "device")
    assert router.place(routing(), 0.0).predicted == (5000, 4999, 0)
