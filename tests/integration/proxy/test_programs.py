"""A program with many sub-agents beside programs with one agent each, closed loop on an embedded engine."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

from tests.subjects.processes import EngineProcess, ProxyProcess, chat, until

pytestmark = pytest.mark.full

SLOTS = 24
FEW, MANY, TURNS = 10, 40, 12


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ProxyProcess]:
    with (
        EngineProcess(tmp_path, "a", "aggregated", "--max-running-requests", str(SLOTS), speed=2.0) as engine,
        ProxyProcess(tmp_path / "p", [engine.toml("east")], limits="queue_timeout_s = 3600") as found,
    ):
        yield found


def admin(proxy: ProxyProcess, path: str) -> dict[str, Any]:
    with proxy.admin() as client:
        found: dict[str, Any] = client.get(path).json()
    return found


def agent(proxy: ProxyProcess, over: Event | None, head: dict[str, str]) -> list[float]:
    """When each turn ended: `TURNS`, or until it is `over`."""
    ends: list[float] = []
    headers = {"authorization": f"Bearer {proxy.keys[0]}", **head}
    with httpx.Client(base_url=proxy.base_url, timeout=None, headers=headers) as client:
        while len(ends) < TURNS if over is None else not over.is_set():
            body = chat(json.dumps([head, len(ends)]), max_tokens=100, ignore_eos=True)
            assert client.post("/chat/completions", json=body).status_code == 200
            ends.append(time.monotonic())
    return ends


def sub_agent(number: int) -> dict[str, str]:
    return {"x-session-id": f"child-{number}", "x-parent-session-id": "root"}


def test_ten_programs_lose_little_beside_one_with_forty_sub_agents(proxy: ProxyProcess) -> None:
    """Counted, not timed: turns that the engine serves until the first of the ten is over. Without any loss it would be
    `SLOTS * TURNS`, and those that ran when they came; with a share for each request, nearly twice as many. On a busy
    machine clients ask late, and lose more than the proxy takes from them.
    """
    until(lambda: "running_limit" in admin(proxy, "/admin/workers")["workers"]["a"], "the slots are known")
    over = Event()
    with ThreadPoolExecutor(MANY + FEW) as pool:
        many = [pool.submit(agent, proxy, over, sub_agent(number)) for number in range(MANY)]
        try:
            until(lambda: admin(proxy, "/admin/admission")["queue"]["requests"] >= MANY - SLOTS - 4, "many wait")
            began_s = time.monotonic()
            few = list(pool.map(partial(agent, proxy, None), [{"x-session-id": f"few-{n}"} for n in range(FEW)]))
        finally:
            over.set()
        first_over_s = min(ends[-1] for ends in few)
        meanwhile = [end for each in many for end in each.result() if began_s < end <= first_over_s]
    served = sum(sum(end <= first_over_s for end in ends) for ends in few)
    print(f"{served} turns of few, {len(meanwhile)} of many")
    assert served + len(meanwhile) <= 1.3 * SLOTS * TURNS + SLOTS
