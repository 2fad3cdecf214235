"""`warmroute ledger reconcile`, with rows in a file and in a database, on an engine of its own and on a shared one."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.processes import PLAIN, EngineProcess, ProxyProcess, chat, until
from tests.subjects.stopped import Several, Stopped
from warmroute_proxy.core.accounting.engine_counts import EngineCounts
from warmroute_proxy.server.engines.engine_metrics import add_counts, counts_of
from warmroute_proxy.server.ledger.counter_file import read_spans

from .operating import ledger_table

TURNS = 3


def reconcile(config: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """Its status and what it found."""
    command = [sys.executable, "-m", "warmroute_cli.main", "ledger", "reconcile", "--config", str(config), *more]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=seconds(30), check=False)
    assert done.returncode in {0, 1}, done.stderr
    return done.returncode, json.loads(done.stdout)


class Pair(Stopped):
    """A proxy with the one engine that it uses."""

    def __init__(self, folder: Path, tables: str = "") -> None:
        folder.mkdir()
        self.engine = EngineProcess(folder, folder.name, "aggregated").listening()
        self.proxy = ProxyProcess(folder / "p", [self.engine.toml("east")], limits=tables).start()

    def counted(self) -> int:
        """How many requests of the engine the proxy has read of."""
        return sum(span.counts.requests for span in read_spans(self.proxy.state_dir, 0))

    def turns(self) -> None:
        until(lambda: read_spans(self.proxy.state_dir, 0), "the counters are read once")
        with self.proxy.client() as client:
            for number in range(TURNS):
                answer = client.post("/v1/chat/completions", json=chat(turns=number + 1, max_tokens=5))
                assert answer.status_code == 200

    def stop(self) -> None:
        self.proxy.stop()
        self.engine.stop()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory, dsn: str) -> Iterator[tuple[Pair, Pair]]:
    """One with a ledger file, one with a database, whose engine another client uses, too; all is read and sent."""
    folder = tmp_path_factory.mktemp("reconcile")
    with Several([Pair(folder / "file"), Pair(folder / "database", ledger_table(folder, dsn))]) as made:
        for pair in made:
            pair.turns()
        url = f"{made[1].engine.url}/v1/chat/completions"
        httpx.post(url, json=chat("mine " * 4_000), verify=PLAIN).raise_for_status()
        until(lambda: [pair.counted() for pair in made] == [TURNS, TURNS + 1], "all is read")
        yield made[0], made[1]


def total(found: dict[str, Any], kind: str, of: str) -> int:
    """A number over all lines: there are two where an hour ended meanwhile."""
    return sum(line["tokens"][kind][of] for line in found["lines"])


def turns(found: dict[str, Any]) -> int:
    return sum(line["turns"]["all"] for line in found["lines"])


def test_receipts_are_what_the_engine_counted(pairs: tuple[Pair, Pair]) -> None:
    status, found = reconcile(pairs[0].proxy.config, "--tolerance", "0%")
    assert (status, turns(found), found["notes"]) == (0, TURNS, [])
    assert total(found, "cached_tokens", "engine") > 0
    for kind in ("prompt_tokens", "cached_tokens", "completion_tokens"):
        assert total(found, kind, "engine") == total(found, kind, "receipts")


def test_what_another_client_sent_is_a_difference_that_is_explained(pairs: tuple[Pair, Pair]) -> None:
    config = pairs[1].proxy.config
    until(lambda: turns(reconcile(config)[1]) == TURNS, "the rows are sent")
    status, found = reconcile(config)
    assert status == 1
    assert total(found, "prompt_tokens", "unexplained") > 0
    assert any("1 request of others, or attempts that were given up" in line["why"] for line in found["lines"])
    assert reconcile(config, "--tolerance", "100%")[0] == 0


def test_engines_without_counters_are_named(pairs: tuple[Pair, Pair], tmp_path: Path) -> None:
    config = tmp_path / "more.toml"
    more = '[[engine]]\nid = "quiet"\nurl = "http://127.0.0.1:9"\nregion = "east"\n'
    config.write_text(f"{pairs[0].proxy.config.read_text()}\n{more}")
    (note,) = reconcile(config)[1]["notes"]
    assert note.startswith("engine quiet has no counters (start it with --enable-metrics)")


def test_names_of_sglang_are_read_as_it_writes_them() -> None:
    text = """
sglang:prompt_tokens_total{model_name="m"} 100.0
sglang:generation_tokens_total{model_name="m"} 2.5e+01
sglang:cached_tokens_total{cache_source="device",model_name="m"} 40.0
sglang:cached_tokens_total{cache_source="storage",model_name="m"} 8.0
sglang:num_requests_total{model_name="m"} 3.0
"""
    sums: dict[str, float] = {}
    add_counts(sums, "sglang:num_running_reqs 1.0")
    assert counts_of(sums) is None
    add_counts(sums, text)
    assert counts_of(sums) == EngineCounts(3, 100, 48, 25)
