"""Answers with nothing in them are counted by engine and model, whichever API asked, and raise a condition."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.apis.case import CASES, Run
from tests.apis.played import Answered, Scene
from warmroute_proxy.core.load.conditions import RAISE_AFTER, Condition
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.server.base.declared_metrics import EMPTY_ANSWERS_TOTAL
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.engines.watching import Watching


def asking(case: Run) -> Callable[[list[Answered]], bytes]:
    return lambda _: case.request()[1]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("api", ["chat", "messages", "responses", "gemini"])
def test_only_answers_with_nothing_in_them_are_counted(tmp_path: Path, api: str, *, stream: bool) -> None:
    cases = [Run(CASES / api / name, stream) for name in ("empty_answer", "plain", "call_named_ends_with_stop")]
    scene = Scene(tmp_path / "p", [case.says("at once")[0] for case in cases], engine_count=1)
    path = cases[0].request()[0]
    answered = scene.play_turns(path, [asking(case) for case in cases])
    assert [each.status for each in answered] == [200] * len(cases)
    model = answered[0].row["model"] if answered[0].row else ""
    assert scene.metrics.total(EMPTY_ANSWERS_TOTAL) == 1
    assert scene.metrics.value(EMPTY_ANSWERS_TOTAL, (("worker", "e0"), ("model", model))) == 1


@pytest.mark.parametrize(("empty", "raised"), [(1, []), (2, [(Condition.EMPTY_ANSWERS, "e0")])])
def test_a_quarter_of_empty_answers_is_a_condition(empty: int, raised: list[tuple[Condition, str]]) -> None:
    worker = Worker("e0", "e0", 0, "aggregated")
    watching = Watching("here", Metrics(), lambda: 0.0)
    for now_s in range(RAISE_AFTER):
        watching.answers["e0"] += 8
        for _ in range(empty):
            watching.answered_nothing("e0", "m")
        watching.observe_region([worker], float(now_s))
    assert [(each.condition, each.subject) for each in watching.raised()] == raised
