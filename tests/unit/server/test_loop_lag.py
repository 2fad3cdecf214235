"""What the watchdog of the event loop says: which step made a lag, and that the log names a long one."""

import asyncio
import gc
import itertools
import logging

import pytest

from warmroute_proxy.server.base.loop_lag import LoopLag
from warmroute_proxy.server.base.metrics import HeldBy, Metrics


def counted(metrics: Metrics) -> dict[HeldBy, int]:
    """How many lags each step is named for."""
    return {held_by: sum(seen.counts) for held_by, seen in metrics.loop_lag.items() if sum(seen.counts)}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def lag(metrics: Metrics) -> LoopLag:
    """A watchdog that is told how long steps ran."""
    return LoopLag(metrics, float)


@pytest.mark.parametrize(
    ("ran", "lag_s", "named"),
    [
        ([(HeldBy.METRICS, 0.05)], 0.06, HeldBy.METRICS),
        ([(HeldBy.REQUEST, 0.01), (HeldBy.SWEEP, 0.05), (HeldBy.REQUEST, 0.02)], 0.06, HeldBy.SWEEP),
        ([(HeldBy.REQUEST, 0.03)], 0.06, HeldBy.REQUEST),
        ([(HeldBy.REQUEST, 0.029)], 0.06, HeldBy.OTHER),
        ([], 0.06, HeldBy.OTHER),
    ],
    ids=["one step", "the longest step", "half of the lag", "less than half", "no step"],
)
def test_a_lag_has_the_name_of_what_held_the_loop(
    lag: LoopLag, metrics: Metrics, ran: list[tuple[HeldBy, float]], lag_s: float, named: HeldBy
) -> None:
    for held_by, seconds in ran:
        lag.ran(held_by, seconds)
    lag.observe(lag_s)
    assert counted(metrics) == {named: 1}


def test_a_step_is_named_for_one_lag_only(lag: LoopLag, metrics: Metrics) -> None:
    lag.ran(HeldBy.SWEEP, 0.05)
    lag.observe(0.05)
    lag.observe(0.05)
    assert counted(metrics) == {HeldBy.SWEEP: 1, HeldBy.OTHER: 1}


@pytest.mark.parametrize(("lag_s", "said"), [(0.25, ["the event loop was 250 ms late, held by: sweep"]), (0.24, [])])
def test_the_log_names_a_long_lag(
    lag: LoopLag, caplog: pytest.LogCaptureFixture, lag_s: float, said: list[str]
) -> None:
    lag.ran(HeldBy.SWEEP, lag_s)
    with caplog.at_level(logging.WARNING):
        lag.observe(lag_s)
    assert caplog.messages == said


async def test_a_collection_of_garbage_is_a_step() -> None:
    metrics, ticks = Metrics(), itertools.count()
    lag = LoopLag(metrics, lambda: float(next(ticks)))  # each look at the clock is a second
    watch = asyncio.create_task(lag.watch())
    await asyncio.sleep(0)
    gc.collect()
    watch.cancel()
    lag.observe(1.0)
    assert counted(metrics) == {HeldBy.COLLECTION: 1}
