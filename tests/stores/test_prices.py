"""`warmroute prices`: books in the database, for running proxies, while it is there and away."""

import re
import shlex
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.machine import seconds
from tests.subjects.processes import ProxyProcess, chat, until
from tests.subjects.scripted import Handler, ScriptedEngine, whole
from tests.subjects.stopped import Stopped
from tests.subjects.stores import Postgres
from warmroute.contract import receipt
from warmroute_cli.main import main
from warmroute_proxy.server.base.config_file import load_config
from warmroute_proxy.server.stores.migrate import migrate

from .operating import ENGINE, WithoutEngines, ledger_table

USAGE: dict[str, Any] = {"prompt_tokens": 1000, "completion_tokens": 0, "total_tokens": 1000}
USAGE["prompt_tokens_details"] = {"cached_tokens": 0}
PAGE = (Path(__file__).parents[2] / "docs/reference/prices.md").read_text()
RATES = ("--input", "2", "--cached", "0.2", "--output", "8")
FLAT = 'input = "0.60"\ncached = "0.10"\noutput = "3.00"'
BOOKS = """
[[price]]
model = "kimi-k2.5"
name = "imported"
from = 2026-01-01T00:00:00Z
input = "4"
cached = "0.4"
cached_storage = "0.5"
cache_write_1h = "8"
output = "16"
source = "https://provider.example/prices"

[[price]]
model = "other"
name = "imported"
from = 2026-01-01T00:00:00Z
input = "1"
cached = "0.1"
output = "2"
"""


