"""Rows reach the database in order, once each, whatever is killed or frozen, and no request waits for it."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from tests.subjects.processes import PLAIN, EngineProcess, ProxyProcess, chat, until
from tests.subjects.stores import Postgres
from warmroute_proxy.core.accounting.entry_steps import void_id, voiding
from warmroute_proxy.server.stores.migrate import migrate

from .conftest import FAULTS
from .operating import ledger_table
from .sending import BEGAN_S, fill, row, sending

DAY_S = 86_400

SENDER = """
import sys, time
from pathlib import Path
from warmroute_proxy.server.stores import shipping
from tests.stores.sending import sending

shipping.BATCH_ROWS, shipping.EVERY_S = 20, 0.001
dsn, file = sys.argv[1:]
thread = sending(dsn, Path(file))
while True:
    print(thread.sent, flush=True)
    time.sleep(0.005)
"""


def send(dsn: str, file: Path, rows: int, keep_days: int | None = None, proxy: str = "p") -> None:
    thread = sending(dsn, file, proxy, keep_days)
    try:
        until(lambda: thread.sent >= rows, f"{rows} rows are sent: {thread.problem}")
    finally:
        thread.close()


@pytest.fixture
def dsn(own_dsn: str) -> str:
    return own_dsn


def test_killed_at_any_moment_each_row_is_there_once(postgres: Postgres, dsn: str, tmp_path: Path) -> None:
    rows, draw = 4_000, random.Random(7)
    file = fill(tmp_path, [row(number, BEGAN_S + number * 60) for number in range(rows)])
    for _ in range(6):
        sender = subprocess.Popen([sys.executable, "-c", SENDER, dsn, str(file)], stdout=subprocess.PIPE, text=True)
        assert sender.stdout is not None
        enough = draw.randrange(20, 400)
        for line in sender.stdout:
            if int(line) >= enough:
                break
        os.kill(sender.pid, signal.SIGKILL)
        sender.wait()
        sender.stdout.close()
    sent = int(postgres.sql("SELECT count(*) FROM turn", dsn)[0])
    assert 0 < sent < rows
    send(dsn, file, rows - sent)
    assert postgres.sql("SELECT count(*), count(DISTINCT id) FROM turn", dsn) == [f"{rows}|{rows}"]
    for table in ("usage_hour", "usage_session"):
        found = postgres.sql(f"SELECT sum(turns), sum(price_nanousd), sum(cold) FROM {table}", dsn)
        assert found == [f"{rows}|{rows * 300}|{rows * 36}"]


@pytest.mark.parametrize(("fault", "end"), FAULTS)
def test_while_the_server_is_away_rows_wait(own_postgres: Postgres, tmp_path: Path, fault: str, end: str) -> None:
    dsn = own_postgres.new_database()
    migrate(dsn)
    file = fill(tmp_path, [row(number) for number in range(2_000)])
    thread = sending(dsn, file)
    try:
        until(lambda: thread.sent == 2_000, "the first rows are sent")
        getattr(own_postgres, fault)()
        fill(tmp_path, [row(number) for number in range(2_000, 4_000)])
        if fault == "kill":
            until(lambda: thread.problem, "the thread sees that the server is away")
        getattr(own_postgres, end)()
        until(lambda: thread.sent == 4_000, "the others are sent")
        until(lambda: not thread.problem, "the thread sees that the server is back")
    finally:
        thread.close()
    assert own_postgres.sql("SELECT count(*), count(DISTINCT id) FROM turn", dsn) == ["4000|4000"]
    assert own_postgres.sql("SELECT sum(turns) FROM usage_hour", dsn) == ["4000"]
    assert own_postgres.sql("SELECT closed, unsent FROM spool", dsn) == ["t|0"]


def test_a_voided_row_is_taken_out_of_the_sums(postgres: Postgres, dsn: str, tmp_path: Path) -> None:
    send(dsn, fill(tmp_path, [row(1), row(2), voiding(row(1), BEGAN_S + 5)]), 3)
    assert postgres.sql("SELECT sum(turns), sum(price_nanousd), sum(cold) FROM usage_hour", dsn) == ["1|300|36"]
    assert void_id(row(1).id) in postgres.sql("SELECT id FROM turn", dsn)


def test_old_days_are_dropped_as_whole_tables(postgres: Postgres, dsn: str, tmp_path: Path) -> None:
    now = time.time()
    send(dsn, fill(tmp_path, [row(number, now - number * DAY_S) for number in range(5)]), 5, keep_days=2)
    assert postgres.sql("SELECT count(*) FROM turn", dsn) == ["3"]
    assert postgres.sql("SELECT sum(turns) FROM usage_hour", dsn) == ["5"]
    tables = postgres.sql("SELECT count(*) FROM pg_inherits WHERE inhparent = 'turn'::regclass", dsn)
    assert tables == ["3"]


@pytest.mark.parametrize("leap", ["41 days", "-41 days"])
def test_no_leap_of_the_server_s_clock_drops_a_day(postgres: Postgres, dsn: str, tmp_path: Path, leap: str) -> None:
    """Its `now()` gives way to one that has leapt: a schema before the server's in the search path."""
    clock = f"SELECT pg_catalog.now() + interval '{leap}'"
    postgres.sql("CREATE SCHEMA clock", dsn)
    postgres.sql(f"CREATE FUNCTION clock.now() RETURNS timestamptz LANGUAGE sql STABLE AS $${clock}$$", dsn)
    name = postgres.sql("SELECT current_database()", dsn)[0]
    postgres.sql(f"ALTER DATABASE {name} SET search_path = clock, public, pg_catalog", dsn)
    now = time.time()
    assert abs(float(postgres.sql("SELECT extract(epoch FROM now())", dsn)[0]) - now) > 40 * DAY_S
    send(dsn, fill(tmp_path, [row(number, now - number * DAY_S) for number in range(5)]), 5, keep_days=30)
    assert postgres.sql("SELECT count(*) FROM turn", dsn) == ["5"]


