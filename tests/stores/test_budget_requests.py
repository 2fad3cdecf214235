"""Budgets as clients meet them: 429 with what is left, a warning before, and what holds while the store is away."""

import hashlib
import itertools
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.subjects.processes import EngineProcess, ProxyProcess, chat, until
from tests.subjects.stores import Postgres
from warmroute_proxy.server.base.config_file import ConfigError, load_config
from warmroute_proxy.server.base.secrets import config_key_id, new_api_key
from warmroute_proxy.server.ledger.schema import connect
from warmroute_proxy.server.stores.migrate import migrate
from warmroute_proxy.server.stores.sqlite_store import BUDGETS_FILE

from .operating import ENGINE, ledger_table

LIMIT_USD = "0.02"
LIMIT = 20_000_000
BUDGET = f'[[budget]]\nname = "of-first"\ntenants = ["first"]\nusd_per_day = "{LIMIT_USD}"\nusd_per_month = "5"\n'

Start = Callable[..., ProxyProcess]


@pytest.fixture(autouse=True)
def _not_at_midnight() -> None:
    """A day that ends between two requests begins a new budget."""
    left_s = 86_400 - time.time() % 86_400
    if left_s < 60:
        time.sleep(left_s)


@pytest.fixture
def start(engine: EngineProcess, tmp_path: Path) -> Iterator[Start]:
    """Starts proxies of one region: one more for each call."""
    keys, numbers = (new_api_key()[0], new_api_key()[0]), itertools.count()
    with ExitStack() as stack:

        def begin(tables: str = "", extra: str = "", *, of_key: bool = False) -> ProxyProcess:
            key_id = config_key_id(hashlib.sha256(keys[0].encode()).hexdigest())
            budget = BUDGET.replace('tenants = ["first"]', f'keys = ["{key_id}"]') if of_key else BUDGET
            folder, limits = tmp_path / f"p{next(numbers)}", f"{tables}\n{budget}"
            made = ProxyProcess(folder, [engine.toml("east")], keys=keys, limits=limits, extra=extra)
            return stack.enter_context(made)

        yield begin


def send(proxy: ProxyProcess, tenant: int = 0) -> httpx.Response:
    with proxy.client(tenant) as client:
        return client.post("/v1/chat/completions", json=chat(f"{time.time_ns()}", max_tokens=16))


def price(answer: httpx.Response) -> int:
    found: int = answer.json()["usage"]["warmroute"]["price_nanousd"]
    return found


def until_refused(*proxies: ProxyProcess) -> tuple[list[httpx.Response], httpx.Response]:
    """What was answered before each of the proxies has refused one, and the last refusal."""
    answered: list[httpx.Response] = []
    open_ = list(proxies)
    while open_:
        for proxy in list(open_):
            answer = send(proxy)
            if answer.status_code == 200:
                answered.append(answer)
            else:
                open_.remove(proxy)
        assert len(answered) < 500
    return answered, answer


def budgets(proxy: ProxyProcess) -> dict[str, Any]:
    with proxy.admin() as admin:
        return {found["period"]: found for found in admin.get("/admin/admission").json()["budgets"]}


def check_refusal(refusal: httpx.Response) -> None:
    assert refusal.status_code == 429
    error = refusal.json()["error"]
    assert error["code"] == "insufficient_quota"
    tomorrow = datetime.fromtimestamp(time.time() + 86_400, UTC).strftime("%Y-%m-%dT00:00:00Z")
    assert "the budget of-first of the day is used up" in error["message"]
    assert f"of {LIMIT_USD} USD are left, and it renews at {tomorrow}" in error["message"]
    assert 1 <= int(refusal.headers["retry-after"]) <= 3600


def test_without_a_database_a_budget_is_kept_in_a_file_and_survives_kill_9(start: Start) -> None:
    proxy = start()
    answered = [send(proxy) for _ in range(3)]
    assert [answer.status_code for answer in answered] == [200] * 3
    assert "x-warmroute-budget" not in answered[0].headers
    proxy.kill()
    proxy.start()
    more, refusal = until_refused(proxy)
    check_refusal(refusal)
    spent = sum(map(price, [*answered, *more]))
    assert 0.7 * LIMIT < spent <= LIMIT
    assert more[-1].headers["x-warmroute-budget"].startswith("of-first; day; ")
    assert send(proxy, tenant=1).status_code == 200
    page = proxy.metrics()
    assert 'warmroute_refused_total{reason="budget"} 1' in page
    assert 'warmroute_budget_refused_total{budget="of-first"} 1' in page
    assert budgets(proxy)["month"]["limit"] == 5_000_000_000


def test_several_processes_share_the_budget_of_a_key(start: Start) -> None:
    proxy = start(extra="processes = 2", of_key=True)
    answered, refusal = until_refused(proxy, proxy)
    check_refusal(refusal)
    assert sum(map(price, answered)) <= LIMIT
    assert send(proxy, tenant=1).status_code == 200


