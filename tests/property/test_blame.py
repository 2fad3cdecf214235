"""One tenant's failing requests do not close engines to another."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute_proxy.core.load.availability import Breaker
from warmroute_proxy.core.load.blame import REQUESTS_OF_ONE, Blame, Cause, Judgement

ENGINE = Judgement.ENGINE


@pytest.mark.parametrize("cause", [Cause.UNREACHABLE, Cause.BROKEN])
def test_a_connection_that_fails_is_the_engines(cause: Cause) -> None:
    assert Blame().failed("w", cause, ("t", 1), alone=False, only=True) is ENGINE


def test_one_tenant_never_closes_an_engine_that_others_use() -> None:
    blame = Blame()
    assert not any(
        blame.failed("w", Cause.ERROR, ("hostile", number), alone=False, only=False) is ENGINE for number in range(1000)
    )


def test_different_requests_of_two_tenants_are_evidence() -> None:
    blame = Blame()
    assert blame.failed("w", Cause.ERROR, ("a", 1), alone=False, only=False) is not ENGINE
    assert blame.failed("w", Cause.ERROR, ("a", 1), alone=False, only=False) is not ENGINE
    assert blame.failed("w", Cause.ERROR, ("a", 2), alone=False, only=False) is not ENGINE
    assert blame.failed("w", Cause.ERROR, ("b", 1), alone=False, only=True) is ENGINE
    assert blame.failed("w", Cause.SILENT, ("b", 2), alone=False, only=True) is ENGINE


def test_a_tenant_that_is_alone_needs_more_and_never_closes_the_last_engine() -> None:
    blame = Blame()
    counted = [blame.failed("w", Cause.ERROR, ("a", number), alone=True, only=False) is ENGINE for number in range(12)]
    assert counted == [False] * (REQUESTS_OF_ONE - 1) + [True] * 5
    assert blame.failed("w", Cause.ERROR, ("a", 99), alone=True, only=True) is not ENGINE


def test_a_request_that_fails_on_two_engines_is_charged_to_itself() -> None:
    blame = Blame()
    for number in range(50):
        for worker in ("w0", "w1"):
            assert blame.failed(worker, Cause.ERROR, (f"t{number % 2}", number), alone=False, only=False) is not ENGINE


def test_two_ranks_of_an_engine_are_not_two_engines() -> None:
    blame = Blame(lambda worker: worker.split(":")[0])

    def judged(worker: str, request: tuple[str, int]) -> Judgement:
        return blame.failed(worker, Cause.ERROR, request, alone=False, only=False)

    assert judged("e:0", ("a", 1)) is Judgement.EVIDENCE
    assert judged("e:1", ("a", 1)) is Judgement.EVIDENCE
    assert judged("e:1", ("b", 2)) is ENGINE
    assert judged("f:0", ("a", 1)) is Judgement.REQUEST
    assert judged("e:0", ("b", 3)) is Judgement.EVIDENCE, "the request's evidence is removed at both ranks"


def test_a_served_request_clears_the_evidence() -> None:
    blame = Blame()
    assert blame.failed("w", Cause.ERROR, ("t1", 1), alone=False, only=False) is not ENGINE
    blame.served("w")
    assert blame.empty
    assert blame.failed("w", Cause.ERROR, ("t3", 3), alone=False, only=False) is not ENGINE


@given(st.integers(0, 2**32), st.floats(0.5, 0.95))
def test_the_innocent_tenant_is_served_while_one_engine_is_healthy(seed: int, hostile_share: float) -> None:
    """Two tenants on two engines, of which one may break. The hostile one's requests always fail; the others fail on
    the broken engine alone, and are retried on the other one."""
    draw, blame, now_s = random.Random(seed), Blame(), 0.0
    breakers = {"w0": Breaker(), "w1": Breaker()}
    broken = "w0" if draw.random() < 0.5 else None
    sent = served = 0
    for number in range(2000):
        now_s += 0.05
        hostile = draw.random() < hostile_share
        request = ("hostile" if hostile else "innocent", number)
        sent += not hostile
        open_to = [worker for worker, breaker in breakers.items() if breaker.allows(now_s)]
        draw.shuffle(open_to)
        for worker in open_to[:2]:
            breakers[worker].sent(number, now_s)
            if hostile or worker == broken:
                cause = Cause.ERROR if hostile or draw.random() < 0.5 else Cause.BROKEN
                if blame.failed(worker, cause, request, alone=False, only=len(open_to) == 1) is ENGINE:
                    breakers[worker].failed(number, now_s)
                breakers[worker].ended(number)
            else:
                blame.served(worker)
                breakers[worker].reset()
                served += 1
                break
    assert served >= 0.99 * sent
