"""The last hour in memory: what each minute, tenant and worker has, how it ends, and how processes are merged."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from tests.subjects.request_scene import Scene

import warmroute_proxy
from warmroute_proxy.core.cache.tiers import NOTHING_HELD
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.base.minutes import MAX_TENANTS, MAX_WORKERS, MINUTES, OTHERS, Minute, Minutes, Row, merged
from warmroute_proxy.server.control.exposition import page_of
from warmroute_proxy.server.request.request_metrics import RequestMetrics

NOON = 1_000_000 * 60


class Counted:
    """What requests add, at times of our own."""

    def __init__(self) -> None:
        self.now_s = float(NOON)
        self.metrics = Metrics()
        self.metrics.minutes = Minutes(lambda: self.now_s)
        self.requests = RequestMetrics(self.metrics)

    def turn(self, at_s: float, tenant: str = "a", cached: int = 60, ttft_s: float | None = None) -> None:
        self.now_s = at_s
        entry = SimpleNamespace(
            settled_at=at_s, tenant=tenant, outcome="completed", cached_tokens=cached, list_nanousd=10, price_nanousd=4
        )
        usage = SimpleNamespace(prompt_tokens=100, completion_tokens=5, device=cached, host=0, storage=0)
        if ttft_s is not None:
            self.requests.first_token(tenant, ttft_s)
        self.requests.settled(*cast("Any", (entry, usage, {"new": 100 - cached}, NOTHING_HELD, None, "w1")))

    def sent(self) -> list[bytes]:
        return self.metrics.state().minutes


def sums(sent: list[list[bytes]], now_s: float) -> dict[int, tuple[int, int]]:
    """Turns and cached tokens by minute before the current one."""
    found = merged(sent, now_s)
    assert len(found) == MINUTES
    rows = {found[-1].number - minute.number: minute.all() for minute in found}
    return {ago: (row.turns, row.cached_tokens) for ago, row in rows.items() if row.turns}


def test_each_turn_is_in_the_minute_in_which_it_ended() -> None:
    counted = Counted()
    for at_s in (0, 59.9, 60, 180):
        counted.turn(NOON + at_s)
    assert sums([counted.sent()], NOON + 180) == {3: (2, 120), 2: (1, 60), 0: (1, 60)}
    assert sums([counted.sent()], NOON + 60 * MINUTES) == {MINUTES - 1: (1, 60), MINUTES - 3: (1, 60)}
    assert sums([counted.sent()], NOON + 7_200) == {}


def test_counters_have_the_sums_of_all_tenants_and_minutes() -> None:
    counted = Counted()
    counted.turn(NOON, ttft_s=0.3)
    counted.turn(NOON + 70, "b", 20, ttft_s=0.2)
    page = page_of(counted.metrics, [])
    assert "warmroute_prompt_tokens_total 200\n" in page
    assert 'warmroute_cached_tokens_total{tier="device"} 80\n' in page
    assert 'warmroute_loss_tokens_total{class="new"} 120\n' in page
    assert 'warmroute_turns_total{outcome="completed"} 2\n' in page
    assert 'warmroute_ttft_seconds_bucket{le="0.25"} 1\n' in page
    assert 'warmroute_ttft_seconds_bucket{le="0.5"} 2\n' in page
    assert "warmroute_ttft_seconds_sum 0.5\n" in page


def test_a_tenant_has_its_own_sums() -> None:
    counted = Counted()
    counted.turn(NOON)
    counted.turn(NOON, "b", 20)
    counted.requests.answered("b", 429)
    counted.requests.answered("b", 503)
    minute = merged([counted.sent()], NOON)[-1]
    assert minute.tenants["a"] == Row(1, 100, 60, 10, 4, loss={"new": 40})
    assert minute.tenants["b"] == Row(1, 100, 20, 10, 4, errors=1, rate_limited=1, loss={"new": 80})
    assert minute.workers == {"w1": [2, 200, 80]}


@pytest.mark.parametrize("ttft_s", [0.004, 0.031, 0.4, 1.0, 7.0, 59.0])
def test_percentiles_are_close_to_the_times(ttft_s: float) -> None:
    counted = Counted()
    for _ in range(9):
        counted.turn(NOON, ttft_s=ttft_s)
    counted.turn(NOON, ttft_s=ttft_s * 100)
    row = merged([counted.sent()], NOON)[-1].all()
    assert row.ttft_s(0.5) == row.ttft_s(0.9) == pytest.approx(ttft_s, rel=0.34 if ttft_s < 0.005 else 0.15)
    assert Row().ttft_s(0.5) is None


@pytest.mark.skipif(warmroute_proxy.COMPILED, reason="compiled code takes no scripted neighbours")
@pytest.mark.parametrize(("first", "errors"), [(Scene.content, 1), (Scene.complete, 0)])
async def test_a_stream_that_breaks_off_is_an_error(first: Callable[[Scene], None], errors: int) -> None:
    scene = Scene()
    scene.begin()
    first(scene)
    if errors:
        scene.engine_fails()
    scene.write_row()
    scene.metrics.counters()  # which adds what is gathered
    found = [msgspec.msgpack.decode(each, type=Minute).all() for each in scene.metrics.minutes.encoded()]
    assert (sum(row.turns for row in found), sum(row.errors for row in found)) == (1, errors)


def test_processes_are_added_and_a_successor_goes_on() -> None:
    one, other, successor = Counted(), Counted(), Counted()
    one.turn(NOON)
    other.turn(NOON, cached=10)
    other.turn(NOON + 60, "b")
    successor.metrics.take_over(one.metrics.state())
    successor.turn(NOON + 60)
    assert sums([successor.sent(), other.sent()], NOON + 60) == {1: (2, 70), 0: (2, 120)}


def test_a_successor_keeps_the_newest_minutes_of_more_than_an_hour() -> None:
    one, successor = Minutes(), Minutes()
    for number in range(MINUTES + 10):
        one.add("a", Row(turns=1), number)
    successor.take_over(one.encoded())
    assert merged([successor.encoded()], (MINUTES + 9) * 60.0)[-1].all().turns == 1


def test_tenants_and_workers_beyond_the_bounds_share_a_row_or_have_none() -> None:
    minutes = Minutes(lambda: float(NOON))
    for number in range(MAX_WORKERS + 5):
        minutes.add(f"t{number}", Row(turns=1), NOON // 60, f"w{number}")
    minute = merged([minutes.encoded()], NOON)[-1]
    assert len(minute.tenants) == MAX_TENANTS + 1
    assert minute.tenants[OTHERS].turns == MAX_WORKERS + 5 - MAX_TENANTS
    assert len(minute.workers) == MAX_WORKERS
    assert minute.all().turns == MAX_WORKERS + 5


def test_what_goes_to_other_processes_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmroute_proxy.server.base.minutes.MAX_SENT_BYTES", 300)
    counted = Counted()
    for minute in range(MINUTES):
        counted.turn(NOON + minute * 60)
    sent = counted.sent()
    assert len(sent) < MINUTES
    assert sums([sent], counted.now_s)[0] == (1, 60)
