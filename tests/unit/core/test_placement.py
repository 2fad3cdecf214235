"""Where a request goes, seen from outside: through the router, by the numbers of the cost."""

import pytest
from tests.subjects.routing import routing_of

from warmroute_proxy.core.load.engine_loads import EngineLoads
from warmroute_proxy.core.load.traffic import RENEW_S
from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.decision import MAX_REASONS
from warmroute_proxy.core.placement.fleet import Peer, Worker
from warmroute_proxy.core.placement.router import Decision, Router, Ticket
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest

TOKENS = 10_000
BLOCK = 4000  # bytes, 1,000 tokens by the prior of 4 bytes a token

ONE_BY_ONE_S = 20.0  # between two conversations that are no fork, whose head would take 3 s to compute


def prompt(name: int, blocks: int = 10) -> Chain:
    return Chain([name * 1000 + n for n in range(blocks)], [BLOCK * (n + 1) for n in range(blocks)])


def aggregated(*ids: str) -> list[Worker]:
    return [Worker(id_, id_, 0, "aggregated") for id_ in ids]


def disaggregated(prefills: int, decodes: int) -> list[Worker]:
    return [Worker(f"p{n}", f"p{n}", 0, "prefill") for n in range(prefills)] + [
        Worker(f"d{n}", f"d{n}", 0, "decode") for n in range(decodes)
    ]


def serve(
    router: Router, request: RoutingRequest, exclude: frozenset[str] = frozenset(), now_s: float = 0.0
) -> Decision:
    decision = router.place(request, now_s, exclude)
    ticket = router.dispatched(request, decision, now_s)
    router.settled(ticket, request, now_s, None, None, None)
    return decision


def busy(router: Router, request: RoutingRequest, only: str, ids: list[str], now_s: float = 0.0) -> Ticket:
    """One request in prefill on the worker `only`."""
    decision = router.place(request, now_s, frozenset(ids) - {only})
    return router.dispatched(request, decision, now_s)


def test_a_shared_prefix_gets_its_second_copy_from_new_conversations_and_not_from_warm_ones() -> None:
    router = Router("east", aggregated("a", "b"))
    shared = list(range(60))

    def turn(session: int, private: int) -> RoutingRequest:
        hashes = shared + [session * 1000 + n for n in range(private)]
        chain = Chain(hashes, [BLOCK * (n + 1) for n in range(len(hashes))])
        return routing_of(chain, session=session, lineage=session, turn=private)

    for session in range(1, 9):  # one by one, which is no fork
        serve(router, turn(session, 1), frozenset({"b"}), session * ONE_BY_ONE_S)
    now_s = 10 * ONE_BY_ONE_S
    busy(router, routing_of(prompt(900, 30), session=900, lineage=900), "a", ["a", "b"], now_s)
    assert router.place(turn(50, 1), now_s).cache_worker == "b"  # computing the shared prefix there is worth it
    back = router.place(turn(1, 2), now_s)
    assert (back.known, back.cache_worker) == (True, "a")
    home, other = back.reasons[0], back.reasons[1]
    assert other.cost_s < home.cost_s < other.compute_s
    assert (router.place(turn(1, 2), now_s, frozenset({"a"})).cache_worker, other.id) == ("b", "b")


def test_a_turn_goes_where_its_prefix_is() -> None:
    router = Router("east", aggregated(*"abcdefgh"))
    homes = {}
    for session in range(20):
        first = serve(router, routing_of(prompt(session), session=session, lineage=session))
        homes[session] = first.cache_worker
        assert first.predicted_cached_tokens == 0
    assert len(set(homes.values())) > 3
    for session, home in homes.items():
        longer = routing_of(prompt(session, 12), session=session, lineage=session, turn=2)
        decision = serve(router, longer)
        assert decision.cache_worker == home
        assert decision.predicted_cached_tokens == TOKENS
        assert decision.prompt_tokens_est == 12_000


def test_a_busy_home_loses_to_an_idle_stranger_when_waiting_costs_more() -> None:
    ids = ["a", "b"]
    # 10,000 tokens would be computed again: about 8 times their own 0.5 s, against as many seconds of queue.
    for queued, stays in ((7.0, True), (10.0, False)):
        router = Router("east", aggregated(*ids))
        home = serve(router, routing_of(prompt(1))).cache_worker
        ahead = Chain([99], [int(queued * TOKENS * 4)])
        busy(router, routing_of(ahead, lineage=2, expected_output_tokens=0), home, ids)
        decision = router.place(routing_of(prompt(1, 11), turn=2, expected_output_tokens=0), 0.0)
        assert (decision.cache_worker == home) is stays
        costs = {reason.id: reason for reason in decision.reasons}
        assert costs[home].queue_s == pytest.approx(queued * TOKENS / 20_000)
        assert costs[home].compute_s == pytest.approx(1000 / 20_000)
        assert (costs[home].reuse_s, costs[home].churn_s) == (0.0, 0.0)
        (stranger,) = set(ids) - {home}
        assert costs[stranger].reuse_s == pytest.approx(7.3 * TOKENS / 20_000, rel=0.05)


