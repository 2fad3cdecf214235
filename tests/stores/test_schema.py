"""Which databases a proxy starts with, and what it says of the others."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.machine import seconds
from tests.subjects.ports import free_port
from tests.subjects.processes import ProxyProcess
from tests.subjects.stores import Postgres
from warmroute.contract.receipt import LOSS_CLASSES
from warmroute_proxy.server.stores.database import REVISIONS
from warmroute_proxy.server.stores.migrate import migrate
from warmroute_proxy.server.stores.store_state import StoreError

from .operating import ENGINE, ledger_table


def run(folder: Path, dsn: str, *command: str) -> subprocess.CompletedProcess[str]:
    config = ProxyProcess(folder, [ENGINE], limits=ledger_table(folder, dsn)).write_config()
    full = [sys.executable, "-m", "warmroute_cli.main", *command, "--config", str(config)]
    return subprocess.run(full, capture_output=True, text=True, timeout=seconds(30), check=False)


def test_an_empty_database_is_refused_until_it_is_migrated(postgres: Postgres, tmp_path: Path) -> None:
    dsn = postgres.new_database()
    refused = run(tmp_path / "p", dsn, "proxy")
    assert refused.returncode == 2
    assert "warmroute ledger migrate" in refused.stderr
    for _ in range(2):  # the second time there is nothing to do
        migrated = run(tmp_path / "p", dsn, "ledger", "migrate")
        assert (migrated.returncode, migrated.stdout) == (0, f"the database has schema {REVISIONS[-1]}\n")


@pytest.mark.parametrize("version", ["9999", "0000"])
def test_a_schema_of_another_version_is_refused(postgres: Postgres, own_dsn: str, tmp_path: Path, version: str) -> None:
    newer(postgres, own_dsn, version, oldest_reader=version)
    refused = run(tmp_path / "p", own_dsn, "proxy")
    assert refused.returncode == 2
    assert "update the proxy" in refused.stderr


def test_a_newer_schema_is_not_migrated_back(postgres: Postgres, own_dsn: str, tmp_path: Path) -> None:
    newer(postgres, own_dsn, "9999", oldest_reader="9998")
    refused = run(tmp_path / "p", own_dsn, "ledger", "migrate")
    assert refused.returncode == 2
    assert "there is no way back; update warmroute, or restore the backup" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert postgres.sql("SELECT version_num FROM alembic_version", own_dsn) == ["9999"]


def test_a_newer_schema_that_this_version_reads_is_left_as_it_is(
    postgres: Postgres, own_dsn: str, tmp_path: Path
) -> None:
    newer(postgres, own_dsn, "9999", oldest_reader=REVISIONS[-1])
    assert migrate(own_dsn, expand_only=True) == "9999"
    address = tmp_path / "dsn"
    address.touch(0o600)
    address.write_text(own_dsn)
    full = [sys.executable, "-m", "warmroute_cli.main", "ledger", "migrate", "--dsn-file", str(address)]
    done = subprocess.run(full, capture_output=True, text=True, timeout=seconds(30), check=False)
    assert (done.returncode, done.stdout) == (0, "the database has schema 9999\n")


def test_a_migration_that_would_stop_running_proxies_is_only_done_when_asked_for(postgres: Postgres) -> None:
    dsn = postgres.new_database()
    assert migrate(dsn, expand_only=True) == REVISIONS[-1]  # there are no proxies of before
    postgres.sql("UPDATE alembic_version SET version_num = '0004'; DROP TABLE schema_readers", dsn)
    with pytest.raises(
        StoreError, match=f"schema {REVISIONS[-1]} would stop the proxies of schema 0004: first upgrade them"
    ):
        migrate(dsn, expand_only=True)
    assert postgres.sql("SELECT version_num FROM alembic_version", dsn) == ["0004"]
    assert migrate(dsn) == REVISIONS[-1]
    assert postgres.sql("SELECT oldest FROM schema_readers", dsn) == ["0005"]


def newer(postgres: Postgres, dsn: str, version: str, oldest_reader: str) -> None:
    """As a newer version would leave the database."""
    postgres.sql(f"UPDATE alembic_version SET version_num = '{version}'", dsn)
    postgres.sql(f"UPDATE schema_readers SET oldest = '{oldest_reader}'", dsn)


def test_a_migration_that_stops_half_way_leaves_nothing(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    dsn = postgres.new_database()
    postgres.sql("CREATE TABLE budget_lease (mine int)", dsn)  # the last table of the revision cannot be made
    with pytest.raises(RuntimeError, match="cannot be migrated"):
        migrate(dsn)
    assert postgres.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", dsn) == ["1"]
    postgres.sql("DROP TABLE budget_lease", dsn)
    migrate(dsn)
    assert postgres.sql("SELECT version_num FROM alembic_version", dsn) == [REVISIONS[-1]]


@pytest.mark.parametrize(
    ("dsn", "words"),
    [
        ("mysql://somewhere", "holds no address: one line like"),
        ("", "holds no address: one line like"),
        ("postgresql://user:pa55word#@127.0.0.1:{port}/x", "special characters of a password are written as %XX"),
        ("postgresql://user:pa55word@127.0.0.1:{free}/x", "nothing listens at its address"),
        ("postgresql://user:pa55word@127.0.0.1:{port}/nothing", 'user" does not exist'),
    ],
)
def test_a_wrong_address_is_said_without_its_password(postgres: Postgres, tmp_path: Path, dsn: str, words: str) -> None:
    found = run(tmp_path / "p", dsn.format(free=free_port(), port=postgres.port), "ledger", "migrate")
    assert found.returncode == 2
    assert words in found.stderr
    assert "pa55word" not in found.stderr + found.stdout


def test_the_sums_have_a_column_for_each_loss_class(postgres: Postgres, dsn: str) -> None:
    columns = postgres.sql("SELECT column_name FROM information_schema.columns WHERE table_name = 'usage_hour'", dsn)
    assert set(LOSS_CLASSES) <= set(columns)
