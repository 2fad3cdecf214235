"""What holds for every placement, whatever the fleet, its load and its caches."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from tests.search import searched
from tests.subjects.routing import routing_of

from warmroute_proxy.core.cache.affinity import Affinity
from warmroute_proxy.core.cache.index import PrefixIndex
from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.decision import Candidate, Policy
from warmroute_proxy.core.placement.fleet import Peer, Worker
from warmroute_proxy.core.placement.router import Router, Ticket
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.fingerprint import fingerprint_chat
from warmroute_proxy.core.prompt.routing_request import RoutingRequest

ROLES = st.lists(st.sampled_from(["aggregated", "prefill", "decode"]), min_size=1, max_size=6)
EVENTS = st.lists(
    st.tuples(
        st.integers(0, 4),  # session
        st.integers(1, 12),  # prompt, in blocks of 1,000 tokens
        st.sampled_from(["settle", "fail", "blame", "hold", "hold with first token"]),
    ),
    max_size=25,
)


def routing(session: int, blocks: int, **changed: Any) -> RoutingRequest:
    """A prompt of which the first three blocks are the same in all sessions."""
    hashes = [n if n < 3 else (session + 1) * 1000 + n for n in range(blocks)]
    chain = Chain(hashes, [4000 * (n + 1) for n in range(blocks)])
    return routing_of(**{"chain": chain, "lineage": session, "session": session, **changed})


def own_s(reason: Candidate) -> float:
    """The terms of a cost that are the request's own time."""
    own = reason.network_s, reason.queue_s, reason.compute_s, reason.load_s, reason.decode_s, reason.transfer_s
    return sum(own)


def fleet(roles: list[Any]) -> list[Worker]:
    return [Worker(f"{role[0]}{n}", f"e{n}", 0, role) for n, role in enumerate(roles)]


def play(router: Router, events: list[tuple[int, int, str]]) -> list[tuple[Ticket, RoutingRequest]]:
    """Run the events at second 0; what is still open at the end."""
    open_: list[tuple[Ticket, RoutingRequest]] = []
    for session, blocks, end in events:
        request = routing(session, blocks)
        try:
            decision = router.place(request, 0.0)
        except NoWorker:
            continue
        ticket = router.dispatched(request, decision, 0.0)
        if end == "settle":
            router.settled(ticket, request, 0.0, None, None, None)
        elif end in {"fail", "blame"}:
            router.failed(ticket, 0.0, [decision.cache_worker] if end == "blame" else ())
        else:
            open_.append((ticket, request))
            if end == "hold with first token":
                router.first_token(ticket, 0.0)
    return open_


@given(ROLES, EVENTS, st.data())
def test_excluded_down_and_draining_places_are_never_chosen(
    roles: list[Any], events: list[tuple[int, int, str]], data: st.DataObject
) -> None:
    policy: Policy = data.draw(st.sampled_from(["cost", "round_robin"]))
    workers = fleet(roles)
    router = Router("east", workers, [Peer("west", 0.05)], policy)
    play(router, events)
    ids = [worker.id for worker in workers]
    some = st.sets(st.sampled_from([*ids, "region:west"]))
    excluded, down, draining = data.draw(some), data.draw(some), data.draw(some)
    for id_ in down:
        router.set_up(id_, False)
    for id_ in draining:
        router.set_draining(id_, True)
    may_forward = data.draw(st.booleans())
    request = routing(0, 5, may_forward=may_forward, home_hint=data.draw(st.sampled_from([None, "east", "west"])))
    try:
        decision = router.place(request, 0.0, frozenset(excluded))
    except NoWorker:
        return
    used = {worker.id for worker in decision.workers} | {decision.cache_worker}
    assert used.isdisjoint(excluded | down | draining)
    assert decision.kind == "local" or (may_forward and policy == "cost")
    assert (decision.prefill is None) == (decision.decode is None)
    assert [decision.worker, decision.prefill, decision.kind == "forward"].count(None) >= 1
    assert decision.worker is None or decision.worker.role == "aggregated"
    assert 0 <= decision.predicted_cached_tokens < decision.prompt_tokens_est
    assert decision.known_tokens >= decision.predicted_cached_tokens
    if policy == "cost":
        chosen, cheapest = decision.reasons[0], min(decision.reasons, key=lambda reason: reason.cost_s)
        assert chosen.cost_s == cheapest.cost_s or (decision.known and own_s(chosen) < own_s(cheapest))


