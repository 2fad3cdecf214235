"""Leases on budgets, the same on SQLite and on PostgreSQL: never more than the limit, settled with the rows."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.subjects.processes import until
from warmroute_proxy.core.accounting.entry_steps import voiding
from warmroute_proxy.core.queue.budget import Budget, Span, Taken, span_of
from warmroute_proxy.core.queue.scope import Scope
from warmroute_proxy.server.ledger.fold import Fold
from warmroute_proxy.server.ledger.schema import connect
from warmroute_proxy.server.stores.budgets import BudgetStore
from warmroute_proxy.server.stores.database import Database
from warmroute_proxy.server.stores.postgres_budgets import PostgresBudgets
from warmroute_proxy.server.stores.shipping import Shipping
from warmroute_proxy.server.stores.spool import Spool
from warmroute_proxy.server.stores.sqlite_store import BUDGETS_FILE, SqliteStore
from warmroute_proxy.server.stores.store_thread import StoreThread

from .sending import BEGAN_S, fill, row, sending

DAY = Budget(Scope("of-acme", ("acme",)), "day", 1_000, 0.8)
MONTH = Budget(Scope("of-acme", ("acme",)), "month", 5_000, 0.8)
OF_KEY = Budget(Scope("of-key", keys=("k-0123456789",)), "day", 1_000, 0.8)
BUDGETS = (DAY, MONTH, OF_KEY)
SPAN = span_of("day", BEGAN_S)


class Stores:
    """One kind of store, as several starts of a proxy see it."""

    def __init__(self, kind: str, dsn: str, folder: Path) -> None:
        self.kind, self.dsn, self.folder = kind, dsn, folder
        self.file = fill(folder, [])
        self.databases: list[Database] = []
        self.runs("1", "2")

    def runs(self, *boots: str) -> None:
        """The processes of the proxy are these starts from now on. All earlier starts have ended."""
        for process, boot in enumerate(boots):
            fold = Fold(self.folder / f"process-{process}", self.file, process)
            fold.recover(BEGAN_S, int(boot))
            fold.close()

    def of(self, boot: str) -> BudgetStore:
        if self.kind == "sqlite":
            return SqliteStore(self.folder, boot, BUDGETS)
        self.databases.append(Database(self.dsn))
        return PostgresBudgets(self.databases[-1], "p", boot)

    def settle(self, numbers: range, boot: str, *, key_id: str = "", voided: bool = False) -> None:
        """Rows of a start end, and are sent. `voided`: all but the first are also voided."""
        rows = [row(number, key_id=key_id) for number in numbers]
        rows += [voiding(each, BEGAN_S) for each in rows[1:] if voided]
        fill(self.folder, rows, int(boot))
        thread = self._thread()
        try:
            until(lambda: thread.sent >= len(rows), thread.problem)
        finally:
            thread.close()

    def _thread(self) -> StoreThread:
        if self.kind == "postgres":
            return sending(self.dsn, self.file, budgets=BUDGETS)
        store = SqliteStore(self.folder, "", BUDGETS)
        return StoreThread(None, lambda: Shipping(Spool(self.file), store))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a call may take is not what these are about."""
    monkeypatch.setattr("warmroute_proxy.server.stores.budgets.ASK_S", 900.0)


@pytest.fixture
def dsn(own_dsn: str) -> str:
    return own_dsn


@pytest.fixture(params=["sqlite", "postgres"])
async def stores(request: pytest.FixtureRequest, dsn: str, tmp_path: Path) -> AsyncIterator[Stores]:
    made = Stores(request.param, dsn, tmp_path)
    yield made
    for database in made.databases:
        await database.close()


async def test_the_store_never_leases_more_than_the_limit(stores: Stores) -> None:
    one, other = stores.of("1"), stores.of("1")
    assert await one.take(DAY, SPAN, 400) == Taken(400, 600)
    assert await other.take(DAY, SPAN, 400) == Taken(400, 200)
    assert await one.take(DAY, SPAN, 400) == Taken(200, 0)
    assert await other.take(DAY, SPAN, 400) == Taken(0, 0)
    assert await one.take(DAY, SPAN, -250) == Taken(0, 250)
    assert await other.take(DAY, SPAN, 400, 251) == Taken(0, 250)  # so little would be of no use
    assert await other.take(DAY, SPAN, 400) == Taken(250, 0)
    assert await one.take(DAY, SPAN, -5_000) == Taken(0, 1_000)  # no more than there was


async def test_of_a_lower_limit_the_store_says_how_much_is_above_it(stores: Stores) -> None:
    store, lower = stores.of("1"), DAY._replace(limit=200)
    assert await store.take(DAY, SPAN, 500) == Taken(500, 500)
    assert await store.take(lower, SPAN, 10) == Taken(0, -300)
    assert await store.take(lower, SPAN, -400) == Taken(0, 100)
    assert await store.take(lower, SPAN, 150) == Taken(100, 0)
    assert await store.take(DAY, SPAN, 0) == Taken(0, 800)


