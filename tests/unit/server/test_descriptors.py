"""Client connections never take the descriptors that engines and the ledger need."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute_proxy.server.base.descriptors import PER_ENGINE, PER_REQUEST, RESERVED, divide


def test_the_soft_limit_is_raised_as_far_as_needed() -> None:
    found = divide(1024, 1_048_576, 4096, 8)
    assert found == (RESERVED + 8 * PER_ENGINE + 4096 * PER_REQUEST, 4096, False)


def test_too_low_a_limit_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="ulimit"):
        divide(64, 64, 100, 8)


@given(st.integers(256, 10**6), st.integers(256, 10**6), st.integers(1, 10_000), st.integers(1, 8))
def test_what_is_accepted_always_fits(soft: int, more: int, connections: int, engines: int) -> None:
    found = divide(soft, soft + more, connections, engines)
    assert soft <= found.limit <= soft + more
    assert 1 <= found.connections <= connections
    assert found.connections * PER_REQUEST + engines * PER_ENGINE + RESERVED <= found.limit
    assert found.lowered == (found.connections < connections)
