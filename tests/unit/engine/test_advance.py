"""From event to event: what a router sees and when, by hand; and what a promise to keep a prefix is worth."""

from math import inf

import pytest

from warmroute_lab.engine.model.model import Phase, Role, Scheduler, Work

PAGE = 64
STEP_S = 0.005 + 0.015 + 0.0001
"""A step in which one sequence decodes."""


def rank(*, pages: int = 1000, role: Role = "aggregated", pin_waiting: bool = False) -> Scheduler:
    return Scheduler(role=role, kv_tokens=pages * PAGE, page_size=PAGE, max_running=8, pin_waiting=pin_waiting)


def work(pages: int, tree: int, output_tokens: int = 1) -> Work:
    """A prompt of complete pages and a token."""
    return Work(pages * PAGE + 1, output_tokens, [tree * 1000 + page for page in range(pages)])


def test_a_request_has_two_events() -> None:
    model, item = rank(), Work(2000, 101, [])
    model.add(item, 7.0)
    first_s = 7.0 + 2000 / 20_000 + 0.005
    assert model.next_event_s() == pytest.approx(first_s)
    assert model.advance(first_s - 0.01) == []
    ((at_s, of, ended),) = model.advance(8.0)
    assert (of, ended) == (item, False)
    assert at_s == item.first_token_s == pytest.approx(first_s)
    end_s = model.next_event_s()
    assert end_s == pytest.approx(first_s + 100 * STEP_S)
    assert model.advance(inf) == [(end_s, item, True)]
    assert model.next_event_s() == inf


def test_an_answer_of_one_token_begins_and_ends_at_once() -> None:
    model, item = rank(), Work(2000, 1, [])
    model.add(item, 0.0)
    assert model.advance(inf) == [(model.clock_s, item, False), (model.clock_s, item, True)]


def test_who_comes_during_a_run_of_decode_steps_joins_at_the_end_of_the_step_under_way() -> None:
    model, long, late = rank(), Work(2000, 1001, []), Work(200, 1, [])
    model.add(long, 0.0)
    first_s = 2000 / 20_000 + 0.005
    model.advance(first_s + 10.5 * STEP_S)
    model.add(late, first_s + 10.5 * STEP_S)
    model.advance(inf)
    assert late.first_token_s == pytest.approx(first_s + 11 * STEP_S + 200 / 20_000 + STEP_S)


def test_an_abort_during_a_run_counts_the_tokens_so_far() -> None:
    model, item = rank(), Work(2000, 1001, [])
    model.add(item, 0.0)
    first_s = 2000 / 20_000 + 0.005
    model.advance(first_s + 10.5 * STEP_S)
    model.abort(item)
    assert (item.generated, item.phase) == (11, Phase.DONE)
    assert model.advance(inf) == []
    assert model.clock_s == pytest.approx(first_s + 11 * STEP_S)
    assert model.totals.generated_tokens == 11


def test_a_prefill_rank_waits_for_the_end_of_a_transfer() -> None:
    model, first, second = rank(pages=20, role="prefill"), work(12, 1), work(12, 2)
    model.add(first, 0.0)
    model.add(second, 0.0)
    assert [event[1] for event in model.advance(100.0)] == [first]
    assert model.next_event_s() == inf
    model.release(first, 100.0)
    assert model.next_event_s() == pytest.approx(100.0 + (12 * PAGE + 1) / 20_000 + 0.005)


@pytest.mark.parametrize(("pin_waiting", "cached_pages"), [(False, 0), (True, 10)])
def test_a_promise_keeps_the_prefix_of_who_waits(pin_waiting: bool, cached_pages: int) -> None:
    model = rank(pages=30, pin_waiting=pin_waiting)
    model.add(work(10, 1), 0.0)
    model.advance(10.0)
    model.add(work(10, 2), 10.0)
    model.advance(20.0)
    busy, big, again = work(9, 3, output_tokens=PAGE), work(18, 4), work(10, 1)
    for item in (busy, big, again):  # `big` needs the pages of 1 or 2, 1 having been used longest ago
        model.add(item, 20.0)
    model.advance(inf)
    assert again.cached_tokens == cached_pages * PAGE


def test_a_promise_covers_what_is_computed_after_it_was_made() -> None:
    model = rank(pages=30, pin_waiting=True)
    again = work(10, 1)
    for item in (work(10, 1), work(10, 2), work(18, 3), again):  # the third needs the pages of one of the first two
        model.add(item, 0.0)
    model.advance(inf)
    assert model.cache.evicted_pages > 0
    assert again.cached_tokens == 10 * PAGE


def test_promises_are_broken_before_the_queue_stands_still() -> None:
    model = rank(pages=30, pin_waiting=True)
    for tree in (1, 2):
        model.add(work(12, tree), 0.0)
    model.advance(10.0)
    big, second, first = work(28, 3), work(12, 2), work(12, 1)
    for item in (big, second, first):
        model.add(item, 10.0)
    model.advance(inf)
    assert {item.phase for item in (big, second, first)} == {Phase.DONE}
    assert model.idle()
