"""The virtual clock: what a run of a small trace must give, by hand."""

import pytest

from warmroute_lab.replay.setup import POLICIES, PRODUCTION, Setup, run
from warmroute_lab.replay.trace import Request, Trace, TraceError

BLOCK = 512
PREFILL_S = 1 / 20_000
STEP_S = 0.005
DECODE_STEP_S = STEP_S + 0.015 + 0.0001


def request(
    number: int,
    at_s: float,
    blocks: list[int],
    output: int = 1,
    after: int | None = None,
    session: int = 0,
    turn: int = 1,
) -> Request:
    return Request(number, at_s, after, session, turn, len(blocks) * BLOCK, output, blocks, None)


def trace(*requests: Request, sessions: int = 1) -> Trace:
    return Trace("small", BLOCK, list(requests), sessions, named_sessions=True)


def conversations(count: int, turns: int) -> Trace:
    """Sessions with prompts that grow by four blocks a turn."""
    requests: list[Request] = []
    for session in range(count):
        for turn in range(turns):
            blocks = [session << 20 | at for at in range(4 * (turn + 1))]
            number = len(requests)
            at_s, after = (session * 0.7, None) if turn == 0 else (2.0, number - 1)
            requests.append(request(number, at_s, blocks, 40, after, session, turn + 1))
    return trace(*requests, sessions=count)


def test_a_prompt_seen_before_is_cached_but_for_its_last_block() -> None:
    blocks = list(range(10))
    result = run(trace(request(0, 0.0, blocks), request(1, 5.0, blocks)), Setup(1), "round_robin")
    # The last token is always computed, and with it the block it is in.
    assert result.hit == pytest.approx(9 / 20)
    first, second = 10 * BLOCK * PREFILL_S + STEP_S, BLOCK * PREFILL_S + STEP_S
    assert result.ttft_mean_s == pytest.approx((first + second) / 2)


def test_a_following_turn_comes_its_think_time_after_the_end() -> None:
    blocks = list(range(4))
    small = trace(request(0, 1.0, blocks, output=11), request(1, 3.0, [*blocks, 99], after=0))
    result = run(small, Setup(1), "round_robin", speed_up=2.0)
    started = 0.5  # the speed-up compresses starts
    first_end = started + 4 * BLOCK * PREFILL_S + STEP_S + 10 * DECODE_STEP_S
    second_end = first_end + 3.0 + BLOCK * PREFILL_S + STEP_S  # and not thinking
    assert result.simulated_s == pytest.approx(second_end)
    assert result.tpot_p90_s == pytest.approx(DECODE_STEP_S)


def test_a_worker_without_room_forgets_and_a_large_one_does_not() -> None:
    # In 45 blocks a prompt takes 41 with its answer, so of the other one the first 4 stay: ends are evicted first.
    one, two = list(range(100, 140)), list(range(200, 240))
    rows = [request(at, 10.0 * at, blocks) for at, blocks in enumerate((one, two, one, two))]
    assert run(trace(*rows), Setup(1, kv_tokens=45 * BLOCK), "round_robin").hit == pytest.approx(4 * 2 / 160)
    assert run(trace(*rows), Setup(1, kv_tokens=90 * BLOCK), "round_robin").hit == pytest.approx(39 * 2 / 160)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_serves_every_request_and_each_time_alike(policy: str) -> None:
    small = conversations(12, 5)
    first, again = (run(small, Setup(4, kv_tokens=200 * BLOCK), policy) for _ in range(2))
    assert first.requests == 60
    assert 0 <= first.hit <= small.ceiling()
    assert (first.hit, first.ttft_p99_s, first.simulated_s) == (again.hit, again.ttft_p99_s, again.simulated_s)


@pytest.mark.parametrize("policy", [PRODUCTION, "session_hash", "smg_event", "llmd_affinity"])
def test_conversations_stay_where_their_cache_is(policy: str) -> None:
    small = conversations(12, 6)
    loyal, blind = (run(small, Setup(4), name) for name in (policy, "random"))
    assert loyal.hit > 0.9 * small.ceiling()
    assert blind.hit < 0.7 * small.ceiling()


def test_a_request_that_fits_no_worker_is_refused_with_its_size() -> None:
    with pytest.raises(TraceError, match=r"a request of 5121 tokens does not fit 2048 KV tokens"):
        run(trace(request(0, 0.0, list(range(10)))), Setup(1, kv_tokens=2048), "round_robin")


def test_load_is_sampled_for_each_worker() -> None:
    result = run(conversations(12, 3), Setup(4), "round_robin")
    assert len(result.load_tokens) == len(result.load_times_s) > 10
    assert {len(row) for row in result.load_tokens} == {4}
    assert result.imbalance >= 1.0
