"""How fast workers stream: which of them is slow, what that costs it, and when it is forgotten."""

from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.subjects.recorded import recorded_router

from warmroute_lab.replay.record import judge
from warmroute_proxy.core.load.comparison import CLEARLY, level_paces
from warmroute_proxy.core.load.load import WorkerLoad
from warmroute_proxy.core.load.pace import FORGET_S, MIN_STREAMS, MIN_TOKENS, Pace
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.router import Router, Ticket
from warmroute_proxy.core.replicas.peer_events import Event
from warmroute_proxy.core.replicas.record import MAGIC, Frames, Placed, RecordedCall, frame
from warmroute_proxy.core.replicas.replica import Replica

from .test_router import aggregated, routing, send

TOKENS = 101
BASE_S = 0.02


def worker(router: Router, id_: str, now_s: float) -> dict[str, Any]:
    found: dict[str, Any] = router.snapshot(now_s)["workers"][id_]
    return found


def stream(router: Router, to: str, s_per_token: float, now_s: float, name: int = 1) -> float:
    """A streamed turn on one worker of aggregated ones; returns when it ended."""
    asked = routing(name, tokens=1000)
    others = frozenset(id_ for id_ in router.snapshot(now_s)["workers"] if id_ != to)
    ticket = router.dispatched(asked, router.place(asked, now_s, others), now_s)
    router.first_token(ticket, now_s + 0.05)
    end_s = now_s + 0.05 + s_per_token * (TOKENS - 1)
    router.settled(ticket, asked, end_s, 1000, 0, TOKENS, TOKENS)
    return end_s


def after_streams(
    router: Router, s_per_token: dict[str, float], now_s: float = 0.0, rounds: int = MIN_STREAMS
) -> float:
    """Streams on each worker in turn, one at a time."""
    for name in range(rounds):
        for id_, each_s in s_per_token.items():
            now_s = stream(router, id_, each_s, now_s, name)
    return now_s


def test_a_slow_worker_gets_the_difference_added_to_what_a_token_costs() -> None:
    router = Router("east", aggregated("a", "b", "c"))
    now_s = after_streams(router, {"a": BASE_S, "b": 5 * BASE_S, "c": BASE_S})
    now_s = stream(router, "a", BASE_S, now_s + 1)  # they are compared once a second
    slow = worker(router, "b", now_s)
    assert slow["decode_s_per_token"] == pytest.approx(5 * BASE_S, rel=0.01)
    assert slow["decode_slower_s_per_token"] == pytest.approx(4 * BASE_S, rel=0.01)
    assert worker(router, "a", now_s)["decode_slower_s_per_token"] == 0.0
    assert all(send(router, routing(100 + n), now_s).cache_worker.id != "b" for n in range(12))
    asked = routing(200, expected_output_tokens=1000)
    costs = {reason.id: reason.decode_s for reason in router.place(asked, now_s).reasons}
    assert costs["b"] == pytest.approx(1000 * 4 * BASE_S, rel=0.01)


def test_a_penalty_is_a_cost_that_a_warm_prefix_can_outweigh() -> None:
    router = Router("east", aggregated("a", "b"))
    long = routing(50, tokens=150_000, expected_output_tokens=20)
    ticket = router.dispatched(long, router.place(long, 0.0, frozenset({"a"})), 0.0)
    router.settled(ticket, long, 8.0, 150_000, 0, 20)
    now_s = after_streams(router, {"a": BASE_S, "b": 4 * BASE_S}, 10.0, MIN_STREAMS + 1)
    assert worker(router, "b", now_s)["decode_slower_s_per_token"] > BASE_S
    assert router.place(long, now_s).cache_worker == "b"


def test_a_slow_decode_worker_gets_no_new_requests() -> None:
    workers = [Worker("p", "p", 0, "prefill"), Worker("d0", "d0", 0, "decode"), Worker("d1", "d1", 0, "decode")]
    router = Router("east", workers)
    now_s = 0.0
    for n in range(2 * MIN_STREAMS + 2):
        asked = routing(n, tokens=1000)
        decision = router.place(asked, now_s, frozenset({f"d{n % 2}"}))
        assert decision.decode is not None
        ticket = router.dispatched(asked, decision, now_s)
        router.first_token(ticket, now_s)
        now_s += 100 * BASE_S * (10 if decision.decode.id == "d0" else 1)
        router.settled(ticket, asked, now_s, 1000, 0, TOKENS, TOKENS)
    decodes = [router.place(routing(100 + n), now_s).decode for n in range(10)]
    assert {decode.id for decode in decodes if decode is not None} == {"d1"}


