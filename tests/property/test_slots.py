"""Places of several processes under one limit at once, with answers that are lost."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from warmroute_proxy.core.queue.scope import Scope
from warmroute_proxy.core.queue.slots import ASK_AGAIN_S, KEPT_FRESH_S, LEASE_S, Held, SlotLease, SlotLimit

LIMIT = 6
PROCESSES = st.integers(0, 2)


class Processes(RuleBasedStateMachine):
    """A store that keeps what each process holds, and three processes. Each asks, and is answered, in one step."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.leases = [SlotLease(SlotLimit(Scope("b", ("t",)), LIMIT, 0.8)) for _ in range(3)]
        self.held: dict[int, int] = {}

    @rule(process=PROCESSES)
    def arrive(self, process: int) -> None:
        lease = self.leases[process]
        if lease.may_begin():
            lease.begin(1)
            assert lease.away or lease.left is None or lease.running <= lease.held + lease.left

    @precondition(lambda self: any(lease.running for lease in self.leases))
    @rule(process=PROCESSES)
    def end(self, process: int) -> None:
        lease = self.leases[process]
        if lease.running:
            lease.end(1, self.now)

    @rule(process=PROCESSES, answers=st.booleans())
    def ask(self, process: int, answers: bool) -> None:
        lease = self.leases[process]
        wanted = lease.wanted(self.now)
        if wanted is None:
            return
        assert lease.running <= wanted or wanted == LIMIT
        lease.asked(self.now)
        others = sum(held for whose, held in self.held.items() if whose != process)
        held = max(0, min(wanted, LIMIT - others))
        self.held[process] = max(lease.running, held)
        if answers:
            lease.answered(Held(held, max(0, LIMIT - others - self.held[process])))
        else:
            lease.not_answered()

    @rule()
    def wait(self) -> None:
        self.now += ASK_AGAIN_S

    @invariant()
    def all_together_may_use_no_more_places_than_there_are(self) -> None:
        assert sum(lease.held for lease in self.leases) <= LIMIT

    def teardown(self) -> None:
        """When all requests have ended, and the store answers again, what is held has been given back or has ended."""
        for lease in self.leases:
            while lease.running:
                lease.end(1, self.now)
        asked = dict.fromkeys(self.held, self.now)
        for _ in range(1 + int(LEASE_S / ASK_AGAIN_S)):
            self.now += ASK_AGAIN_S
            for process, lease in enumerate(self.leases):
                if lease.wanted(self.now) is not None:
                    asked[process] = self.now
                self.ask(process, answers=True)
        assert all(not held or self.now - asked[process] >= LEASE_S for process, held in self.held.items())
        assert [lease.wanted(self.now + KEPT_FRESH_S) for lease in self.leases] == [None] * 3


TestProcesses = Processes.TestCase


def lease_with(held: int, left: int, running: int, limit: int = LIMIT) -> SlotLease:
    lease = SlotLease(SlotLimit(Scope("b", ("t",)), limit, 0.8))
    lease.begin(running)
    lease.asked(0.0)
    lease.answered(Held(held, left))
    return lease


def test_a_process_begins_what_it_holds_and_what_the_store_had_left() -> None:
    lease = lease_with(held=2, left=1, running=1)
    begun = 0
    while lease.may_begin():
        lease.begin(1)
        begun += 1
    assert begun == 2
    assert lease.beyond


def test_who_runs_more_than_its_share_begins_nothing_until_some_have_ended() -> None:
    lease = lease_with(held=2, left=0, running=4)
    lease.end(1, 0.0)
    assert not lease.may_begin()
    lease.end(2, 0.0)
    assert lease.may_begin()


def test_spare_places_are_held_while_some_are_left_and_given_back_when_nothing_runs() -> None:
    lease = lease_with(held=80, left=700, running=20, limit=800)
    later = 10.0
    assert lease.wanted(later) == 20 + 800 // 8
    lease.asked(later)
    lease.answered(Held(120, 0))
    assert lease.wanted(later) == 20  # others want them
    lease.end(20, later)
    assert lease.wanted(later + ASK_AGAIN_S) == 0


def test_while_the_store_is_away_the_limit_is_that_of_the_process() -> None:
    lease = lease_with(held=0, left=0, running=0)
    assert not lease.may_begin()
    lease.asked(0.0)
    lease.not_answered()
    assert lease.may_begin()
    assert lease.wanted(0.5) is None
