"""Going from event to event gives the same times, counts and cache as going step by step, for arbitrary traffic."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.search import searched

from warmroute_lab.engine.model.model import Costs, Event, Phase, Scheduler, Step, Work
from warmroute_lab.engine.model.tiers import HostTier

PAGE = 16
TREES = 3
OWN = 1_000_000


@dataclass(frozen=True)
class Ask:
    """One request; the first `own_from` pages are shared within its tree. `then_s` later it is aborted or delivered."""

    gap_s: float
    prompt_tokens: int
    output_tokens: int
    width: int
    tree: int
    own_from: int
    then_s: float | None


asks = st.lists(
    st.builds(
        Ask,
        gap_s=st.one_of(st.just(0.0), st.floats(0, 0.05), st.floats(0, 2.0)),
        prompt_tokens=st.integers(1, 1500),
        output_tokens=st.integers(1, 80),
        width=st.sampled_from([1, 1, 1, 2]),
        tree=st.integers(0, TREES - 1),
        own_from=st.integers(0, 90),
        then_s=st.one_of(st.none(), st.none(), st.floats(0, 1.5)),
    ),
    min_size=1,
    max_size=25,
)


class Driver(Protocol):
    """One way to let a scheduler run."""

    def __init__(self, model: Scheduler) -> None: ...

    def until(self, until_s: float) -> Iterable[Event]:
        """Everything that ends by then."""


class StepByStep:
    """`begin` and `finish`; a step is begun when time has passed its start."""

    def __init__(self, model: Scheduler) -> None:
        self._model = model
        self._step: Step | None = None

    def until(self, until_s: float) -> Iterable[Event]:
        model = self._model
        while True:
            if self._step is None:
                if self._start_s() >= until_s:
                    return
                self._step = model.begin()
                if self._step is None:
                    return
                yield from self._tell(self._step.start_s, self._step.delivered, joined=True)
            step = self._step
            if step.end_s > until_s:
                return
            self._step = None
            yield from self._tell(step.end_s, model.finish(step))

    def _start_s(self) -> float:
        model = self._model
        arrival_s = 0.0
        if not model.running:
            arrival_s = model.waiting[0].arrival_s if model.waiting else 0.0
            arrival_s = model.delivered[0].delivered_s if model.delivered else arrival_s
        return max(model.clock_s, arrival_s)

    @staticmethod
    def _tell(at_s: float, works: list[Work], *, joined: bool = False) -> Iterable[Event]:
        for work in works:
            if work.first_token_s == at_s and (joined or work.generated == 1):
                yield at_s, work, False
            if work.phase is Phase.DONE and not (joined and work.output_tokens > 1):
                yield at_s, work, True


class ByArrival:
    """One `advance` from arrival to arrival."""

    def __init__(self, model: Scheduler) -> None:
        self._model = model

    def until(self, until_s: float) -> Iterable[Event]:
        return self._model.advance(until_s)


class ByEvent:
    """From event to event, as a replay does."""

    def __init__(self, model: Scheduler) -> None:
        self._model = model
        self._until_s = 0.0

    def until(self, until_s: float) -> Iterable[Event]:
        events: list[Event] = []
        if until_s > self._until_s:  # else more may arrive at this instant
            while (next_s := self._model.next_event_s()) < until_s:
                got = self._model.advance(next_s)
                assert all(at_s == next_s for at_s, _, _ in got)
                events += got
            self._until_s = until_s
        return events + self._model.advance(until_s)


def keys_of(ask: Ask, number: int, tokens: int) -> list[int]:
    shared = [ask.tree * 1000 + page for page in range(ask.own_from)]
    own = [OWN * (number + 1) + page for page in range(200)]
    return (shared + own)[: -(-tokens // PAGE)]


def play(driver: type[Driver], scenario: list[Ask], *, answers: bool = False, **options: Any) -> dict[str, Any]:
    """What a scenario comes to: the events, what each request got, what the cache holds, and the totals."""
    told: list[Any] = []
    model = Scheduler(page_size=PAGE, max_running=6, costs=Costs(chunk_tokens=512), **options, listener=Teller(told))
    drive = driver(model)
    works, happenings, now_s = [], [], 0.0
    for number, ask in enumerate(scenario):
        now_s += ask.gap_s
        tokens = ask.prompt_tokens + (ask.output_tokens if answers else 0)
        work = Work(ask.prompt_tokens, ask.output_tokens, keys_of(ask, number, tokens), width=ask.width, owner=number)
        works.append(work)
        happenings.append((now_s, number, False))
        if ask.then_s is not None or model.role == "decode":
            happenings.append((now_s + (ask.then_s or 0.1), number, True))
    events: list[tuple[float, int, bool]] = []
    for at_s, number, later in [*sorted(happenings), (inf, 0, True)]:
        events += [(when_s, work.owner, ended) for when_s, work, ended in drive.until(at_s)]
        assert model.reserved_pages >= 0
        assert model.reserved_pages + len(model.cache) <= model.capacity_pages
        if at_s == inf:
            break
        if not later:
            model.add(works[number], at_s)
            if model.role == "decode":
                assert model.allocate(at_s)
        elif model.role == "decode":
            model.deliver(works[number], 0, at_s)
        else:
            model.abort(works[number])
    assert model.idle()
    assert model.reserved_pages == 0
    assert model.cache.idle_pages == len(model.cache)
    got = [(work.first_token_s, work.cached_tokens, work.generated, work.phase) for work in works]
    resident = [model.cache.match(work.keys, 10_000) for work in works]
    return {"events": events, "got": got, "resident": resident, "told": told, "totals": model.totals}


class Teller:
    """Writes down what a cache tells."""

    def __init__(self, told: list[Any]) -> None:
        self._told = told

    def stored(self, work: Work, start: int, stop: int, tier: str, *, computed: bool) -> None:
        self._told.append((work.owner, start, stop, tier, computed))

    def removed(self, keys: Iterable[int], tier: str) -> None:
        self._told.append((list(keys), tier))

    def cleared(self) -> None:
        self._told.append("cleared")


@pytest.mark.parametrize("driver", [ByArrival, ByEvent])
@given(asks, st.integers(120, 400), st.booleans(), st.booleans(), st.sampled_from([0, 100, 600]))
@searched(60)
def test_a_rank_does_the_same_from_event_to_event_as_step_by_step(
    driver: type[Driver], scenario: list[Ask], kv_pages: int, pin: bool, answers: bool, host_pages: int
) -> None:
    def outcome(driver: type[Driver]) -> dict[str, Any]:
        return play(
            driver,
            scenario,
            answers=answers,
            role="aggregated",
            kv_tokens=kv_pages * PAGE,
            pin_waiting=pin,
            host=HostTier(host_pages * PAGE),
        )

    assert outcome(driver) == outcome(StepByStep)


@pytest.mark.parametrize("driver", [ByArrival, ByEvent])
@given(asks, st.integers(120, 400))
@searched(60)
def test_work_may_be_queued_ahead_of_its_arrival(driver: type[Driver], scenario: list[Ask], kv_pages: int) -> None:
    def outcome(driver: type[Driver]) -> list[tuple[float | None, int]]:
        model = Scheduler(role="aggregated", kv_tokens=kv_pages * PAGE, page_size=PAGE, max_running=6)
        works, now_s = [], 0.0
        for number, ask in enumerate(scenario):
            now_s += ask.gap_s
            keys = keys_of(ask, number, ask.prompt_tokens)
            works.append(Work(ask.prompt_tokens, ask.output_tokens, keys, width=ask.width))
            model.add(works[-1], now_s)
        list(driver(model).until(inf))
        return [(work.first_token_s, work.cached_tokens) for work in works]

    assert outcome(driver) == outcome(StepByStep)


@pytest.mark.parametrize("driver", [ByArrival, ByEvent])
@given(asks)
@searched(60)
def test_a_decode_rank_does_too(driver: type[Driver], scenario: list[Ask]) -> None:
    def outcome(driver: type[Driver]) -> dict[str, Any]:
        return play(driver, scenario, role="decode", kv_tokens=10_000 * PAGE)

    assert outcome(driver) == outcome(StepByStep)
