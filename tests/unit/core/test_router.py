"""The life of an attempt in the router: load, index, breaker, and what is learned and remembered."""

from typing import Any

import pytest
from tests.subjects.routing import routing_of

from warmroute_proxy.core.cache.index import PrefixIndex
from warmroute_proxy.core.cache.settled_turn import SettledTurn
from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.fleet import Peer, Worker
from warmroute_proxy.core.placement.router import Router, Ticket
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest

TOKENS = 10_000
PD = [Worker("p", "p", 0, "prefill"), Worker("d", "d", 0, "decode")]


def routing(name: int = 1, tokens: int = TOKENS, **changed: Any) -> RoutingRequest:
    blocks = tokens // 1000  # of 4,000 bytes, by the prior of 4 bytes a token
    chain = Chain([name * 1000 + n for n in range(blocks)], [4000 * (n + 1) for n in range(blocks)])
    return routing_of(**{"chain": chain, "lineage": name, "session": name, **changed})


def aggregated(*ids: str) -> list[Worker]:
    return [Worker(id_, id_, 0, "aggregated") for id_ in ids]


def send(router: Router, request: RoutingRequest, now_s: float = 0.0) -> Ticket:
    return router.dispatched(request, router.place(request, now_s), now_s)


def load(router: Router, id_: str) -> tuple[int, int, int]:
    worker = router.snapshot(0.0)["workers"][id_]
    return worker["running"], worker["prefill_tokens"], worker["resident_tokens"]


def test_load_follows_an_attempt_on_an_aggregated_worker() -> None:
    router = Router("east", aggregated("a"))
    ticket = send(router, routing())
    assert load(router, "a") == (1, TOKENS, TOKENS)
    router.first_token(ticket, 1.0)
    router.first_token(ticket, 1.0)
    assert load(router, "a") == (1, 0, TOKENS)
    router.progress(ticket, 50)
    router.progress(ticket, 120)
    assert load(router, "a") == (1, 0, TOKENS + 120)
    router.settled(ticket, routing(), 2.0, TOKENS, 0, 120)
    assert load(router, "a") == (0, 0, 0)


@pytest.mark.parametrize("lost", ["evicted", "dropped"])
def test_what_was_lost_while_a_prompt_waited_is_known_again_once_it_is_computed(lost: str) -> None:
    router = Router("east", aggregated("a"), index=PrefixIndex(2, 4))
    asked = routing(tokens=3000)
    ticket = send(router, asked)
    if lost == "evicted":
        router.cache_removed("a", asked.chain.hashes, "device")
    else:  # by newer entries, of which there is room for 8
        router.cache_stored("a", list(range(10**6, 10**6 + 9)), "device")
    assert router.place(asked, 1.0).predicted_cached_tokens == 0
    router.first_token(ticket, 1.0)
    assert router.place(asked, 1.0).predicted_cached_tokens == 2999


def test_load_follows_an_attempt_through_prefill_and_decode() -> None:
    router = Router("east", PD)
    ticket = send(router, routing())
    assert (load(router, "p"), load(router, "d")) == ((1, TOKENS, 0), (1, 0, TOKENS))
    router.first_token(ticket, 1.0)
    assert (load(router, "p"), load(router, "d")) == ((0, 0, 0), (1, 0, TOKENS))
    router.failed(ticket, 2.0, ())
    assert (load(router, "p"), load(router, "d")) == ((0, 0, 0), (0, 0, 0))
    unseen = send(router, routing(2))
    router.failed(unseen, 2.0, ())
    assert (load(router, "p"), load(router, "d")) == ((0, 0, 0), (0, 0, 0))


@pytest.mark.parametrize("ends", ["served", "failed", "failed early"])
@pytest.mark.parametrize("workers", [aggregated("a"), PD], ids=["aggregated", "pair"])
def test_each_sequence_of_a_request_takes_a_slot(workers: list[Worker], ends: str) -> None:
    router = Router("east", workers)
    request = routing(sequences=8)
    ticket = send(router, request)
    assert [load(router, worker.id)[0] for worker in workers] == [8] * len(workers)
    if ends != "failed early":
        router.first_token(ticket, 1.0)
        assert [load(router, worker.id)[0] for worker in workers] == [0, 8][-len(workers) :]
    if ends == "served":
        router.settled(ticket, request, 2.0, TOKENS, 0, 100)
    else:
        router.failed(ticket, 2.0, ())
    assert [load(router, worker.id)[0] for worker in workers] == [0] * len(workers)