async def test_many_at_once_get_the_limit_together(stores: Stores) -> None:
    parts = [stores.of("1") for _ in range(6)]
    found = await asyncio.gather(*(part.take(DAY, SPAN, 37) for part in parts * 8))
    assert sum(taken.leased for taken in found) == DAY.limit


async def test_rows_settle_the_leases_that_paid_for_them(stores: Stores) -> None:
    store = stores.of("1")
    assert await store.take(DAY, SPAN, 700) == Taken(700, 300)
    await asyncio.to_thread(stores.settle, range(2), "1")  # 600 of the 700
    assert await store.take(DAY, SPAN, 0) == Taken(0, 300)
    await asyncio.to_thread(stores.settle, range(2, 3), "1")  # 100 are leased, 300 are spent
    assert await store.take(DAY, SPAN, 1_000) == Taken(100, 0)


async def test_a_voided_row_gives_its_price_back_and_leaves_the_lease_settled(stores: Stores) -> None:
    store = stores.of("1")
    assert await store.take(DAY, SPAN, 700) == Taken(700, 300)
    await asyncio.to_thread(stores.settle, range(2), "1", voided=True)  # 100 are leased, 300 are spent
    assert await store.take(DAY, SPAN, 0) == Taken(0, 600)


async def test_rows_settle_the_lease_of_the_key_that_they_name(stores: Stores) -> None:
    store = stores.of("1")
    assert await store.take(OF_KEY, SPAN, 400) == Taken(400, 600)
    await asyncio.to_thread(stores.settle, range(1), "1", key_id="k-0123456789")
    assert await store.take(OF_KEY, SPAN, 0) == Taken(0, 600)  # 100 are leased, 300 are spent
    await asyncio.to_thread(stores.settle, range(1, 2), "1", key_id="k-9876543210")
    assert await store.take(OF_KEY, SPAN, 0) == Taken(0, 600)
    assert await store.take(DAY, SPAN, 1_000) == Taken(400, 0)  # of the tenant both rows count


async def test_a_file_of_budgets_from_before_is_used_on(tmp_path: Path) -> None:
    Stores("sqlite", "", tmp_path).of("1")
    db = connect(tmp_path / BUDGETS_FILE)
    db.executescript("DROP TABLE key_spent; INSERT INTO spent VALUES ('acme', strftime('%s') / 3600 * 3600, 250)")
    db.close()
    now = span_of("day", time.time())
    assert await Stores("sqlite", "", tmp_path).of("2").take(DAY, now, 0) == Taken(0, 750)
    assert await Stores("sqlite", "", tmp_path).of("2").take(OF_KEY, now, 0) == Taken(0, 1_000)


async def test_the_log_names_the_file_that_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = SqliteStore(tmp_path, "1", BUDGETS)
    store._db.execute("DROP TABLE spool")
    shipping = Shipping(Spool(fill(tmp_path, [])), store, BUDGETS_FILE)
    shipping.closing.set()
    await shipping.run()
    assert "rows cannot be sent to budgets.sqlite, they wait" in caplog.text


async def test_each_period_counts_for_itself(stores: Stores) -> None:
    await asyncio.to_thread(stores.settle, range(3), "1")
    store, month = stores.of("1"), span_of("month", BEGAN_S)
    assert await store.take(DAY, SPAN, 5_000) == Taken(100, 0)
    assert await store.take(MONTH, month, 5_000) == Taken(4_100, 0)
    assert await store.take(DAY, Span(SPAN.ends_s, SPAN.ends_s + 86_400), 5_000) == Taken(1_000, 0)


async def test_a_killed_process_leaves_no_lease_behind_and_takes_none_from_the_others(stores: Stores) -> None:
    assert await stores.of("1").take(DAY, SPAN, 100) == Taken(100, 900)
    for killed, left in ((2, 900), (3, 600)):
        assert await stores.of(str(killed)).take(DAY, SPAN, 400) == Taken(400, left - 400)
        stores.runs("1", str(killed + 1))
        await asyncio.to_thread(stores.settle, range(killed, killed + 1), str(killed))  # 300 of the 400
        assert await stores.of("1").take(DAY, SPAN, 0) == Taken(0, left - 300)


def test_a_day_ends_at_midnight_and_a_month_with_its_last_day() -> None:
    leap_year, december = 1_709_208_000.0, 1_735_603_200.0  # 2024-02-29 12:00, 2024-12-31 00:00
    assert [span_of("day", leap_year), span_of("month", leap_year)] == [
        Span(1_709_164_800, 1_709_251_200),
        Span(1_706_745_600, 1_709_251_200),
    ]
    assert span_of("month", december).ends_s == span_of("day", december).ends_s == 1_735_689_600
    assert time.gmtime(span_of("day", time.time()).starts_s)[3:6] == (0, 0, 0)
