"""The SDK behind a connection that is cut: its retry gets the whole answer, which is computed and counted once."""

import json
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

import warmroute
from tests.hostile import cut_link
from tests.hostile.cut_link import Cut, CutLink
from tests.machine import seconds
from tests.subjects.processes import DEADLINE_S, chat, until
from warmroute.contract import receipt as contract_receipt

from .test_idempotency import PAIR, Keyed, rows_of


class Cutter(CutLink):
    """Breaks the connections of the first requests at the first byte of their answers."""

    def __init__(self, url: str, cuts: int) -> None:
        parts = urlsplit(url)
        super().__init__((parts.hostname or "", parts.port or 0))
        self.requests = 0
        self._cuts = cuts

    def taken(self) -> Cut | None:
        self.requests += 1
        return Cut("answer", 0) if self.requests <= self._cuts else None


@pytest.fixture(autouse=True)
def nothing_is_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy notices at once that a connection is broken."""
    monkeypatch.setattr(cut_link, "DRAIN_S", 0.0)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    with Keyed(tmp_path_factory.mktemp("keyed-sdk"), PAIR) as found:
        yield found


def turn(text: str) -> dict[str, Any]:
    """A turn that takes about a second."""
    return {**chat(text), "metadata": {"script": json.dumps({"output_tokens": 60})}}


@pytest.mark.parametrize("stream", [True, False])
def test_the_answer_is_lost_on_its_way_twice(fleet: Keyed, stream: bool) -> None:
    cutter = Cutter(fleet.proxy.url, 2)
    before = fleet.proxy.turns()
    body = turn(f"lost {stream}")
    with warmroute.OpenAI(base_url=f"{cutter.url}/v1", api_key=fleet.proxy.keys[0], max_retries=3) as client:
        if stream:
            answer = client.chat.completions.create(**body, stream=True)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)
        else:
            answer = client.chat.completions.create(**body)
            text = answer.choices[0].message.content or ""
        report = client.cache.report()
    receipt = warmroute.receipt_of(answer)
    cutter.close()
    assert cutter.requests == 3
    assert receipt is not None
    rows = rows_of(fleet.proxy, receipt["id"])
    usage = json.loads(rows[0]["usage"])
    assert contract_receipt.check(usage) == []
    assert usage["completion_tokens"] == 60
    assert len(text) > 60
    assert rows[0]["outcome"] == "completed"
    assert fleet.proxy.turns() == before + 1
    assert (report.turns, report.receipts, report.receipts_pending, report.violations) == (1, 1, 0, ())
    assert report.cost_nanousd == rows[0]["price_nanousd"]


def test_the_connection_breaks_while_the_answer_is_computed(fleet: Keyed) -> None:
    cutter = Cutter(fleet.proxy.url, 0)
    before = fleet.proxy.turns()
    worked = fleet.finished()
    with warmroute.OpenAI(base_url=f"{cutter.url}/v1", api_key=fleet.proxy.keys[0], max_retries=1) as client:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(client.chat.completions.create(**turn("computed"))))
        with fleet.engines["d0"].held():  # else it might have ended by then
            thread.start()
            until(fleet.turns_live, "it is computed")
            cutter.go_down()
            cutter.up = True
        thread.join(seconds(DEADLINE_S))
    cutter.close()
    assert cutter.requests == 2
    receipt = warmroute.receipt_of(found[0])
    assert receipt is not None
    assert rows_of(fleet.proxy, receipt["id"])[0]["outcome"] == "completed"
    assert fleet.proxy.turns() == before + 1
    assert fleet.finished() == worked + len(PAIR)