def test_after_a_minute_without_a_stream_it_is_tried_again_and_must_be_slow_anew() -> None:
    router = Router("east", aggregated("a", "b"))
    now_s = after_streams(router, {"b": 5 * BASE_S, "a": BASE_S}, rounds=MIN_STREAMS + 1)
    assert worker(router, "b", now_s)["decode_slower_s_per_token"] > 0
    last_s = now_s - (TOKENS - 1) * BASE_S - 0.05
    router.place(routing(90), last_s + FORGET_S - 0.1)
    assert worker(router, "b", last_s)["decode_slower_s_per_token"] > 0
    router.place(routing(90), last_s + FORGET_S + 0.1)
    found = worker(router, "b", last_s + FORGET_S + 0.1)
    assert (found["decode_slower_s_per_token"], found["decode_s_per_token"]) == (0.0, 0.0)
    now_s = after_streams(router, {"a": BASE_S, "b": BASE_S}, last_s + FORGET_S + 1)
    assert worker(router, "b", now_s)["decode_slower_s_per_token"] == 0.0


def test_one_that_recovers_while_it_still_gets_work_is_no_longer_slow() -> None:
    router = Router("east", aggregated("a", "b"))
    now_s = after_streams(router, {"a": BASE_S, "b": 5 * BASE_S}, rounds=MIN_STREAMS + 1)
    assert worker(router, "b", now_s)["decode_slower_s_per_token"] > 0
    now_s = after_streams(router, {"a": BASE_S, "b": BASE_S}, now_s, 12)
    assert worker(router, "b", now_s)["decode_slower_s_per_token"] == 0.0


def test_an_engine_that_begins_anew_is_not_held_to_its_past() -> None:
    router = Router("east", aggregated("a", "b"))
    now_s = after_streams(router, {"a": BASE_S, "b": 5 * BASE_S}, rounds=MIN_STREAMS + 1)
    router.worker_restarted("b")
    found = worker(router, "b", now_s)
    assert (found["decode_slower_s_per_token"], found["decode_s_per_token"]) == (0.0, 0.0)


def test_only_workers_of_the_same_role_and_models_are_compared() -> None:
    small = Worker("small", "small", 0, "aggregated", frozenset({"m", "small"}))
    router = Router("east", [*aggregated("large"), small])
    now_s = after_streams(router, {"small": BASE_S, "large": 9 * BASE_S}, rounds=MIN_STREAMS + 1)
    assert worker(router, "large", now_s)["decode_s_per_token"] > 8 * BASE_S
    assert worker(router, "large", now_s)["decode_slower_s_per_token"] == 0.0


def run_beside(router: Router, requests: list[Ticket], first_s: float, end_s: float) -> None:
    for ticket in requests:
        router.first_token(ticket, first_s)
    for ticket in requests:
        router.settled(ticket, routing(), end_s, 1000, 0, TOKENS, TOKENS)


def test_a_full_batch_or_prompts_between_the_tokens_are_not_held_against_a_worker() -> None:
    router, now_s = Router("east", aggregated("a", "b")), 0.0
    only_b = frozenset({"a"})
    for n in range(MIN_STREAMS + 2):
        now_s = stream(router, "a", BASE_S, now_s, n)
        batch = [routing(n, tokens=1000) for _ in range(400)]  # each delays each other by 0.1 ms a token
        tickets = [router.dispatched(asked, router.place(asked, now_s, only_b), now_s) for asked in batch]
        run_beside(router, tickets, now_s + 1, now_s + 1 + (BASE_S + 0.04) * (TOKENS - 1))
        now_s += 10
    assert worker(router, "b", now_s)["decode_slower_s_per_token"] == 0.0

    for n in range(2 * MIN_STREAMS):
        now_s = stream(router, "a", BASE_S, now_s, n)
        asked = routing(n, tokens=1000)
        ticket = router.dispatched(asked, router.place(asked, now_s, only_b), now_s)
        router.first_token(ticket, now_s)
        beside = router.dispatched(routing(n + 50), router.place(routing(n + 50), now_s, only_b), now_s)
        router.first_token(beside, now_s + 20)  # no token came in this time
        router.failed(beside, now_s + 20, ())
        now_s += 20 + BASE_S * (TOKENS - 1)
        router.settled(ticket, asked, now_s, 1000, 0, TOKENS, TOKENS)
    assert worker(router, "b", now_s)["decode_slower_s_per_token"] == 0.0


@pytest.mark.parametrize(
    ("tokens", "stream_s", "prefilling_s"),
    [(MIN_TOKENS - 1, 10.0, 0.0), (500, 0.01, 0.0), (500, 10.0, 6.0)],
    ids=["short", "at once", "prompts beside it"],
)
def test_what_says_nothing_of_a_pace(tokens: int, stream_s: float, prefilling_s: float) -> None:
    pace = Pace()
    assert not pace.observe(tokens, stream_s, prefilling_s, 0.0, 1.0)
    assert pace.streams == 0


