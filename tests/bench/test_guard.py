"""The measurement of the guard itself, small, and the one of its figures that no busy machine changes."""

import pytest

from bench import guard


def test_memory_beside_a_program_that_keeps_its_conversation_is_less_than_it() -> None:
    assert guard.memory_share(100_000, 50, parsed=False) <= 1.0
    assert guard.memory_share(1_000_000, 200, parsed=False) <= 0.5


@pytest.mark.parametrize("named", [True, False])
def test_costs_are_measured_for_each_turn_after_the_first(named: bool) -> None:
    assert len(guard.costs_us(20_000, 10, named=named, parsed=True)) == guard.TURNS
    assert len(guard.whole_us(20_000, 10, named=named, parsed=True)) == guard.TURNS
