"""The books of one worker, and what is learned of return times, against plain models of both."""

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.search import searched

from warmroute_proxy.core.cache.residents import FILLED, NO_LIMIT, Residents
from warmroute_proxy.core.cache.return_times import (
    EDGES_S,
    MIN_IN_BUCKET,
    MIN_RETURNS,
    OVER,
    PERSON,
    TOOLS,
    UNKNOWN,
    ReturnTimes,
)

POOL, MAX_SEATS = 1000, 6
LINEAGES = st.integers(1, 9)
TOKENS = st.integers(1, 600)


class Books(RuleBasedStateMachine):
    """Turns of nine conversations at one worker. The model keeps a list of seats in the order of their last use."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.books = Residents(MAX_SEATS)
        self.books.pool_tokens = POOL
        self.in_use: dict[int, tuple[int, int]] = {}  # tokens and turns
        self.idle: dict[int, tuple[int, float]] = {}  # tokens and last use, the oldest first
        self.known: set[int] = set()  # had a turn that was computed

    def trim(self) -> None:
        def tokens() -> int:
            return sum(each for each, _ in self.in_use.values()) + sum(each for each, _ in self.idle.values())

        while self.idle and (tokens() > POOL or len(self.idle) > MAX_SEATS):
            lineage = next(iter(self.idle))
            del self.idle[lineage]
            self.known.discard(lineage)

    @rule(lineage=LINEAGES, tokens=TOKENS)
    def send(self, lineage: int, tokens: int) -> None:
        self.books.sent(lineage, tokens)
        known_tokens, turns = self.in_use.get(lineage, (0, 0))
        self.idle.pop(lineage, None)
        self.in_use[lineage] = max(tokens, known_tokens), turns + 1
        self.trim()

    @rule(lineage=LINEAGES, computed=st.booleans(), left=TOKENS)
    def end(self, lineage: int, computed: bool, left: int) -> None:
        self.books.ended(lineage, self.now, computed=computed)
        if lineage not in self.in_use:
            return
        tokens, turns = self.in_use.pop(lineage)
        if computed:
            self.known.add(lineage)
        if turns > 1:
            self.in_use[lineage] = tokens, turns - 1
        elif lineage in self.known:
            self.idle[lineage] = tokens, self.now
            self.trim()
            if computed:
                self.books.resize(lineage, left)
                if lineage in self.idle:
                    self.idle[lineage] = left, self.now
                    self.trim()

    @rule(lineage=LINEAGES)
    def drop(self, lineage: int) -> None:
        self.books.drop(lineage)
        if self.idle.pop(lineage, None) is not None:
            self.known.discard(lineage)

    @rule(seconds=st.sampled_from([0.5, 5.0, 50.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(window_s=st.sampled_from([1.0, 10.0, 100.0]))
    def learn(self, window_s: float) -> None:
        self.books.windows_s = [window_s] * 3

    @invariant()
    def tokens_are_the_sum_of_the_seats(self) -> None:
        idle = sum(tokens for tokens, _ in self.idle.values())
        in_use = sum(tokens for tokens, _ in self.in_use.values())
        assert self.books.tokens == idle + in_use
        assert self.books.used_tokens == in_use
        assert self.books.seats == len(self.idle) + len(self.in_use)
        assert min(self.books.used_tokens, self.books.fresh_tokens, self.books.stale_tokens) >= 0

    @invariant()
    def what_is_protected_is_in_use_or_was_used_within_the_window(self) -> None:
        fresh = sum(tokens for tokens, last_s in self.idle.values() if last_s >= self.now - self.books.window_s)
        assert self.books.protected(self.now) == sum(tokens for tokens, _ in self.in_use.values()) + fresh

    @invariant()
    def seats_are_within_the_pool_unless_turns_under_way_need_more(self) -> None:
        assert self.books.tokens <= POOL or self.books.tokens == self.books.used_tokens
        assert self.books.seats - self.books.in_use <= MAX_SEATS

    @rule(lineage=LINEAGES)
    def ask(self, lineage: int) -> None:
        free = self.books.free_tokens(lineage, self.now)
        if not self.in_use:
            assert free == NO_LIMIT
            return
        others = sum(tokens for other, (tokens, _) in self.in_use.items() if other != lineage) + sum(
            tokens
            for other, (tokens, last_s) in self.idle.items()
            if other != lineage and last_s >= self.now - self.books.window_s
        )
        assert free == int(FILLED * POOL) - others

    @precondition(lambda self: self.in_use)
    @rule(data=st.data())
    def a_turn_under_way_stays(self, data: st.DataObject) -> None:
        lineage = data.draw(st.sampled_from(sorted(self.in_use)))
        self.books.drop(lineage)
        assert self.books.tokens_of(lineage) == self.in_use[lineage][0]


TestBooks = Books.TestCase
TestBooks.settings = searched(100, stateful_step_count=40)


def test_an_unknown_pool_has_no_limit() -> None:
    books = Residents()
    books.sent(1, 10**9)
    assert books.free_tokens(2, 0.0) == NO_LIMIT


WORDS = st.lists(st.tuples(st.sampled_from([PERSON, OVER]), st.sampled_from([0.0, 4.0, 40.0])), max_size=8)


@given(kind=st.sampled_from([UNKNOWN, TOOLS, PERSON, OVER]), words=WORDS)
@searched(100)
def test_what_a_client_says_protects_for_one_window_more_at_most(kind: int, words: list[tuple[int, float]]) -> None:
    books = Residents()
    books.pool_tokens = POOL
    books.windows_s = [20.0, 5.0, 30.0]
    books.sent(1, 100)
    books.expect(1, kind)
    books.ended(1, 0.0, computed=True)
    now_s, is_over, until_s = 0.0, kind == OVER, [20.0, 5.0, 30.0, -1.0][kind]
    for word, wait_s in words:
        now_s += wait_s
        before = books.protected(now_s)
        changed = books.set_kind(1, word, now_s)
        if changed and word == PERSON:
            assert kind < PERSON
            kind, until_s = PERSON, now_s + 30.0
        is_over = is_over or word == OVER
        assert books.protected(now_s) <= before
        assert books.protected(now_s) == (0 if is_over or now_s > until_s else 100)
        assert books.tokens == 100


@given(returned=st.lists(st.floats(0.0, 1000.0), min_size=1, max_size=40), at_s=st.floats(0.0, 1000.0))
@searched(50)
def test_a_conversation_that_is_over_counts_until_then_and_is_no_return(returned: list[float], at_s: float) -> None:
    """As one that is still idle at that age would, and not longer."""
    idle, left = ReturnTimes(), ReturnTimes()
    for number, age_s in enumerate(returned):
        for times in (idle, left):
            times.ended(number, 0.0)
            times.came_back(number, age_s)
    left.ended(99, 0.0)
    left.left(99, at_s)
    left.advance(5000.0)
    assert left.returns == idle.returns
    assert left.idle == 0
    spent_s = sum(left._exposed_s) - sum(idle._exposed_s)
    assert math.isclose(spent_s, min(at_s, EDGES_S[-1]), rel_tol=1e-6, abs_tol=1e-6)


AGES = st.lists(st.floats(0.0, 1000.0), min_size=1, max_size=60)


def learned(returned: Sequence[float], idle: Sequence[float]) -> ReturnTimes:
    """Of conversations that came back at an age, and of some that are idle for so long at the end."""
    times, end_s = ReturnTimes(), 2000.0
    events = [(end_s - 1000.0 - age_s, number, 0) for number, age_s in enumerate(returned)]
    events += [(end_s - 1000.0, number, 1) for number, _ in enumerate(returned)]
    events += [(end_s - age_s, len(returned) + number, 0) for number, age_s in enumerate(idle)]
    for at_s, lineage, comes_back in sorted(events, key=lambda event: (event[0], event[2])):
        times.advance(at_s)
        if comes_back:
            times.came_back(lineage, at_s)
        else:
            times.ended(lineage, at_s)
    times.advance(end_s)
    return times


@given(returned=AGES, idle=AGES, threshold=st.floats(1e-4, 1.0))
@searched(100)
def test_the_window_ends_with_the_last_age_at_which_enough_come_back(
    returned: list[float], idle: list[float], threshold: float
) -> None:
    times = learned(returned, idle)
    begins = [0.0, *EDGES_S[:-1]]
    counted = [age_s for age_s in returned if age_s < EDGES_S[-1]]
    assert times.returns == len(counted)
    window_s = times.window_s(threshold, 77.0)
    if len(counted) < MIN_RETURNS:
        assert window_s == 77.0
        times._count = MIN_RETURNS  # as if enough were known
        window_s = times.window_s(threshold, 77.0)
    worth = [EDGES_S[0]]
    unsure = set()
    for begin_s, end_s in zip(begins, EDGES_S, strict=True):
        there = sum(begin_s <= age_s < end_s for age_s in counted)
        spent_s = sum(max(0.0, min(end_s, age_s) - begin_s) for age_s in returned)
        spent_s += sum(end_s - begin_s for age_s in idle if age_s >= end_s)  # one still in the bucket counts later
        if math.isclose(there, threshold * spent_s, rel_tol=1e-6):
            unsure.add(end_s)
        if there >= MIN_IN_BUCKET and there >= threshold * spent_s:
            worth.append(end_s)
    assert window_s == worth[-1] or unsure


@given(counts=st.lists(st.integers(0, 200), min_size=1, max_size=80))
@searched(50)
def test_idle_conversations_are_bounded(counts: list[int]) -> None:
    times = ReturnTimes(max_idle=5)
    for number, lineage in enumerate(counts):
        times.ended(lineage, float(number))
        times.advance(float(number))
        assert times.idle <= 5


def test_a_larger_pool_keeps_conversations_longer() -> None:
    times = ReturnTimes()
    for number in range(400):
        times.ended(number, 0.0)
    for number in range(400):
        times.came_back(number, 0.25 * number)  # spread evenly over 100 s
    windows = [times.window_s(20_000 / pool, 0.0) for pool in (10_000, 1_000_000, 3_000_000)]
    assert windows == sorted(windows)
    assert windows[0] < windows[-1]
