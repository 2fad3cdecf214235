"""Conditions of losses: engines that report no hits, and losses of which no cause was seen."""

import pytest

from warmroute_proxy.core.cache.occupancy import Occupancy
from warmroute_proxy.core.load.conditions import CLEAR_AFTER, RAISE_AFTER, Condition
from warmroute_proxy.core.load.signs import EngineReport
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.server.base.declared_metrics import KV_INDEX_DROPS_TOTAL, PROMPT_TOKENS_TOTAL
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.engines.watching import Watching

WORKER = Worker("e0", "e0", 0, "aggregated")


def raised(watching: Watching) -> list[tuple[Condition, str]]:
    return [(each.condition, each.subject) for each in watching.raised()]


def test_prompts_that_repeat_without_a_hit_are_a_condition_until_the_engine_reports_one() -> None:
    hits: set[str] = set()
    watching = Watching("here", Metrics(), lambda: 0.0)
    watching.reports_hits = hits.__contains__
    for _ in range(3):
        watching.lost("e0", {"unknown": 5_000}, 0, Occupancy())
    for now_s in range(RAISE_AFTER):
        watching.observe_region([WORKER], float(now_s))
    assert raised(watching) == [(Condition.NO_HITS, "e0")]
    hits.add("e0")
    for now_s in range(CLEAR_AFTER):
        watching.observe_region([WORKER], 10.0 + now_s)
    assert raised(watching) == []
    hits.clear()  # the engine restarts
    for now_s in range(RAISE_AFTER):
        watching.observe_region([WORKER], 50.0 + now_s)
    assert raised(watching) == []


def test_what_an_engine_reported_last_before_it_died_is_not_judged() -> None:
    watching = Watching("here", Metrics(), lambda: 0.0)
    workers = [Worker("p", "p", 0, "prefill"), Worker("d1", "d1", 0, "decode"), Worker("d2", "d2", 0, "decode")]
    for worker, queue in zip(workers, (0, 0, 40), strict=True):
        watching.observe([worker], {0: EngineReport(waiting=queue, prealloc_queue=queue, retracted=queue)}, 0.0)
    watching.absent(workers[2:])
    for now_s in range(RAISE_AFTER):
        watching.observe_region(workers, float(now_s))
    assert raised(watching) == []
    assert not [labels for _, labels, _ in watching.gauges() if ("worker", "d2") in labels]


def test_the_counters_of_a_worker_end_when_it_has_left_and_no_loss_of_another_is_missed() -> None:
    metrics = Metrics()
    watching = Watching("here", metrics, lambda: 0.0)
    for worker_id, drops in (("gone", 5), ("e0", 1)):
        metrics.add(KV_INDEX_DROPS_TOTAL, drops, (("worker", worker_id),))
    for now_s in range(RAISE_AFTER):
        watching.observe_region([WORKER], float(now_s))
        metrics.add(KV_INDEX_DROPS_TOTAL, 1, (("worker", "e0"),))
    assert {dict(labels)["worker"] for _, labels, _ in metrics.counters() if labels} == {"e0"}
    assert raised(watching) == [(Condition.MISSING_HITS, "here")]


@pytest.mark.parametrize(("unknown", "expected"), [(1_000, []), (1_001, [(Condition.UNEXPLAINED, "here")])])
def test_more_than_a_hundredth_without_a_cause_is_a_condition(
    unknown: int, expected: list[tuple[Condition, str]]
) -> None:
    metrics = Metrics()
    watching, occupancy = Watching("here", metrics, lambda: 0.0), Occupancy()
    occupancy.has_events = True
    for now_s in range(RAISE_AFTER):
        metrics.add(PROMPT_TOKENS_TOTAL, 100_000)
        watching.lost("e0", {"unknown": unknown}, 50_000, occupancy)
        watching.observe_region([WORKER], float(now_s))
    assert raised(watching) == expected