@pytest.mark.parametrize("store", ["file", "database"])
def test_a_process_that_dies_or_ends_leaves_no_lease_behind(
    store: str, start: Start, postgres: Postgres, own_dsn: str, tmp_path: Path
) -> None:
    proxy = start(ledger_table(tmp_path, own_dsn) if store == "database" else "", "processes = 2")

    def leased() -> int:
        if store == "database":
            return int(postgres.sql("SELECT coalesce(sum(leased_nanousd), 0) FROM budget", own_dsn)[0])
        with closing(connect(proxy.state_dir / BUDGETS_FILE, read_only=True)) as db:
            return int(db.execute("SELECT coalesce(sum(nanousd), 0) FROM lease").fetchone()[0])

    def listens() -> bool:
        with suppress(httpx.TransportError):
            return proxy.is_ready()
        return False

    assert send(proxy).status_code == 200
    assert leased() > 0
    for pid in proxy.line["processes"]:
        os.kill(pid, signal.SIGKILL)
    until(lambda: leased() == 0, "the leases are given back")
    until(listens, "a process listens again")
    assert send(proxy).status_code == 200
    assert leased() > 0
    proxy.stop()
    assert leased() == 0


def test_two_proxies_on_one_database_share_the_budget(
    start: Start, postgres: Postgres, own_dsn: str, tmp_path: Path
) -> None:
    table = ledger_table(tmp_path, own_dsn)
    answered, refusal = until_refused(start(table), start(table))
    check_refusal(refusal)
    spent = sum(map(price, answered))
    assert 0.6 * LIMIT < spent <= LIMIT
    sums = "SELECT sum(price_nanousd) FROM usage_hour"
    until(lambda: postgres.sql(sums, own_dsn) == [str(spent)], "all rows are sent")


def test_a_limit_that_is_lowered_holds_at_once_in_proxies_that_have_leased_more(
    start: Start, own_dsn: str, tmp_path: Path
) -> None:
    table = ledger_table(tmp_path, own_dsn)
    both = start(table), start(table)
    assert [send(proxy).status_code for proxy in both] == [200, 200]
    for usd, status in (("0.000001", 429), ("5", 200)):
        for proxy in both:
            lines = proxy.config.read_text()
            proxy.config.write_text(re.sub('usd_per_month = ".*"', f'usd_per_month = "{usd}"', lines))
            with proxy.admin() as admin:
                admin.post("/admin/reload").raise_for_status()
        assert [send(proxy).status_code for proxy in both] == [status, status]


def test_what_a_proxy_had_leased_of_a_budget_is_there_for_others_once_a_reload_has_removed_it(
    start: Start, postgres: Postgres, own_dsn: str, tmp_path: Path
) -> None:
    proxy = start(ledger_table(tmp_path, own_dsn))
    spent = str(price(send(proxy)))
    until(lambda: postgres.sql("SELECT sum(price_nanousd) FROM usage_hour", own_dsn) == [spent], "the row is sent")
    leased = "SELECT sum(nanousd) FROM budget_lease"
    assert int(postgres.sql(leased, own_dsn)[0]) > 0
    proxy.config.write_text(proxy.config.read_text().replace(BUDGET, ""))
    with proxy.admin() as admin:
        admin.post("/admin/reload").raise_for_status()
    assert budgets(proxy) == {}
    until(lambda: postgres.sql(leased, own_dsn) == ["0"], "the lease is given back")


@pytest.mark.real_deadlines("budgets")
def test_while_the_store_is_away_the_lease_in_hand_is_spent_and_no_more(
    start: Start, own_postgres: Postgres, tmp_path: Path
) -> None:
    dsn = own_postgres.new_database()
    migrate(dsn)
    proxy = start(ledger_table(tmp_path, dsn))
    first = send(proxy)
    assert first.status_code == 200
    own_postgres.freeze()
    lease = budgets(proxy)["day"]["lease"]
    answered, refusal = until_refused(proxy)
    assert sum(map(price, answered)) <= lease
    assert refusal.json()["error"]["code"] == "insufficient_quota"
    assert "cannot be asked" in refusal.json()["error"]["message"]
    assert budgets(proxy)["day"]["away"]
    own_postgres.thaw()
    until(lambda: send(proxy).status_code == 200, "it goes on once the store is back")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('[[budget]]\nname = "a"\ntenants = ["firts"]\nusd_per_day = "1"', 'did you mean "first"'),
        ('[[budget]]\nname = "a"\ntenants = ["first"]\nusd_per_day = "-1"', "is not an amount above 0 of USD"),
        ('[[budget]]\nname = "a"\ntenants = ["first"]\nusd_per_day = "1.0000000001"', "is not an amount"),
        ('[[budget]]\nname = "a"\ntenants = ["first"]', "usd_per_day: is missing"),
        ('[[budget]]\nname = "a"\nusd_per_day = "1"', "tenants: is missing"),
        ("[budget]\nx = 1", "written [[budget]]"),
        ("[ledger]\nkeep_days = 3", "there is no dsn_file"),
    ],
)
def test_a_wrong_budget_is_named(tmp_path: Path, table: str, words: str) -> None:
    config = ProxyProcess(tmp_path / "p", [ENGINE], limits=table).write_config()
    with pytest.raises(ConfigError, match=re.escape(words)):
        load_config(config)
