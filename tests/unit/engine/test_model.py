"""The scheduler model: times that can be computed by hand, and who waits for whom."""

import pytest

from warmroute_lab.engine.model.model import Phase, Role, Scheduler, Step, Work

PAGE = 64


def scheduler(role: Role = "aggregated", kv_tokens: int = 600_000, max_running: int = 256) -> Scheduler:
    return Scheduler(role=role, kv_tokens=kv_tokens, page_size=PAGE, max_running=max_running)


def work(prompt_tokens: int, output_tokens: int = 4, tree: int = 0, width: int = 1) -> Work:
    """Work whose prompt shares its pages with every other of the same `tree`."""
    keys = [tree * 1_000_000 + page for page in range((prompt_tokens + output_tokens) // PAGE)]
    return Work(prompt_tokens, output_tokens, keys, width=width)


def run(model: Scheduler) -> list[Step]:
    steps = []
    while (step := model.begin()) is not None:
        model.finish(step)
        steps.append(step)
    return steps


def test_a_prompt_is_computed_in_chunks_of_8192_tokens() -> None:
    model, item = scheduler(), work(20_000)
    model.add(item, 0.0)
    takes = [take for step in run(model) for _, take in step.prefill]
    assert takes == [8192, 8192, 20_000 - 2 * 8192]


def test_a_second_prompt_shares_the_rest_of_a_chunk() -> None:
    model, first, second = scheduler(), work(8000, tree=1), work(1000, tree=2)
    model.add(first, 0.0)
    model.add(second, 0.0)
    assert [take for _, take in run(model)[0].prefill] == [8000, 192]


def test_a_repeated_prompt_costs_only_what_is_not_cached() -> None:
    model, first, second = scheduler(), work(6400), work(6400)
    model.add(first, 0.0)
    run(model)
    model.add(second, 100.0)
    run(model)
    assert second.cached_tokens == 6400 - PAGE  # the last token is always computed, so its page is too
    assert second.first_token_s == pytest.approx(100.0 + PAGE / 20_000 + 0.005)


def test_the_answer_extends_the_cache_of_an_aggregated_engine() -> None:
    model, first = scheduler(), work(640, output_tokens=200)
    model.add(first, 0.0)
    run(model)
    longer = work(2000)
    model.add(longer, 10.0)
    run(model)
    assert longer.cached_tokens == (640 + 200 - 1) // PAGE * PAGE


def test_decoding_slows_down_with_the_batch() -> None:
    def step_s(sequences: int) -> float:
        model = scheduler()
        for tree in range(sequences):
            model.add(work(100, output_tokens=9, tree=tree), 0.0)
        step = run(model)[-1]
        assert len(step.decode) == sequences
        return step.end_s - step.start_s

    assert step_s(1) == pytest.approx(0.005 + 0.015 + 0.0001)
    assert step_s(80) == pytest.approx(0.005 + 0.015 + 0.008)


def test_a_long_prompt_delays_the_tokens_of_those_who_decode() -> None:
    model, decoding, long = scheduler(), work(100, output_tokens=50, tree=1), work(8192, tree=2)
    model.add(decoding, 0.0)
    model.finish(model.begin() or pytest.fail("no step"))
    model.add(long, model.clock_s)
    step = model.begin()
    assert step is not None
    assert step.decode == [decoding]
    assert step.end_s - step.start_s > 8192 / 20_000


def test_work_that_arrives_while_a_step_runs_waits_for_its_end() -> None:
    model, first, second = scheduler(), work(8192, tree=1), work(100, tree=2)
    model.add(first, 0.0)
    step = model.begin()
    assert step is not None
    model.add(second, 0.1)
    model.finish(step)
    run(model)
    assert second.first_token_s is not None
    assert second.first_token_s > step.end_s


def test_a_prompt_that_does_not_fit_waits_until_pages_are_free() -> None:
    model = scheduler(kv_tokens=20 * PAGE)
    first, second = work(12 * PAGE, output_tokens=PAGE, tree=1), work(12 * PAGE, output_tokens=4, tree=2)
    model.add(first, 0.0)
    model.add(second, 0.0)
    step = model.begin()
    assert step is not None
    assert [item for item, _ in step.prefill] == [first]
    model.finish(step)
    run(model)
    assert second.phase is Phase.DONE
    assert second.first_token_s is not None
    assert second.first_token_s > 63 * 0.02  # after the whole answer of the first


def test_no_more_than_max_running_sequences_run() -> None:
    model = scheduler(max_running=2)
    for tree in range(5):
        model.add(work(100, tree=tree), 0.0)
    assert max(len(step.decode) + len(step.prefill) for step in run(model)) == 2
    assert model.totals.generated_tokens == 5 * 4


def test_the_sequences_of_one_prompt_count_each() -> None:
    model, item = scheduler(), work(100, output_tokens=3, width=4)
    model.add(item, 0.0)
    steps = run(model)
    assert model.totals.prompt_tokens == 100
    assert model.totals.generated_tokens == 4 * 3
    assert steps[-1].end_s - steps[-1].start_s == pytest.approx(0.005 + 0.015 + 0.0004)


def test_aborted_work_frees_its_pages_and_keeps_what_it_computed() -> None:
    model, item = scheduler(), work(20_000)
    model.add(item, 0.0)
    for _ in range(2):
        model.finish(model.begin() or pytest.fail("no step"))
    step = model.begin()
    assert step is not None
    model.abort(item)
    assert model.finish(step) == []
    assert model.idle()
    assert model.reserved_pages == 0
    assert len(model.cache) == model.cache.idle_pages == 2 * 8192 // PAGE


def test_prefill_role_holds_its_pages_until_the_transfer_has_ended() -> None:
    model, item = scheduler("prefill"), work(1000, output_tokens=1)
    model.add(item, 0.0)
    step = model.begin()
    assert step is not None
    assert model.finish(step) == [item]
    assert model.transferring == {item}
    assert model.cache.idle_pages == 0
    model.release(item, 1.0)
    assert model.idle()
    assert model.cache.idle_pages == 1000 // PAGE


def test_decode_role_allocates_in_order_and_emits_the_handed_over_token_at_once() -> None:
    model = scheduler("decode", kv_tokens=20 * PAGE)
    first, second = work(12 * PAGE, output_tokens=2), work(12 * PAGE, output_tokens=2)
    model.add(first, 0.0)
    model.add(second, 0.0)
    assert model.allocate(0.0) == [first]
    model.deliver(first, 5 * PAGE, 1.0)
    step = model.begin()
    assert step is not None
    assert step.delivered == [first]
    assert (first.first_token_s, first.cached_tokens, len(model.cache)) == (1.0, 5 * PAGE, 0)
    model.finish(step)
    assert first.phase is Phase.DONE
    assert model.allocate(model.clock_s) == [second]
