"""`Idempotency-Key` over real sockets: one turn, one row, one receipt, however often the client asks."""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import warmroute
from tests.hostile import cut_link
from tests.hostile.cut_link import Cut, CutLink
from tests.machine import configured
from tests.subjects.processes import ProxyProcess, chat, until
from warmroute.contract import receipt as contract_receipt

from .test_faults import Mortal, Stream

pytestmark = pytest.mark.full

PAIR = {"p0": "prefill", "d0": "decode"}
FAR_S = 600.0
"""How long a turn goes on without a client, where a test is not about that."""


def long(text: str, tokens: int = 150, **fields: Any) -> dict[str, Any]:
    """A streamed turn that takes a second or two."""
    return chat(text, metadata={"script": json.dumps({"output_tokens": tokens})}, **{"stream": True, **fields})


class Keyed(Mortal):
    def __init__(self, folder: Path, roles: dict[str, str], *, limits: str = "", outlive_s: float = FAR_S) -> None:
        super().__init__(folder, roles, limits=f"keyed_outlive_s = {outlive_s}\n{limits}")

    def turns_live(self) -> float:
        """Turns that have not ended, as the proxy counts them."""
        return self.proxy.metric("warmroute_turns_live ")

    def finished(self) -> int:
        return sum(len(engine.log()["finished"]) for engine in self.engines.values())


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    with Keyed(tmp_path_factory.mktemp("keyed"), PAIR) as found:
        yield found


class Asker(Stream):
    """One request with a key."""

    def __init__(
        self, proxy: ProxyProcess, key: str, body: dict[str, Any], *, more: Mapping[str, str] = {}, **of_stream: Any
    ) -> None:
        super().__init__(proxy, body, headers={"idempotency-key": key, **more}, **of_stream)


def rows_of(proxy: ProxyProcess, receipt: str) -> list[dict[str, Any]]:
    """The settled rows of a receipt, once there is one."""
    found: list[dict[str, Any]] = until(
        lambda: [row for row in proxy.rows() if row["id"] == receipt and row["state"] == "settled"], "its row"
    )
    return found


def test_a_retry_while_the_answer_comes_reads_it_from_its_first_byte(fleet: Keyed) -> None:
    before, worked = fleet.proxy.turns(), fleet.finished()
    first = Asker(fleet.proxy, "mid-stream", long("mid-stream", 300)).begun()
    second = Asker(fleet.proxy, "mid-stream", long("mid-stream", 300)).begun()
    first.done()
    second.done()
    assert first.completed
    assert fleet.finished() == worked + 2, "prefill and decode, once each"
    assert second.text == first.text
    assert second.receipt == first.receipt
    row = rows_of(fleet.proxy, first.receipt)[0]
    assert row["outcome"] == "completed"
    assert contract_receipt.check(json.loads(row["usage"])) == []
    assert fleet.proxy.turns() == before + 1


