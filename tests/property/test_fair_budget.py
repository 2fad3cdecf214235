"""The bodies of all tenants stay within one budget, and no tenant keeps another out."""

from hypothesis import given
from hypothesis import strategies as st

from warmroute_proxy.core.queue.fair_budget import FairBudget

STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 400), st.booleans()), max_size=80)


@given(STEPS)
def test_what_is_reserved_stays_within_the_budget_and_comes_back(steps: list[tuple[str, int, bool]]) -> None:
    budget = FairBudget(1000)
    held: list[tuple[str, int]] = []
    for tenant, size, take in steps:
        if take or not held:
            if budget.reserve(tenant, size):
                held.append((tenant, size))
        else:
            budget.release(*held.pop(size % len(held)))
        assert budget.used == sum(size for _, size in held) <= budget.total
    for each in held:
        budget.release(*each)
    assert budget.used == 0


@given(st.integers(1, 8), st.integers(1, 50))
def test_a_tenant_that_comes_anew_finds_a_share(tenants: int, size: int) -> None:
    budget = FairBudget(10_000)
    for name in range(tenants):
        while budget.reserve(f"t{name}", size):
            pass
    assert budget.reserve("new", size)


def test_one_tenant_alone_fills_half() -> None:
    budget = FairBudget(1000)
    while budget.reserve("a", 10):
        pass
    assert budget.used == 490 or budget.used == 500


def test_a_single_body_may_take_what_is_free() -> None:
    budget = FairBudget(1000)
    assert budget.reserve("a", 900)
    assert not budget.reserve("b", 101)
    assert budget.reserve("b", 100)