def test_prefill_that_is_under_way_shortens_the_queue_but_never_below_what_waits_behind_it() -> None:
    router = Router("east", aggregated("a"))
    for name in (1, 2):
        busy(router, routing_of(prompt(name), lineage=name, session=name), "a", ["a"])
    queue_s = [router.place(routing_of(prompt(3)), now_s).reasons[0].queue_s for now_s in (0.0, 0.2, 0.5, 60.0)]
    assert queue_s == pytest.approx([1.0, 0.8, 0.5, 0.5])


def test_a_prompt_that_many_begin_with_spreads_and_one_conversation_does_not() -> None:
    ids = [f"w{n}" for n in range(8)]
    system = prompt(7)

    def conversation(n: int, turns: int) -> Chain:
        return Chain(
            [*system.hashes, *(n * 1000 + 500 + t for t in range(turns))], [4000 * (t + 1) for t in range(10 + turns)]
        )

    router = Router("east", aggregated(*ids))
    begun = [
        serve(router, routing_of(conversation(n, 1), session=n, lineage=n), now_s=n * ONE_BY_ONE_S).cache_worker
        for n in range(64)
    ]
    assert set(begun) == set(ids)
    assert max(begun.count(id_) for id_ in ids) <= 12
    for n, home in enumerate(begun):
        later = routing_of(conversation(n, 2), session=n, lineage=n, turn=2)
        assert serve(router, later, now_s=65 * ONE_BY_ONE_S).cache_worker == home


def test_new_conversations_settle_where_less_was_written_lately() -> None:
    router = Router("east", aggregated("a", "b"))
    for n in range(4):
        serve(router, routing_of(prompt(n), session=n, lineage=n), frozenset({"b"}))
    chosen = {router.place(routing_of(prompt(20 + n), session=20 + n), 0.0).cache_worker for n in range(10)}
    assert chosen == {"b"}
    reasons = {reason.id: reason for reason in router.place(routing_of(prompt(30)), 0.0).reasons}
    assert reasons["a"].churn_s > reasons["b"].churn_s == 0.0
    back = router.place(routing_of(prompt(0, 11), session=0, lineage=0, turn=2), 0.0)
    assert back.cache_worker == "a"
    assert {reason.churn_s for reason in back.reasons} == {0.0}


def test_what_was_written_long_ago_counts_no_more() -> None:
    router = Router("east", aggregated("a", "b"))
    for n in range(4):
        serve(router, routing_of(prompt(n), session=n, lineage=n), frozenset({"b"}))
    last = routing_of(prompt(10), session=10, lineage=10)
    now_s = 2 * RENEW_S
    ticket = router.dispatched(last, router.place(last, now_s, frozenset({"a"})), now_s)
    router.settled(ticket, last, now_s, None, None, None)
    assert {router.place(routing_of(prompt(20 + n), session=20 + n), now_s).cache_worker for n in range(10)} == {"a"}


def test_a_long_queue_keeps_sessions_apart() -> None:
    """Overload: the longer the queues, the more it takes to leave home."""
    ids = ["a", "b"]
    for backlog, stays in ((0, False), (40, True)):  # requests ahead of everything, on both workers
        router = Router("east", aggregated(*ids))
        home = serve(router, routing_of(prompt(1))).cache_worker
        for _ in range(200):  # turns that return for what is cached
            serve(router, routing_of(prompt(1), turn=2))
        for n in range(backlog):
            for id_ in ids:
                busy(router, routing_of(prompt(100 + n), session=n, lineage=100 + n), id_, ids)
        busy(router, routing_of(Chain([99], [13 * TOKENS * 4]), lineage=2), home, ids)
        again = router.place(routing_of(prompt(1, 11), turn=2, expected_output_tokens=0), 0.0)
        assert (again.cache_worker == home) is stays


def test_reasons_add_up_and_start_with_the_chosen_place() -> None:
    router = Router("east", [*aggregated("a"), *disaggregated(2, 2)], [Peer("west", 0.05)])
    decision = router.place(routing_of(prompt(1)), 0.0)
    assert decision.reasons[0].id == decision.cache_worker
    assert {reason.id for reason in decision.reasons} == {"a", "p0", "p1", "region:west"}
    costs = [reason.cost_s for reason in decision.reasons]
    assert costs == sorted(costs)
    for r in decision.reasons:
        own_s = r.network_s + r.queue_s + r.compute_s + r.load_s + r.decode_s + r.transfer_s
        assert r.cost_s == pytest.approx(own_s + r.others_s + r.reuse_s + r.churn_s)
    many = Router("east", aggregated(*(f"w{n}" for n in range(40))))
    assert len(many.place(routing_of(prompt(1)), 0.0).reasons) == MAX_REASONS


