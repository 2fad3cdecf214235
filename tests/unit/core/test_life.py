"""When an engine is asked whether it lives, and what its answer means."""

import pytest

from warmroute_proxy.core.load.health_monitor import IDLE_S, SILENT_S, HealthMonitor


def reporting() -> HealthMonitor:
    life = HealthMonitor(0.0)
    life.shows({"computed": 5}, 0.0)
    return life


def due(life: HealthMonitor, now_s: float, *, works: bool = True) -> bool:
    return life.to_be_asked(works=works, now_s=now_s)


def test_an_engine_that_shows_work_is_never_asked() -> None:
    life = HealthMonitor(0.0)
    for second in range(1, 300):
        life.shows({"computed": second // 20}, float(second))
        assert not due(life, float(second))


def test_reports_that_stay_the_same_are_no_life() -> None:
    life = reporting()
    for second in range(1, 100):
        life.shows({"computed": 5}, float(second))
        assert due(life, float(second)) == (second >= SILENT_S)


def test_an_engine_that_does_not_report_is_not_asked() -> None:
    assert not due(HealthMonitor(0.0), 1000.0)


def test_an_idle_engine_is_asked_seldom() -> None:
    life = reporting()
    assert not due(life, IDLE_S - 1, works=False)
    assert due(life, IDLE_S, works=False)
    life.asked(IDLE_S)
    assert not due(life, IDLE_S + 20, works=False), "not while it is being asked"
    life.says(200, IDLE_S + 1, drains=False)
    assert not due(life, 2 * IDLE_S, works=False)
    assert due(life, 2 * IDLE_S + 1, works=False)


@pytest.mark.parametrize(
    ("status", "drains", "unwell"),
    [
        (200, False, False),
        (404, False, False),
        (503, False, True),
        (0, False, True),
        (503, True, False),
        (0, True, True),
    ],
)
def test_what_its_answer_means(status: int, drains: bool, unwell: bool) -> None:
    life = reporting()
    life.says(status, 1.0, drains=drains)
    assert life.unwell == unwell


def test_an_unwell_engine_is_asked_again_until_it_is_well() -> None:
    life = reporting()
    life.asked(30.0)
    life.says(0, 55.0, drains=False)
    life.shows({"computed": 9}, 56.0)
    assert life.unwell, "reports alone do not clear the engine's own flag"
    assert not due(life, 59.9)
    assert due(life, 60.0, works=False)
    life.says(200, 61.0, drains=False)
    assert not due(life, 90.9), "well again"
    assert due(life, 91.0)


def test_a_new_process_has_no_past() -> None:
    life = reporting()
    life.says(0, 55.0, drains=False)
    life.begins(60.0)
    assert not life.unwell
    assert not due(life, 89.0)