def prices(config: Path, *arguments: str) -> tuple[int, str, str]:
    """`warmroute prices`, in this process: its exit code, what it prints, and its errors."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        try:
            code = main(["prices", *arguments, "--config", str(config)])
        except SystemExit as wrong:  # the command line itself
            code = int(wrong.code or 0)
    return code, out.getvalue(), err.getvalue()


class Operator(Stopped):
    """Has the config of a proxy whose engine answers when it may."""

    def __init__(self, folder: Path, postgres: Postgres) -> None:
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.engine = ScriptedEngine("e0", self.answers)
        self.postgres = postgres
        self.dsn = postgres.new_database()
        migrate(self.dsn)
        self.proxy = ProxyProcess(folder / "p", [self.engine.toml()], limits=ledger_table(folder, self.dsn))
        self.proxy.start()

    def answers(self, handler: Handler) -> None:
        self.may_answer.wait(seconds(20))
        handler.reply(200, whole(USAGE))

    def add(self, name: str, *more: str) -> None:
        code, out, err = prices(self.proxy.config, "add", "kimi-k2.5", "--name", name, *RATES, *more)
        assert (code, out.startswith(f"added book {name} of kimi-k2.5, in effect from 20")) == (0, True), err

    def turn(self) -> dict[str, Any]:
        """The receipt of a turn."""
        with self.proxy.client() as client:
            usage = client.post("/v1/chat/completions", json=chat()).json()["usage"]
        assert receipt.check(usage) == []
        return dict(usage["warmroute"])

    def shown(self) -> str:
        """The book that clients are shown."""
        with self.proxy.client() as client:
            return str(client.get("/v1/models/kimi-k2.5").json()["price_book"])

    def until_shown(self, book: str) -> None:
        until(lambda: self.shown() == book, f"book {book}")

    def stop(self) -> None:
        self.may_answer.set()
        self.proxy.stop()
        self.engine.stop()


@pytest.fixture
def operator(own_postgres: Postgres, tmp_path: Path) -> Iterator[Operator]:
    with Operator(tmp_path, own_postgres) as made:
        yield made


def test_another_book_prices_turns_that_begin_after_it_and_no_other(operator: Operator) -> None:
    assert operator.turn()["price_book"] == "config"
    operator.may_answer.clear()
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(operator.turn)
        try:
            until(lambda: len(operator.engine.bodies) == 2, "a turn is under way")
            operator.add("autumn", "--source", "a contract")
            operator.until_shown("autumn")
        finally:
            operator.may_answer.set()
        assert (under_way.result()["price_book"], under_way.result()["price_nanousd"]) == ("config", 600_000)
    later = operator.turn()
    assert (later["price_book"], later["price_nanousd"]) == ("autumn", 2_000_000)
    records = "SELECT count(*) FROM turn"
    until(lambda: operator.postgres.sql(records, operator.dsn) == ["3"], "all rows are in the database")
    books = "SELECT record::json->9->>3 FROM turn ORDER BY settled_at"
    assert operator.postgres.sql(books, operator.dsn) == ["config", "config", "autumn"]


def test_while_the_database_is_away_the_books_that_were_read_are_in_effect(operator: Operator) -> None:
    operator.add("autumn")
    operator.until_shown("autumn")
    operator.postgres.kill()
    operator.proxy.kill()
    operator.proxy.start()
    assert operator.turn()["price_book"] == "autumn"
    operator.postgres.start()
    operator.add("winter", "--from", time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() + 1)))
    operator.until_shown("winter")


class Unpriced(WithoutEngines):
    """A proxy whose first model has no price in its config."""

    def _render(self, port: int) -> str:
        text = super()._render(port)
        assert FLAT in text
        return text.replace(FLAT, "")


def test_a_model_may_have_its_price_in_the_database_alone(own_dsn: str, tmp_path: Path) -> None:
    proxy = Unpriced(tmp_path / "p", [ENGINE], limits=ledger_table(tmp_path, own_dsn))
    config = proxy.write_config()
    command = [sys.executable, "-m", "warmroute_cli.main", "proxy", "--config", str(config)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=seconds(30), check=False)
    assert (refused.returncode, "model other" in refused.stderr) == (2, False)
    assert "model kimi-k2.5: has no price; write its prices at the [[model]]" in refused.stderr

    books = tmp_path / "books.toml"
    books.write_text(BOOKS.replace('"other"', '"others"'))
    code, _, err = prices(config, "import", str(books))
    assert (code, "price[1].model: others is the name of no [[model]]" in err) == (2, True)
    books.write_text(BOOKS)
    assert prices(config, "import", str(books))[0] == 0

    listed = prices(config, "list")[1]
    assert re.search(r"kimi-k2.5 +imported +2026-01-01T00:00:00Z +4 +0.4 +16 +yes", listed)
    assert re.search(r"other +config +always +1 +0.1 +1", listed)
    exported = prices(config, "list", "--toml", "--model", "kimi-k2.5")[1]
    given, found = tomllib.loads(BOOKS)["price"][0], tomllib.loads(exported)["price"]
    assert found == [{**given, "cached_host": "0.4", "cache_write_5m": "4"}]  # what was not given, by name

    with proxy, proxy.client() as client:
        card = client.get("/v1/models/kimi-k2.5").json()
    assert (card["price_book"], card["rates_usd_per_mtok"]["cached_storage"]) == ("imported", "0.5")


def test_a_book_is_never_changed(postgres: Postgres, own_dsn: str, tmp_path: Path) -> None:
    add = ("add", "other", "--name")
    code, _, err = prices(ProxyProcess(tmp_path / "p", [ENGINE]).write_config(), *add, "a", *RATES)
    assert (code, "names no database for further books: set dsn_file" in err) == (2, True)
    config = ProxyProcess(tmp_path / "p", [ENGINE], limits=ledger_table(tmp_path, own_dsn)).write_config()
    june = "2026-06-01T00:00:00Z"
    for name, from_, words in (
        ("a", june, ""),
        ("a", "2026-07-01T00:00:00Z", "model other has a book a; a book is never changed"),
        ("b", june, f"book b of model other must begin after {june}, as its book a does"),
        ("b", "2026-06-01", "'2026-06-01' is not a time like 2026-12-01T00:00:00Z"),
    ):
        code, _, err = prices(config, *add, name, "--from", from_, *RATES)
        assert (code, words in err) == (2 if words else 0, True), err
    _, _, err = prices(config, *add, "b", "--input", "1", "--cached", "2", "--output", "1")
    assert "price[0].cached: is above the input price" in err
    for statement in ("UPDATE price_book SET input = 0", "DELETE FROM price_book", "TRUNCATE price_book"):
        with pytest.raises(subprocess.CalledProcessError) as refused:
            postgres.sql(statement, own_dsn)
        assert "a price book is never changed" in refused.value.stderr
    assert postgres.sql("SELECT kind, action, subject, new->>'input' FROM audit", own_dsn) == ["price|add|other a|2"]


def test_the_page_of_prices_can_be_followed(own_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (shell,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    proxy = ProxyProcess(tmp_path, [ENGINE, example], limits=ledger_table(tmp_path, own_dsn))
    priced = load_config(proxy.write_config()).model_by_name["claude-sonnet-5"]
    assert [book.name for book in priced.books if book.rates.cache_rates is not None] == ["2026-01"]

    (tmp_path / "books.toml").write_text(BOOKS.partition("\n\n")[2])
    monkeypatch.chdir(tmp_path)
    commands = shell.replace("\\\n", " ").strip().splitlines()
    assert [main(shlex.split(command)[1:]) for command in commands] == [0, 0, 0]
    books = tomllib.loads(prices(proxy.config, "list", "--toml")[1])["price"]
    assert [f"{book['model']} {book['name']}" for book in books] == [
        "claude-sonnet-5 2026-01", "claude-sonnet-5 2027-01", "kimi-k2.5 config", "kimi-k2.5 2027",
        "other config", "other imported",
    ]  # fmt: skip
