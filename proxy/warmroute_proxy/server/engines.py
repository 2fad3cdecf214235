"""The engines of this region: their connections, what they say of themselves, and whether they answer.

Each engine is probed: `/ready` each second (cheap; a server without that route is up while it answers at all),
`/v1/loads` with it (a snapshot), `/server_info` once and again after it was away: from it come the DP ranks, the page
size and the start time. A start time that changed means an empty cache. A worker is (engine, rank): the ranks are told
to the router when they are known.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from warmroute_proxy.core.fleet import Worker
from warmroute_proxy.core.load import EngineLoads
from warmroute_proxy.core.router import Router
from warmroute_proxy.server.config import EngineConfig
from warmroute_proxy.server.dispatch import Ids
from warmroute_proxy.server.upstream import Upstream, collect, get

log = logging.getLogger(__name__)

ABORT_TIMEOUT_S: Final = 5.0
MAX_DP_RANKS: Final = 64
DEFAULT_PAGE_TOKENS: Final = 64


class Engine:
    """One engine and what it last said of itself."""

    def __init__(self, config: EngineConfig, connect_timeout_s: float, clock: Callable[[], float]) -> None:
        self.config = config
        self.upstream = Upstream(config.url, connect_timeout_s, clock)
        self.dp_size = 1
        self.page_tokens = DEFAULT_PAGE_TOKENS
        self.bootstrap_port = config.bootstrap_port
        self.started_at: object = None
        self.up = True  # until a probe says otherwise: an engine is given the benefit of the doubt
        self.informed = False

    def workers(self) -> list[Worker]:
        """One worker a rank."""
        config = self.config
        many = self.dp_size > 1
        return [
            Worker(f"{config.id}:{rank}" if many else config.id, config.id, rank, config.role, config.models)
            for rank in range(self.dp_size)
        ]

    def abort(self, rid: str) -> None:
        """Ask the engine to stop one request; told, not waited for."""
        if self.config.kind == "sglang":
            body = msgspec.json.encode({"rid": rid})
            leg = collect(lambda _status, _body: None)
            self.upstream.send("POST", "/abort_request", "content-type: application/json\r\n", [body], leg)
            asyncio.get_running_loop().call_later(ABORT_TIMEOUT_S, leg.close)


class Engines:
    """All engines of this region, by id."""

    def __init__(self, configs: Iterable[EngineConfig], connect_timeout_s: float, clock: Callable[[], float]) -> None:
        self.ids = Ids()
        self.by_id = {config.id: Engine(config, connect_timeout_s, clock) for config in configs}
        self._clock = clock

    def of(self, worker: Worker) -> Engine:
        """The engine of a worker."""
        return self.by_id[worker.engine]

    def workers(self) -> list[Worker]:
        """The workers known so far."""
        return [worker for engine in self.by_id.values() for worker in engine.workers()]

    def sweep(self) -> None:
        """Drop idle connections; once a second."""
        for engine in self.by_id.values():
            engine.upstream.sweep()

    def close(self) -> None:
        """Close all connections."""
        for engine in self.by_id.values():
            engine.upstream.close()

    async def inform(self) -> None:
        """Ask every engine for its ranks and pages, before the first request."""
        await asyncio.gather(*(self._inform(engine, None) for engine in self.by_id.values()))

    async def probe(self, router: Router) -> None:
        """One round of probes."""
        await asyncio.gather(*(self._probe_safely(engine, router) for engine in self.by_id.values()))

    async def _probe_safely(self, engine: Engine, router: Router) -> None:
        """What one engine answers must not end the probes of the others."""
        try:
            await self._probe(engine, router)
        except Exception as error:
            log.error("probing engine %s failed: %s", engine.config.id, type(error).__name__)

    async def _probe(self, engine: Engine, router: Router) -> None:
        if engine.config.kind == "openai":
            return  # no probe that every such server answers: the breaker alone decides
        status, _ = await get(engine.upstream, "/ready")
        was_up, engine.up = engine.up, status in {200, 404}
        if was_up != engine.up:
            log.warning(
                "engine %s is %s (/ready answered %s)",
                engine.config.id,
                "up" if engine.up else "down",
                status or "nothing",
            )
            for worker in engine.workers():
                router.set_up(worker.id, engine.up)
        if not engine.up:
            engine.informed = False
            return
        if not engine.informed:
            await self._inform(engine, router)
        await self._observe_loads(engine, router)

    async def _inform(self, engine: Engine, router: Router | None) -> None:
        status, body = await get(engine.upstream, "/server_info")
        info = _object(body) if status == 200 else None
        if info is None:
            return
        engine.informed = True
        before = engine.workers()
        engine.dp_size = min(max(_int(info, "dp_size") or 1, 1), MAX_DP_RANKS)
        engine.page_tokens = max(_int(info, "page_size") or 1, 1)
        engine.bootstrap_port = engine.config.bootstrap_port or _int(info, "disaggregation_bootstrap_port")
        started_at = info.get("start_time") or info.get("startup_time")
        restarted = engine.started_at is not None and started_at != engine.started_at
        engine.started_at = started_at
        if router is not None:
            _retell(router, before, engine.workers(), restarted)

    async def _observe_loads(self, engine: Engine, router: Router) -> None:
        status, body = await get(engine.upstream, "/v1/loads")
        found = _object(body) if status == 200 else None
        rows = found.get("loads") if found else None
        by_rank = {w.dp_rank: w for w in engine.workers()}
        for row in rows if isinstance(rows, list) else []:
            worker = by_rank.get(_int(row, "dp_rank") or 0) if isinstance(row, dict) else None
            if worker is not None:
                router.observe_loads(worker.id, _loads(row), self._clock())


def _retell(router: Router, before: list[Worker], now: list[Worker], restarted: bool) -> None:
    if before != now:
        for worker in before:
            router.remove_worker(worker.id)
        for worker in now:
            router.add_worker(worker)
    elif restarted:
        for worker in now:
            router.worker_restarted(worker.id)


def _loads(row: dict[str, Any]) -> EngineLoads:
    return EngineLoads(
        running=_int(row, "num_running_reqs"),
        waiting_uncached_tokens=_int(row, "num_waiting_uncached_tokens"),
        used_tokens=_int(row, "num_used_tokens"),
        prefill_uncached_tokens_total=_int(row, "total_prefill_uncached_tokens"),
        prefill_busy_us_total=_int(row, "total_prefill_busy_us"),
    )


def _int(row: dict[str, Any], name: str) -> int | None:
    value = row.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
