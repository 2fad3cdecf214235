"""The scheduler model under arbitrary work: room, conservation, determinism, liveness."""

from hypothesis import given
from hypothesis import strategies as st
from tests.search import searched

from warmroute_lab.engine.model.model import Costs, Phase, Scheduler, Work

PAGE = 16
KV_TOKENS = 4000
COSTS = Costs(chunk_tokens=512)

jobs = st.lists(
    st.tuples(
        st.integers(1, 1500),  # prompt tokens
        st.integers(1, 60),  # output tokens
        st.integers(1, 3),  # width
        st.integers(0, 2),  # tree
        st.floats(0, 0.2),  # seconds after the one before
    ),
    min_size=1,
    max_size=25,
)
victims = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 24)), max_size=4)
"""Whom to abort during which step."""


def make(jobs_: list[tuple[int, int, int, int, float]]) -> tuple[Scheduler, list[Work]]:
    model = Scheduler(role="aggregated", kv_tokens=KV_TOKENS, page_size=PAGE, max_running=6, costs=COSTS)
    items, now_s = [], 0.0
    for prompt_tokens, output_tokens, width, tree, gap_s in jobs_:
        now_s += gap_s
        keys = [tree * 10_000 + page for page in range((prompt_tokens + output_tokens) // PAGE)]
        item = Work(prompt_tokens, output_tokens, keys, width=width)
        model.add(item, now_s)
        items.append(item)
    return model, items


def check_room(model: Scheduler) -> None:
    assert model.reserved_pages >= 0
    assert model.reserved_pages + len(model.cache) <= model.capacity_pages


@given(jobs, st.data())
@searched(60)
def test_room_holds_and_everything_ends_once(
    jobs_: list[tuple[int, int, int, int, float]], data: st.DataObject
) -> None:
    model, items = make(jobs_)
    doomed = {step: items[at] for step, at in data.draw(victims) if at < len(items)}
    ended: list[Work] = []
    clock_s = 0.0
    while (step := model.begin()) is not None:
        check_room(model)
        assert step.start_s >= clock_s
        assert step.end_s >= step.start_s
        clock_s = step.end_s
        assert sum(take for _, take in step.prefill) <= COSTS.chunk_tokens
        if model.totals.steps in doomed:
            model.abort(doomed[model.totals.steps])
        ended += [item for item in model.finish(step) if item.phase is Phase.DONE]
        check_room(model)
    assert model.idle()
    assert model.reserved_pages == 0
    assert len(model.cache) == model.cache.idle_pages
    assert len(ended) == len(set(ended))
    assert all(item.phase is Phase.DONE for item in items)
    for item in ended:
        assert item.generated == item.output_tokens
        assert 0 <= item.cached_tokens < item.prompt_tokens
        assert item.cached_tokens % PAGE == 0
        assert item.first_token_s is not None
        assert item.first_token_s > item.arrival_s


@given(jobs)
@searched(30)
def test_the_model_is_deterministic(jobs_: list[tuple[int, int, int, int, float]]) -> None:
    def run() -> list[tuple[float | None, int]]:
        model, items = make(jobs_)
        while (step := model.begin()) is not None:
            model.finish(step)
        return [(item.first_token_s, item.cached_tokens) for item in items]

    assert run() == run()
