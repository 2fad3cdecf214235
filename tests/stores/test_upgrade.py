"""A fleet is upgraded from an older commit while clients use it, backed up and restored, and cannot be put back."""

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.processes import PLAIN, EngineProcess, ProxyProcess, chat, until
from tests.subjects.stopped import Stopped
from tests.subjects.stores import Postgres
from warmroute_proxy.server.base.secrets import new_api_key
from warmroute_proxy.server.stores.database import REVISIONS

from .conftest import ledger_table

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/warmroute"
OLDER = "6fc6bae06e4d2f5688c8771f53bdbf48c0bcfd8c"
"""A commit whose database has schema 0002 and whose ledger files have version 4: both are migrated."""

RUN = """
import os, sys
paths = {paths!r}
sys.path[:0] = paths
os.environ["PYTHONPATH"] = ":".join(paths)
from warmroute_cli.main import main
sys.exit(main(sys.argv[1:]))
"""
EXPANDING = """
from alembic import op
revision, down_revision, oldest_reader = "9999", "{before}", "{before}"
def upgrade() -> None:
    op.execute("ALTER TABLE spool ADD COLUMN note text NOT NULL DEFAULT ''")
"""
OUTSIDE = ("-m", "warmroute_cli.main")


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """What Python runs for the older version's command."""
    folder = tmp_path_factory.mktemp("older")
    archive = folder / "older.tar"
    done = subprocess.run(
        ["git", "archive", f"--output={archive}", OLDER, "sdk", "proxy", "backend"],
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"this checkout has no history with {OLDER[:8]}: {done.stderr.strip()[:200]}")
    subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
    paths = [str(folder / part) for part in ("sdk", "proxy", "backend")]
    return ("-c", RUN.format(paths=paths))


