"""What a tenant may use by the minute and at once, and how many retries a fleet bears."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute_proxy.core.accounting.usage import merge_usage
from warmroute_proxy.core.queue.quota import Bucket, Quota, ScopeLimits, TenantLimits, reserve
from warmroute_proxy.core.queue.reservation import Reservation
from warmroute_proxy.core.queue.retry_budget import FLOOR, SHARE, WINDOW_S, RetryBudget
from warmroute_proxy.core.queue.scope import Scope


def quota_of(limits: TenantLimits) -> Quota:
    return Quota(ScopeLimits(Scope("acme", ("acme",), kind="tenant"), limits), 0.0)


def test_a_minutes_worth_may_be_used_at_once_and_comes_back_evenly() -> None:
    quota = quota_of(TenantLimits(requests_per_minute=60))
    assert [reserve((quota,), 1, 0.0) for _ in range(60)] == [None] * 60
    short = reserve((quota,), 1, 0.0)
    assert short is not None
    assert (short.kind, short.limit) == ("requests", 60)
    assert short.wait_s == pytest.approx(1.0)
    assert reserve((quota,), 1, 1.0) is None
    assert reserve((quota,), 1, 1.5) is not None


def test_what_is_short_of_tokens_takes_no_request() -> None:
    quota = quota_of(TenantLimits(requests_per_minute=10, tokens_per_minute=600))
    assert reserve((quota,), 600, 0.0) is None
    short = reserve((quota,), 30, 0.0)
    assert short is not None
    assert short.kind == "tokens"
    assert short.wait_s == pytest.approx(3.0)
    assert quota.requests is not None
    assert quota.requests.remaining(0.0) == 9


def test_tokens_that_were_not_used_come_back_and_those_beyond_are_owed() -> None:
    quota = quota_of(TenantLimits(tokens_per_minute=600))
    assert quota.tokens is not None
    reserve((quota,), 500, 0.0)
    quota.take(0, -400, 0.0)
    assert quota.tokens.remaining(0.0) == 500
    quota.take(0, 700, 0.0)
    assert quota.tokens.remaining(0.0) == 0
    assert quota.tokens.wait_s(1, 0.0) == pytest.approx(20.1)


def test_a_request_larger_than_the_bucket_passes_when_that_is_full() -> None:
    quota = quota_of(TenantLimits(tokens_per_minute=600))
    assert reserve((quota,), 6000, 0.0) is None
    assert reserve((quota,), 1, 60.0) is not None  # it is in debt for ten minutes
    assert reserve((quota,), 1, 600.0) is None


@pytest.mark.parametrize("limit", [1, 10, 599, 600, 6000])
@pytest.mark.parametrize("used", [5, 300, 600, 1200])
def test_another_limit_makes_nobody_wait_longer_for_what_was_used(used: int, limit: int) -> None:
    bucket = Bucket(600, 0.0)
    bucket.take(used, 0.0)
    owed_s = max(0, used - 600) / 10
    bucket.change(limit, 0.0)
    assert bucket.wait_s(1, 0.0) <= owed_s + 60 / limit
    assert bucket.remaining(0.0) == max(0, limit - used)
    bucket.change(600, 0.0)
    assert bucket.remaining(0.0) == pytest.approx(max(0, 600 - used), abs=1), "lowered and raised, it gives nothing"


def test_a_limit_that_grows_or_stays_takes_nothing_away() -> None:
    bucket = Bucket(1000, 0.0)
    bucket.take(1000, 0.0)
    bucket.change(100, 0.0)
    assert bucket.remaining(30.0) == 50
    for limit, left in ((100, 50), (150, 50), (140, 40), (1000, 50)):
        bucket.change(limit, 30.0)
        assert bucket.remaining(30.0) == left


def test_what_is_at_once_is_bounded_by_what_is_under_way() -> None:
    quota = quota_of(TenantLimits(requests_at_once=2, tokens_at_once=100))
    quota.begin(60)
    assert quota.may_begin()
    quota.begin(60)
    assert not quota.may_begin()
    quota.end(60)
    assert quota.may_begin()


@pytest.mark.parametrize(("weight", "counted"), [(1.0, 110), (0.5, 77), (0.0, 45)])
def test_cached_tokens_of_a_settled_request_count_by_their_weight(weight: float, counted: int) -> None:
    quota = quota_of(TenantLimits(tokens_per_minute=1_000, cached_weight=weight))
    used = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 65}}
    reservation = Reservation((quota,), 200, 1)
    reserve((quota,), 200, 0.0)
    reservation.end(reservation.used(merge_usage(used, None, None, 0)), 0.0)
    assert quota.tokens is not None
    assert quota.tokens.remaining(0.0) == 1_000 - counted


@given(st.integers(1, 1000), st.lists(st.tuples(st.floats(0, 10), st.integers(1, 50)), min_size=1, max_size=60))
def test_no_minute_gives_more_than_two_minutes_worth(limit: int, asked: list[tuple[float, int]]) -> None:
    """A full bucket and a minute's refill, and one request more where requests are larger than the bucket."""
    bucket, now = Bucket(limit, 0.0), 0.0
    taken: list[tuple[float, int]] = []
    for wait_s, amount in asked:
        now += wait_s
        if bucket.wait_s(amount, now) == 0:
            bucket.take(amount, now)
            taken.append((now, amount))
    for start, _ in taken:
        assert sum(amount for at, amount in taken if start <= at < start + 60) <= 2 * limit + 50


def test_retries_are_a_share_of_recent_successes_and_a_floor() -> None:
    budget = RetryBudget()
    for _ in range(100):
        budget.succeeded(1.0)
    assert [budget.spend(2.0) for _ in range(40)].count(True) == FLOOR + 100 * SHARE
    assert not budget.spend(2.0 + WINDOW_S)  # what was served then still counts, and so does what was spent
    later = 2.0 + 3 * WINDOW_S
    assert [budget.spend(later) for _ in range(40)].count(True) == FLOOR


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans()), max_size=400))
def test_in_no_window_are_there_more_retries_than_the_share(calls: list[tuple[float, bool]]) -> None:
    budget, now = RetryBudget(), 0.0
    successes: list[float] = []
    retries: list[float] = []
    for wait_s, success in calls:
        now += wait_s
        if success:
            budget.succeeded(now)
            successes.append(now)
        elif budget.spend(now):
            retries.append(now)
    for end in retries:
        spent = sum(end - WINDOW_S < at <= end for at in retries)
        served = sum(end - 3 * WINDOW_S < at <= end for at in successes)
        assert spent <= FLOOR + SHARE * served + 1
