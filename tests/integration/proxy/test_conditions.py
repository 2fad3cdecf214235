"""Conditions: the embedded engine is told to show each, and each is raised on the page, in the log and in metrics, and
cleared when it is over."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.subjects.fleet import Fleet
from tests.subjects.processes import EngineProcess, ProxyProcess, chat, until
from warmroute_proxy.core.load.conditions import Condition

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]
WAIT_S = 60.0
PAIR = (Condition.TRANSFERS, Condition.RETRACTIONS, Condition.STARVING_SIDE)
SINGLE = (Condition.ACCEPT_LENGTH, Condition.MISSING_HITS)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("pair")
    with Fleet(folder, [EngineProcess(folder, "p0", "prefill"), EngineProcess(folder, "d0", "decode")]) as found:
        yield found


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("drafting")
    with Fleet(folder, [EngineProcess(folder, "a0", "aggregated", "--speculative-algorithm", "EAGLE")]) as found:
        yield found


@contextmanager
def traffic(proxy: ProxyProcess) -> Iterator[None]:
    """One conversation that asks again and again: its prompt is predicted to be cached."""
    over = threading.Event()

    def ask() -> None:
        with proxy.client() as client:
            while not over.wait(0.1):
                client.post("/v1/chat/completions", json=chat("again", max_tokens=1)).raise_for_status()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def show(engine: EngineProcess, *conditions: Condition) -> None:
    httpx.post(f"{engine.url}/engine/conditions", json={"show": list(conditions)}).raise_for_status()


def raised(proxy: ProxyProcess) -> dict[str, dict[str, Any]]:
    with proxy.admin() as admin:
        page = admin.get("/admin/conditions").raise_for_status().json()
    assert page["known"] == list(Condition)
    return {row["condition"]: row for row in page["raised"]}


def test_a_pair_in_trouble(pair: Fleet) -> None:
    proxy, prefill = pair.proxy, pair.engines["p0"]
    show(prefill, *PAIR)
    until(lambda: set(PAIR) <= set(raised(proxy)), "all three are raised", WAIT_S)
    rows = raised(proxy)
    assert rows[Condition.TRANSFERS]["subject"] == rows[Condition.RETRACTIONS]["subject"] == "p0"
    assert rows[Condition.STARVING_SIDE]["subject"] == "east"
    assert "flip a decode engine" in rows[Condition.STARVING_SIDE]["detail"]
    assert rows[Condition.TRANSFERS]["page"] == f"docs/reference/conditions.md#{Condition.TRANSFERS}"
    assert proxy.metric(f'warmroute_condition{{condition="{Condition.RETRACTIONS}",subject="p0"}}') == 1
    queue = 'warmroute_worker_engine_queue_requests{worker="p0",role="prefill",queue="waiting"}'
    assert proxy.metric(queue) == 12
    show(prefill)
    until(lambda: not raised(proxy), "all are cleared", WAIT_S)
    log = "".join(path.read_text() for path in proxy.folder.glob("*.log"))
    for condition in PAIR:
        assert f"condition {condition} of " in log
    assert log.count("is cleared") == len(PAIR)


def test_drafts_and_hits_in_trouble(drafting: Fleet) -> None:
    proxy, engine = drafting.proxy, drafting.engines["a0"]
    with traffic(proxy):
        accept = 'warmroute_worker_accept_length{worker="a0",role="aggregated"}'
        until(lambda: proxy.metric(accept) == 3.0, "the engine reports its drafts", WAIT_S)
        predicted = 'warmroute_predicted_tokens_total{tier="device"}'
        # At most 5,000 a second: two reports of the engine see traffic, and its usual accept length is known.
        until(lambda: proxy.metric(predicted) > 60_000, "hits are predicted", WAIT_S)
        show(engine, *SINGLE)
        until(lambda: set(SINGLE) <= set(raised(proxy)), "both are raised", WAIT_S)
        rows = raised(proxy)
        assert rows[Condition.ACCEPT_LENGTH]["detail"].startswith("accept length 1.20 with ")
        assert "cached tokens were expected" in rows[Condition.MISSING_HITS]["detail"]
        show(engine)
        until(lambda: not raised(proxy), "both are cleared", WAIT_S)


def test_an_order_of_an_unknown_condition_is_refused(drafting: Fleet) -> None:
    answer = httpx.post(f"{drafting.engines['a0'].url}/engine/conditions", json={"show": ["toothache"]})
    assert answer.status_code == 400
    assert "no condition 'toothache'; there are accept_length_falls_after_hits" in answer.text