@given(ROLES, EVENTS)
def test_equal_views_decide_alike(roles: list[Any], events: list[tuple[int, int, str]]) -> None:
    workers = fleet(roles)
    one, other = Router("east", workers), Router("east", workers[::-1])
    request = routing(3, 8)
    try:
        expected = one.place(request, 0.0).cache_worker
    except NoWorker:
        with pytest.raises(NoWorker):
            other.place(request, 0.0)
        return
    assert other.place(request, 0.0).cache_worker == expected  # whatever the order of the config
    again = Router("east", workers)
    one = Router("east", workers)
    play(one, events)
    play(again, events)
    try:
        assert one.place(request, 0.0) == again.place(request, 0.0)
    except NoWorker:
        with pytest.raises(NoWorker):
            again.place(request, 0.0)


@given(ROLES, EVENTS)
def test_when_all_has_ended_no_load_is_left(roles: list[Any], events: list[tuple[int, int, str]]) -> None:
    router = Router("east", fleet(roles), [Peer("west", 0.05)])
    for n, (ticket, request) in enumerate(play(router, events)):
        router.progress(ticket, n)
        if n % 2:
            router.settled(ticket, request, 0.0, None, None, None)
        else:
            router.failed(ticket, 0.0, ())
    snapshot = router.snapshot(0.0)
    for place in [*snapshot["workers"].values(), *snapshot["peers"].values()]:
        assert (place["running"], place["prefill_tokens"], place["resident_tokens"]) == (0, 0, 0)


@given(st.integers(1, 8), st.integers(0, 3), st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(1, 9))
def test_a_warm_idle_home_is_always_gone_home_to(units: int, decodes: int, sessions: list[int], step: int) -> None:
    workers = fleet(["prefill" if decodes else "aggregated"] * units + ["decode"] * decodes)
    router = Router("east", workers, [Peer("west", 0.05)])
    homes: dict[int, str] = {}
    blocks: dict[int, int] = {}
    for session in sessions:
        blocks[session] = blocks.get(session, 3) + step
        request = routing(session, blocks[session], home_hint="east" if session in homes else None)
        decision = router.place(request, 0.0)
        if session in homes:
            assert decision.cache_worker == homes[session]
            assert decision.predicted_cached_tokens == 1000 * (blocks[session] - step)
        homes[session] = decision.cache_worker
        ticket = router.dispatched(request, decision, 0.0)
        router.settled(ticket, request, 0.0, None, None, None)


@given(
    st.integers(2, 8),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 8), st.booleans(), st.floats(0, 2)), min_size=1, max_size=40),
)
def test_no_session_leaves_its_warm_home_without_a_reason_that_the_decision_shows(
    units: int, turns: list[tuple[int, int, bool, float]]
) -> None:
    router = Router("east", fleet(["aggregated"] * units))
    homes: dict[int, str] = {}
    blocks: dict[int, int] = {}
    now_s = 0.0
    for session, new, stays_open, pause_s in turns:
        now_s += pause_s
        turn = 2 if session in homes else 1
        blocks[session] = blocks.get(session, 3) + new
        request = routing(session, blocks[session], turn=turn)
        decision = router.place(request, now_s)
        terms = {reason.id: reason for reason in decision.reasons}
        if session in homes and decision.cache_worker != homes[session]:
            home, chosen = terms[homes[session]], terms[decision.cache_worker]
            assert home.uncached_tokens < chosen.uncached_tokens
            assert home.reuse_s < chosen.reuse_s
            waiting = home.queue_s + home.others_s + home.decode_s - chosen.queue_s - chosen.others_s - chosen.decode_s
            assert waiting > chosen.compute_s + chosen.reuse_s - home.compute_s - home.reuse_s > 0
        homes[session] = decision.cache_worker
        ticket = router.dispatched(request, decision, now_s)
        if not stays_open:
            router.settled(ticket, request, now_s, None, None, None)


