"""What probes find out of an engine that leaves, is replaced or changes meanwhile."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.subjects.scripted import Handler, ScriptedEngine
from warmroute_proxy.core.load.health_monitor import IDLE_S
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.config import EngineConfig
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.engines.engine import Engine
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.engines.probing import probe
from warmroute_proxy.server.http.body_memory import BodyMemory
from warmroute_proxy.server.reload.membership import Membership

NOW_S = 100.0
TWO_RANKS = b'{"page_size":64,"dp_size":2,"start_time":1}'


class Scene:
    """A proxy without requests, and a scripted engine that has not joined."""

    def __init__(self, state_dir: Path) -> None:
        metrics = Metrics()
        self.now_s = NOW_S
        self.scripted = ScriptedEngine("e", Handler.cut)
        self.engines = Engines([], 2.0, self.clock, self.clock, metrics)
        self.router = Router("east", [])
        re_prefills: Any = SimpleNamespace(waiting=lambda _engine: False)
        memory = BodyMemory(1 << 20, 1, metrics.counter(declared.REFUSED_TOTAL, ()))
        self.membership = Membership(self.engines, self.router, re_prefills, memory, 2.0, state_dir, self.clock)

    def clock(self) -> float:
        return self.now_s

    def config(self, **more: Any) -> EngineConfig:
        return EngineConfig("e", self.scripted.url, "east", **more)

    def have(self, *configs: EngineConfig) -> None:
        self.membership.replace(configs, self.membership.make(configs))

    async def probed(self) -> Engine:
        """The engine after a whole probe."""
        await probe(self.engines, self.router)
        await asyncio.gather(*self.engines.probing.values())
        return self.engines.by_id["e"]

    def health(self) -> dict[str, str]:
        workers = self.router.snapshot(self.now_s)["workers"]
        return {worker_id: str(worker["health"]) for worker_id, worker in workers.items()}


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.scripted.may_render.set()
    made.engines.close()
    made.scripted.stop()


async def test_an_engine_that_leaves_while_its_template_is_tested_leaves_no_worker(scene: Scene) -> None:
    scene.scripted.info = TWO_RANKS
    scene.scripted.may_render.clear()
    scene.have(scene.config())
    probing = asyncio.create_task(probe(scene.engines, scene.router))
    await asyncio.to_thread(scene.scripted.asked_to_render.wait)
    under_way = [*scene.engines.probing.values()]
    scene.have()
    scene.scripted.may_render.set()
    await asyncio.gather(probing, *under_way)
    assert scene.health() == {}


async def test_new_ranks_of_an_engine_that_is_down_get_nothing(scene: Scene) -> None:
    port = urlsplit(scene.scripted.url).port
    scene.scripted.info = TWO_RANKS
    scene.have(scene.config(role="prefill", bootstrap_port=port))  # its route for ranks answers 404
    engine = await scene.probed()
    assert (engine.was_ready, engine.registered) == (True, False)
    assert scene.health() == {"e:0": "down", "e:1": "down"}


async def test_a_late_answer_of_an_engine_that_has_left_says_nothing_of_its_successor(scene: Scene) -> None:
    asked, may_answer = threading.Event(), threading.Event()

    def hangs() -> int:
        asked.set()
        may_answer.wait()
        return 503

    scene.scripted.health = hangs
    scene.scripted.loads = b'{"loads":[{"dp_rank":0,"num_running_reqs":0}]}'
    scene.have(scene.config())
    await scene.probed()
    scene.now_s += IDLE_S
    under_way = (await scene.probed()).health_task
    assert under_way is not None
    await asyncio.to_thread(asked.wait)
    scene.have(scene.config(max_running=2))
    may_answer.set()
    await under_way
    assert not (await scene.probed()).health_monitor.unwell
    assert scene.health() == {"e": "up"}
