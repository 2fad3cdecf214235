"""Decaying sums: what was sent lately, whatever the time is that they are counted from."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute_proxy.core.load.traffic import BEFORE_S, MEMORY_S, RENEW_S, Traffic

SENT = st.tuples(st.floats(0.0, 2 * RENEW_S), st.floats(0.0, 1.0), st.floats(0.0, 100.0))


@given(st.floats(0.0, 1e9), st.lists(SENT, min_size=1, max_size=20), st.floats(0.0, 10 * MEMORY_S))
def test_sums_are_those_of_the_definition(
    begin_s: float, sent: list[tuple[float, float, float]], later_s: float
) -> None:
    traffic, now_s = Traffic(), begin_s
    known: list[tuple[float, float, float]] = []
    requests = weight = 0.0
    for after_s, share, prefill_s in sent:
        now_s += after_s
        if now_s >= traffic.renew_at_s:
            requests *= traffic.renew(now_s)
        weight = traffic.sent(share, prefill_s, now_s)
        requests += weight
        known.append((now_s, share, prefill_s))
    # Whoever keeps a sum with the weights that are given back can compare it with others of the same time.
    lately = sum(math.exp((at_s - now_s) / MEMORY_S) for at_s, _, _ in known)
    assert requests / weight == pytest.approx(lately, rel=1e-5)
    now_s += later_s
    left = [(math.exp((at_s - now_s) / MEMORY_S), share, prefill_s) for at_s, share, prefill_s in known]
    age_s = now_s - known[0][0] + BEFORE_S
    busy = sum(each * prefill_s for each, _, prefill_s in left) / MEMORY_S / (1 - math.exp(-age_s / MEMORY_S))
    returning_per_s = sum(each * share for each, share, _ in left) / MEMORY_S
    assert traffic.of_each(1, now_s) == pytest.approx((busy, returning_per_s), rel=1e-5, abs=1e-12)
    assert traffic.of_each(4, now_s) == pytest.approx((busy / 4, returning_per_s / 4), rel=1e-5, abs=1e-12)


def test_a_young_proxy_knows_how_busy_its_fleet_is() -> None:
    traffic, seen = Traffic(), {}
    traffic.renew(1000.0)
    for second in range(3601):
        traffic.sent(0.0, 1.2, 1000.0 + second)
        seen[second] = traffic.of_each(2, 1000.0 + second)[0]
    assert seen[0] < 0.05  # one long prompt is no busy fleet
    assert 0.6 * 2 / 3 < seen[60] < 0.6
    assert seen[3600] == pytest.approx(0.6, rel=0.01)


def test_nothing_was_sent() -> None:
    assert Traffic().of_each(8, 1e9) == (0.0, 0.0)
