"""Leases of several processes on one budget, with prices above and below what was reserved, limits that change, and a
store that fails.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from warmroute_proxy.core.queue.budget import (
    DENIED_S,
    IDLE_S,
    LARGEST_PART,
    Amounts,
    Budget,
    BudgetVerdict,
    Lease,
    SpendReservation,
    Taken,
    span_of,
)
from warmroute_proxy.core.queue.quota import UsedTokens
from warmroute_proxy.core.queue.scope import Scope

LIMIT = 10_000
BEGAN_S = 1_790_000_000.0
PROCESSES = st.integers(0, 2)
AMOUNTS = st.integers(0, LIMIT // 4)


class Processes(RuleBasedStateMachine):
    """A store that does the sums as the tables do, and three processes.

    A reload changes the limit of all three at once. What was spent and reserved then may be above the new limit;
    nothing is granted until it no longer is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = BEGAN_S
        self.limit = LIMIT
        self.leases = [Lease(budget_of(LIMIT)) for _ in range(3)]
        self.questions: list[tuple[Lease, int, int, int]] = []
        self.running: list[tuple[Lease, SpendReservation, int]] = []
        self.spent = self.excess = self.leased = 0
        self.unsettled = {id(lease): 0 for lease in self.leases}
        self.held = {id(lease): 0 for lease in self.leases}

    @rule(process=PROCESSES, amount=AMOUNTS)
    def arrive(self, process: int, amount: int) -> None:
        lease = self.leases[process]
        reservation = SpendReservation((lease,), Amounts(amount))
        verdict = reservation.reserve(self.now)
        assert (reservation.lacking is not None) == (verdict is BudgetVerdict.REFUSED)
        if verdict is BudgetVerdict.GRANTED:
            self.running.append((lease, reservation, amount))
            assert not amount or self.used() <= self.limit + self.excess

    def used(self) -> int:
        """What is spent and reserved of the budget."""
        reserved = sum(amount for _, _, amount in self.running)
        return self.spent + sum(self.unsettled.values()) + reserved

    @rule(limit=st.sampled_from([1, LIMIT // 100, LIMIT // 3, LIMIT]))
    def reload(self, limit: int) -> None:
        self.limit = limit
        for lease in self.leases:
            lease.change(budget_of(limit))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), price=AMOUNTS)
    def end(self, data: st.DataObject, price: int) -> None:
        lease, reservation, amount = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        reservation.release()
        reservation.spend(Amounts(price), self.now)
        self.unsettled[id(lease)] += price
        self.excess += max(0, price - amount)

    @rule(process=PROCESSES)
    def ask(self, process: int) -> None:
        lease = self.leases[process]
        amount = lease.wanted(self.now)
        if amount:
            self.questions.append((lease, amount, lease.least, lease.budget.limit))
            lease.asked(amount, self.now)

    @precondition(lambda self: self.questions)
    @rule(answers=st.booleans())
    def answer(self, answers: bool) -> None:
        lease, amount, least, limit = self.questions.pop(0)
        if not answers:
            lease.not_answered(self.now)
            return
        if amount < 0:
            given = min(-amount, self.held[id(lease)])
            self.held[id(lease)] -= given
            self.leased -= given
        left = limit - self.spent - self.leased
        taken = max(0, min(amount, left)) if left >= least else 0
        self.leased += taken
        self.held[id(lease)] += taken
        lease.answered(lease.span, Taken(taken, left - taken), self.now)

    @rule(process=PROCESSES)
    def settle(self, process: int) -> None:
        """The rows reach the store."""
        key = id(self.leases[process])
        price, self.unsettled[key] = self.unsettled[key], 0
        paid = min(price, self.held[key])
        self.held[key] -= paid
        self.leased -= paid
        self.spent += price

    @rule(seconds=st.sampled_from([0.1, DENIED_S, IDLE_S + 1]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def no_more_is_spent_than_the_limit_and_what_requests_cost_above_their_reservations(self) -> None:
        assert self.spent + sum(self.unsettled.values()) <= LIMIT + self.excess

    @invariant()
    def nothing_that_is_leased_is_lost(self) -> None:
        returning = sum(-amount for _, amount, _, _ in self.questions if amount < 0)
        mine = sum(lease.in_hand for lease in self.leases) + sum(self.unsettled.values()) + returning
        assert self.excess or mine == self.leased

    @invariant()
    def what_is_in_hand_and_reserved_is_leased(self) -> None:
        assert sum(lease.in_hand for lease in self.leases) <= self.leased + self.excess
        for lease in self.leases:
            mine = sum(amount for whose, _, amount in self.running if whose is lease)
            assert lease.reserved == mine


TestProcesses = Processes.TestCase


def budget_of(limit: int, *tenants: str) -> Budget:
    return Budget(Scope("b", tenants or ("t",)), "day", limit, 0.8)


def answer(lease: Lease, asked: int, taken: Taken, now_s: float = BEGAN_S) -> None:
    """Ask the store, which answers at once."""
    lease.asked(asked, now_s)
    lease.answered(lease.span, taken, now_s)


def lease_with(in_hand: int, left: int, now_s: float = BEGAN_S) -> Lease:
    made = Lease(budget_of(LIMIT))
    assert made.wanted(now_s) == 0
    answer(made, in_hand, Taken(in_hand, left), now_s)
    return made


def minute_lease() -> Lease:
    return Lease(Budget(Scope("t", ("t",)), "minute", 60, 2.0, "tokens"))


def test_the_first_request_waits_until_the_store_has_answered() -> None:
    lease = Lease(budget_of(LIMIT))
    reservation = SpendReservation((lease,), Amounts(250))
    assert reservation.reserve(BEGAN_S) is BudgetVerdict.WAITS
    assert lease.wanted(BEGAN_S) == 250
    lease.asked(250, BEGAN_S)
    assert lease.wanted(BEGAN_S) == 0
    lease.answered(lease.span, Taken(250, LIMIT - 250), BEGAN_S)
    assert reservation.reserve(BEGAN_S) is BudgetVerdict.GRANTED


def test_where_nothing_is_left_or_the_store_is_away_it_is_refused_for_a_moment() -> None:
    for answers in (True, False):
        lease = lease_with(100, 0)
        reservation = SpendReservation((lease,), Amounts(250))
        assert reservation.reserve(BEGAN_S) is BudgetVerdict.WAITS
        lease.asked(lease.wanted(BEGAN_S), BEGAN_S)
        if answers:
            lease.answered(lease.span, Taken(0, 0), BEGAN_S)
        else:
            lease.not_answered(BEGAN_S)
        assert reservation.reserve(BEGAN_S) is BudgetVerdict.REFUSED
        assert reservation.lacking is lease
        assert SpendReservation((lease,), Amounts(100)).reserve(BEGAN_S) is BudgetVerdict.GRANTED
        assert SpendReservation((lease,), Amounts(250)).reserve(BEGAN_S + DENIED_S) is BudgetVerdict.WAITS


def test_a_clock_that_is_set_back_does_not_stop_a_budget() -> None:
    lease = lease_with(100, 0)
    earlier = BEGAN_S - 600
    lease.not_answered(BEGAN_S)
    assert SpendReservation((lease,), Amounts(250)).reserve(BEGAN_S) is BudgetVerdict.REFUSED
    assert SpendReservation((lease,), Amounts(250)).reserve(earlier) is BudgetVerdict.WAITS
    assert lease.wanted(earlier) >= 150


def test_of_two_budgets_both_have_to_have_enough() -> None:
    poor, rich = lease_with(100, 0), lease_with(900, 0)
    assert SpendReservation((rich, poor), Amounts(250)).reserve(BEGAN_S) is BudgetVerdict.WAITS
    assert (rich.reserved, poor.reserved) == (0, 0)


def test_slices_grow_while_they_are_used_up_quickly() -> None:
    lease = lease_with(100, LIMIT)
    asked = []
    for _ in range(8):
        lease.in_hand = 0
        lease.reserve(0, BEGAN_S)
        asked.append(lease.wanted(BEGAN_S))
        answer(lease, asked[-1], Taken(0, LIMIT))
    assert asked == sorted(asked)
    assert asked[-1] == LIMIT // LARGEST_PART


def test_what_is_not_touched_is_given_back_once() -> None:
    lease = lease_with(400, 600)
    later = BEGAN_S + IDLE_S + 1
    assert lease.wanted(later) == -400
    answer(lease, -400, Taken(0, 1_000), later)
    assert lease.in_hand == 0
    assert lease.wanted(later + IDLE_S) == 0


def test_what_the_store_did_not_take_back_is_in_hand_again() -> None:
    lease = lease_with(400, 0)
    later = BEGAN_S + IDLE_S + 1
    lease.asked(lease.wanted(later), later)
    lease.not_answered(later)
    assert lease.in_hand == 400
    assert lease.wanted(later + DENIED_S) == -400
    assert SpendReservation((lease,), Amounts(300)).reserve(later) is BudgetVerdict.GRANTED


def test_a_request_that_cannot_be_granted_takes_nothing_and_keeps_nothing() -> None:
    lease = lease_with(100, 60)
    later = BEGAN_S + IDLE_S + 1
    assert SpendReservation((lease,), Amounts(250)).reserve(later) is BudgetVerdict.WAITS
    assert lease.least == 150
    answer(lease, lease.wanted(later), Taken(0, 60), later)
    assert SpendReservation((lease,), Amounts(250)).reserve(later) is BudgetVerdict.REFUSED
    assert lease.wanted(later + DENIED_S) == -100


@pytest.mark.parametrize("changed", [budget_of(200), budget_of(LIMIT, "t", "u")])
def test_what_may_be_above_a_changed_budget_is_given_back_and_not_reserved(changed: Budget) -> None:
    lease = lease_with(400, 600)
    running = SpendReservation((lease,), Amounts(300))
    assert running.reserve(BEGAN_S) is BudgetVerdict.GRANTED
    lease.change(changed)
    waiting = SpendReservation((lease,), Amounts(50))
    assert waiting.reserve(BEGAN_S) is BudgetVerdict.WAITS
    assert lease.wanted(BEGAN_S) == -100
    answer(lease, -100, Taken(0, -100))  # what runs has reserved more than there is now
    assert waiting.reserve(BEGAN_S) is BudgetVerdict.REFUSED
    running.release()
    running.spend(Amounts(120), BEGAN_S)
    later = BEGAN_S + DENIED_S
    assert waiting.reserve(later) is BudgetVerdict.WAITS
    assert lease.wanted(later) == -180
    answer(lease, -180, Taken(0, 80), later)
    assert waiting.reserve(later) is BudgetVerdict.WAITS
    answer(lease, lease.wanted(later), Taken(80, 0), later)
    assert waiting.reserve(later) is BudgetVerdict.GRANTED


def test_an_answer_from_before_a_lower_limit_is_given_back() -> None:
    lease = lease_with(0, LIMIT)
    lease.asked(500, BEGAN_S)
    lease.change(budget_of(10))
    lease.answered(lease.span, Taken(500, LIMIT - 500), BEGAN_S)
    assert lease.left is None
    assert SpendReservation((lease,), Amounts(5)).reserve(BEGAN_S) is BudgetVerdict.WAITS
    assert lease.wanted(BEGAN_S) == -500


def test_what_is_above_a_lower_limit_is_not_spent_while_the_store_is_away() -> None:
    lease = lease_with(400, 600)
    lease.change(budget_of(10))
    lease.asked(lease.wanted(BEGAN_S), BEGAN_S)
    lease.not_answered(BEGAN_S)
    assert SpendReservation((lease,), Amounts(5)).reserve(BEGAN_S) is BudgetVerdict.REFUSED
    assert lease.in_hand == 400
    assert lease.wanted(BEGAN_S + DENIED_S) == -400


def test_what_is_leased_of_a_removed_budget_is_given_back_as_its_requests_end() -> None:
    lease = lease_with(400, 600)
    running = SpendReservation((lease,), Amounts(300))
    assert running.reserve(BEGAN_S) is BudgetVerdict.GRANTED
    lease.leave()
    assert lease.wanted(BEGAN_S) == -100
    answer(lease, -100, Taken(0, 700))
    assert lease.wanted(BEGAN_S) == 0
    assert not lease.rests
    running.release()
    running.spend(Amounts(120), BEGAN_S)
    assert lease.wanted(BEGAN_S) == -180
    answer(lease, -180, Taken(0, 880))
    assert lease.wanted(BEGAN_S) == 0
    assert lease.rests


def test_a_request_that_waits_for_a_budget_passes_once_the_budget_is_removed() -> None:
    lease = lease_with(0, LIMIT)
    waiting = SpendReservation((lease,), Amounts(300))
    assert waiting.reserve(BEGAN_S) is BudgetVerdict.WAITS
    lease.asked(lease.wanted(BEGAN_S), BEGAN_S)
    lease.leave()
    lease.answered(lease.span, Taken(300, LIMIT - 300), BEGAN_S)
    assert waiting.reserve(BEGAN_S) is BudgetVerdict.GRANTED
    waiting.release()
    assert lease.wanted(BEGAN_S) == -300


def test_a_budget_that_comes_back_is_leased_from_again() -> None:
    lease = lease_with(400, 600)
    lease.leave()
    answer(lease, lease.wanted(BEGAN_S), Taken(0, 1_000))
    lease.change(lease.budget)
    waiting = SpendReservation((lease,), Amounts(50))
    assert waiting.reserve(BEGAN_S) is BudgetVerdict.WAITS
    answer(lease, lease.wanted(BEGAN_S), Taken(100, 900))
    assert waiting.reserve(BEGAN_S) is BudgetVerdict.GRANTED


def test_with_a_higher_limit_what_is_leased_stays_and_a_refusal_ends_at_once() -> None:
    lease = lease_with(100, 0)
    waiting = SpendReservation((lease,), Amounts(250))
    assert waiting.reserve(BEGAN_S) is BudgetVerdict.WAITS
    answer(lease, lease.wanted(BEGAN_S), Taken(0, 0))
    assert waiting.reserve(BEGAN_S) is BudgetVerdict.REFUSED
    lease.change(budget_of(2 * LIMIT))
    assert SpendReservation((lease,), Amounts(100)).reserve(BEGAN_S) is BudgetVerdict.GRANTED
    assert waiting.reserve(BEGAN_S) is BudgetVerdict.WAITS


def test_a_new_period_begins_with_nothing_in_hand_and_late_answers_do_not_count() -> None:
    lease = lease_with(400, 0)
    reservation = SpendReservation((lease,), Amounts(300))
    assert reservation.reserve(BEGAN_S) is BudgetVerdict.GRANTED
    before, tomorrow = lease.span, BEGAN_S + 86_400
    lease.asked(100, BEGAN_S)
    lease.begin(tomorrow)
    lease.answered(before, Taken(100, 0), tomorrow)
    reservation.release()
    assert (lease.in_hand, lease.reserved, lease.left) == (0, 0, None)


@given(now_s=st.floats(0, 4e9), period=st.sampled_from(["day", "month"]))
def test_a_time_is_in_its_period(now_s: float, period: str) -> None:
    span = span_of("day" if period == "day" else "month", now_s)
    assert span.starts_s <= now_s < span.ends_s
    assert span_of("month", span.ends_s).starts_s <= span.ends_s


def test_a_limit_by_the_minute_counts_what_was_used_in_the_minute_that_granted_it() -> None:
    minute = minute_lease()
    minute.begin(BEGAN_S)
    answer(minute, 60, Taken(60, 0))
    for used, in_hand in ((5, 55), (25, 30)):
        reservation = SpendReservation((minute,), Amounts(tokens=UsedTokens(20)))
        assert reservation.reserve(BEGAN_S) is BudgetVerdict.GRANTED
        reservation.keep(Amounts(tokens=UsedTokens(used)))
        reservation.release()
        assert (minute.in_hand, minute.reserved) == (in_hand, 0)
    late = SpendReservation((minute,), Amounts(tokens=UsedTokens(20)))
    assert late.reserve(BEGAN_S) is BudgetVerdict.GRANTED
    minute.begin(BEGAN_S + 60)
    late.keep(Amounts(tokens=UsedTokens(20)))
    late.release()
    assert (minute.in_hand, minute.reserved) == (0, 0)


def test_a_request_gives_back_what_it_has_reserved_where_a_reload_has_lowered_the_limit() -> None:
    minute = minute_lease()
    reservation = SpendReservation((minute,), Amounts(tokens=UsedTokens(50)))
    assert reservation.reserve(BEGAN_S) is BudgetVerdict.GRANTED
    minute.change(minute.budget._replace(limit=40))
    reservation.release()
    assert minute.reserved == 0


def test_no_request_waits_for_the_store_of_a_limit_by_the_minute() -> None:
    minute = minute_lease()
    twenty = Amounts(tokens=UsedTokens(20))
    assert [SpendReservation((minute,), twenty).reserve(BEGAN_S) for _ in range(2)] == [BudgetVerdict.GRANTED] * 2
    assert minute.wanted(BEGAN_S) == 40  # what was let in is taken off the first slice
    answer(minute, 40, Taken(40, 20))
    assert SpendReservation((minute,), twenty).reserve(BEGAN_S) is BudgetVerdict.GRANTED  # the store had it left
    beyond = SpendReservation((minute,), twenty)
    assert beyond.reserve(BEGAN_S) is BudgetVerdict.REFUSED
    assert beyond.lacking is minute
    answer(minute, minute.wanted(BEGAN_S), Taken(0, 0))  # another process was quicker
    assert minute.wanted(BEGAN_S) == 0
    assert minute.wanted(BEGAN_S + DENIED_S) > 0


def test_a_limit_by_the_minute_does_not_hold_while_its_store_is_away() -> None:
    minute = minute_lease()
    minute.begin(BEGAN_S)
    minute.asked(minute.wanted(BEGAN_S), BEGAN_S)
    minute.not_answered(BEGAN_S)
    for _ in range(5):
        assert SpendReservation((minute,), Amounts(tokens=UsedTokens(20))).reserve(BEGAN_S) is BudgetVerdict.GRANTED
    assert minute.wanted(BEGAN_S) == 0
    assert minute.wanted(BEGAN_S + DENIED_S) > 0


@given(tokens=st.integers(0, 10**6), share=st.floats(0, 1), weight=st.floats(0, 1), at_least=st.integers(0, 10))
def test_cached_tokens_count_between_nothing_and_all(tokens: int, share: float, weight: float, at_least: int) -> None:
    used = UsedTokens(tokens, int(tokens * share), at_least)
    assert used.weighed(0.0) <= used.weighed(weight) <= used.weighed(1.0) == max(tokens, at_least)
    assert used.weighed(0.0) == max(tokens - used.cached, at_least)
