"""Named conditions: raised by signs in a row, cleared by more of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute_proxy.core.load.conditions import CLEAR_AFTER, RAISE_AFTER, Condition, Watched
from warmroute_proxy.core.load.signs import (
    AcceptLengths,
    EngineReport,
    missing_hits,
    retractions,
    starving_side,
    transfers,
)
from warmroute_proxy.core.queue.shortage import Fleet, Shortage

NOTHING = EngineReport()


def watched() -> Watched:
    return Watched(Condition.RETRACTIONS, "w")


def test_it_is_raised_after_enough_bad_signs_and_cleared_after_enough_good_ones() -> None:
    one = watched()
    changes = [one.observe(bad, "words", at_s) for at_s, bad in enumerate([True] * 3 + [False] * 4)]
    assert [change.raised if change else None for change in changes] == [None, True, None, None, None, False, None]
    assert one.since_s == 2 + CLEAR_AFTER
    assert one.detail == "words"


def test_what_happens_once_raises_nothing_and_what_pauses_clears_nothing() -> None:
    one = watched()
    for bad in [True, False] * 10:
        assert one.observe(bad, "", 0.0) is None
    for _ in range(RAISE_AFTER):
        one.observe(True, "", 0.0)
    for bad in [False, False, True] * 10:
        assert one.observe(bad, "", 0.0) is None
    assert one.is_raised


@given(st.lists(st.sampled_from([True, False, None]), max_size=60))
def test_changes_alternate_and_agree_with_the_phase(signs: list[bool | None]) -> None:
    one, raised = watched(), False
    for sign in signs:
        change = one.observe(sign, "", 0.0)
        if change is not None:
            assert change.raised is not raised
            raised = change.raised
        assert one.is_raised is raised
        assert sign is not None or change is None


def test_accept_length_is_compared_with_that_of_intervals_without_hits() -> None:
    lengths = AcceptLengths()
    plain = EngineReport(accept_length=3.0, prompt_tokens=1000)
    hits = EngineReport(accept_length=1.5, prompt_tokens=2000, lower_hit_tokens=500)
    assert lengths.sign(NOTHING, hits).bad is None, "nothing to compare with"
    assert lengths.sign(NOTHING, plain).bad is False
    found = lengths.sign(plain, hits)
    assert found.bad is True
    assert found.detail == "accept length 1.50 with 50% of prompts from host or storage, 3.00 without"
    assert lengths.sign(plain, hits._replace(accept_length=2.9)).bad is False
    assert lengths.sign(hits, hits).bad is None, "no prompts"


@pytest.mark.parametrize(
    ("now", "bad"),
    [
        (NOTHING, False),
        (EngineReport(failed_transfers=1), False),
        (EngineReport(failed_transfers=2), True),
        (EngineReport(transfers=4, transfer_gb_s_sum=4.0), True),
        (EngineReport(transfers=4, transfer_gb_s_sum=80.0), False),
        (EngineReport(transfers=4), False),
    ],
)
def test_transfers_that_fail_or_are_slow(now: EngineReport, bad: bool) -> None:
    assert transfers(NOTHING, now).bad is bad


@pytest.mark.parametrize(
    ("retracted", "running", "bad"), [(0, 10, False), (8, 10, True), (8, 200, False), (30, 200, True)]
)
def test_a_storm_of_retractions(retracted: int, running: int, bad: bool) -> None:
    assert retractions(NOTHING, EngineReport(retracted=retracted, running=running)).bad is bad


def test_hits_that_are_missing() -> None:
    assert missing_hits(100, 0, 0).bad is None
    assert missing_hits(1_000, 9_000, 0).bad is False
    found = missing_hits(9_900, 100, 0)
    assert found.detail == "10,000 cached tokens were expected where they had been computed, 100 reported"
    assert found.bad is True
    assert missing_hits(0, 0, 1).bad is True


def test_a_side_that_starves() -> None:
    busy, idle = EngineReport(waiting=8), NOTHING
    assert starving_side({}, {"d": busy}).bad is None
    assert starving_side({"p": idle}, {"d": idle}).bad is False
    assert starving_side({"p": busy}, {"d": busy}).bad is False, "both are busy: more of both"
    found = starving_side({"p": busy}, {"d": idle})
    assert found.bad is True
    assert "prefill is short; flip a decode engine" in found.detail
    assert "decode is short" in starving_side({"p": EngineReport(bootstrap_queue=9)}, {"d": idle}).detail
    assert "decode is short" in starving_side({"p": idle}, {"d": EngineReport(prealloc_queue=9)}).detail


def test_a_working_set_that_does_not_fit_for_minutes_says_how_much_is_missing() -> None:
    shortage = Shortage()
    for second in range(60):
        shortage.observe(2_000_000 if second % 2 else 0, float(second))
    assert shortage.sign(10, 1000.0).bad is False, "a burst"
    for second in range(60, 400):
        shortage.observe(1_300_000, float(second))
    found = shortage.sign(212_000_010, 1001.0)
    assert found.bad
    assert found.detail == "1.3 M tokens of KV more would have saved up to 212 M computed tokens today"
    shortage.fleet = Fleet(120.0, 80_000.0, 1_000_000)
    shortage.beginning_tokens = shortage.missing_tokens / 2
    detail = shortage.sign(212_000_010, 1002.0).detail
    assert (
        "(that of 2 more workers). Waits of running sessions force 5 k tokens of prefill per second, of 80 k" in detail
    )
    assert "11 k if new sessions did not wait" in detail
    assert "up to 0 computed" in shortage.sign(212_000_010, 90_000.0).detail, "another day"
    for second in range(400, 700):
        shortage.observe(0, float(second))
    assert shortage.sign(212_000_010, 90_001.0).bad is False
