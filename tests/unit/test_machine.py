"""Limits in time: what an idle machine has is the least, and slow or busy ones have more."""

import pytest
from tests import machine

from warmroute_backend.sglang import speed as speeds
from warmroute_backend.sglang.speed import MAX_SLOWNESS, Speed


@pytest.mark.parametrize(
    ("speed", "load", "slowness"),
    [
        (Speed(1.0, 1.0), 0.5, 1.0),
        (Speed(0.4, 0.4), 0.5, 1.0),  # faster
        (Speed(1.7, 1.7), 0.5, 1.7),
        (Speed(1.0, 1.0), 6.0, 6.0),  # busy since
        (Speed(1.7, 1.8), 6.0, 10.2),
        (Speed(1.0, 9.0), 0.5, 9.0),  # a small share of a core
        (Speed(10.0, 10.0), 50.0, MAX_SLOWNESS),
    ],
)
def test_a_limit_grows_with_what_makes_work_slow(
    monkeypatch: pytest.MonkeyPatch, speed: Speed, load: float, slowness: float
) -> None:
    monkeypatch.setattr(speeds, "measured", lambda: speed)
    monkeypatch.setattr(speeds, "load", lambda: load)
    assert machine.seconds(20) == pytest.approx(20 * slowness)
    assert machine.configured(2) == pytest.approx(2 * min(5, slowness))


def test_this_machine_is_measured() -> None:
    assert 0.01 < speeds.measured().processor < 100
    assert speeds.load() > 0
    assert machine.seconds(1) >= 1