@pytest.mark.parametrize("first", ["settled", "failed"])
@pytest.mark.parametrize("second", ["settled", "failed"])
def test_an_attempt_ends_once(first: str, second: str) -> None:
    router = Router("east", aggregated("a"))
    ticket = send(router, routing())

    def end(how: str) -> None:
        if how == "settled":
            router.settled(ticket, routing(), 0.0, None, None, None)
        else:
            router.failed(ticket, 0.0, ())

    end(first)
    with pytest.raises(AssertionError):
        end(second)
    router.first_token(ticket, 0.0)
    router.progress(ticket, 10)
    assert load(router, "a") == (0, 0, 0)


def test_a_prefix_counts_as_cached_once_it_is_on_its_way() -> None:
    router = Router("east", aggregated("a", "b"))
    ticket = send(router, routing())
    twin = router.place(routing(session=5, lineage=5), 0.0)
    assert twin.cache_worker == ticket.decision.cache_worker
    assert twin.predicted_cached_tokens == TOKENS - 1


def test_a_prefix_on_its_way_counts_however_long_the_queue_is() -> None:
    router = Router("east", aggregated("a", "b"))
    for n in range(2, 26):
        send(router, routing(n))
    late = send(router, routing(50))
    again = router.place(routing(50, tokens=11_000, session=50, turn=2), 0.0)
    assert (again.cache_worker, again.predicted_cached_tokens) == (late.decision.cache_worker, TOKENS)


def test_a_prefix_that_was_never_computed_is_forgotten() -> None:
    router = Router("east", aggregated("a"))
    router.settled(send(router, routing(tokens=4000)), routing(tokens=4000), 0.0, 4000, 0, 5)
    router.failed(send(router, routing()), 0.0, ())
    again = router.place(routing(), 0.0)
    assert (again.predicted_cached_tokens, again.known_tokens) == (4005, 4005)  # with the answer


def test_a_prefix_that_was_computed_stays_when_the_client_leaves() -> None:
    router = Router("east", aggregated("a"))
    ticket = send(router, routing())
    router.first_token(ticket, 0.0)
    router.failed(ticket, 0.0, ())
    assert router.place(routing(), 0.0).predicted_cached_tokens == TOKENS - 1


def test_a_restarted_worker_is_cold_and_its_prompts_are_known() -> None:
    router = Router("east", aggregated("a"))
    open_ticket = send(router, routing(2))
    router.settled(send(router, routing()), routing(), 0.0, TOKENS, 0, 5)
    router.worker_restarted("a")
    decision = router.place(routing(), 0.0)
    assert (decision.predicted_cached_tokens, decision.known_tokens) == (0, TOKENS - 1)
    router.settled(open_ticket, routing(2), 0.0, None, None, None)
    assert router.place(routing(2), 0.0).predicted_cached_tokens == 0
    router.settled(send(router, routing()), routing(), 0.0, TOKENS, 0, 5)
    assert router.place(routing(), 0.0).predicted_cached_tokens == TOKENS - 1


def test_an_attempt_from_before_a_restart_does_not_touch_who_has_its_slot_now() -> None:
    router = Router("east", aggregated("a"), index=PrefixIndex(generations=2, entries_per_generation=10))
    old = send(router, routing())
    router.worker_restarted("a")
    for n in range(2, 6):
        router.settled(send(router, routing(n)), routing(n), 0.0, None, None, None)
    router.add_worker(aggregated("b")[0])
    kept = router.place(routing(), 0.0, frozenset({"a"}))
    router.settled(router.dispatched(routing(), kept, 0.0), routing(), 0.0, None, None, None)
    router.failed(old, 0.0, ())
    assert router.place(routing(), 0.0, frozenset({"a"})).predicted_cached_tokens == TOKENS - 1


