"""Passwords of the stores and keys of engines are replaced while clients ask: no request is lost, nothing restarts."""

import asyncio
import gc
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.proxy.reload_scene import receipt
from tests.machine import seconds
from tests.subjects.processes import EngineProcess, ProxyProcess, chat, until
from tests.subjects.stopped import Several, Stopped
from tests.subjects.stores import Postgres, Redis
from warmroute_proxy.server.base.secrets import new_api_key
from warmroute_proxy.server.redis.calls import RedisCalls
from warmroute_proxy.server.stores.migrate import migrate

from .test_shared_limits import keyed

WATCHED = "watch_config = true\nprocesses = 2"


def replace(file: Path, text: str) -> None:
    """As Kubernetes does: in one step."""
    draft = file.with_suffix(".new")
    draft.touch(0o600)
    draft.write_text(text + "\n")
    draft.replace(file)


def until_each(proxies: list[ProxyProcess], condition: Callable[[ProxyProcess], bool], what: str) -> None:
    until(lambda: all(condition(each) for each in proxies), what)


class Traffic:
    """Clients that ask all the time."""

    def __init__(self, proxy: ProxyProcess) -> None:
        self.answers: list[httpx.Response] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(proxy, number)) for number in range(3)]
        for thread in self._threads:
            thread.start()

    def _ask(self, proxy: ProxyProcess, number: int) -> None:
        while not self._over.is_set():
            with proxy.client() as client:  # another connection, so maybe another process of the proxy
                body = chat(f"client {number}", max_tokens=2)
                self.answers.append(client.post("/v1/chat/completions", json=body))

    def go_on(self, more: int = 20) -> None:
        wanted = len(self.answers) + more
        until(lambda: len(self.answers) >= wanted, f"{more} further answers")

    def end(self) -> set[int]:
        """The statuses of all."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        return {each.status_code for each in self.answers}


@pytest.fixture
def traffic() -> Iterator[Callable[[ProxyProcess], Traffic]]:
    made: list[Traffic] = []

    def begin(proxy: ProxyProcess) -> Traffic:
        made.append(Traffic(proxy))
        return made[0]

    yield begin
    for each in made:
        each.end()


class Guarded(Stopped):
    """A database whose user has a password, and a proxy that sends its rows there."""

    def __init__(self, folder: Path, postgres: Postgres, engine: EngineProcess, *, extra: str = WATCHED) -> None:
        self.postgres = postgres
        self.database = postgres.new_database()
        migrate(self.database)
        rules = postgres.data / "pg_hba.conf"
        rules.write_text("host all rotated 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
        self.sql("SELECT pg_reload_conf()")
        self.sql("CREATE ROLE rotated LOGIN SUPERUSER PASSWORD 'first'")
        self.file = folder / "dsn"
        replace(self.file, self.dsn("first"))
        table = f'[ledger]\ndsn_file = "{self.file}"'
        self.proxy = ProxyProcess(folder / "p", [engine.toml("east")], limits=table, extra=extra)

    def begin(self) -> None:
        self.proxy.begin()

    def stop(self) -> None:
        self.proxy.stop()

    def sql(self, statement: str) -> list[str]:
        return self.postgres.sql(statement, self.database)

    def dsn(self, password: str) -> str:
        return self.database.replace("warmroute@", f"rotated:{password}@")

    def connections(self) -> set[str]:
        return set(self.sql("SELECT pid FROM pg_stat_activity WHERE usename = 'rotated'"))

    def set_password(self) -> None:
        self.sql("ALTER ROLE rotated PASSWORD 'second'")

    def write(self) -> None:
        replace(self.file, self.dsn("second"))

    def end_connections(self) -> None:
        self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'rotated'")

    def rows(self) -> int:
        return int(self.sql("SELECT count(*) FROM turn")[0])

    def log(self) -> str:
        return self.proxy.written()


@pytest.fixture
def guarded(own_postgres: Postgres, engine: EngineProcess, tmp_path: Path) -> Iterator[Guarded]:
    with Guarded(tmp_path, own_postgres, engine) as made:
        yield made


@pytest.mark.parametrize("first", ["the file", pytest.param("the database", marks=pytest.mark.nightly)])
def test_a_new_password_of_the_database_is_used_whichever_side_has_it_first(
    guarded: Guarded, traffic: Callable[[ProxyProcess], Traffic], first: str
) -> None:
    clients = traffic(guarded.proxy)
    clients.go_on()
    until(guarded.rows, "rows are sent")
    before = guarded.connections()
    if first == "the file":
        guarded.write()
        until(lambda: "password authentication failed" in guarded.log(), "the new password is tried")
        assert guarded.connections() & before
        sent = guarded.rows()
        until(lambda: guarded.rows() > sent, "rows go on by the connection that there is")
        guarded.set_password()
    else:
        guarded.set_password()
        guarded.write()
    until(lambda: len(guarded.connections() - before) >= 2 and not guarded.connections() & before, "all are new")
    guarded.end_connections()
    clients.go_on()
    assert clients.end() == {200}
    until(lambda: guarded.rows() == len(clients.answers), "each answer has one row")
    until(lambda: 'warmroute_store_up{store="postgres"} 1' in guarded.proxy.metrics(), "it is up")
    assert not [word for word in (":first@", ":second@") if word in guarded.log()]


def test_an_address_that_cannot_be_read_leaves_the_one_before_in_use(guarded: Guarded) -> None:
    before = guarded.connections()
    replace(guarded.file, "postgresql://two words")
    until(lambda: guarded.log().count("the address of the database stays as it was") == 2, "both processes say so")
    assert guarded.connections() == before


def test_another_database_waits_for_a_restart_and_gets_no_row(
    guarded: Guarded, traffic: Callable[[ProxyProcess], Traffic]
) -> None:
    other = guarded.postgres.new_database()
    migrate(other)
    clients = traffic(guarded.proxy)
    until(guarded.rows, "rows are sent")
    replace(guarded.file, other)
    until(lambda: guarded.log().count("that of another database, which needs a restart") >= 8, "all connections say so")
    sent = guarded.rows()
    until(lambda: guarded.rows() > sent, "rows go on to the database that was there")
    guarded.end_connections()
    until(lambda: "rows cannot be sent to the database" in guarded.log(), "they wait where that is out of reach")
    clients.go_on()
    assert clients.end() == {200}
    assert guarded.postgres.sql("SELECT count(*) FROM turn UNION ALL SELECT count(*) FROM spool", other) == ["0", "0"]
    replace(guarded.file, guarded.dsn("first"))
    until(lambda: guarded.rows() == len(clients.answers), "each answer has one row")


@pytest.mark.parametrize("order", ["SIGHUP", pytest.param("reload", marks=pytest.mark.nightly)])
def test_an_order_to_reload_reads_the_address_again(
    own_postgres: Postgres, engine: EngineProcess, tmp_path: Path, order: str
) -> None:
    with Guarded(tmp_path, own_postgres, engine, extra="") as guarded:
        before = guarded.connections()
        guarded.set_password()
        guarded.write()
        if order == "SIGHUP":
            assert guarded.proxy.child is not None
            os.kill(guarded.proxy.child.pid, signal.SIGHUP)
        else:
            with guarded.proxy.admin() as admin:
                admin.post("/admin/reload").raise_for_status()
        until(lambda: guarded.connections() and not guarded.connections() & before, "all connections are new")


def test_a_new_password_of_redis_is_used(
    redis: Redis, engine: EngineProcess, tmp_path: Path, traffic: Callable[[ProxyProcess], Traffic]
) -> None:
    file = tmp_path / "redis.url"
    replace(file, redis.url)
    table = f'\n[redis]\nurl_file = "{file}"\ntimeout_s = 5'
    keys = (new_api_key()[0], new_api_key()[0])
    made = (ProxyProcess(tmp_path / n, [engine.toml("east")], second=table, extra=WATCHED, keys=keys) for n in "ab")
    with Several(made) as proxies:
        clients = traffic(proxies[0])
        assert keyed(proxies[0], "one").status_code == 200
        assert keyed(proxies[1], "one").status_code == 409
        replace(file, redis.url.replace("redis://", "redis://:second@"))
        until_each(proxies, lambda each: "does not answer at its new address" in each.written(), "it is tried")
        assert keyed(proxies[1], "one").status_code == 409  # by the old address
        redis.tell("CONFIG SET requirepass second")
        until_each(proxies, lambda each: each.written().count("used at its new address") == 2, "its processes moved")
        redis.tell("AUTH second", "CLIENT KILL TYPE normal SKIPME yes")
        assert keyed(proxies[0], "two").status_code == 200
        assert keyed(proxies[1], "two").status_code == 409
        assert clients.end() == {200}
        until_each(proxies, lambda each: 'warmroute_store_up{store="redis"} 1' in each.metrics(), "Redis is up")
        assert not any("second@" in each.written() for each in proxies)


async def test_addresses_of_redis_that_come_one_soon_after_another_leave_no_connection_open(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def until_logged(words: str, count: int = 1) -> None:
        async with asyncio.timeout(seconds(10)):
            while caplog.text.count(words) < count:
                await asyncio.sleep(0.01)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        calls = RedisCalls(redis.url, seconds(5.0))
        try:
            assert await calls.run("return 1", ()) == 1
            for number in (1, 2):  # the connections of the first are still to be closed when the second comes
                calls.move_to(f"{redis.url[:-1]}{number}")
                await until_logged("used at its new address", number)
                assert await calls.run("return 1", ()) == 1
            calls.move_to(f"{redis.url}?unknown=1")  # which the client finds out when it connects
            await until_logged("does not answer at its new address")
            calls.move_to(redis.url)
            await until_logged("used at its new address", 3)
            assert await calls.run("return 1", ()) == 1
        finally:
            await calls.close()
        await asyncio.sleep(0)
        del calls
        gc.collect()
    assert not [each for each in warned if "unclosed Connection" in str(each.message)]


def test_an_engine_that_wants_another_key_gets_it_and_no_request_is_lost(
    tmp_path: Path, traffic: Callable[[ProxyProcess], Traffic]
) -> None:
    engines = Several(EngineProcess(tmp_path, name, "aggregated", "--api-key", f"{name}-one") for name in ("e0", "e1"))
    files = [tmp_path / f"{engine.id}.key" for engine in engines]
    tables = []
    for engine, file in zip(engines, files, strict=True):
        replace(file, f"{engine.id}-one")
        tables.append(f'{engine.listening().toml("east")}\nkey_file = "{file}"')
    with engines, ProxyProcess(tmp_path / "p", tables, extra=WATCHED) as proxy:
        clients = traffic(proxy)
        clients.go_on()
        engines[1].stop()
        until(lambda: proxy.engine_states()["e1"] != "up", "its restart is noticed")
        port = str(httpx.URL(engines[1].url).port)
        engines[1] = EngineProcess(tmp_path, "e1", "aggregated", "--api-key", "e1-two", "--port", port).listening()
        until(lambda: "its key_file is missing or wrong" in proxy.written(), "it refuses the old key")
        clients.go_on()
        replace(files[1], "e1-two")
        until(lambda: proxy.engine_states()["e1"] == "up", "it takes the new one")
        before = len(clients.answers)
        until(lambda: "e1" in {receipt(each)["workers"][0]["id"] for each in clients.answers[before:]}, "it serves")
        assert clients.end() == {200}
        assert "e1-two" not in proxy.written()
