"""What an engine reports beyond the router's own count is the load that other proxies have put there."""

import asyncio
import threading

from tests.subjects.scripted import Handler, ScriptedEngine
from tests.unit.core.test_router import routing, send
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.base.config import EngineConfig
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.engines.probing import probe

NOW_S = 100.0
WAITING = 8000


async def test_a_prompt_that_ends_while_the_report_is_under_way_is_not_counted_as_anothers() -> None:
    asked, may_report = threading.Event(), threading.Event()

    def loads() -> bytes:
        asked.set()
        may_report.wait()
        return b'{"loads":[{"dp_rank":0,"num_waiting_uncached_tokens":%d}]}' % WAITING

    scripted = ScriptedEngine("s0", Handler.cut)
    scripted.loads = loads
    config = EngineConfig("s0", scripted.url, "east", "aggregated", "sglang", frozenset({"*"}), None, None)
    engines = Engines([config], 2.0, lambda: NOW_S, lambda: NOW_S, Metrics())
    router = Router("east", engines.workers())

    def queued_tokens() -> int:
        worker = router.snapshot(NOW_S)["workers"]["s0"]
        return int(worker["queue_s"] / worker["prefill_s_per_token"] + 0.5)

    try:
        ticket = send(router, routing(tokens=WAITING), NOW_S)
        probing = asyncio.create_task(probe(engines, router))
        await asyncio.to_thread(asked.wait)
        assert queued_tokens() == WAITING
        router.first_token(ticket, NOW_S)
        may_report.set()
        await probing
        assert queued_tokens() == 0

        await probe(engines, router)
        assert queued_tokens() == WAITING, "what waits there still is another proxy's"
    finally:
        asked.set()
        may_report.set()
        engines.close()
        scripted.stop()
