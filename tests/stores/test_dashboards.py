"""Each query of the dashboards has an answer from the real Prometheus over a live fleet, and money is the ledger's."""

import itertools
import json
import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.subjects.otlp_receiver import OtlpReceiver
from tests.subjects.processes import EngineProcess, ProxyProcess, chat, until
from tests.subjects.prometheus import ROOT, Prometheus
from tests.subjects.stopped import Stopped
from tests.subjects.stores import Postgres, Redis

from .operating import ledger_table

DASHBOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))
BUDGET = """
requests_at_once = 1
tokens_per_minute = 100000
[[budget]]
name = "trial"
tenants = ["second"]
usd_per_day = "50"
requests_per_minute = 500
"""


def panels() -> list[tuple[str, str]]:
    """Title and expression of each query."""
    found = []
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            found += [(f"{path.stem}: {panel['title']}", target["expr"]) for target in panel.get("targets", ())]
    return found


def filled(expr: str) -> str:
    """The query with Grafana's variables replaced, as Grafana does."""
    return expr.replace("$__rate_interval", "1m").replace("$__range", "10m").replace("$job", ".*")


class Fleet(Stopped):
    """A proxy with a database, a Redis and a collector, and a Prometheus that reads it."""

    def __init__(self, folder: Path, engine: EngineProcess, dsn: str, redis: Redis) -> None:
        self.collector = OtlpReceiver()
        url_file = folder / "redis.url"
        url_file.touch(0o600)
        url_file.write_text(redis.url)
        tables = f'[tracing]\nendpoint = "{self.collector.url}"\nratio = 1\n[redis]\nurl_file = "{url_file}"\n'
        limits = "queue_timeout_s = 600\n" + ledger_table(folder, dsn, tables)
        self.proxy = ProxyProcess(folder / "p", [engine.toml("east")], limits=limits, second=BUDGET).start()
        address = str(self.proxy.line["admin_url"]).removeprefix("http://")
        self.prometheus = Prometheus(folder / "prometheus", {address: self.proxy.admin_key})
        self._over = threading.Event()
        self._going_on = threading.Thread(target=self._go_on)

    def ask(self, number: int, tenant: int = 0) -> httpx.Response:
        """A turn of a conversation."""
        body = chat(f"session {number % 3}", turns=1 + number // 3, max_tokens=8, stream=number % 2 == 0)
        with self.proxy.client(tenant) as client:
            return client.post("/v1/chat/completions", json=body)

    def traffic(self) -> None:
        """Turns that hit and miss, wait for a limit, and are refused."""
        for number in range(9):
            assert self.ask(number).status_code == 200
        with ThreadPoolExecutor(4) as pool:
            assert {each.status_code for each in pool.map(lambda n: self.ask(n, 1), range(6))} == {200}
        with self.proxy.client(1) as client:
            refused = client.post("/v1/chat/completions", json=chat("word " * 150_000))
        assert refused.status_code == 429

    def go_on(self) -> None:
        """Have turns come from now on: rates are those of the last minute, and some rows stand only so long."""
        self._going_on.start()

    def rest(self) -> None:
        """No more turns."""
        self._over.set()
        if self._going_on.is_alive():
            self._going_on.join()

    def _go_on(self) -> None:
        for number in itertools.count():
            for tenant in range(2):
                self.ask(number % 9, tenant)
            if self._over.wait(0.2):
                return

    def stop(self) -> None:
        self.rest()
        self.prometheus.stop()
        self.proxy.stop()
        self.collector.stop()


@pytest.fixture(scope="module")
def fleet(engine: EngineProcess, dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Redis() as redis, Fleet(tmp_path_factory.mktemp("fleet"), engine, dsn, redis) as made:
        made.prometheus.ready()
        until(lambda: made.prometheus.query("sum(warmroute_turns_live)"), "the proxy is scraped")
        made.traffic()
        until(lambda: made.prometheus.query("sum(warmroute_refused_total)"), "the refusal is scraped")
        made.go_on()
        yield made


@pytest.mark.parametrize(("title", "expr"), panels(), ids=[f"{title} {n}" for n, (title, _) in enumerate(panels())])
def test_each_query_has_an_answer(fleet: Fleet, title: str, expr: str) -> None:
    def answered() -> bool:
        return any(math.isfinite(value) for _, value in fleet.prometheus.query(filled(expr)))

    until(answered, f"{title}: {filled(expr)}", 10.0)


def test_panels_of_money_are_the_ledgers_sums(fleet: Fleet, postgres: Postgres, dsn: str) -> None:
    fleet.rest()
    exprs = {title.partition(": ")[2]: filled(expr) for title, expr in panels()}
    query = fleet.prometheus.query

    def settled() -> float:
        page = fleet.proxy.metrics()
        return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith("warmroute_turns_total{"))

    until(lambda: float(postgres.sql("SELECT count(*) FROM turn", dsn)[0]) == settled(), "all rows are in the database")
    sums = "SELECT sum(list_nanousd), sum(price_nanousd), sum(cached_tokens), sum(prompt_tokens) FROM usage_hour"
    listed, price, cached, prompt = map(int, postgres.sql(sums, dsn)[0].split("|"))
    expected = {
        "Paid since the start": price / 1e9,
        "Saved since the start": (listed - price) / 1e9,
        "List price since the start": listed / 1e9,
        "Hit ratio since the start": cached / prompt,
    }
    until(lambda: query("sum(warmroute_price_nanousd_total)")[0][1] == price, "the last turn is scraped")
    for title, value in expected.items():
        assert [shown for _, shown in query(exprs[title])] == [pytest.approx(value, rel=1e-12)], title
    assert sum(value for _, value in query(exprs["Losses since the start, by class"])) == prompt - cached


def test_prometheus_keeps_the_exemplars_of_traces(fleet: Fleet) -> None:
    def traced() -> set[str]:
        now = time.time()
        found = fleet.prometheus.exemplars("warmroute_ttft_seconds_bucket", now - 600, now + 60)
        return {each["labels"]["trace_id"] for each in found} & {span.trace for span in fleet.collector.spans}

    until(traced, "an exemplar names a trace that the collector has")
