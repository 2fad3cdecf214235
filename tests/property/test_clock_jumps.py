"""A clock that jumps, for any turns, neither makes a budget forget what was spent nor counts it twice."""

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from warmroute_proxy.core.queue.budget import Budget, span_of
from warmroute_proxy.core.queue.scope import Scope
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
        SpooledRow(number + at, hour, f"r{number + at}", "acme", "s", "m", "east", float(hour), "", "", sums)
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
            assert await store.add(batch(number, [hour]), 0, of_this_start=False)
        for at_s in hours:
            span = span_of("month", at_s)
            assert await spent(store, at_s) == PRICE * sum(span.starts_s <= hour < span.ends_s for hour in hours)
        await store.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


def test_what_is_older_than_the_kept_hours_is_deleted(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path, "b", [MONTH])
    hours = [BEGAN_S + number * HOUR_S for number in range(KEPT_HOURS + 30)]
    asyncio.run(store.add(batch(0, hours), 0, of_this_start=False))
    asyncio.run(store.close())
    with closing(sqlite3.connect(tmp_path / BUDGETS_FILE)) as db:
        for table in ("spent", "charged_hour"):
            assert db.execute(f"SELECT count(*), min(hour) FROM {table}").fetchone() == (KEPT_HOURS, hours[30])
