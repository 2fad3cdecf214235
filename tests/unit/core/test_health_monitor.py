"""When an engine is asked whether it lives, and what its answer means."""

import pytest

from warmroute_proxy.core.load.health_monitor import IDLE_S, SILENT_S, HealthMonitor


def reporting() -> HealthMonitor:
    monitor = HealthMonitor(0.0)
    monitor.observe_report({"computed": 5}, 0.0)
    return monitor


def due(monitor: HealthMonitor, now_s: float, *, works: bool = True) -> bool:
    return monitor.is_probe_due(works=works, now_s=now_s)


def test_an_engine_that_shows_work_is_never_asked() -> None:
    monitor = HealthMonitor(0.0)
    for second in range(1, 300):
        monitor.observe_report({"computed": second // 20}, float(second))
        assert not due(monitor, float(second))


def test_reports_that_stay_the_same_are_no_life() -> None:
    monitor = reporting()
    for second in range(1, 100):
        monitor.observe_report({"computed": 5}, float(second))
        assert due(monitor, float(second)) == (second >= SILENT_S)


def test_an_engine_that_does_not_report_is_not_asked() -> None:
    assert not due(HealthMonitor(0.0), 1000.0)


def test_an_idle_engine_is_asked_seldom() -> None:
    monitor = reporting()
    assert not due(monitor, IDLE_S - 1, works=False)
    assert due(monitor, IDLE_S, works=False)
    monitor.probe_sent(IDLE_S)
    assert not due(monitor, IDLE_S + 20, works=False), "not while it is being asked"
    monitor.observe_probe(200, IDLE_S + 1, drains=False)
    assert not due(monitor, 2 * IDLE_S, works=False)
    assert due(monitor, 2 * IDLE_S + 1, works=False)


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
    monitor = reporting()
    monitor.observe_probe(status, 1.0, drains=drains)
    assert monitor.unwell == unwell


def test_an_unwell_engine_is_asked_again_until_it_is_well() -> None:
    monitor = reporting()
    monitor.probe_sent(30.0)
    monitor.observe_probe(0, 55.0, drains=False)
    monitor.observe_report({"computed": 9}, 56.0)
    assert monitor.unwell, "reports alone do not clear the engine's own flag"
    assert not due(monitor, 59.9)
    assert due(monitor, 60.0, works=False)
    monitor.observe_probe(200, 61.0, drains=False)
    assert not due(monitor, 90.9), "well again"
    assert due(monitor, 91.0)


def test_a_new_process_has_no_past() -> None:
    monitor = reporting()
    monitor.observe_probe(0, 55.0, drains=False)
    monitor.restart(60.0)
    assert not monitor.unwell
    assert not due(monitor, 89.0)