def test_prefill_goes_to_the_prefix_and_decode_to_the_least_busy() -> None:
    router = Router("east", disaggregated(2, 2))
    first = serve(router, routing_of(prompt(1)))
    assert first.prefill is not None
    assert first.decode is not None
    assert first.worker is None
    assert first.workers == (first.prefill, first.decode)
    held = router.dispatched(routing_of(prompt(1)), first, 0.0)
    router.first_token(held, 0.0)
    second = router.place(routing_of(prompt(1, 11), turn=2), 0.0)
    assert second.prefill == first.prefill
    assert second.decode is not None
    assert second.decode.id != first.decode.id


def test_running_decodes_weigh_on_the_worker_that_has_them() -> None:
    for occupied, chosen in (("a", "p0"), ("p0", "a")):
        router = Router("east", [*aggregated("a"), *disaggregated(1, 1)])
        running = busy(router, routing_of(prompt(2)), occupied, ["a", "p0"])
        router.first_token(running, 0.0)
        decision = router.place(routing_of(prompt(1)), 0.0)
        assert decision.cache_worker == chosen
        decode_s = 300 * (1e-4 + TOKENS * 2e-9)
        assert {r.id: r.decode_s for r in decision.reasons} == pytest.approx({chosen: 0.0, occupied: decode_s})


def test_equal_decode_workers_are_told_apart_by_session_and_stay_the_same_for_it() -> None:
    router, replica = Router("east", disaggregated(1, 4)), Router("east", disaggregated(1, 4)[::-1])
    chosen = [router.place(routing_of(prompt(1), session=n), 0.0).decode for n in range(30)]
    assert len({worker.id for worker in chosen if worker}) == 4
    assert chosen == [replica.place(routing_of(prompt(1), session=n), 0.0).decode for n in range(30)]


def test_a_prefill_worker_without_a_decode_worker_is_of_no_use() -> None:
    router = Router("east", [*aggregated("a"), *disaggregated(1, 1)])
    router.set_up("d0", False)
    assert {router.place(routing_of(prompt(n), session=n), 0.0).cache_worker for n in range(10)} == {"a"}
    with pytest.raises(NoWorker) as nothing:
        router.place(routing_of(prompt(1)), 0.0, frozenset({"a"}))
    assert nothing.value.served


def test_models_go_where_they_are_served() -> None:
    router = Router("east", [Worker("a", "a", 0, "aggregated", frozenset({"x"})), *aggregated("b")])
    router.set_up("b", False)
    assert router.place(routing_of(prompt(1), model="x"), 0.0).cache_worker == "a"
    with pytest.raises(NoWorker) as nothing:
        router.place(routing_of(prompt(1), model="y"), 0.0)
    assert nothing.value.served
    only_x = Router("east", [Worker("a", "a", 0, "aggregated", frozenset({"x"}))])
    with pytest.raises(NoWorker) as nothing:
        only_x.place(routing_of(prompt(1), model="y"), 0.0)
    assert not nothing.value.served


def test_another_region_is_worth_its_network_time() -> None:
    router = Router("east", aggregated("a"), [Peer("west", 0.05)])
    near = router.place(routing_of(prompt(1)), 0.0)
    assert (near.kind, near.region) == ("local", "east")
    busy(router, routing_of(Chain([99], [8 * BLOCK]), lineage=2), "a", ["a", "region:west"])
    away = router.place(routing_of(prompt(1)), 0.0)
    assert (away.kind, away.region, away.cache_worker, away.workers) == ("forward", "west", "region:west", ())
    assert router.place(routing_of(prompt(1), may_forward=False), 0.0).kind == "local"
    router.set_peer_up("west", False)
    assert router.place(routing_of(prompt(1)), 0.0).kind == "local"


def test_what_was_forwarded_counts_as_cached_and_as_queued_there() -> None:
    router = Router("east", aggregated("a"), [Peer("west", 0.05)])
    sent = router.place(routing_of(prompt(1)), 0.0, frozenset({"a"}))
    ticket = router.dispatched(routing_of(prompt(1)), sent, 0.0)
    reason = router.place(routing_of(prompt(2)), 0.0, frozenset({"a"})).reasons[0]
    assert reason.queue_s == pytest.approx(TOKENS / 20_000)
    router.settled(ticket, routing_of(prompt(1)), 0.0, None, None, None)
    longer = router.place(routing_of(prompt(1, 11), turn=2), 0.0)
    assert longer.region == "west"
    assert longer.predicted_cached_tokens == TOKENS


