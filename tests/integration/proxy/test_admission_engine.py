"""Admission before embedded engines with small pools: what cannot run waits in the proxy, and everybody is served."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from warmroute_cli.processes import stop_all

from .harness import EngineProcess, ProxyProcess, answer, chat, until

POOL = "4096"  # about eight prompts
FLOOD = 40
ROLES = {"pair": ("prefill", "decode"), "aggregated": ("aggregated",)}


def alone(number: int) -> dict[str, Any]:
    """A request that shares nothing with any other."""
    body = chat(max_tokens=20)
    body["messages"][0]["content"] = f"{number} " + body["messages"][0]["content"]
    return body


class Watched:
    """Engines, their proxy, and the most requests that were seen at once where answers are generated."""

    def __init__(self, folder: Path, roles: tuple[str, ...]) -> None:
        self.engines = [EngineProcess(folder, role, role, "--kv-tokens", POOL, speed=1.0) for role in roles]
        for engine in self.engines:
            engine.listening()
        self.proxy = ProxyProcess(folder / "p", [engine.toml("east") for engine in self.engines]).start()
        self.most = 0
        self._over = Event()
        self._thread = Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            with urllib.request.urlopen(f"{self.engines[-1].url}/v1/loads", timeout=10) as response:
                row = json.load(response)["loads"][0]
            self.most = max(self.most, row["num_running_reqs"] + row["num_waiting_reqs"])

    def admin(self, path: str) -> str:
        with self.proxy.admin() as admin:
            return admin.get(path).text

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self.proxy.stop()
        stop_all([engine.child for engine in self.engines], 5.0)


@pytest.fixture(params=list(ROLES))
def watched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    found = Watched(tmp_path, ROLES[request.param])
    try:
        yield found
    finally:
        found.stop()


def test_a_flood_waits_in_the_proxy_and_not_in_the_engines(watched: Watched) -> None:
    proxy = watched.proxy

    def pools_are_known() -> bool:
        workers = json.loads(watched.admin("/admin/workers"))["workers"].values()
        return all("token_limit" in worker for worker in workers)

    def waiting() -> int:
        return int(json.loads(watched.admin("/admin/admission"))["queue"]["requests"])

    until(pools_are_known, "the pools are known")
    flood = [proxy.send(alone(number)) for number in range(FLOOD)]
    until(lambda: waiting() > 2, "some of them wait")
    one = proxy.send(alone(FLOOD), tenant=1)
    assert answer(one)[0] == 200
    assert {answer(sock)[0] for sock in flood} == {200}
    for sock in (*flood, one):
        sock.close()
    assert 4 <= watched.most <= 14  # what the pool holds and one more, by an estimate of tokens
    for engine in watched.engines:
        until(lambda engine=engine: engine.running() == 0, "nothing is left")  # type: ignore[misc]
    rows = proxy.rows(expected=FLOOD + 1)
    assert len(rows) == FLOOD + 1
    ends = [row["tenant"] for row in sorted(rows, key=lambda row: float(row["settled_at"]))]
    assert ends.index("second") < FLOOD - 2  # it did not wait until the flood was over
    assert waiting() == 0
