"""An engine that hangs: its process answers, its scheduler does not; and one that does not answer at all."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.fleet import Fleet
from tests.subjects.processes import EngineProcess, chat, until
from tests.subjects.scripted import Handler, ScriptedEngine
from warmroute_proxy.core.load.health_monitor import IDLE_S, SILENT_S
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.base.config import EngineConfig
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.engines import probing
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.engines.probing import probe


async def test_a_hung_scheduler_is_found_by_health_and_only_then_asked() -> None:
    scripted = ScriptedEngine("s0", Handler.cut)
    scripted.loads = b'{"loads":[{"dp_rank":0,"num_running_reqs":0}]}'
    now_s = 100.0
    config = EngineConfig("s0", scripted.url, "east", "aggregated", "sglang", frozenset({"*"}), None, None)
    engines = Engines([config], 2.0, lambda: now_s, lambda: now_s, Metrics())
    engine = engines.by_id["s0"]
    router = Router("east", engines.workers())

    async def probed() -> None:
        await probe(engines, router)
        if engine.health_task is not None:
            await engine.health_task

    try:
        await probed()
        now_s += IDLE_S - 1
        await probed()
        assert scripted.healths == 0, "an engine that was heard of within a minute is not asked"
        now_s += 1
        await probed()
        assert (scripted.healths, engine.up) == (1, True)

        scripted.health = 503
        now_s += IDLE_S
        await probed()
        await probed()
        assert (scripted.healths, engine.up) == (2, False)
        assert router.snapshot(now_s)["workers"]["s0"]["health"] == "down"
        assert engines.lost == {"s0"}, "what waits for it goes elsewhere"
        scripted.ready = b""  # SGLang answers 503 there, too, once `/health` has failed
        for _ in range(2):
            await probed()
            now_s += SILENT_S
        await probed()
        assert (scripted.healths, engine.up, set(engines.lost)) == (4, False, {"s0"}), "it hangs, and does not drain"

        scripted.ready = b"{}"
        scripted.health = 200
        now_s += IDLE_S
        await probed()
        await probed()
        assert engine.up
        assert not engines.lost
    finally:
        engines.close()
        scripted.stop()


async def test_an_engine_that_does_not_answer_delays_no_probe_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "ROUND_S", 0.01)
    asked, may_answer = threading.Event(), threading.Event()

    def loads() -> bytes:
        asked.set()
        may_answer.wait()
        return b"{}"

    slow, other = ScriptedEngine("s0", Handler.cut), ScriptedEngine("s1", Handler.cut)
    slow.loads = loads
    configs = [
        EngineConfig(f"s{at}", each.url, "east", "aggregated", "sglang", frozenset({"*"}), None, None)
        for at, each in enumerate((slow, other))
    ]
    engines = Engines(configs, 2.0, lambda: 100.0, lambda: 100.0, Metrics())
    router = Router("east", engines.workers())

    def is_up(engine_id: str) -> bool:
        return engines.by_id[engine_id].up

    try:
        while not (asked.is_set() and is_up("s1")):
            await probe(engines, router)
        other.stop()
        while is_up("s1"):
            await probe(engines, router)
        assert is_up("s0")
        assert not engines.probing[engines.by_id["s0"]].done(), "one probe of it is under way, and no second one"
    finally:
        may_answer.set()
        engines.close()
        slow.stop()


@pytest.mark.real_deadlines("probing")
def test_what_waits_for_an_engine_that_froze_goes_to_another(tmp_path: Path) -> None:
    with Fleet(tmp_path, [EngineProcess(tmp_path, f"e{n}", "aggregated") for n in range(2)]) as fleet:

        def ask(turns: int) -> httpx.Response:
            return fleet.client.post("/v1/chat/completions", json=chat("frozen", turns=turns, max_tokens=4))

        home = fleet.engines[ask(1).json()["usage"]["warmroute"]["workers"][0]["id"]]
        with home.held(), ThreadPoolExecutor(1) as pool:  # no limit of time but the 600 s for a first token
            answer = pool.submit(ask, 2).result(timeout=seconds(60))
        assert answer.status_code == 200
        assert answer.json()["usage"]["warmroute"]["workers"][0]["id"] != home.id
        assert [row["outcome"] for row in fleet.proxy.rows(expected=2)] == ["completed", "completed"]
        until(lambda: home.running() == 0, "it was told to stop, and does so when it wakes")
