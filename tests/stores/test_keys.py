"""`warmroute keys`: made, rotated, expired and revoked in the database, for two proxies, while it is there and away."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.proxy.harness import PLAIN, ProxyProcess, until
from tests.machine import seconds
from tests.subjects.stores import Postgres
from warmroute_proxy.server.stores.api_keys import POLL_S
from warmroute_proxy.server.stores.migrate import migrate

from .conftest import ledger_table

ENGINE = '[[engine]]\nurl = "http://127.0.0.1:9"\nregion = "east"\n'


class WithoutEngines(ProxyProcess):
    """A proxy whose engine is never there: none is asked."""

    def is_ready(self) -> bool:
        return True


class Operator:
    """Who has the configs of two proxies."""

    def __init__(self, proxies: list[ProxyProcess], postgres: Postgres) -> None:
        self.proxies = proxies
        self.postgres = postgres

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        config = ["--config", str(self.proxies[0].config)]
        command = [sys.executable, "-m", "warmroute_cli.main", "keys", *arguments, *config]
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds(30), check=False)

    def make(self, *arguments: str) -> tuple[str, str]:
        """The id and the key that a command shows."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        found = re.search(r"(k-[0-9a-f]{10}) .*\n  (wr-[0-9a-f]{32})", done.stdout)
        assert found is not None, done.stdout
        return found[1], found[2]

    def statuses(self, key: str) -> set[int]:
        headers = {"authorization": f"Bearer {key}"}
        return {
            httpx.get(f"{proxy.url}/v1/models", headers=headers, verify=PLAIN).status_code for proxy in self.proxies
        }

    def until_all(self, key: str, status: int) -> None:
        until(lambda: self.statuses(key) == {status}, f"{status} everywhere")


@pytest.fixture
def operator(own_postgres: Postgres, tmp_path: Path) -> Iterator[Operator]:
    dsn = own_postgres.new_database()
    migrate(dsn)
    table = ledger_table(tmp_path, dsn)
    made: list[ProxyProcess] = []
    try:
        for name in ("a", "b"):
            proxy = WithoutEngines(tmp_path / name, [ENGINE], limits=table)
            made.append(proxy.start())
        yield Operator(made, own_postgres)
    finally:
        for started in made:
            started.stop()


def test_a_key_is_good_everywhere_until_it_is_revoked(operator: Operator) -> None:
    id_, key = operator.make("make", "first", "--note", "ci")
    operator.until_all(key, 200)
    assert operator.run("revoke", id_).returncode == 0
    operator.until_all(key, 401)
    again = operator.run("revoke", id_)
    assert (again.returncode, "no good key" in again.stderr) == (2, True)
    listed = operator.run("list").stdout
    assert re.search(rf"{id_} +first +revoked .* ci", listed)
    audit = operator.run("audit").stdout
    assert audit.index("revoke") < audit.index("make")
    assert key not in listed + audit
    assert POLL_S < 1  # and a question takes less than another second


def test_after_a_rotation_both_keys_are_good_for_a_time(operator: Operator) -> None:
    id_, key = operator.make("make", "first")
    operator.until_all(key, 200)
    _, second = operator.make("rotate", id_, "--overlap", "3s")
    operator.until_all(second, 200)
    operator.until_all(key, 401)
    assert operator.statuses(second) == {200}
    assert re.search(rf"{id_} +first +expired", operator.run("list").stdout)


def test_while_the_database_is_away_the_keys_that_were_read_are_good_also_over_a_restart(operator: Operator) -> None:
    _, key = operator.make("make", "second", "--lifetime", "90d")
    operator.until_all(key, 200)
    operator.postgres.kill()
    assert operator.statuses(key) == {200}
    for proxy in operator.proxies:
        proxy.kill()
        proxy.start()
    assert operator.statuses(key) == {200}
    assert operator.statuses("wr-" + "0" * 32) == {401}
    operator.postgres.start()
    id_, other = operator.make("make", "second")
    operator.until_all(other, 200)
    assert operator.run("revoke", id_).returncode == 0
    operator.until_all(other, 401)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("make", "nobody"), "nobody is no [[tenant]]"),
        (("rotate", "k-0"), "there is no good key k-0"),
        (("make", "first", "--lifetime", "soon"), "'soon' is not a time like 30m"),
    ],
)
def test_what_cannot_be_done_is_said(operator: Operator, arguments: tuple[str, ...], words: str) -> None:
    done = operator.run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
