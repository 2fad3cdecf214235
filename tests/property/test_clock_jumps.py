"""A clock that jumps, for any turns, neither makes a budget forget what was spent nor counts it twice."""

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.accounting.test_retention import ended

from warmroute_proxy.core.base.steady_time import STAY_S, SteadyTime, newest_steady
from warmroute_proxy.core.queue.budget import Budget, span_of
from warmroute_proxy.core.queue.scope import Scope
from warmroute_proxy.server.ledger.fold import Fold
from warmroute_proxy.server.ledger.retention import Pruner, Retention
from warmroute_proxy.server.ledger.schema import connect
from warmroute_proxy.server.ledger.usage_sums import SUMMED
from warmroute_proxy.server.stores.spool import Batch, Position, SpooledRow
from warmroute_proxy.server.stores.sqlite_store import BUDGETS_FILE, KEPT_HOURS, SqliteStore

HOUR_S = 3_600
DAY_S = 86_400
BEGAN_S = 1_790_812_800  # 2026-10-01
MONTH = Budget(Scope("acme", ("acme",)), "month", 1_000_000, 1.1)
PRICE = 7

jumps = st.sampled_from([0, 0, 0, DAY_S, -DAY_S, 41 * DAY_S, -41 * DAY_S, 400 * DAY_S, 20_000 * DAY_S])
turns = st.lists(st.tuples(st.integers(0, 20 * 24), jumps), min_size=1, max_size=40)


def batch(number: int, hours: list[int]) -> Batch:
    sums = tuple(PRICE if each == "price_nanousd" else 0 for each in SUMMED)
    rows = [
        SpooledRow(number + at, hour, f"r{number + at}", "acme", "s", "m", "east", float(hour), "", "", sums, "b")
        for at, hour in enumerate(hours, 1)
    ]
    up_to = number + len(rows)
    return Batch(Position(number, name(number)), Position(up_to, name(up_to)), rows, 0)


def name(number: int) -> str:
    return f"r{number}" if number else ""


async def spent(store: SqliteStore, at_s: int) -> int:
    """What is gone of the budget of a month."""
    return MONTH.limit - (await store.take(MONTH, span_of("month", at_s), 0)).left


@given(turns)
def test_each_month_has_what_its_turns_have_cost(read: list[tuple[int, int]]) -> None:
    async def run(folder: Path) -> None:
        store = SqliteStore(folder, "b", [MONTH])
        hours = [BEGAN_S + hour * HOUR_S + jump for hour, jump in read]
        for number, hour in enumerate(hours):
            assert await store.add(batch(number, [hour]), 0)
        for at_s in hours:
            span = span_of("month", at_s)
            assert await spent(store, at_s) == PRICE * sum(span.starts_s <= hour < span.ends_s for hour in hours)
        await store.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


def test_what_is_older_than_the_kept_hours_is_deleted(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path, "b", [MONTH])
    hours = [BEGAN_S + number * HOUR_S for number in range(KEPT_HOURS + 30)]
    asyncio.run(store.add(batch(0, hours), 0))
    asyncio.run(store.close())
    with closing(sqlite3.connect(tmp_path / BUDGETS_FILE)) as db:
        for table in ("spent", "charged_hour"):
            assert db.execute(f"SELECT count(*), min(hour) FROM {table}").fetchone() == (KEPT_HOURS, hours[30])


readings = st.lists(st.tuples(st.floats(1, 3 * HOUR_S), jumps, st.booleans()), min_size=1, max_size=60)


@given(readings, st.integers(0, 30))
def test_no_jump_takes_the_time_forward_by_which_rows_are_deleted(
    read: list[tuple[float, int, bool]], idle_hours: int
) -> None:
    """Each jump lasts for one reading, or until another one; none for a day."""
    true_s, monotonic_s, began_s = float(BEGAN_S + idle_hours * HOUR_S), 5.0, float(BEGAN_S)
    steady, since_jump_s, jump_s = SteadyTime(began_s), 0.0, 0
    assert steady.read(true_s, monotonic_s) == true_s
    for elapsed_s, jump, stays in read:
        true_s, monotonic_s, since_jump_s = true_s + elapsed_s, monotonic_s + elapsed_s, since_jump_s + elapsed_s
        if jump and jump != jump_s:
            jump_s, since_jump_s = jump, 0.0
        elif not stays or since_jump_s + 3 * HOUR_S >= STAY_S:
            jump_s, since_jump_s = 0, 0.0
        assert steady.read(true_s + jump_s, monotonic_s) <= true_s + 60 + 0.02 * (true_s - began_s)


def test_a_clock_that_was_wrong_and_is_right_for_a_day_is_followed() -> None:
    steady = SteadyTime(float(BEGAN_S))
    for hour in range(30):
        found = steady.read(BEGAN_S + 60 * DAY_S + hour * HOUR_S, hour * HOUR_S)
    assert found == BEGAN_S + 60 * DAY_S + 29 * HOUR_S


@given(st.lists(st.tuples(st.integers(1, 300), jumps), min_size=1, max_size=60))
def test_rows_of_a_jump_do_not_make_the_jump_believed(written: list[tuple[int, int]]) -> None:
    at_s, times = BEGAN_S, [float(BEGAN_S)]
    for minutes, jump in written:
        at_s += minutes * 60
        times.append(float(at_s + jump))
    found = newest_steady(times)
    assert found is not None
    assert found <= at_s + 3 * DAY_S


def rows_of(folder: Path, times: list[float]) -> Path:
    path = folder / "ledger.sqlite"
    Fold(folder, path).close()
    with closing(connect(path)) as db, db:
        rows = [(f"wr-{at:024x}", ended(f"wr-{at:024x}", each).record().decode()) for at, each in enumerate(times)]
        db.executemany("INSERT INTO turn_record (id, record) VALUES (?, ?)", rows)
    return path


def count(path: Path) -> int:
    with closing(connect(path)) as db:
        found: int = db.execute("SELECT count(*) FROM turn_record").fetchone()[0]
        return found


@pytest.mark.parametrize("restarted", [False, True])
def test_a_clock_that_is_ahead_for_one_look_deletes_no_rows(tmp_path: Path, restarted: bool) -> None:
    path = rows_of(tmp_path, [BEGAN_S - (6 * 24 - hour) * float(HOUR_S) for hour in range(6 * 24)])
    clocks = [float(BEGAN_S), 100.0]
    pruner = Pruner(path, Retention(days=7), lambda: clocks[0], lambda: clocks[1])
    if not restarted:
        assert pruner.step(None) == 0
    clocks[:] = [BEGAN_S + 41.0 * DAY_S, 101.0]
    assert pruner.step(None) == 0
    clocks[:] = [BEGAN_S + 2.0, 102.0]
    assert pruner.step(None) == 0
    pruner.close()
    assert count(path) == 6 * 24


def test_rows_go_once_a_clock_has_been_right_for_a_day(tmp_path: Path) -> None:
    path = rows_of(tmp_path, [BEGAN_S - (6 * 24 - hour) * float(HOUR_S) for hour in range(6 * 24)])
    clocks = [BEGAN_S + 41.0 * DAY_S, 100.0]
    pruner = Pruner(path, Retention(days=7), lambda: clocks[0], lambda: clocks[1])
    for _ in range(26):
        pruner.step(None)
        clocks = [clocks[0] + HOUR_S, clocks[1] + HOUR_S]
    pruner.close()
    assert count(path) <= 1
