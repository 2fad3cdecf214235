"""Faults of stores beside those of `test_sending` and `test_windows`: slow ones, other schemas, clocks that jump."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import asyncpg
import httpx
import pytest

from tests.machine import seconds
from tests.subjects.ports import free_port
from tests.subjects.processes import PLAIN, EngineProcess, ProxyProcess, chat, until
from tests.subjects.stores import Postgres, Redis
from warmroute_cli.processes import Child, stop_all
from warmroute_proxy.server.stores import migrate as migrations
from warmroute_proxy.server.stores.database import MIGRATION_LOCK, REVISIONS, Database
from warmroute_proxy.server.stores.migrate import migrate
from warmroute_proxy.server.stores.store_state import StoreAway, StoreState

from .operating import ENGINE, ledger_table

BUDGET = '[[budget]]\nname = "of-first"\ntenants = ["first"]\nusd_per_day = "1"\n'
HOUR_S = 3_600


class WithClock(ProxyProcess):
    """A proxy whose clock is wrong by the seconds in a file of its folder."""

    program = (
        "-c",
        """
import os, sys, time
from pathlib import Path
real, file = time.time, Path(sys.argv[3]).with_name("clock")
time.time = lambda: real() + float(file.read_text() or 0)
from warmroute_cli.main import main
sys.exit(main())
""",
    )

    def wrong_by(self, offset_s: float) -> None:
        (self.folder / "clock.new").write_text(str(offset_s))
        (self.folder / "clock.new").rename(self.folder / "clock")


def send(proxy: ProxyProcess, tenant: int = 0) -> httpx.Response:
    with proxy.client(tenant) as client:
        return client.post("/v1/chat/completions", json=chat(max_tokens=4))


def degraded(proxy: ProxyProcess) -> list[str]:
    answer = httpx.get(f"{proxy.url}/ready", verify=PLAIN)
    assert answer.status_code == 200
    found: list[str] = answer.json().get("degraded", [])
    return found


def rows(postgres: Postgres, dsn: str) -> int:
    return int(postgres.sql("SELECT count(*) FROM turn", dsn)[0])


MARKS = (("alembic_version", "version_num"), ("schema_readers", "oldest"))
"""By which a version says that it has migrated, and that older ones cannot go on."""


def test_a_schema_that_another_version_has_migrated_meanwhile_is_named(
    engine: EngineProcess, postgres: Postgres, own_dsn: str, tmp_path: Path
) -> None:
    with ProxyProcess(tmp_path / "p", [engine.toml("east")], limits=ledger_table(tmp_path, own_dsn)) as proxy:
        assert send(proxy).status_code == 200
        until(lambda: rows(postgres, own_dsn) == 1, "the row is sent")
        for table, column in MARKS:
            postgres.sql(f"UPDATE {table} SET {column} = '9999'", own_dsn)
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        postgres.sql(f"{ended} AND pid <> pg_backend_pid()", own_dsn)
        assert send(proxy).status_code == 200
        until(lambda: any("postgres new_schema" in problem for problem in degraded(proxy)), "the state is named")
        for table, column in MARKS:
            postgres.sql(f"UPDATE {table} SET {column} = '{REVISIONS[-1]}'", own_dsn)
        until(lambda: rows(postgres, own_dsn) == 2 and not degraded(proxy), "all rows are sent")


@pytest.mark.real_deadlines("budgets", "store_thread")
def test_a_slow_database_delays_no_request(
    engine: EngineProcess, postgres: Postgres, own_dsn: str, tmp_path: Path
) -> None:
    """A lease takes several answers of 0.5 s, which is more than its 2 s; a batch of rows has 30 s."""
    command = [sys.executable, "-m", "warmroute_lab.wan", "--delay-ms", "250", "--link", "db"]
    relay = Child("relay", command, tmp_path)
    try:
        url = relay.listening(time.monotonic() + seconds(20))["urls"]["db"]
        relay.send({"db": f"http://127.0.0.1:{postgres.port}"})
        slow = own_dsn.replace(f":{postgres.port}/", f":{url.rpartition(':')[2]}/")
        tables = f"{ledger_table(tmp_path, slow)}\n{BUDGET}"
        with ProxyProcess(tmp_path / "p", [engine.toml("east")], limits=tables) as proxy:
            assert send(proxy, tenant=1).status_code == 200
            refused = send(proxy)
            assert refused.status_code == 429
            assert "the budget of-first cannot be asked" in refused.json()["error"]["message"]
            until(lambda: rows(postgres, own_dsn) == 1, "the row is sent", 60.0)
    finally:
        stop_all([relay], seconds(5.0))


def test_a_clock_that_jumps_by_an_hour_loses_no_row_and_no_limit(
    engine: EngineProcess, postgres: Postgres, redis: Redis, own_dsn: str, tmp_path: Path
) -> None:
    url_file = tmp_path / "redis.url"
    url_file.touch(0o600)
    url_file.write_text(redis.url)
    tables = f'{ledger_table(tmp_path, own_dsn)}\n[redis]\nurl_file = "{url_file}"\n{BUDGET}'
    second = "requests_per_minute = 1000"
    proxy = WithClock(tmp_path / "p", [engine.toml("east")], limits=tables, second=second, fresh=True)
    proxy.wrong_by(0)
    ids: list[str] = []
    with proxy:
        for offset_s in (0, HOUR_S, 0, -HOUR_S, 0):
            proxy.wrong_by(offset_s)
            for tenant in (0, 1):
                answer = send(proxy, tenant)
                assert answer.status_code == 200, answer.text
                ids.append(answer.json()["usage"]["warmroute"]["id"])
        until(lambda: rows(postgres, own_dsn) == len(ids), "all rows are sent")
        with proxy.client() as client:
            for id_ in ids[::2]:
                assert client.get(f"/v1/usage/receipts/{id_}").status_code == 200
        until(lambda: not degraded(proxy), "it is ready")
    assert len(set(ids)) == len(ids)
    (sums,) = postgres.sql("SELECT sum(turns), count(DISTINCT hour) >= 3 FROM usage_hour", own_dsn)
    assert sums == f"{len(ids)}|t"
    (line,) = postgres.sql("SELECT sum(price_nanousd) FROM usage_hour WHERE tenant = 'first'", own_dsn)
    spent = sum(row["price_nanousd"] for row in proxy.rows() if row["tenant"] == "first")
    assert int(line) == spent


def test_a_migration_that_is_killed_half_way_leaves_nothing(postgres: Postgres, tmp_path: Path) -> None:
    """It waits in the middle, for a table of a name that another session has made and not committed."""
    dsn = postgres.new_database()
    config = ProxyProcess(tmp_path / "p", [ENGINE], limits=ledger_table(tmp_path, dsn)).write_config()
    command = [sys.executable, "-m", "warmroute_cli.main", "ledger", "migrate", "--config", str(config)]
    asyncio.run(_killed_half_way(postgres, dsn, command))
    assert postgres.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", dsn) == ["0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds(30), check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert postgres.sql("SELECT version_num FROM alembic_version", dsn) == [REVISIONS[-1]]


async def _killed_half_way(postgres: Postgres, dsn: str, command: list[str]) -> None:
    other = await asyncpg.connect(dsn)
    try:
        begun = other.transaction()
        await begun.start()
        await other.execute("CREATE TABLE audit (mine int)")
        quiet = subprocess.DEVNULL
        migrating = await asyncio.to_thread(lambda: subprocess.Popen(command, stdout=quiet, stderr=quiet))
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        await asyncio.to_thread(until, lambda: postgres.sql(waiting, dsn) == ["1"], "the migration waits")
        migrating.kill()
        migrating.wait()
        await begun.rollback()
    finally:
        await other.close()


async def test_a_migration_that_another_one_keeps_waiting_ends(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "LOCK_S", 1)
    dsn = postgres.new_database()
    other = await asyncpg.connect(dsn)
    try:
        await other.execute(f"SELECT pg_advisory_lock({MIGRATION_LOCK})")
        with pytest.raises(RuntimeError, match=r"the database cannot be migrated: .*lock timeout"):
            await asyncio.to_thread(migrate, dsn)
    finally:
        await other.close()


async def test_while_the_database_is_away_the_problem_is_said_in_the_same_words() -> None:
    """The log has a line for each change of the words."""
    database = Database(f"postgresql://user@127.0.0.1:{free_port()}/x")

    async def nothing(_connection: object) -> None:
        raise AssertionError

    for _ in range(5):
        with pytest.raises(StoreAway, match=r"^nothing listens at its address$"):
            await database.call(nothing, 5.0)
    assert (database.state, database.problem) == (StoreState.AWAY, "nothing listens at its address")


async def test_a_server_of_another_kind_than_the_address_asks_for_counts_as_away(dsn: str) -> None:
    """`target_session_attrs` says it, for two servers one of which follows the other."""
    database = Database(f"{dsn}{'&' if '?' in dsn else '?'}target_session_attrs=standby")

    async def nothing(_connection: object) -> None:
        raise AssertionError

    with pytest.raises(StoreAway, match="TargetServerAttributeNotMatched"):
        await database.call(nothing, 5.0)
    assert database.state is StoreState.AWAY


async def test_a_connection_that_the_server_has_ended_is_opened_anew(dsn: str) -> None:
    """A restart of the database, for example: the next question is answered, not refused."""
    database = Database(dsn)

    async def who(connection: asyncpg.Connection) -> int:
        found: int = await connection.fetchval("SELECT pg_backend_pid()")
        return found

    async def end(connection: asyncpg.Connection) -> None:
        await connection.execute("SELECT pg_terminate_backend($1, 10000)", before)

    other = Database(dsn)
    try:
        before = await database.call(who, seconds(5.0))
        await other.call(end, seconds(5.0))
        assert await database.call(who, seconds(5.0)) != before
    finally:
        await database.close()
        await other.close()
