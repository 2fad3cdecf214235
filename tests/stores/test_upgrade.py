"""A fleet is upgraded from an older commit while clients use it, backed up and restored, and cannot be put back."""

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
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

from .operating import ledger_table

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


def ran(command: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds(60), check=False, env=environment)


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

    def __init__(self, folder: Path, engine: EngineProcess, postgres: Postgres, program: tuple[str, ...]) -> None:
        self.postgres, self.dsn = postgres, postgres.new_database()
        keys = (new_api_key()[0], new_api_key()[0])
        limits = "shutdown_grace_s = 20\n" + ledger_table(folder, self.dsn)
        tables = [engine.toml("east")]
        self.proxies = [
            ProxyProcess(folder / name, tables, keys=keys, limits=limits, fresh=True) for name in ("one", "two")
        ]
        self.ids: list[tuple[str, int]] = []  # of receipts, with the price in billionths of a USD
        self.problems: list[str] = []
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(3)]
        self._program = program

    def sql(self, statement: str) -> list[str]:
        return self.postgres.sql(statement, self.dsn)

    def schema(self) -> str:
        return self.sql("SELECT version_num FROM alembic_version")[0]

    def migrate(self, program: tuple[str, ...]) -> None:
        migrated = self.run(program, "ledger", "migrate")
        assert migrated.returncode == 0, migrated.stderr

    def run(self, program: tuple[str, ...], *command: str) -> subprocess.CompletedProcess[str]:
        config = self.proxies[0].write_config() if not self.proxies[0].config.exists() else self.proxies[0].config
        return ran([sys.executable, *program, *command, "--config", str(config)])

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
        """From then on, each answer has one row, and the sums are those of the receipts."""
        self._end()
        assert not self.problems
        self.check_rows()

    def check_rows(self) -> None:
        for proxy in self.proxies:
            until(lambda proxy=proxy: "degraded" not in _ready(proxy), "its rows are sent")  # type: ignore[misc]
        expected = dict(self.ids)
        assert len(expected) == len(self.ids)
        until(lambda: set(expected) <= set(self.sql("SELECT id FROM turn")), "all rows are there")
        ids = self.sql("SELECT id FROM turn")
        assert len(ids) == len(set(ids))
        sums = "SELECT sum(turns), sum(price_nanousd) FROM usage_hour"
        assert self.sql(sums) == [f"{len(ids)}|{sum(expected.values())}"]

    def stop(self) -> None:
        self._end()
        for proxy in self.proxies:
            proxy.stop()

    def _end(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(seconds(60))

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
def fleet(engine: EngineProcess, older: tuple[str, ...], own_postgres: Postgres, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path, engine, own_postgres, older) as made:
        yield made


def _ready(proxy: ProxyProcess) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{proxy.url}/ready", verify=PLAIN).json()
    return found


@pytest.mark.nightly
def test_a_fleet_is_upgraded_without_a_lost_or_doubled_row_and_cannot_go_back(
    fleet: Fleet, older: tuple[str, ...]
) -> None:
    fleet.migrate(older)
    assert fleet.schema() == "0002"
    fleet.start()
    fleet.served(12)
    fleet.migrate(OUTSIDE)
    assert fleet.schema() == REVISIONS[-1]
    fleet.served(12)  # by the older version, whose rows wait
    for proxy in fleet.proxies:
        fleet.replace(proxy, OUTSIDE)
        fleet.served(12)
    fleet.end_traffic()
    refused = fleet.back(older)
    assert "schema version 6, this proxy needs 4" in refused.stderr  # by its ledger file
    refused = fleet.back(older, state_dir="empty")
    assert "which this proxy does not know" in refused.stderr  # by the database


def test_a_fleet_is_upgraded_and_rolled_back_on_a_schema_that_both_versions_read(
    fleet: Fleet, next_version: tuple[str, ...]
) -> None:
    fleet._program = OUTSIDE
    fleet.migrate(OUTSIDE)
    fleet.start()
    fleet.served(12)
    address = re.findall(r'dsn_file = "(.*)"', fleet.proxies[0].config.read_text())[0]
    (words,) = re.findall(r"args: \[(ledger, .*)\]", (CHART / "templates/migration.yaml").read_text())
    command = [address if word.startswith("/") else word for word in words.split(", ")]
    migrated = ran([sys.executable, *next_version, *command])
    assert (migrated.returncode, migrated.stdout) == (0, "the database has schema 9999\n"), migrated.stderr
    fleet.served(12)  # by this version, on the newer schema
    for version in (next_version, OUTSIDE):
        for proxy in fleet.proxies:
            fleet.replace(proxy, version)
            fleet.served(12)
            assert "degraded" not in _ready(proxy)
    fleet.end_traffic()
    assert fleet.schema() == "9999"


def test_a_backup_is_restored_and_newer_rows_are_sent_again(fleet: Fleet, tmp_path: Path) -> None:
    fleet._program = OUTSIDE
    fleet.migrate(OUTSIDE)
    fleet.start()
    fleet.served(12)
    postgres, address, dump = fleet.postgres, tmp_path / "ledger.dsn", fleet.postgres.folder / "ledger.dump"
    tool = [str(postgres.bin / "pg_dump"), "--format=custom", f"--file={dump}", fleet.dsn]
    dumped = ran(postgres.as_user(tool))
    assert dumped.returncode == 0, dumped.stderr
    fleet.served(12)
    fleet.end_traffic()
    before = sorted(fleet.sql("SELECT id FROM turn"))
    page = (ROOT / "docs/how-to/upgrade.md").read_text()
    (command,) = (block for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "ledger restore" in block)
    done = _restored(postgres, command.replace("ledger.dump", str(dump)).replace("ledger.dsn", str(address)))
    assert (done.returncode, done.stderr) == (0, f"the database is as {dump} has it\n")
    until(lambda: sorted(fleet.sql("SELECT id FROM turn")) == before, "newer rows are sent again", 60.0)
    fleet.check_rows()
    broken = tmp_path / "broken.dump"
    broken.write_bytes(dump.read_bytes()[:-200])
    done = _restored(postgres, f"warmroute ledger restore {broken} --dsn-file {address}")
    assert done.returncode == 2
    assert "nothing was restored" in done.stderr
    assert sorted(fleet.sql("SELECT id FROM turn")) == before


def _restored(postgres: Postgres, command: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{postgres.bin}:{os.environ['PATH']}"}
    return ran(["bash", "-c", command], given)
