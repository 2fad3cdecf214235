"""The ledger file of a proxy with a database stays small, and what it no longer has is answered by the database."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.processes import PLAIN, ProxyProcess, chat, until
from tests.subjects.scripted import ScriptedEngine, whole
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.regions.forward_claim import SHA256_OF_NOTHING, Forwards

from .operating import ledger_table

USAGE = {"prompt_tokens": 500, "completion_tokens": 3, "total_tokens": 503, "padding": "x" * 30_000}
"""Engines may report more than is settled: rows of 30 KB fill a file quickly."""


NOBODY = "http://127.0.0.1:1"
"""Another proxy of the region, which does not run."""


@pytest.fixture
def proxy(own_dsn: str, tmp_path: Path) -> Iterator[ProxyProcess]:
    limits = ledger_table(tmp_path, own_dsn, "ledger_file_bytes = 1048576\n")
    with (
        ScriptedEngine("e0", lambda handler: handler.reply(200, whole(USAGE))) as engine,
        ProxyProcess(tmp_path, [engine.toml()], limits=limits, extra=f'other_proxies = ["{NOBODY}"]') as started,
    ):
        yield started


def test_old_turns_leave_the_file_and_their_receipts_do_not(proxy: ProxyProcess) -> None:
    ids = []
    with proxy.client() as client:
        for number in range(120):
            answer = client.post("/v1/chat/completions", json=chat(f"turn {number}"))
            assert answer.status_code == 200
            ids.append(answer.json()["usage"]["warmroute"]["id"])
        until(lambda: ids[0] not in {row["id"] for row in proxy.rows()}, "the first row has left the file")
        proxy.row(ids[-1])
        receipts = [client.get(f"/v1/usage/receipts/{each}") for each in (ids[0], ids[-1])]
        usage = client.get("/v1/usage?by=model").json()
    assert [receipt.status_code for receipt in receipts] == [200, 200]
    assert json.loads(receipts[0].text)["id"] == ids[0]
    assert (usage["turns"], usage["complete"]) == (120, True)
    done = void(proxy, ids[0])
    assert (done.status_code, done.json()) == (200, {"state": "voided"})
    assert void(proxy, f"{ids[0][:-4]}0000").status_code == 503, "the other proxy may have it"
    assert proxy.row(f"{ids[0]}-void")["price_nanousd"] < 0
    assert 0 < proxy.metric("warmroute_ledger_file_bytes ") < 40 * 2**20
    assert 0 < proxy.metric("warmroute_state_volume_free_bytes ") < proxy.metric("warmroute_state_volume_bytes ")
    assert proxy.is_ready()


def void(proxy: ProxyProcess, receipt: str) -> httpx.Response:
    """The answer to another region's order to void a row."""
    path = f"/v1/usage/receipts/{receipt}/void"
    token = Forwards(Secrets((proxy.folder / "../secret").read_bytes()), "west", time.time, token_hex).sign(
        "first", "first", path, "east", SHA256_OF_NOTHING, 10.0
    )
    return httpx.post(f"{proxy.url}{path}", headers={"x-warmroute-forward": token}, verify=PLAIN, timeout=seconds(10))