def test_one_stream_that_hung_makes_no_worker_slow() -> None:
    router = Router("east", aggregated("a", "b"))
    now_s = stream(router, "b", 50 * BASE_S, 0.0)
    now_s = after_streams(router, {"b": BASE_S, "a": BASE_S}, now_s, MIN_STREAMS + 1)
    assert worker(router, "b", now_s)["decode_slower_s_per_token"] == 0.0


def test_answers_that_were_not_streamed_teach_nothing() -> None:
    router, now_s = Router("east", aggregated("a")), 0.0
    for n in range(2 * MIN_STREAMS):
        asked = routing(n)
        ticket = send(router, asked, now_s)
        now_s += 10
        router.settled(ticket, asked, now_s, 1000, 0, TOKENS)
    assert worker(router, "a", now_s)["decode_s_per_token"] == 0.0


seen = st.tuples(st.integers(16, 2000), st.floats(0.2, 500.0), st.floats(0.0, 0.5), st.floats(0.0, 0.1))


@given(st.lists(st.lists(seen, max_size=12), min_size=1, max_size=7))
def test_never_more_than_half_are_slow_and_a_penalty_is_what_was_measured(fleet: list[list[Any]]) -> None:
    loads = [WorkerLoad() for _ in fleet]
    for load, streams in zip(loads, fleet, strict=True):
        for at, (tokens, stream_s, share, slowdown_s) in enumerate(streams):
            load.pace.observe(tokens, stream_s, share * stream_s, slowdown_s, float(at))
    level_paces([loads], 12.0)
    slow = [load for load in loads if load.slower_s]
    assert len(slow) <= len(loads) // 2
    for load in slow:
        assert load.pace.streams >= MIN_STREAMS
        assert 0 < load.slower_s < load.pace.s_per_token(12.0)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 200), st.floats(0.0, 1.0), st.integers(20, 500)), min_size=5, max_size=9),
        min_size=2,
        max_size=6,
    )
)
def test_workers_that_are_alike_are_never_told_apart_however_busy(fleet: list[list[tuple[int, float, int]]]) -> None:
    """Each stream: so many sequences beside it, so much of its time again with prompts under way, so many tokens."""
    loads = [WorkerLoad() for _ in fleet]
    for load, streams in zip(loads, fleet, strict=True):
        for at, (beside, prefilling, tokens) in enumerate(streams):
            decoding_s = tokens * (BASE_S + beside * 1e-4)
            held_up_s = decoding_s * prefilling
            load.pace.observe(tokens, decoding_s + held_up_s, held_up_s, beside * 1e-4, float(at))
    level_paces([loads], 12.0)
    assert not any(load.slower_s for load in loads)


@given(st.floats(1.01, 50.0))
def test_slow_is_more_than_twice(factor: float) -> None:
    loads = [WorkerLoad(), WorkerLoad()]
    for at in range(MIN_STREAMS):
        loads[0].pace.observe(100, 2.0, 0.0, 0.0, float(at))
        loads[1].pace.observe(100, 2.0 * factor, 0.0, 0.0, float(at))
    level_paces([loads], 12.0)
    if abs(factor - CLEARLY) > 1e-6:
        assert (loads[1].slower_s > 0) == (factor > CLEARLY)


def test_a_peer_process_knows_how_fast_streams_flow() -> None:
    sent: list[tuple[Event, float]] = []
    peer = Replica("east", aggregated("a", "b"), send=lambda _event, _now_s: None)
    router = Replica("east", aggregated("a", "b"), send=lambda event, now_s: sent.append((event, now_s))).router
    now_s = after_streams(router, {"a": BASE_S, "b": 5 * BASE_S}, rounds=MIN_STREAMS + 1)
    for event, at_s in sent:
        peer.apply(1, event, at_s)
    assert worker(router, "b", now_s)["decode_slower_s_per_token"] > 0
    assert peer.router.snapshot(now_s)["workers"] == router.snapshot(now_s)["workers"]


def test_decisions_by_pace_come_out_of_a_record_again() -> None:
    calls: list[RecordedCall] = []
    router = recorded_router(calls.append, "1", "east", aggregated("a", "b"))
    now_s = after_streams(router, {"a": BASE_S, "b": 5 * BASE_S}, rounds=MIN_STREAMS + 1)
    for at_s in (now_s, now_s + FORGET_S, now_s + 2 * FORGET_S):
        router.place(routing(70), at_s)
    decisions = [call.decision for call in calls if isinstance(call, Placed) and call.decision is not None]
    assert {0.0} < {max(reason.decode_s for reason in decision.reasons) for decision in decisions}
    verdict = judge(Frames(BytesIO(MAGIC + b"".join(map(frame, calls))).read))
    assert (verdict.decisions, verdict.first_difference) == (len(decisions), None)