@pytest.fixture(scope="module")
def next_version(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The same for a version that follows this one: its schema has a column that this version does not know."""
    folder = tmp_path_factory.mktemp("next")
    for part in ("sdk", "proxy", "backend", "lab"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    stores = folder / "proxy/warmroute_proxy/server/stores"
    (stores / "migrations/versions/r9999_note.py").write_text(EXPANDING.format(before=REVISIONS[-1]))
    module = stores / "database.py"
    module.write_text(module.read_text().replace(f'"{REVISIONS[-1]}")', f'"{REVISIONS[-1]}", "9999")', 1))
    return ("-c", RUN.format(paths=[str(folder / part) for part in ("sdk", "proxy", "backend", "lab")]))


class Fleet(Stopped):
    """Two proxies with one database, and clients that go on as clients do."""

    def __init__(self, folder: Path, engine: EngineProcess, dsn: str, program: tuple[str, ...]) -> None:
        keys = (new_api_key()[0], new_api_key()[0])
        limits = "shutdown_grace_s = 20\n" + ledger_table(folder, dsn)
        tables = [engine.toml("east")]
        self.proxies = [
            ProxyProcess(folder / name, tables, keys=keys, limits=limits, fresh=True) for name in ("one", "two")
        ]
        self.ids: list[tuple[str, int]] = []  # of receipts, with the price in billionths of a USD
        self.problems: list[str] = []
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(3)]
        self._program = program

    def migrate(self, program: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        return self.run(program, "ledger", "migrate")

    def run(self, program: tuple[str, ...], *command: str) -> subprocess.CompletedProcess[str]:
        config = self.proxies[0].write_config() if not self.proxies[0].config.exists() else self.proxies[0].config
        full = [sys.executable, *program, *command, "--config", str(config)]
        return subprocess.run(full, capture_output=True, text=True, timeout=seconds(60), check=False)

    def start(self) -> None:
        for proxy in self.proxies:
            proxy.program = self._program
            proxy.start()
        for thread in self._threads:
            thread.start()

    def replace(self, proxy: ProxyProcess, program: tuple[str, ...]) -> None:
        """End it as an operator does, and start another version on its port and folder."""
        port = httpx.URL(proxy.url).port
        assert port is not None
        assert proxy.child is not None
        proxy.stop()
        proxy.program = program
        proxy.start(port)

    def back(self, program: tuple[str, ...], state_dir: str = "") -> subprocess.CompletedProcess[str]:
        """Try to put an older version in the place of the first proxy, maybe with an empty folder of state."""
        proxy = self.proxies[0]
        proxy.stop()
        if state_dir:
            text = proxy.config.read_text().replace(str(proxy.state_dir), str(proxy.folder / state_dir))
            proxy.config.write_text(text)
        refused = self.run(program, "proxy")
        assert refused.returncode == 2
        return refused

    def served(self, more: int) -> None:
        """Wait until so many further turns are answered."""
        wanted = len(self.ids) + more
        until(lambda: len(self.ids) >= wanted or self.problems, f"{more} further turns", 60.0)
        assert not self.problems

    def end_traffic(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(seconds(60))

    def stop(self) -> None:
        self.end_traffic()
        for proxy in self.proxies:
            proxy.stop()

    def _ask(self, number: int) -> None:
        turn = 0
        while not self._done.is_set():
            turn += 1
            body = chat(f"client {number} turn {turn // 4}", turns=1 + turn % 4, max_tokens=4, stream=turn % 2 == 0)
            if body.get("stream"):
                body["stream_options"] = {"include_usage": True}
            try:
                self._one(body, self.proxies[(number + turn) % 2])
            except Exception as error:
                self.problems.append(f"{type(error).__name__}: {error}")

    def _one(self, body: dict[str, Any], proxy: ProxyProcess) -> None:
        """One turn, at the other proxy where this one is being replaced."""
        for each in (proxy, *[other for other in self.proxies if other is not proxy], proxy) * 20:
            headers = {"authorization": f"Bearer {each.keys[0]}"}
            try:
                url = f"{each.url}/v1/chat/completions"
                answer = httpx.post(url, json=body, headers=headers, timeout=seconds(30), verify=PLAIN)
            except httpx.TransportError:  # refused, or taken by a listener that then closed
                continue
            if answer.status_code == 503:
                continue
            assert answer.status_code == 200, answer.text
            assert '"error":' not in answer.text
            price = int(answer.text.partition('"price_nanousd":')[2].partition(",")[0])
            self.ids.append((answer.headers["x-warmroute-receipt"], price))
            return
        raise AssertionError("no proxy serves")


@pytest.fixture
def fleet(
    engine: EngineProcess, older: tuple[str, ...], own_postgres: Postgres, tmp_path: Path
) -> Iterator[tuple[Fleet, str]]:
    dsn = own_postgres.new_database()
    with Fleet(tmp_path, engine, dsn, older) as made:
        yield made, dsn


def check_rows(fleet: Fleet, postgres: Postgres, dsn: str) -> None:
    """Each answer has one row, and the sums are those of the receipts."""
    for proxy in fleet.proxies:
        until(lambda proxy=proxy: "degraded" not in _ready(proxy), "its rows are sent")  # type: ignore[misc]
    expected = dict(fleet.ids)
    assert len(expected) == len(fleet.ids)
    until(lambda: set(expected) <= set(postgres.sql("SELECT id FROM turn", dsn)), "all rows are there")
    ids = postgres.sql("SELECT id FROM turn", dsn)
    assert len(ids) == len(set(ids))
    sums = "SELECT sum(turns), sum(price_nanousd) FROM usage_hour"
    assert postgres.sql(sums, dsn) == [f"{len(ids)}|{sum(expected.values())}"]


def _ready(proxy: ProxyProcess) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{proxy.url}/ready", verify=PLAIN).json()
    return found


def test_a_fleet_is_upgraded_without_a_lost_or_doubled_row_and_cannot_go_back(
    fleet: tuple[Fleet, str], older: tuple[str, ...], own_postgres: Postgres
) -> None:
    made, dsn = fleet
    assert made.migrate(older).returncode == 0
    assert own_postgres.sql("SELECT version_num FROM alembic_version", dsn) == ["0002"]
    made.start()
    made.served(12)
    migrated = made.migrate(OUTSIDE)
    assert migrated.returncode == 0, migrated.stderr
    assert own_postgres.sql("SELECT version_num FROM alembic_version", dsn) == [REVISIONS[-1]]
    made.served(12)  # by the older version, whose rows wait
    for proxy in made.proxies:
        made.replace(proxy, OUTSIDE)
        made.served(12)
    made.end_traffic()
    assert not made.problems
    check_rows(made, own_postgres, dsn)
    refused = made.back(older)
    assert "schema version 5, this proxy needs 4" in refused.stderr  # by its ledger file
    refused = made.back(older, state_dir="empty")
    assert "which this proxy does not know" in refused.stderr  # by the database


def test_a_fleet_is_upgraded_and_rolled_back_on_a_schema_that_both_versions_read(
    fleet: tuple[Fleet, str], next_version: tuple[str, ...], own_postgres: Postgres
) -> None:
    made, dsn = fleet
    made._program = OUTSIDE
    assert made.migrate(OUTSIDE).returncode == 0
    made.start()
    made.served(12)
    address = re.findall(r'dsn_file = "(.*)"', made.proxies[0].config.read_text())[0]
    (words,) = re.findall(r"args: \[(ledger, .*)\]", (CHART / "templates/migration.yaml").read_text())
    command = [address if word.startswith("/") else word for word in words.split(", ")]
    migrated = subprocess.run(
        [sys.executable, *next_version, *command], capture_output=True, text=True, timeout=seconds(60), check=False
    )
    assert (migrated.returncode, migrated.stdout) == (0, "the database has schema 9999\n"), migrated.stderr
    made.served(12)  # by this version, on the newer schema
    for version in (next_version, OUTSIDE):
        for proxy in made.proxies:
            made.replace(proxy, version)
            made.served(12)
            assert "degraded" not in _ready(proxy)
    made.end_traffic()
    assert not made.problems
    check_rows(made, own_postgres, dsn)
    assert own_postgres.sql("SELECT version_num FROM alembic_version", dsn) == ["9999"]


def test_a_backup_is_restored_and_newer_rows_are_sent_again(
    fleet: tuple[Fleet, str], own_postgres: Postgres, tmp_path: Path
) -> None:
    made, dsn = fleet
    made._program = OUTSIDE
    assert made.migrate(OUTSIDE).returncode == 0
    made.start()
    made.served(12)
    dump = own_postgres.folder / "ledger.dump"
    _tool(own_postgres, "pg_dump", "--format=custom", f"--file={dump}", dsn)
    made.served(12)
    made.end_traffic()
    assert not made.problems
    check_rows(made, own_postgres, dsn)
    before = sorted(own_postgres.sql("SELECT id FROM turn", dsn))
    _restore(own_postgres, dsn, dump, tmp_path)
    until(lambda: sorted(own_postgres.sql("SELECT id FROM turn", dsn)) == before, "newer rows are sent again", 60.0)
    check_rows(made, own_postgres, dsn)
    broken = tmp_path / "broken.dump"
    broken.write_bytes(dump.read_bytes()[:-200])
    done = _run_restore(own_postgres, f"warmroute ledger restore {broken} --dsn-file {tmp_path / 'ledger.dsn'}")
    assert done.returncode == 2
    assert "nothing was restored" in done.stderr
    assert sorted(own_postgres.sql("SELECT id FROM turn", dsn)) == before


def _restore(postgres: Postgres, dsn: str, dump: Path, folder: Path) -> None:
    """What the how-to says."""
    page = (ROOT / "docs/how-to/upgrade.md").read_text()
    (command,) = (block for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "ledger restore" in block)
    address = folder / "ledger.dsn"
    address.touch(0o600)
    address.write_text(dsn)
    command = command.replace("ledger.dump", str(dump)).replace("ledger.dsn", str(address))
    done = _run_restore(postgres, command)
    assert (done.returncode, done.stderr) == (0, f"the database is as {dump} has it\n")


def _run_restore(postgres: Postgres, command: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{postgres.bin}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=seconds(60), check=False, env=given
    )


def _tool(postgres: Postgres, name: str, *arguments: str) -> None:
    command = postgres.as_user([str(postgres.bin / name), *arguments])
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds(60), check=False)
    assert done.returncode == 0, done.stderr
