"""An operator of two proxies with one database: runs the command, asks their admin API, and looks who is let in."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.subjects.processes import PLAIN, ProxyProcess, until
from tests.subjects.stopped import Several, Stopped
from tests.subjects.stores import Postgres
from warmroute_cli.main import main
from warmroute_proxy.server.base.secrets import new_api_key
from warmroute_proxy.server.stores.migrate import migrate

ENGINE = '[[engine]]\nurl = "http://127.0.0.1:9"\nregion = "east"\n'


def ledger_table(folder: Path, dsn: str, more: str = "") -> str:
    """Tables of a config whose ledger is in a database; they follow [limits]."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "ledger.dsn"
    file.touch(0o600)
    file.write_text(dsn + "\n")
    return f'[ledger]\ndsn_file = "{file}"\n{more}'


class WithoutEngines(ProxyProcess):
    """A proxy whose engine is never there: none is asked."""

    def is_ready(self) -> bool:
        return True


class Done(NamedTuple):
    """What a command has done."""

    code: int
    output: str
    errors: str


class Operator(Stopped):
    """Who has the configs of two proxies."""

    def __init__(self, folder: Path, postgres: Postgres) -> None:
        self.postgres = postgres
        self.dsn = postgres.new_database()
        migrate(self.dsn)
        postgres.sql('ALTER TABLE tenant ALTER name TYPE text COLLATE "und-x-icu"', self.dsn)  # as many servers sort
        table, keys = ledger_table(folder, self.dsn), (new_api_key()[0], new_api_key()[0])
        self.proxies = Several(WithoutEngines(folder / name, [ENGINE], limits=table, keys=keys) for name in ("a", "b"))

    def begin(self) -> None:
        self.proxies.begin()

    def stop(self) -> None:
        self.proxies.stop()

    def run(self, *words: str) -> Done:
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            try:
                code = main([*words, "--config", str(self.proxies[0].config)])
            except SystemExit as ended:  # of argparse
                code = int(ended.code or 0)
        return Done(code, output.getvalue(), errors.getvalue())

    def does(self, *words: str) -> str:
        """The output of a command that succeeds."""
        done = self.run(*words)
        assert done.code == 0, done.errors
        return done.output

    def make(self, *words: str) -> tuple[str, str]:
        """The id and the key that a command shows."""
        output = self.does(*words)
        found = re.search(r"(k-[0-9a-f]{10}) .*\n  (wr-[0-9a-f]{32})", output)
        assert found is not None, output
        return found[1], found[2]

    def statuses(self, key: str) -> set[int]:
        headers = {"authorization": f"Bearer {key}"}
        return {
            httpx.get(f"{proxy.url}/v1/models", headers=headers, verify=PLAIN).status_code for proxy in self.proxies
        }

    def until_all(self, key: str, status: int) -> None:
        until(lambda: self.statuses(key) == {status}, f"{status} everywhere")

    def until_all_look(self) -> None:
        """Wait until each proxy has looked for changes in the database, from now on."""
        (now,) = self.postgres.sql("SELECT clock_timestamp()", self.dsn)
        looks = f"""
            SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle'
                AND query LIKE '%FROM directory_version' AND query_start > '{now}'
        """
        until(lambda: self.postgres.sql(looks, self.dsn) == [str(len(self.proxies))], "each proxy looks")

    def ask(self, method: str, path: str, body: Any = None, proxy: int = 0) -> tuple[int, Any]:
        """Status and answer of the admin API."""
        with self.proxies[proxy].admin() as admin:
            found = admin.request(method, path, json=body)
        return found.status_code, found.json()
