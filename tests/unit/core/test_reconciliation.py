"""What engines counted against what receipts say: spans without gaps, restarts, edges, and what is unexplained."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute_proxy.core.accounting.engine_counts import CounterReading, EngineCounts, Span, advance
from warmroute_proxy.core.accounting.reconciliation import Line, Reconciliation, SettledTurn
from warmroute_proxy.core.base.role import Role

HOUR = 1_790_000_000 // 3600 * 3600.0


def reading(at_s: float, tokens: int, role: Role = "aggregated", url: str = "http://a0:1") -> CounterReading:
    return CounterReading("a0", url, role, HOUR + at_s, EngineCounts(tokens // 10, tokens, tokens // 2, tokens))


def spans_of(readings: list[CounterReading]) -> list[Span]:
    """The spans of some readings, in their order."""
    found: dict[float, Span] = {}
    open_span, before = None, None
    for each in readings:
        grown, now_open = advance(open_span, before, each)
        for span in (grown, now_open):
            if span is not None:
                found[span.began_s] = span
        open_span, before = now_open, each
    return list(found.values())


def turn(opened: float, settled: float, *, exact: bool = True, engine: str = "a0") -> SettledTurn:
    return SettledTurn(engine, HOUR + opened, HOUR + settled, EngineCounts(1, 100, 50, 100), exact, 1, failed=False)


def test_a_span_ends_with_the_first_reading_after_its_hour() -> None:
    found = spans_of([reading(3590, 1_000), reading(3599, 1_100), reading(3604, 1_150), reading(3609, 1_400)])
    assert [(span.began_s - HOUR, span.ended_s - HOUR, span.counts.prompt_tokens) for span in found] == [
        (3590, 3604, 150),
        (3604, 3609, 250),
    ]


def test_an_engine_that_was_started_again_has_counted_from_zero() -> None:
    (span,) = spans_of([reading(0, 1_000), reading(5, 1_200), reading(10, 30), reading(15, 90)])
    assert (span.counts.prompt_tokens, span.restarts) == (290, 1)


def test_what_was_counted_while_the_proxy_was_stopped_is_in_one_span() -> None:
    found = spans_of([reading(0, 100), reading(5 * 3600, 900), reading(5 * 3600 + 5, 950)])
    assert [span.counts.prompt_tokens for span in found] == [800, 50]
    assert found[0].ended_s == found[1].began_s


@pytest.mark.parametrize(
    "third", [reading(-3600, 200), reading(10, 200, "decode"), reading(10, 200, url="http://another:1")]
)
def test_a_clock_that_goes_back_and_a_change_of_role_or_address_begin_a_span(third: CounterReading) -> None:
    found = spans_of([reading(0, 50), reading(5, 100), third])
    assert [span.counts.prompt_tokens for span in found] == [50, 0]


@given(st.lists(st.tuples(st.integers(1, 4000), st.integers(0, 1000)), min_size=2, max_size=40))
def test_spans_follow_each_other_and_have_all_that_was_counted(steps: list[tuple[int, int]]) -> None:
    at_s, tokens, readings = 0, 0, []
    for after_s, more in steps:
        at_s, tokens = at_s + after_s, tokens + more
        readings.append(reading(at_s, tokens))
    found = spans_of(readings)
    assert sum(span.counts.prompt_tokens for span in found) == tokens - steps[0][1]
    assert all(one.ended_s == two.began_s for one, two in pairwise(found))


def lines(
    counted: EngineCounts, turns: list[SettledTurn], *, role: Role = "aggregated", restarts: int = 0
) -> list[Line]:
    """The lines of one hour, and of the next one, in which the engine counted nothing."""
    hour = Span("a0", role, HOUR, HOUR + 3600, counted, restarts)
    found = Reconciliation([hour, Span("a0", role, HOUR + 3600, HOUR + 7200)])
    for each in turns:
        found.add(each)
    return list(found.lines())


def test_receipts_that_say_what_the_engine_counted_differ_in_nothing() -> None:
    (line,) = lines(EngineCounts(2, 200, 100, 200), [turn(10, 20), turn(30, 40)])
    assert not line.difference("prompt_tokens")
    assert not line.is_beyond(0.0)


def test_what_others_send_to_the_engine_is_a_difference() -> None:
    (line,) = lines(EngineCounts(3, 300, 100, 200), [turn(10, 20), turn(30, 40)])
    assert line.unexplained("prompt_tokens") == 100
    assert line.share("prompt_tokens") == pytest.approx(1 / 3)
    assert (line.is_beyond(0.3), line.is_beyond(0.34)) == (True, False)


def test_a_receipt_that_says_more_than_the_engine_counted_is_below_zero() -> None:
    (line,) = lines(EngineCounts(1, 100, 40, 100), [turn(10, 20)])
    assert line.unexplained("cached_tokens") == -10


def test_a_turn_over_an_edge_may_be_counted_on_either_side() -> None:
    first, second = lines(EngineCounts(1, 100, 50, 100), [turn(3590, 3610)])
    assert (first.difference("prompt_tokens"), second.difference("prompt_tokens")) == (100, -100)
    assert not first.is_beyond(0.0)
    assert not second.is_beyond(0.0)
    assert first.turns.at_edge == second.turns.at_edge == 1


def test_an_estimate_explains_as_much_as_it_says() -> None:
    (line,) = lines(EngineCounts(2, 350, 100, 200), [turn(10, 20), turn(30, 40, exact=False)])
    assert line.unexplained("prompt_tokens") == 50
    assert line.turns.estimated == 1


def test_before_a_restart_the_engine_may_have_counted_more_than_is_known() -> None:
    (line,) = lines(EngineCounts(1, 100, 50, 100), [turn(10, 20), turn(30, 40)], restarts=1)
    assert line.difference("prompt_tokens") == -100
    assert not line.is_beyond(0.0)
    (line,) = lines(EngineCounts(3, 300, 100, 200), [turn(10, 20), turn(30, 40)], restarts=1)
    assert line.unexplained("prompt_tokens") == 100


def test_of_a_decode_engine_only_answers_are_compared() -> None:
    (line,) = lines(EngineCounts(1, 700, 0, 100), [turn(10, 20)], role="decode")
    assert not line.is_beyond(0.0)
    assert not line.compares("prompt_tokens")


def test_a_turn_while_nothing_was_read_is_counted_apart() -> None:
    found = Reconciliation([Span("a0", "aggregated", HOUR, HOUR + 60)])
    found.add(turn(100, 200))
    found.add(turn(10, 20, engine="elsewhere"))
    assert found.outside == {"a0": 1, "elsewhere": 1}
    assert not found.lines()