@given(
    st.integers(2, 8),
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3), st.booleans(), st.floats(0, 2)), min_size=1, max_size=60),
    st.integers(1, 40),
)
def test_a_known_conversation_leaves_a_home_with_capacity_only_for_a_place_that_is_cheaper_for_itself(
    units: int, turns: list[tuple[int, int, bool, float]], shared_blocks: int
) -> None:
    router = Router("east", fleet(["aggregated"] * units))
    homes: dict[int, str] = {}
    blocks: dict[int, int] = {}
    now_s, left = 0.0, 0
    for slot, new, stays_open, pause_s in turns:
        now_s += pause_s
        session = slot + 10 * left
        blocks[session] = blocks.get(session, shared_blocks) + new
        hashes = [n if n < shared_blocks else (session + 1) * 1000 + n for n in range(blocks[session])]
        chain = Chain(hashes, [4000 * (n + 1) for n in range(len(hashes))])
        request = routing(session, 1, chain=chain, turn=2 if session in homes else 1)
        decision = router.place(request, now_s)
        assert decision.known == (session in homes)
        terms = {reason.id: reason for reason in decision.reasons}
        if session in homes and decision.cache_worker != homes[session]:
            assert own_s(terms[decision.cache_worker]) <= own_s(terms[homes[session]]) + 1e-9
        ticket = router.dispatched(request, decision, now_s)
        if not stays_open:
            router.settled(ticket, request, now_s, None, None, None)
            homes[session] = decision.cache_worker
        else:  # its place is not known before it ends: other sessions go on
            router.first_token(ticket, now_s)
            left += 1


@searched(20)
@given(st.integers(1, 12), st.integers(0, 2**32))
def test_a_new_worker_takes_its_share_of_sessions_and_one_that_leaves_gives_up_only_its_own(
    units: int, first: int
) -> None:
    sessions = range(first, first + 400)

    def homes(router: Router) -> dict[int, str]:
        return {n: router.place(routing(n, 5), 0.0).cache_worker for n in sessions}

    workers = fleet(["aggregated"] * (units + 1))
    router = Router("east", workers[:-1])
    before = homes(router)
    router.add_worker(workers[-1])
    with_it = homes(router)
    moved = [n for n in sessions if before[n] != with_it[n]]
    assert {with_it[n] for n in moved} <= {workers[-1].id}
    share = 400 / (units + 1)
    assert len(moved) <= share + 5 * share**0.5
    router.remove_worker(workers[-1].id)
    assert homes(router) == before


@searched(20)
@given(st.integers(0, 2**32))
def test_memory_is_bounded_whatever_the_keys(seed: int) -> None:
    index, affinity = PrefixIndex(generations=3, entries_per_generation=64), Affinity(max_entries=16)
    router = Router("east", fleet(["aggregated"] * 3), index=index, affinity=affinity)
    for n in range(200):
        request = routing(seed + n, 9, thread=seed + n, model=f"m{n % 5}")
        decision = router.place(request, float(n))
        router.settled(router.dispatched(request, decision, float(n)), request, float(n), 9000, 0, 1)
    snapshot = router.snapshot(200.0)
    assert snapshot["index"]["entries"] <= 3 * 64
    assert max(snapshot["affinity"].values()) <= 16


@searched(50)
@given(
    st.lists(st.text(max_size=40), min_size=1, max_size=8),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
)
def test_tenants_with_different_seeds_share_nothing(texts: list[str], one: int, other: int) -> None:
    messages = Raw(json.dumps([{"role": "user", "content": text} for text in texts]).encode())
    chains = [fingerprint_chat(None, messages, seed).chain for seed in (one, other)]
    router = Router("east", fleet(["aggregated"]))
    mine = routing(0, 1, chain=chains[0])
    router.settled(router.dispatched(mine, router.place(mine, 0.0), 0.0), mine, 0.0, None, None, None)
    seen = router.place(routing(1, 1, chain=chains[1]), 0.0)
    assert (seen.known_tokens > 0) == (one == other and chains[0].total_bytes > 4)
    if one != other:
        assert set(chains[0].hashes).isdisjoint(chains[1].hashes)
        assert (seen.predicted_cached_tokens, seen.known_tokens, seen.other_worker_tokens) == (0, 0, 0)
