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
from tests.subjects.processes import EngineProcess, ProxyProcess, answer, chat, until
from tests.subjects.stopped import Several, Stopped
from warmroute_cli.processes import stop_all

pytestmark = pytest.mark.full

POOL = "4096"  # about eight prompts
FLOOD = 40
ROLES = {"pair": ("prefill", "decode"), "aggregated": ("aggregated",)}


def alone(number: int) -> dict[str, Any]:
    """A request that shares nothing with any other."""
    body = chat(max_tokens=20)
    body["messages"][0]["content"] = f"{number} " + body["messages"][0]["content"]
    return body


class Watched(Stopped):
    """Engines, their proxy, and the most requests that were seen at once where answers are generated."""

    def __init__(self, folder: Path, roles: tuple[str, ...]) -> None:
        self.engines = [EngineProcess(folder, role, role, "--kv-tokens", POOL, speed=1.0) for role in roles]
        for engine in self.engines:
            engine.listening()
        tables = [engine.toml("east") for engine in self.engines]
        self.proxy = ProxyProcess(folder / "p", tables, limits="queue_timeout_s = 3600").start()
        self.most = 0
        self._over = Event()
        self._thread = Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            with urllib.request.urlopen(f"{self.engines[-1].url}/v1/loads", timeout=seconds(60)) as response:
                row = json.load(response)["loads"][0]
            self.most = max(self.most, row["num_running_reqs"] + row["num_waiting_reqs"])

    def admin(self, path: str) -> str:
        with self.proxy.admin() as admin:
            return admin.get(path).text

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self.proxy.stop()
        stop_all([engine.child for engine in self.engines], seconds(5.0))


@pytest.fixture(params=list(ROLES))
def watched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    with Watched(tmp_path, ROLES[request.param]) as found:
        yield found


def test_a_flood_waits_in_the_proxy_and_not_in_the_engines(watched: Watched) -> None:
    proxy = watched.proxy

    def pools_are_known() -> bool:
        workers = json.loads(watched.admin("/admin/workers"))["workers"].values()
        return all("token_limit" in worker for worker in workers)

    def waiting() -> int:
        return int(json.loads(watched.admin("/admin/admission"))["queue"]["requests"])

    def sent() -> int:
        workers = json.loads(watched.admin("/admin/workers"))["workers"]
        return int(workers[watched.engines[-1].id]["running"])

    until(pools_are_known, "the pools are known")
    with watched.engines[-1].held():  # no answer ends before all were asked for
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
    for engine in watched.engines:
        until(lambda engine=engine: engine.running() == 0, "nothing is left")  # type: ignore[misc]
    rows = proxy.rows(expected=FLOOD + 1)
    assert len(rows) == FLOOD + 1
    ends = [row["tenant"] for row in sorted(rows, key=lambda row: float(row["settled_at"]))]
    assert ends.index("second") < FLOOD - 2  # it did not wait until the flood was over
    assert waiting() == 0


def test_sessions_stay_where_they_are_cached_when_every_slot_is_taken(tmp_path: Path) -> None:
    """Three times as many sessions as slots: somebody always waits, and each end frees a slot at some engine."""
    with (
        Several(
            [
                EngineProcess(tmp_path, name, "aggregated", "--max-running-requests", "2", speed=4.0)
                for name in ("a", "b", "c")
            ]
        ) as engines,
        ProxyProcess(tmp_path / "p", [engine.toml("east") for engine in engines]) as proxy,
    ):
        until(partial(slots_are_known, proxy), "the slots are known")
        with ThreadPoolExecutor(18) as pool:
            turns = [turn for session in pool.map(partial(converse, proxy), range(18)) for turn in session]
    assert len(turns) == 18 * 6
    later = [usage for number, usage in turns if number]
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in later)
    assert cached > 0.9 * sum(usage["prompt_tokens"] for usage in later)


def slots_are_known(proxy: ProxyProcess) -> bool:
    with proxy.admin() as admin:
        workers = admin.get("/admin/workers").json()["workers"].values()
    return all("running_limit" in worker for worker in workers)


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
