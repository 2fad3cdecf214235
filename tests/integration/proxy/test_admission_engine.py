"""Admission before embedded engines with small pools: what cannot run waits in the proxy, and everybody is served."""

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from tests.machine import seconds
from tests.subjects.fleet import Fleet
from tests.subjects.processes import EngineProcess, ProxyProcess, answer, chat, until
from tests.subjects.stopped import Several

pytestmark = pytest.mark.full

POOL = "4096"  # about eight prompts
FLOOD = 40
ROLES = {"pair": ("prefill", "decode"), "aggregated": ("aggregated",)}


def alone(number: int) -> dict[str, Any]:
    """A request that shares nothing with any other."""
    body = chat(max_tokens=20)
    body["messages"][0]["content"] = f"{number} " + body["messages"][0]["content"]
    return body


class Watched(Fleet):
    """Engines, their proxy, and the most requests that were seen at once where answers are generated."""

    def __init__(self, folder: Path, roles: tuple[str, ...]) -> None:
        engines = [EngineProcess(folder, role, role, "--kv-tokens", POOL, speed=1.0) for role in roles]
        super().__init__(folder, engines, limits="queue_timeout_s = 3600")
        self.generates = engines[-1]
        self.most = 0
        self._over = Event()
        self._thread = Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            with urllib.request.urlopen(f"{self.generates.url}/v1/loads", timeout=seconds(60)) as response:
                row = json.load(response)["loads"][0]
            self.most = max(self.most, row["num_running_reqs"] + row["num_waiting_reqs"])

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        super().stop()


@pytest.fixture(params=list(ROLES))
def watched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    with Watched(tmp_path, ROLES[request.param]) as found:
        yield found


def test_a_flood_waits_in_the_proxy_and_not_in_the_engines(watched: Watched) -> None:
    proxy = watched.proxy

    def waiting() -> int:
        return int(watched.admin.get("/admin/admission").json()["queue"]["requests"])

    def sent() -> int:
        return int(proxy.workers()[watched.generates.id]["running"])

    until(partial(all_have, proxy, "token_limit"), "the pools are known")
    with watched.generates.held():  # no answer ends before all were asked for
        flood = [proxy.send(alone(number)) for number in range(FLOOD)]
        until(lambda: sent() + waiting() == FLOOD, "each was sent on, or waits")
        one = proxy.send(alone(FLOOD), tenant=1)
        until(lambda: sent() + waiting() == FLOOD + 1, "the other tenant's waits, too")
        assert 4 <= sent() <= 14  # what the pool holds and one more, by an estimate of tokens
    assert answer(one)[0] == 200
    assert {answer(sock)[0] for sock in flood} == {200}
    for sock in (*flood, one):
        sock.close()
    assert watched.most <= 14
    until(lambda: watched.running() == 0, "nothing is left")
    rows = proxy.rows(expected=FLOOD + 1)
    assert len(rows) == FLOOD + 1
    ends = [row["tenant"] for row in sorted(rows, key=lambda row: float(row["settled_at"]))]
    assert ends.index("second") < FLOOD - 2  # it did not wait until the flood was over
    assert waiting() == 0


def all_have(proxy: ProxyProcess, limit: str) -> bool:
    return all(limit in worker for worker in proxy.workers().values())


def test_sessions_stay_where_they_are_cached_when_every_slot_is_taken(tmp_path: Path) -> None:
    """Three times as many sessions as slots: somebody always waits, and each end frees a slot at some engine."""
    options = ("--max-running-requests", "2")
    with (
        Several([EngineProcess(tmp_path, name, "aggregated", *options, speed=4.0) for name in "abc"]) as engines,
        ProxyProcess(tmp_path / "p", [engine.toml("east") for engine in engines]) as proxy,
    ):
        until(partial(all_have, proxy, "running_limit"), "the slots are known")
        with ThreadPoolExecutor(18) as pool:
            turns = [turn for session in pool.map(partial(converse, proxy), range(18)) for turn in session]
    assert len(turns) == 18 * 6
    later = [usage for number, usage in turns if number]
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in later)
    assert cached > 0.9 * sum(usage["prompt_tokens"] for usage in later)


def converse(proxy: ProxyProcess, number: int) -> list[tuple[int, dict[str, Any]]]:
    """A session of growing turns; the usage of each, with its number."""
    body = chat(max_tokens=40)
    body["messages"][0]["content"] = f"{number} " + body["messages"][0]["content"] * 8
    turns = []
    with proxy.client() as client:
        for turn in range(6):
            answer = client.post("/v1/chat/completions", json=body, headers={"x-session-affinity": f"s{number}"}).json()
            turns.append((turn, answer["usage"]))
            body["messages"] += [answer["choices"][0]["message"], {"role": "user", "content": f"and then {turn}?"}]
    return turns