def test_rows_of_a_clock_that_jumps_are_kept(postgres: Postgres, dsn: str, tmp_path: Path) -> None:
    times = [BEGAN_S, BEGAN_S - 3600, BEGAN_S + 3600, 0.0, -5.0, 1e18]
    send(dsn, fill(tmp_path, [row(number, BEGAN_S) for number in range(1, 2)]), 1)
    entries = [msgspec.structs.replace(row(number + 9), settled_at=at) for number, at in enumerate(times)]
    other = tmp_path / "other"
    other.mkdir()
    send(dsn, fill(other, entries), len(times), proxy="q")
    assert postgres.sql("SELECT sum(turns) FROM usage_hour", dsn) == [str(len(times) + 1)]


def test_a_ledger_file_that_was_put_back_is_noticed(postgres: Postgres, dsn: str, tmp_path: Path) -> None:
    send(dsn, fill(tmp_path, [row(number) for number in range(10)]), 10)
    old = tmp_path / "old"
    old.mkdir()
    file = fill(old, [row(number) for number in (*range(4), *range(20, 30))])
    thread = sending(dsn, file)
    try:
        until(lambda: "older copy" in thread.problem, "it says so")
    finally:
        thread.close()
    send(dsn, file, 14, proxy="another-name")
    assert postgres.sql("SELECT count(*) FROM turn", dsn) == ["20"]
    assert postgres.sql("SELECT sum(turns) FROM usage_hour", dsn) == ["20"]


class Fleet:
    """One proxy with a database of its own."""

    def __init__(self, proxy: ProxyProcess, postgres: Postgres, dsn: str) -> None:
        self.proxy, self.postgres, self.dsn = proxy, postgres, dsn
        self.ids: list[str] = []

    def turns(self, number: int) -> None:
        with self.proxy.client() as client:
            for _ in range(number):
                answer = client.post("/v1/chat/completions", json=chat(max_tokens=4))
                assert answer.status_code == 200, answer.text
                self.ids.append(answer.json()["usage"]["warmroute"]["id"])

    def all_sent(self) -> bool:
        return sorted(self.postgres.sql("SELECT id FROM turn", self.dsn)) == sorted(self.ids)

    def ready(self) -> dict[str, object]:
        answer = httpx.get(f"{self.proxy.url}/ready", verify=PLAIN)
        assert answer.status_code == 200
        found: dict[str, object] = answer.json()
        return found


@pytest.fixture
def fleet(own_postgres: Postgres, tmp_path: Path) -> Iterator[Fleet]:
    dsn = own_postgres.new_database()
    migrate(dsn)
    with (
        EngineProcess(tmp_path, "east-a0", "aggregated") as engine,
        ProxyProcess(tmp_path / "p", [engine.toml("east")], limits=ledger_table(tmp_path, dsn)) as proxy,
    ):
        yield Fleet(proxy, own_postgres, dsn)


def test_requests_go_on_without_the_database_and_their_rows_come_later(fleet: Fleet) -> None:
    fleet.turns(3)
    until(fleet.all_sent, "the rows are sent")
    fleet.postgres.kill()
    fleet.turns(3)
    until(lambda: "degraded" in fleet.ready(), "the state is named")
    assert "postgres away" in str(fleet.ready()["degraded"])
    assert 'warmroute_store_up{store="postgres"} 0' in fleet.proxy.metrics()
    with fleet.proxy.admin() as admin:
        assert admin.get("/admin/usage?by=model").status_code == 503
    with fleet.proxy.client() as client:
        assert client.get(f"/v1/usage/receipts/{fleet.ids[-1]}").status_code == 200
    fleet.proxy.kill()
    fleet.proxy.start()
    fleet.turns(2)
    fleet.postgres.start()
    until(fleet.all_sent, "all rows are sent")
    until(lambda: "degraded" not in fleet.ready(), "it is ready")
    assert fleet.postgres.sql("SELECT sum(turns) FROM usage_hour", fleet.dsn) == [str(len(fleet.ids))]


@pytest.mark.real_deadlines("store_thread")
def test_a_frozen_database_delays_no_request(fleet: Fleet) -> None:
    fleet.turns(1)
    until(fleet.all_sent, "the row is sent")
    fleet.postgres.freeze()
    fleet.turns(3)
    with fleet.proxy.client() as client:
        answer = client.get("/v1/usage")
    assert answer.status_code == 503
    assert "cannot be read now" in answer.json()["error"]["message"]
    fleet.postgres.thaw()
    until(fleet.all_sent, "all rows are sent", 40.0)