def test_best_elsewhere_is_what_another_worker_holds() -> None:
    router = Router("east", aggregated("a", "b"))
    home = send(router, routing())
    router.settled(home, routing(), 0.0, TOKENS, 0, 5)
    moved = router.place(routing(), 0.0, frozenset({home.decision.cache_worker}))
    assert (moved.predicted_cached_tokens, moved.other_worker_tokens) == (0, TOKENS - 1)
    assert router.place(routing(), 0.0).other_worker_tokens == 0


def test_three_failures_close_a_worker_and_a_trial_opens_it() -> None:
    router = Router("east", aggregated("a"))
    for _ in range(3):
        router.failed(send(router, routing()), 10.0, ["a"])
    with pytest.raises(NoWorker) as closed:
        router.place(routing(), 11.9)
    assert closed.value.served
    trial = send(router, routing(), 12.0)
    with pytest.raises(NoWorker):  # one trial at a time
        router.place(routing(), 12.0)
    router.failed(trial, 12.5, ["a"])
    with pytest.raises(NoWorker):  # and the wait has doubled
        router.place(routing(), 16.4)
    router.settled(send(router, routing(), 16.5), routing(), 17.0, None, None, None)
    assert router.place(routing(), 17.0).cache_worker == "a"


def test_the_wait_is_bounded_and_late_failures_do_not_raise_it() -> None:
    router = Router("east", aggregated("a"))
    for ticket in [send(router, routing(n)) for n in range(20)]:
        router.failed(ticket, 0.0, ["a"])
    now_s = 2.0  # the 20 failures were one event
    for wait_s in (4.0, 8.0, 16.0, 30.0, 30.0):
        router.failed(send(router, routing(), now_s), now_s, ["a"])
        with pytest.raises(NoWorker):
            router.place(routing(), now_s + wait_s - 0.1)
        now_s += wait_s


def test_only_those_at_fault_are_blamed() -> None:
    router = Router("east", PD)
    for _ in range(5):
        router.failed(send(router, routing()), 0.0, ["d"] if _ < 2 else ())
    assert router.place(routing(), 0.0).cache_worker == "p"
    router.failed(send(router, routing()), 0.0, ["d"])
    assert router.snapshot(0.0)["workers"]["d"]["health"] == "open"
    assert router.snapshot(0.0)["workers"]["p"]["health"] == "up"


def test_down_and_draining_workers_get_nothing_and_come_back() -> None:
    router = Router("east", aggregated("a", "b"))
    router.set_up("a", False)
    assert {router.place(routing(n), 0.0).cache_worker for n in range(9)} == {"b"}
    router.set_up("a", True)
    router.set_draining("b", True)
    assert {router.place(routing(n), 0.0).cache_worker for n in range(9)} == {"a"}
    router.set_draining("b", False)
    assert {router.place(routing(n), 0.0).cache_worker for n in range(9)} == {"a", "b"}


def test_workers_come_and_go() -> None:
    router = Router("east", [])
    with pytest.raises(NoWorker) as nobody:
        router.place(routing(), 0.0)
    assert not nobody.value.served
    router.add_worker(aggregated("a")[0])
    ticket = send(router, routing())
    router.remove_worker("a")
    router.remove_worker("a")
    with pytest.raises(NoWorker):
        router.place(routing(), 0.0)
    router.settled(ticket, routing(), 0.0, None, None, None)
    router.add_worker(aggregated("a")[0])
    assert router.place(routing(), 0.0).predicted_cached_tokens == 0


def test_bytes_per_token_are_learned_by_model_and_by_lineage() -> None:
    router = Router("east", aggregated("a"))
    router.settled(send(router, routing()), routing(), 0.0, 2 * TOKENS, 0, 5)
    assert router.place(routing(2), 0.0).prompt_tokens_est == 2 * TOKENS
    other = routing(3)
    router.settled(send(router, other), other, 0.0, TOKENS, 0, 5)
    assert router.place(routing(3, 11_000), 0.0).prompt_tokens_est == 11_000
    assert TOKENS < router.place(routing(4), 0.0).prompt_tokens_est < 2 * TOKENS
    assert router.place(routing(4, model="other"), 0.0).prompt_tokens_est == TOKENS