def test_the_home_hint_is_worth_one_hop_and_the_structural_prefix() -> None:
    router = Router("east", aggregated("a"), [Peer("west", 0.05)])
    hinted = routing_of(prompt(1), turn=2, structural_bytes=9 * BLOCK, home_hint="west")
    decision = router.place(hinted, 0.0)
    assert (decision.kind, decision.region) == ("forward", "west")
    assert decision.predicted_cached_tokens == 9000
    assert router.place(routing_of(prompt(1), home_hint="west"), 0.0).region == "west"
    assert router.place(routing_of(prompt(1), home_hint="mars"), 0.0).region == "east"
    assert (
        router.place(routing_of(prompt(1), home_hint="west", allowed_regions=frozenset({"east"})), 0.0).region == "east"
    )
    router.set_draining("region:west", True)
    assert router.place(hinted, 0.0).region == "east"


def test_a_home_hint_does_not_herd() -> None:
    router = Router("east", aggregated("a"), [Peer("west", 0.05)])
    for n in range(2):
        queued = routing_of(prompt(50 + n), lineage=50 + n)
        router.dispatched(queued, router.place(queued, 0.0, frozenset({"a"})), 0.0)
    assert router.place(routing_of(prompt(1), home_hint="west"), 0.0).region == "east"


def test_a_session_goes_home_without_a_hint_but_a_derived_one_only_for_its_prefix() -> None:
    for derived, region in ((False, "west"), (True, "east")):
        router = Router("east", aggregated("a"), [Peer("west", 0.05)])
        serve(router, routing_of(prompt(1), derived=derived), frozenset({"a"}))
        other_prompt = routing_of(prompt(2), lineage=2, derived=derived)
        assert router.place(other_prompt, 0.0).region == region
        assert router.place(routing_of(prompt(1, 11), derived=derived, turn=2), 0.0).region == "west"


def test_a_region_that_is_not_allowed_serves_nothing() -> None:
    router = Router("east", aggregated("a"), [Peer("west", 0.05), Peer("north", 0.01)])
    only_west = routing_of(prompt(1), allowed_regions=frozenset({"west"}))
    assert router.place(only_west, 0.0).region == "west"
    with pytest.raises(NoWorker):
        router.place(routing_of(prompt(1), allowed_regions=frozenset({"west"}), may_forward=False), 0.0)


def test_round_robin_takes_units_in_turn_and_still_predicts() -> None:
    router = Router("east", [*aggregated("a"), *disaggregated(1, 2)], [Peer("west", 0.0)], "round_robin")
    decisions = [serve(router, routing_of(prompt(1), home_hint="west")) for _ in range(4)]
    assert [d.cache_worker for d in decisions] == ["a", "p0", "a", "p0"]
    assert [d.predicted_cached_tokens for d in decisions] == [0, 0, TOKENS - 1, TOKENS - 1]
    assert all(d.policy == "round_robin" and d.kind == "local" for d in decisions)
    assert decisions[1].other_worker_tokens == TOKENS - 1
    decodes = [serve(router, routing_of(prompt(2)), frozenset({"a"})).decode for _ in range(2)]
    assert len(set(decodes)) == 2


def test_a_slow_engine_is_learned_from_its_counters_and_noise_is_not() -> None:
    def router_after(*speeds: int) -> Router:
        router = Router("east", aggregated(*(f"w{n}" for n in range(len(speeds)))))
        for n, speed in enumerate(speeds):
            for total in (0, 1_000_000):
                busy_us = int(total / speed * 1e6)
                loads = EngineLoads(prefill_uncached_tokens_total=total, prefill_busy_us_total=busy_us)
                router.observe_loads(f"w{n}", loads, 0.0)
        return router

    fast = router_after(20_000, 5_000)
    assert {fast.place(routing_of(prompt(n), session=n), 0.0).cache_worker for n in range(10)} == {"w0"}
    alike = router_after(20_000, 19_000)
    assert {alike.place(routing_of(prompt(n), session=n), 0.0).cache_worker for n in range(10)} == {"w0", "w1"}


def test_load_that_other_proxies_cause_is_seen_until_the_report_is_old() -> None:
    router = Router("east", aggregated("a", "b"))
    router.observe_loads("a", EngineLoads(waiting_uncached_tokens=50_000), 0.0)
    assert {router.place(routing_of(prompt(n), session=n), 1.0).cache_worker for n in range(10)} == {"b"}
    assert {router.place(routing_of(prompt(n), session=n), 9.0).cache_worker for n in range(10)} == {"a", "b"}
