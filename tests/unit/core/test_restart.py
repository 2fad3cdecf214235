"""A worker that begins, or begins anew: what is believed of it, until it has shown more; and the breaker's trial."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.search import searched

from warmroute_proxy.core.load.availability import Breaker
from warmroute_proxy.core.load.engine_loads import EngineLoads
from warmroute_proxy.core.load.load import PROVEN_S, WorkerLoad
from warmroute_proxy.core.load.prefill_rate import PREFILL_S_PER_TOKEN_PRIOR
from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.router import Router

from .test_router import aggregated, routing, send

RATE = 1e-3


def worker(router: Router, id_: str) -> dict[str, Any]:
    found: dict[str, Any] = router.snapshot(0.0)["workers"][id_]
    return found


def begun(rate: float = RATE) -> WorkerLoad:
    load = WorkerLoad()
    load.restart(rate)
    return load


def test_what_is_ahead_counts_twice_beyond_what_was_shown() -> None:
    load = begun()
    load.prefill_begins("a", 1000, 0.0)
    assert load.queue_s(0.0) == pytest.approx(2.0)
    load.prefill_ended("a", 1.0)
    load.computed(1000)
    assert load.queue_s(1.0) == 0.0
    load.prefill_begins("b", 800, 1.0)
    assert load.queue_s(1.0) == pytest.approx(0.8), "it has shown that it gets through as much"
    load.prefill_begins("c", 800, 1.0)
    assert load.queue_s(1.0) == pytest.approx(1.6 + 0.6)


def test_after_enough_work_it_is_like_the_others() -> None:
    load = begun()
    load.computed(int(PROVEN_S / RATE) - 1)
    assert load.as_dict(0.0)["proven"] == 0
    load.computed(1)
    assert load.as_dict(0.0)["proven"] == 1
    load.prefill_begins("a", 50_000, 0.0)
    assert load.queue_s(0.0) == pytest.approx(50.0)


def test_what_others_send_there_counts_beside_it() -> None:
    load = begun()
    load.prefill_begins("a", 1000, 0.0)
    load.observe(EngineLoads(waiting_uncached_tokens=3000), 0.0)
    assert load.queue_s(0.0) == pytest.approx(1.0 + 1.0 + 2.0)
    load.observe(EngineLoads(waiting_uncached_tokens=1000), 1.0)
    assert load.queue_s(0.0) == pytest.approx(1.0 + 1.0)


@given(st.lists(st.tuples(st.sampled_from(["begin", "compute", "abandon"]), st.integers(1, 5000)), max_size=40))
@searched(60)
def test_its_queue_is_between_the_true_one_and_twice_that(steps: list[tuple[str, int]]) -> None:
    load, open_, number = begun(), dict[int, int](), 0
    for kind, tokens in steps:
        if kind == "begin":
            number += 1
            open_[number] = tokens
            load.prefill_begins(number, tokens, 0.0)
        elif open_:
            oldest = next(iter(open_))
            load.prefill_ended(oldest, 0.0)
            done = open_.pop(oldest)
            if kind == "compute":
                load.computed(done)
        true_s = sum(open_.values()) * RATE
        assert true_s - 1e-9 <= load.queue_s(0.0) <= 2 * true_s + 1e-9
    for left in list(open_):
        load.prefill_ended(left, 0.0)
    assert load.queue_s(0.0) == 0.0


def test_a_restarted_worker_has_the_rate_of_the_others_and_no_past() -> None:
    router = Router("east", aggregated("a", "b", "c"))
    for id_, s_per_token in (("a", 0.01), ("b", 0.0002), ("c", 0.0004)):
        router.observe_loads(id_, EngineLoads(prefill_uncached_tokens_total=0, prefill_busy_us_total=0), 0.0)
        busy_us = int(10_000_000 * s_per_token * 1e6)
        loads = EngineLoads(prefill_uncached_tokens_total=10_000_000, prefill_busy_us_total=busy_us)
        router.observe_loads(id_, loads, 1.0)
    others = (worker(router, "b")["prefill_s_per_token"] + worker(router, "c")["prefill_s_per_token"]) / 2
    assert worker(router, "a")["prefill_s_per_token"] > 10 * others
    router.worker_restarted("a")
    assert worker(router, "a")["prefill_s_per_token"] == pytest.approx(others)
    assert (worker(router, "a")["proven"], worker(router, "b")["proven"]) == (0, 1)
    router.worker_restarted("b")
    router.worker_restarted("c")
    router.worker_restarted("a")
    assert worker(router, "a")["prefill_s_per_token"] == PREFILL_S_PER_TOKEN_PRIOR, "nobody has shown anything"


def test_a_counter_that_goes_back_is_a_restart() -> None:
    router = Router("east", aggregated("a", "b"))
    first = send(router, routing())
    home = first.decision.cache_worker
    router.settled(first, routing(), 0.0, None, None, None)
    router.observe_loads(home, EngineLoads(prefill_uncached_tokens_total=9000, prefill_busy_us_total=9), 0.0)
    router.observe_loads(home, EngineLoads(prefill_uncached_tokens_total=10, prefill_busy_us_total=9), 1.0)
    assert router.place(routing(), 1.0).predicted_cached_tokens == 0
    assert worker(router, home)["proven"] == 0


def test_workers_that_a_proxy_starts_with_are_believed_and_later_ones_not() -> None:
    router = Router("east", aggregated("a"))
    router.add_worker(aggregated("b")[0])
    assert worker(router, "b")["proven"] == 1, "nothing was served yet: all are equally new"
    router.settled(send(router, routing()), routing(), 0.0, None, None, None)
    router.add_worker(aggregated("c")[0])
    router.add_worker(aggregated("a")[0])
    assert [worker(router, id_)["proven"] for id_ in "abc"] == [1, 1, 0]


def test_a_herd_of_new_sessions_does_not_all_land_on_a_cold_engine() -> None:
    """Each is dear elsewhere by what runs there: with belief all would go to the empty engine until it is as busy."""
    router = Router("east", aggregated("a", "b"))
    router.settled(send(router, routing(99)), routing(99), 0.0, None, None, None)
    busy = send(router, routing(98, tokens=60_000))
    cold = "b" if busy.decision.cache_worker == "a" else "a"
    router.worker_restarted(cold)
    taken = [send(router, routing(n, tokens=10_000)).decision.cache_worker for n in range(1, 9)]
    assert 0 < taken.count(cold) < 7
    assert worker(router, cold)["prefill_tokens"] <= 60_000


def test_exactly_one_request_is_the_trial_however_long_it_takes() -> None:
    router = Router("east", aggregated("a"))
    for _ in range(3):
        router.failed(send(router, routing()), 0.0, ["a"])
    trial = send(router, routing(), 2.0)
    for now_s in (2.0, 10.0, 500.0):
        with pytest.raises(NoWorker):
            router.place(routing(), now_s)
    router.failed(trial, 500.0, ())  # its client left: nothing was learned
    assert send(router, routing(), 500.0).decision.cache_worker == "a"


def test_the_end_of_an_older_request_is_not_the_trials() -> None:
    router = Router("east", aggregated("a"))
    older = send(router, routing(7))
    for _ in range(3):
        router.failed(send(router, routing()), 0.0, ["a"])
    send(router, routing(), 2.0)
    router.failed(older, 3.0, ["a"])
    with pytest.raises(NoWorker):
        router.place(routing(), 100.0)


@given(st.lists(st.tuples(st.sampled_from(["send", "fail", "leave", "serve"]), st.floats(0.0, 5.0)), max_size=60))
def test_while_open_there_is_never_more_than_one_trial(steps: list[tuple[str, float]]) -> None:
    breaker, now_s, under_way, trials = Breaker(), 0.0, list[object](), list[object]()
    for kind, later_s in steps:
        now_s += later_s
        if kind == "send" and breaker.allows(now_s):
            request = object()
            was_open = breaker.failures >= 3
            breaker.sent(request, now_s)
            under_way.append(request)
            trials += [request] * was_open
        elif kind != "send" and under_way:
            request = under_way.pop(0)
            if kind == "fail":
                breaker.failed(request, now_s)
            elif kind == "serve":
                breaker.reset()
                trials.clear()
            breaker.ended(request)
            trials = [trial for trial in trials if trial is not request]
        assert len(trials) <= 1
    assert breaker.failures < 3 or under_way or breaker.allows(now_s + 30.0), "it does not stay closed for ever"


def test_what_was_in_the_cache_of_a_restarted_engine_is_known_to_have_been_there() -> None:
    router = Router("east", aggregated("a", "b"))
    request = routing(7)
    ticket = send(router, request)
    router.settled(ticket, request, 0.0, None, None, None)
    router.worker_restarted(ticket.cache_worker.id)
    decision = router.place(routing(7), 0.0)
    assert decision.predicted_cached_tokens == 0
    assert decision.restarted_tokens == decision.known_tokens > 0
    other = send(router, routing(8))
    router.settled(other, routing(8), 0.0, None, None, None)
    router.cache_cleared(other.cache_worker.id)  # emptied, by an engine that goes on
    assert router.place(routing(8), 0.0).restarted_tokens == 0