class Cutter(CutLink):
    """Breaks the connections of the first two requests at the first byte of their answers."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        super().__init__((parts.hostname or "", parts.port or 0))
        self.requests = 0

    def taken(self) -> Cut | None:
        self.requests += 1
        return Cut("answer", 0) if self.requests <= 2 else None


def test_the_sdk_retries_a_stream_that_is_lost_on_its_way_and_pays_once(
    fleet: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut_link, "DRAIN_S", 0.0)
    before, worked = fleet.proxy.turns(), fleet.finished()
    with (
        contextlib.closing(Cutter(fleet.proxy.url)) as cutter,
        warmroute.OpenAI(base_url=f"{cutter.url}/v1", api_key=fleet.proxy.keys[0], max_retries=3) as client,
    ):
        stream = client.chat.completions.create(**long("lost", 60))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        report = client.cache.report()
    receipt = warmroute.receipt_of(stream)
    assert cutter.requests == 3
    assert receipt is not None
    assert rows_of(fleet.proxy, receipt["id"])[0]["outcome"] == "completed"
    assert (fleet.proxy.turns(), fleet.finished()) == (before + 1, worked + len(PAIR))
    assert (report.turns, report.receipts, report.receipts_pending, report.violations) == (1, 1, 0, ())


def test_nobody_comes_back_and_the_engines_stop(tmp_path: Path) -> None:
    outlive_s = configured(3)
    with Keyed(tmp_path, PAIR, outlive_s=outlive_s) as fleet:
        body = long("nobody", 4000)  # it would go on for far longer than it is waited for
        first = Asker(fleet.proxy, "nobody", body).begun()
        left_at_s = time.time()
        first.leave()
        until(fleet.idle, "both legs stop", outlive_s + 20)
        row = rows_of(fleet.proxy, first.receipt)[0]
        assert row["outcome"] == "client_left"
        assert row["settled_at"] - left_at_s > 0.9 * outlive_s
        late = Asker(fleet.proxy, "nobody", body).done()
        assert (late.status, late.error) == (409, "idempotency_key_spent")
        assert late.headers["x-should-retry"] == "false"


def test_another_body_under_the_same_key_is_refused(fleet: Keyed) -> None:
    first = Asker(fleet.proxy, "body", long("one")).begun()
    other = Asker(fleet.proxy, "body", long("two")).done()
    assert (other.status, other.error) == (422, "idempotency_key_reused")
    assert first.done().completed
    assert Asker(fleet.proxy, "body", long("two")).done().status == 422


def test_a_key_belongs_to_a_tenant_and_a_route(fleet: Keyed) -> None:
    text = {"model": "kimi-k2.5", "prompt": "scope", "max_tokens": 3}
    askers = [
        Asker(fleet.proxy, "scope", chat("scope", max_tokens=3)),
        Asker(fleet.proxy, "scope", chat("scope", max_tokens=3), tenant=1),
        Asker(fleet.proxy, "scope", text, path="/v1/completions"),
    ]
    assert [asker.done().status for asker in askers] == [200] * 3
    assert len({asker.receipt for asker in askers}) == 3


def test_two_that_do_not_stream_share_one_answer(fleet: Keyed) -> None:
    body = long("whole", stream=False)
    first = Asker(fleet.proxy, "whole", body)
    until(lambda: fleet.turns_live() or not first.is_alive(), "it runs, or has")
    second = Asker(fleet.proxy, "whole", body)
    first.done()
    second.done()
    assert first.status == second.status == 200
    assert json.loads(first.text) == json.loads(second.text)
    assert json.loads(first.text)["usage"]["warmroute"]["id"] == second.receipt


@pytest.mark.parametrize("key", ["", "k" * 257, "a\tb", "ü"])
def test_what_is_no_key_is_refused(fleet: Keyed, key: str) -> None:
    bad = Asker(fleet.proxy, key, chat("bad key", max_tokens=2)).done()
    assert (bad.status, bad.error) == (400, "invalid_idempotency_key")
    longest = Asker(fleet.proxy, "k" * 256, chat("bad key", max_tokens=2)).done()
    assert longest.status == 200


@pytest.mark.parametrize("wrong", [{"bootstrap_room": 1}, {"model": "none"}, {"n": 2}])
def test_a_key_of_a_request_that_was_never_dispatched_is_free(fleet: Keyed, wrong: dict[str, Any]) -> None:
    key = f"free {sorted(wrong)}"
    refused = Asker(fleet.proxy, key, {**chat("free", max_tokens=2), **wrong}).done()
    assert refused.status in {400, 404}
    assert Asker(fleet.proxy, key, chat("free", max_tokens=2)).done().status == 200


def test_metrics_count_who_joined_and_the_key_is_written_nowhere(fleet: Keyed) -> None:
    for _ in range(2):
        assert Asker(fleet.proxy, "canary-key-5bd1", chat("metrics", max_tokens=2)).done().status == 200
    text = fleet.proxy.metrics()
    assert fleet.proxy.metric("warmroute_joins_total") >= 1
    assert "canary-key-5bd1" not in fleet.proxy.written()
    assert "canary-key-5bd1" not in text