def test_what_a_turn_taught_is_told_and_remembered() -> None:
    router = Router("east", PD, [Peer("west", 0.05)])
    request = routing(salt_epoch=3, turn=4)
    assert router.last_settled(request) is None
    first = router.settled(send(router, request), request, 0.0, TOKENS, 0, 20)
    assert (first.error_tokens, first.predicted_cached_tokens) == (0, 0)
    assert router.last_settled(request) == SettledTurn(("p", "d"), "east", 4 * TOKENS, TOKENS, 20, 0, 4, 3, tip=1009)
    second = router.settled(send(router, request), request, 0.0, TOKENS, 9000, 20)
    assert second.error_tokens == TOKENS - 1 - 9000
    unreported = router.settled(send(router, request), request, 0.0, None, None, None)
    assert unreported.error_tokens is None
    prediction = router.snapshot(0.0)["prediction"]
    assert prediction["turns"] == 3
    assert (prediction["overpredicted_tokens"], prediction["underpredicted_tokens"]) == (999, 0)


def test_no_more_is_predicted_than_whole_pages_in_front_of_the_last_token() -> None:
    router = Router("east", [Worker("a", "a", 0, "aggregated", page_tokens=64)])
    router.settled(send(router, routing(1, 1000)), routing(1, 1000), 0.0, None, 0, 5)
    again = send(router, routing(1, 1000))
    assert (again.decision.prompt_tokens_est, again.decision.predicted_cached_tokens) == (1000, 960)
    assert again.decision.predicted == (960, 0, 0)
    shorter = router.settled(again, routing(1, 1000), 0.0, 614, 576, 5)
    assert (shorter.predicted_cached_tokens, shorter.error_tokens) == (576, 0)
    nothing = router.settled(send(router, routing(1, 1000)), routing(1, 1000), 0.0, 9, 0, 5)
    assert (nothing.predicted_cached_tokens, nothing.error_tokens) == (0, 0)


def test_a_new_system_prompt_in_a_running_conversation_continues_its_thread() -> None:
    router = Router("east", aggregated("a"))
    router.settled(send(router, routing(1, thread=7)), routing(1, thread=7), 1.0, TOKENS, 0, 120)
    running, fresh = routing(2, thread=7, turn=2), routing(3, thread=7, turn=1)
    found = router.last_settled(running)
    assert found is not None
    assert found.prompt_tokens == TOKENS
    assert router.last_settled(fresh) is None  # a title or a compaction begins anew
    assert router.last_settled(routing(2, turn=2)) is None


def test_the_home_of_a_derived_session_never_outweighs_a_known_prefix() -> None:
    router = Router("east", aggregated("a"), [Peer("west", 0.05)])
    known = routing(1)
    router.settled(send(router, known), known, 0.0, TOKENS, 0, 5)
    follows = routing(1, derived=True, home_hint="west", structural_bytes=4 * TOKENS)
    assert router.place(follows, 1.0).kind == "local"
    assert router.place(routing(2, derived=True, home_hint="west", structural_bytes=4 * TOKENS), 1.0).kind == "forward"


def test_the_ranks_of_an_engine_are_its_only_workers_of_a_kind() -> None:
    """So a pair whose KV is not handed over keeps its prefill engine if there is no other."""
    prefill = [Worker(f"p:{rank}", "p", rank, "prefill") for rank in range(2)]
    router = Router("east", [*prefill, *(Worker(id_, id_, 0, "decode") for id_ in ("d", "e"))])
    ranks = router.ranks_beside(("p:1",))
    assert ranks == {"p:0", "p:1"}
    assert router.are_only_usable("m", ranks, 0.0)
    assert not router.are_only_usable("m", ("p:1",), 0.0)
    assert not router.are_only_usable("m", ("d",), 0.0)
