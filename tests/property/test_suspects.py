"""A request that ends processes meets at most two of them."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from warmroute_proxy.core.load.blame import Request
from warmroute_proxy.core.load.suspects import REFUSED_S, Suspects

TENANTS = ("a", "b", "c")
WORKERS = ("w0", "w1")


class Model(RuleBasedStateMachine):
    """Requests run on two engines; the odd ones end the process that runs them."""

    @initialize()
    def start(self) -> None:
        self.suspects = Suspects()
        self.now_s = 0.0
        self.running: list[tuple[Request, str, float]] = []  # request, worker, when it was sent
        self.met: dict[Request, list[float]] = {}  # when a process ended before the request had a token

    @rule(seconds=st.floats(0, REFUSED_S / 2))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(tenant=st.sampled_from(TENANTS), prompt=st.integers(0, 3), worker=st.sampled_from(WORKERS))
    def send(self, tenant: str, prompt: int, worker: str) -> None:
        request = tenant, prompt
        if self.suspects.refused_for_s(request, self.now_s) > 0:
            recent = [at for at in self.met[request] if self.now_s - at < 2 * REFUSED_S]
            assert len(recent) >= 2
            return
        self.running.append((request, worker, self.now_s))

    @rule(worker=st.sampled_from(WORKERS))
    def process_goes_away(self, worker: str) -> None:
        self.now_s += 1.0
        ended = [(request, sent_s) for request, at, sent_s in self.running if at == worker]
        self.running = [each for each in self.running if each[1] != worker]
        for request in {request for request, _ in ended}:
            self.met.setdefault(request, []).append(self.now_s)
        for request, sent_s in ended:
            again = self.suspects.process_ended(request, worker, sent_s, self.now_s, bounded=True)
            assert self.suspects.is_suspect(request, self.now_s)
            assert again == (len([at for at in self.met[request] if self.now_s - at < REFUSED_S]) == 1)

    @rule()
    def the_oldest_is_answered(self) -> None:
        if self.running:
            request, *_ = self.running.pop(0)
            self.suspects.cleared(request)
            self.met.pop(request, None)
            assert not self.suspects.is_suspect(request, self.now_s)


TestSuspects = Model.TestCase


def test_a_request_with_unbounded_fields_is_not_retried() -> None:
    assert not Suspects().process_ended(("a", 1), "w0", 0.0, 1.0, bounded=False)
    assert Suspects().process_ended(("a", 1), "w0", 0.0, 1.0, bounded=True)


def test_the_second_end_refuses_for_ten_minutes_and_then_no_longer() -> None:
    suspects = Suspects()
    assert suspects.process_ended(("a", 1), "w0", 0.0, 0.0, bounded=True)
    assert suspects.refused_for_s(("a", 1), 1.0) == 0
    assert not suspects.process_ended(("a", 1), "w1", 0.0, 1.0, bounded=True)
    assert suspects.refused_for_s(("a", 1), 1.0) == REFUSED_S
    assert suspects.refused_for_s(("b", 1), 1.0) == 0
    assert suspects.refused_for_s(("a", 1), 1.0 + REFUSED_S) == 0
    assert suspects.process_ended(("a", 1), "w1", 2.0, 2.0 + REFUSED_S, bounded=True)


def test_one_end_counts_once_for_all_copies_that_it_met() -> None:
    suspects = Suspects()
    for seen_s in (1.0, 1.5, 1.5):
        assert suspects.process_ended(("a", 1), "w0", 0.5, seen_s, bounded=True)
    assert suspects.refused_for_s(("a", 1), 2.0) == 0
    assert not suspects.process_ended(("a", 1), "w0", 2.0, 3.0, bounded=True)  # the engine was started again
