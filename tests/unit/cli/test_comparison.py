"""The rank test of the isolation audit."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute_lab.audit_isolation import compare

values = st.lists(st.floats(0, 10, allow_nan=False), min_size=1, max_size=12)


def test_eight_times_that_are_all_lower_are_a_difference() -> None:
    found = compare(range(8), range(8, 16))
    assert found.effect == 1.0
    assert found.p_value == pytest.approx(0.00047, rel=0.01)  # z = (64 - 32 - 0.5) / sqrt(8 * 8 * 17 / 12)


@pytest.mark.parametrize("times", [[1.0] * 10, [], [1.0]])
def test_times_that_cannot_differ_do_not(times: list[float]) -> None:
    assert compare(times, times).p_value >= 0.5


@given(values, values)
def test_the_effect_has_two_sides(first: list[float], second: list[float]) -> None:
    one, other = compare(first, second), compare(second, first)
    assert one.effect + other.effect == pytest.approx(1.0)
    assert 0 <= one.p_value <= 1


def test_equal_distributions_differ_as_seldom_as_the_p_value_says() -> None:
    draw = random.Random(7)
    found = [compare([draw.random() for _ in range(20)], [draw.random() for _ in range(20)]) for _ in range(2000)]
    assert 0.03 < sum(each.p_value < 0.05 for each in found) / len(found) < 0.07
