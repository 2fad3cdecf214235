"""The queue of turns that wait: never beyond its bounds, fair between tenants, nobody forgotten."""

from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.search import searched

from warmroute_proxy.core.queue.admission import Queue, Waiter
from warmroute_proxy.core.queue.dispatch_rate import RETRY_AFTER_MAX_S, DispatchRate

MAX_REQUESTS, MAX_BYTES, MAX_COST = 12, 1000, 500
TENANTS, MODELS, PLACES = ("a", "b", "c"), ("m", "n"), ("w0", "w1")
KEYS = ("", "k0", "k1")
COMPUTE_S, MAX_PATIENCE_S = st.sampled_from([0.0, 0.1, 0.5, 100.0]), 15.0


class QueueMachine(RuleBasedStateMachine):
    """A queue beside a list of who should be in it."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: Queue[int] = Queue(MAX_REQUESTS, MAX_BYTES, 2 * MAX_PATIENCE_S)
        self.inside: list[Waiter[int]] = []
        self.joined = 0

    @rule(
        tenant=st.sampled_from(TENANTS),
        model=st.sampled_from(MODELS),
        size=st.integers(0, MAX_BYTES + 1),
        place=st.sampled_from(PLACES),
        compute_s=COMPUTE_S,
        key_id=st.sampled_from(KEYS),
    )
    def join(self, tenant: str, model: str, size: int, place: str, compute_s: float, key_id: str) -> None:
        self.joined += 1
        waiter = Waiter(self.joined, tenant, model, size, float(self.joined), key_id)
        before = Counter(each.tenant for each in self.inside)
        out = self.queue.join(waiter, place, compute_s)
        if out is None:
            full = len(self.inside) + 1 > MAX_REQUESTS or sum(w.bytes for w in self.inside) + size > MAX_BYTES
            assert full
            return
        assert len({(each.tenant, each.model) for each in out}) <= 1  # of one tenant's, and not the newcomer's
        assert all((each.tenant, each.model) != (tenant, model) for each in out)
        self.inside = [each for each in self.inside if each not in out] + [waiter]
        assert not out or before  # nobody is pushed out of an empty queue

    @precondition(lambda self: self.inside)
    @rule(pick=st.integers(0, 10**6))
    def leave(self, pick: int) -> None:
        waiter = self.inside.pop(pick % len(self.inside))
        assert self.queue.leave(waiter)
        assert not self.queue.leave(waiter)

    @precondition(lambda self: self.inside)
    @rule(pick=st.integers(0, 10**6), place=st.sampled_from(PLACES), compute_s=COMPUTE_S)
    def move(self, pick: int, place: str, compute_s: float) -> None:
        waiter = self.inside[pick % len(self.inside)]
        self.queue.move(waiter, place, compute_s)
        assert waiter.line_key == (waiter.model, place)
        assert waiter.since_s <= waiter.due_s <= waiter.since_s + MAX_PATIENCE_S

    @rule(
        model=st.sampled_from(MODELS),
        place=st.sampled_from(PLACES),
        costs=st.lists(st.integers(0, MAX_COST), max_size=4),
        cannot=st.sets(st.tuples(st.sampled_from(TENANTS), st.sampled_from(KEYS))),
    )
    def serve(self, model: str, place: str, costs: list[int], cannot: set[tuple[str, str]]) -> None:
        """A round as the server makes it: some go, some cannot."""
        asked: set[tuple[str, str]] = set()
        for waiter in self.queue.fair_order((model, place), 0.0):
            whose = waiter.tenant, waiter.key_id
            mine = [each for each in self.inside if (each.line_key, each.tenant) == ((model, place), waiter.tenant)]
            open_ = [each for each in mine if (each.tenant, each.key_id) not in asked or each is waiter]
            assert waiter.due_s == min(each.due_s for each in open_)
            if whose in cannot:
                assert whose not in asked
                asked.add(whose)
                continue
            if not costs:
                return
            self.queue.served(waiter, costs.pop())
            self.inside.remove(waiter)
        left = {(each.tenant, each.key_id) for each in self.inside if each.line_key == (model, place)}
        assert left <= cannot & asked  # whoever could go was asked

    @rule(before=st.integers(0, 50))
    def expire(self, before: int) -> None:
        assert set(self.queue.expired(float(before))) == {w for w in self.inside if w.since_s < before}

    @invariant()
    def counts_are_right_and_bounded(self) -> None:
        assert self.queue.requests == len(self.inside) <= MAX_REQUESTS
        assert self.queue.bytes == sum(each.bytes for each in self.inside) <= MAX_BYTES
        assert set(self.queue.waiting()) == set(self.inside)
        assert set(self.queue.lines()) == {each.line_key for each in self.inside}
        for model in MODELS:
            places = {each.worker_id for each in self.inside if each.model == model}
            assert self.queue.awaited_workers(model) == places
            assert all(
                self.queue.before(self.other(model), place, 0.0) == self.tenants(model, place) for place in places
            )

    @invariant()
    def nothing_is_kept_of_empty_lines(self) -> None:
        assert len(self.queue._lines) <= len(MODELS) * len(PLACES)
        assert len(self.queue._shares) <= len(MODELS) * len(TENANTS)
        if not self.inside:
            assert not self.queue._lines
            assert not self.queue._shares

    def other(self, model: str) -> Waiter[int]:
        """One of a tenant that has nothing waiting: one of each other one may go before."""
        return Waiter(0, "d", model, 0, float(self.joined))

    def tenants(self, model: str, place: str) -> int:
        return len({each.tenant for each in self.inside if each.line_key == (model, place)})


QueueMachine.TestCase.settings = searched(60, stateful_step_count=60)
TestQueue = QueueMachine.TestCase

COSTS = st.lists(st.integers(1, MAX_COST), min_size=1, max_size=60)


def full_queue(costs_by_tenant: dict[str, list[int]]) -> Queue[int]:
    queue: Queue[int] = Queue(10_000, 10**9, 2 * MAX_PATIENCE_S)
    for tenant, costs in costs_by_tenant.items():
        for cost in costs:
            assert queue.join(Waiter(cost, tenant, "m", 1, 0.0), "w0", 0.0) == []
    return queue


@given(st.dictionaries(st.sampled_from("abcdef"), COSTS, min_size=2))
@searched(150)
def test_while_two_tenants_wait_they_are_served_alike_to_within_a_request_of_each(costs: dict[str, list[int]]) -> None:
    queue = full_queue(costs)
    served = dict.fromkeys(costs, 0)
    left = {tenant: len(each) for tenant, each in costs.items()}
    for waiter in queue.fair_order(("m", "w0"), 0.0):
        queue.served(waiter, waiter.item)
        served[waiter.tenant] += waiter.item
        left[waiter.tenant] -= 1
        waiting = [served[tenant] for tenant, number in left.items() if number]
        if len(waiting) > 1:
            assert max(waiting) - min(waiting) <= 2 * MAX_COST
    assert served == {tenant: sum(each) for tenant, each in costs.items()}  # nobody starved


@given(st.integers(1, 200), st.lists(st.integers(1, MAX_COST), min_size=1, max_size=30))
@searched(80)
def test_who_sends_one_at_a_time_waits_for_at_most_a_few_of_a_flood(flood: int, costs: list[int]) -> None:
    queue = full_queue({"flood": [MAX_COST] * flood})
    for cost in costs:
        waiter = Waiter(cost, "one", "m", 1, 1.0)
        assert queue.join(waiter, "w0", 0.0) == []
        before = 0
        while (head := next(queue.fair_order(("m", "w0"), 0.0))) is not waiter:
            queue.served(head, head.item)
            before += 1
        assert before <= 2  # one that had begun, and one for what its last turn was ahead by
        queue.served(waiter, cost)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 1.0, 2.0])), max_size=30), st.integers(0, 30))
def test_how_many_go_before_one_is_known(others: list[tuple[str, float]], at: int) -> None:
    queue: Queue[float] = Queue(100, 10**9, 2 * MAX_PATIENCE_S)
    waiter = Waiter(1.0, "a", "m", 1, 0.0)
    for number, (tenant, compute_s) in enumerate([*others[:at], ("", 0.0), *others[at:]]):
        each = Waiter(compute_s, tenant, "m", 1, 0.0) if tenant else waiter
        each.since_s = 1.01 * number  # no two are due at the same moment: `before` counts those as well
        queue.join(each, "w0", each.item)
    expected = queue.before(waiter, "w0", waiter.item)
    went = 0
    for each in queue.fair_order(("m", "w0"), 0.0):
        if each is waiter:
            break
        queue.served(each, 1)
        went += 1
    assert 0 <= expected - went <= 2  # one of each other tenant at most


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), min_size=2, max_size=20))
def test_nobody_is_passed_by_who_comes_after_it_is_due(turns: list[tuple[int, int]]) -> None:
    queue: Queue[float] = Queue(100, 10**9, 2 * MAX_PATIENCE_S)
    for since_s, compute_s in turns:
        queue.join(Waiter(compute_s, "a", "m", 1, since_s), "w0", compute_s)
    passed: list[Waiter[float]] = []
    for waiter in queue.fair_order(("m", "w0"), 0.0):
        queue.served(waiter, 1)
        assert all(
            waiter.since_s >= other.since_s or waiter.item >= other.item for other in passed
        )  # for being shorter
        assert all(other.since_s <= waiter.since_s + MAX_PATIENCE_S for other in passed)  # and for so long
        passed.append(waiter)
    assert len(passed) == len(turns)


@given(st.integers(0, 60), st.integers(1, 10))
def test_a_flood_that_fills_the_queue_keeps_nobody_else_out(flood: int, others: int) -> None:
    queue: Queue[int] = Queue(20, 10**9, 2 * MAX_PATIENCE_S)
    for number in range(flood):
        queue.join(Waiter(number, "flood", "m", 1, float(number)), f"w{number % 3}", 0.0)
    for number in range(others):
        assert queue.join(Waiter(number, "other", "m", 1, 100.0 + number), "w0", 0.0) is not None
    assert queue.requests <= 20


@given(st.floats(0.05, 200), st.integers(1, 400), st.integers(0, 2000))
@example(10.6953125, 2, 0)
@searched(80)
def test_who_is_turned_away_is_told_a_time_within_bounds_and_not_all_the_same(
    per_s: float, served: int, waiting: int
) -> None:
    rate = DispatchRate()
    now = 1000.0
    for number in range(served):
        now = 1000.0 + number / per_s
        rate.observe(now)
    told = [rate.retry_after_s(waiting, now) for _ in range(200)]
    assert all(1 <= each <= RETRY_AFTER_MAX_S for each in told)
    assert told == sorted(told)
    if served > 50 and 1 < per_s < 100 and served / per_s > 2:
        assert rate.per_s(now) / per_s < 2.2
        assert per_s / rate.per_s(now) < 2.2
        assert waiting / per_s > 50 or told[-1] > told[0] or 200 / per_s < 2
