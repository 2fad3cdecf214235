"""An engine whose tokens come slowly, though nothing that it says of itself shows it."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.fleet import Fleet
from tests.subjects.processes import EngineProcess, chat, events, until

pytestmark = pytest.mark.full

TOKENS = 40
DELAY_S = 0.06
TOGETHER = 6
ARMED = 40


class SlowFleet(Fleet):
    """Two aggregated engines behind a proxy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, [EngineProcess(folder, f"e{n}", "aggregated", speed=2.0) for n in range(2)])
        self.begun = 0

    def stream(self, body: dict[str, Any]) -> str:
        """Who served it."""
        asked = {**body, "stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
        answer = self.client.post("/v1/chat/completions", json=asked).raise_for_status()
        return str(events(answer.text)[-1]["usage"]["warmroute"]["workers"][0]["id"])

    def new_conversations(self) -> list[str]:
        """Who served some that began at the same time."""
        self.begun += 1
        bodies = [chat(f"new {self.begun} {n}", max_tokens=TOKENS) for n in range(TOGETHER)]
        with ThreadPoolExecutor(TOGETHER) as pool:
            return list(pool.map(self.stream, bodies))

    def worker(self, id_: str) -> dict[str, Any]:
        found: dict[str, Any] = self.admin.get("/admin/workers").raise_for_status().json()["workers"][id_]
        return found

    def disarm(self, id_: str, left: int) -> None:
        """Use up what is left of a fault, without the proxy."""
        url = f"{self.engines[id_].url}/v1/chat/completions"
        for _ in range(left):
            httpx.post(url, json=chat("rest", max_tokens=1), timeout=seconds(30)).raise_for_status()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[SlowFleet]:
    with SlowFleet(tmp_path) as found:
        yield found


def test_new_conversations_avoid_an_engine_that_decodes_slowly_until_it_is_well_again(fleet: SlowFleet) -> None:
    long = chat("long " + "x" * 400_000)
    home = fleet.stream({**long, "max_tokens": 2})
    other = next(id_ for id_ in fleet.engines if id_ != home)
    order = {"fault": "drip", "count": ARMED, "delay_s": DELAY_S}
    httpx.post(f"{fleet.engines[home].url}/engine/faults", json=order).raise_for_status()

    served = Counter[str]()

    def told_apart() -> bool:
        served.update(fleet.new_conversations())
        return float(fleet.worker(home)["decode_slower_s_per_token"]) > 0

    until(told_apart, "the slow engine is known", 60)
    slow = fleet.worker(home)
    assert slow["decode_s_per_token"] > DELAY_S / 2
    assert slow["health"] == "up", "it is no verdict"
    assert fleet.worker(other)["decode_slower_s_per_token"] == 0
    metrics = fleet.admin.get("/metrics").text
    assert f'warmroute_worker_decode_slower_s_per_token{{worker="{home}"}}' in metrics
    assert set(fleet.new_conversations()) == {other}

    fleet.disarm(home, ARMED - served[home])
    warm = {**long, "max_tokens": 30}

    def is_well() -> bool:
        assert fleet.stream(warm) == home, "what is cached there outweighs its slow tokens"
        return bool(fleet.worker(home)["decode_slower_s_per_token"] == 0)

    until(is_well, "the engine is as fast as the other", 60)
    until(lambda: home in fleet.new_conversations(), "it gets new conversations again", 60)
