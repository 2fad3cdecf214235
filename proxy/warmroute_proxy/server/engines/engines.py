"""The engines of this region: their connections, what they say of themselves, and whether they answer.

Each engine is probed: `/ready` each second (cheap; a server without that route is up while it answers at all; one that
was ready and says 503 wants no new work, and ends what it has),
`/v1/loads` with it (a snapshot), `/server_info` once, after it was away, and each `INFORM_EVERY_S`: from it come the DP
ranks, the page size, the tiers of the cache, where KV events are published, and the start time. A start time that
changed means an empty cache. A worker is (engine, rank): the ranks are told to the router when they are known.

An engine that shows no work is asked for a token by `/health`, seldom (`core.load.health_monitor`). One that does not
answer that is down, and what was sent to it and has not begun goes to another.

Where there is a host tier, `/metrics` is read each `MOVES_EVERY_S`, for what host and storage hits cost.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from warmroute_proxy.core.accounting.receipt import ServedBy
from warmroute_proxy.core.cache.tiers import Tier
from warmroute_proxy.core.load.engine_loads import EngineLoads
from warmroute_proxy.core.load.health_monitor import HEALTH_TIMEOUT_S
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.server.base.config import EngineConfig
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.engines.drains import By, Drains
from warmroute_proxy.server.engines.engine import MOVES_EVERY_S, Engine
from warmroute_proxy.server.engines.ids import Ids
from warmroute_proxy.server.engines.kv_events import KvEvents, KvSource, kv_source
from warmroute_proxy.server.engines.kv_feed import KvFeed
from warmroute_proxy.server.engines.kv_move_costs import totals_by_rank
from warmroute_proxy.server.engines.small_get import get

if TYPE_CHECKING:
    from warmroute_proxy.server.processes.peer_processes import PeerProcesses

log = logging.getLogger(__name__)

GONE_S: Final = 5.0
"""Without an answer from `/ready`: one that is missed says little."""

INFORM_EVERY_S: Final = 60.0
MAX_DP_RANKS: Final = 64


class Engines:
    """All engines of this region, by id."""

    def __init__(
        self,
        configs: Iterable[EngineConfig],
        connect_timeout_s: float,
        clock: Callable[[], float],
        unix_clock: Callable[[], float],
        metrics: Metrics,
    ) -> None:
        self.ids = Ids()
        self.drains = Drains()
        self.lost: frozenset[str] = frozenset()  # nothing is to be expected from these any more
        self.by_id = {config.id: Engine(config, connect_timeout_s, clock) for config in configs}
        self.clock = clock
        self._unix_clock = unix_clock
        self._served_by: dict[str, tuple[ServedBy, ...]] = {}  # by worker: an id has one rank and one role
        self._kv_events = KvEvents(metrics, unix_clock)
        self.peer_processes: PeerProcesses | None = None

    def share(self, peer_processes: "PeerProcesses") -> None:
        """This is one of several processes: tags are told to the others, and theirs are heard before KV events."""
        self.peer_processes = peer_processes
        self._kv_events.listen = peer_processes.listen

    def of(self, worker: Worker) -> Engine:
        """The engine of a worker."""
        return self.by_id[worker.engine]

    def served_by(self, decision: Decision) -> tuple[ServedBy, ...]:
        """The workers of a decision, as receipts name them."""
        worker = decision.worker
        if worker is None:
            return tuple([ServedBy(w.id, w.dp_rank, w.role) for w in decision.workers])
        served_by = self._served_by.get(worker.id)
        if served_by is None:
            served_by = self._served_by[worker.id] = (ServedBy(worker.id, worker.dp_rank, worker.role),)
        return served_by

    def workers(self) -> list[Worker]:
        """The workers known so far."""
        return [worker for engine in self.by_id.values() for worker in engine.workers()]

    def drain(self, engine_id: str, by: By, draining: bool, router: Router, since_s: float | None = None) -> None:
        """An engine is to get no new work, or may again. `since_s`: unix time of the order, if it is an earlier one.
        `KeyError` where there is no such engine.
        """
        engine = self.by_id[engine_id]
        if self.drains.set(engine_id, by, draining, self._unix_clock() if since_s is None else since_s):
            log.warning("engine %s %s (by the %s)", engine_id, "drains" if draining else "takes work again", by)
            for worker in engine.workers():
                router.set_draining(worker.id, draining)

    def leaving(self) -> list[str]:
        """The engines that are to go, or have gone: they drain, or have not answered for a while."""
        drains = self.drains.engines()
        return [id_ for id_ in self.by_id if id_ in drains or id_ in self.lost]

    def split(self) -> frozenset[str]:
        """The ids of the workers that do prefill or decode alone."""
        return frozenset(worker.id for worker in self.workers() if worker.role != "aggregated")

    def all_split(self) -> bool:
        """Whether no engine here does both."""
        return len(self.split()) == len(self.workers())

    def tag(self, decision: Decision, rid: str, chain: Chain) -> bool:
        """Whether the rid is to be sent as the tag of the blocks that the prompt stores; they are then expected."""
        feed = self._kv_events.feed(decision.cache_worker)
        if feed is None:
            return False
        feed.blocks.expect(rid, chain)
        if self.peer_processes is not None:
            self.peer_processes.tagged(decision.cache_worker, rid)
        return True

    def settled(self, decision: Decision, rid: str, prompt_tokens: int) -> None:
        """The turn with this rid has ended; its prompt has so many tokens, or 0 where nobody said."""
        feed = self._kv_events.feed(decision.cache_worker)
        if feed is not None:
            tokens = prompt_tokens or decision.prompt_tokens_est
            feed.settled(rid, tokens)
            if self.peer_processes is not None:
                self.peer_processes.measured(decision.cache_worker, rid, tokens)

    def expect(self, cache_worker: str, tag: str, chain: Chain) -> None:
        """Another process has sent a prompt under a tag."""
        feed = self._kv_events.feed(cache_worker)
        if feed is not None:
            feed.blocks.expect(tag, chain)

    def measured(self, cache_worker: str, tag: str, prompt_tokens: int) -> None:
        """Another process knows how many tokens the prompt of a tag has."""
        feed = self._kv_events.feed(cache_worker)
        if feed is not None:
            feed.settled(tag, prompt_tokens)

    def feeds(self) -> dict[str, KvFeed]:
        """The KV events that are followed, by worker id."""
        return self._kv_events.feeds()

    def sweep(self) -> None:
        """Drop idle connections; once a second."""
        for engine in self.by_id.values():
            engine.upstream.sweep()

    async def all_sent(self, timeout_s: float) -> None:
        """Wait until nothing waits for a connection: engines that were told to stop shall hear of it."""
        connecting = [task for engine in self.by_id.values() for task in engine.upstream.connecting]
        if connecting:
            await asyncio.wait(connecting, timeout=timeout_s)

    def close(self) -> None:
        """Close all connections."""
        self._kv_events.close()
        for engine in self.by_id.values():
            if engine.asking is not None:
                engine.asking.cancel()
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
        status, _ = await get(engine.upstream, "/ready", engine.bearer)
        engine.was_ready = status in {200, 404} or (status == 503 and engine.was_ready)
        self.drain(engine.config.id, "engine", engine.was_ready and status == 503, router)
        if engine.was_ready and not engine.up:  # first, since it may be another than before, with an empty cache
            await self._inform(engine, router)
        was_up, engine.up = engine.up, engine.was_ready and not engine.health_monitor.unwell
        if was_up != engine.up:
            engine.down_since_s = self.clock()
            log.warning(
                "engine %s is %s (/ready answered %s%s)",
                engine.config.id,
                "up" if engine.up else "down",
                status or "nothing",
                ", /health did not" if engine.health_monitor.unwell else "",
            )
            for worker in engine.workers():
                router.set_up(worker.id, engine.up)
        self._look_for_life(engine, router)
        self.lost = frozenset(self._lost())
        if not engine.up:
            engine.informed = False
            return
        if not engine.informed or self.clock() - engine.informed_at_s >= INFORM_EVERY_S:
            await self._inform(engine, router)
        for worker in engine.workers():
            self._kv_events.follow(worker, engine.kv_source, router)
        await self._observe_loads(engine, router)
        if engine.host_cache and self.clock() - engine.moves_at_s >= MOVES_EVERY_S:
            engine.moves_at_s = self.clock()
            await self._observe_moves(engine, router)

    def _look_for_life(self, engine: Engine, router: Router) -> None:
        """Ask an engine that answers and shows nothing of any work for a token."""
        now_s, health_monitor = self.clock(), engine.health_monitor
        if not engine.was_ready:
            health_monitor.begins(now_s)
            return
        works = any(router.running(worker.id) for worker in engine.workers())
        if engine.asking is None and health_monitor.to_be_asked(works=works, now_s=now_s):
            health_monitor.asked(now_s)
            if self.peer_processes is not None:
                self.peer_processes.asked(engine.config.id, None)
            engine.asking = asyncio.get_running_loop().create_task(self._ask_health(engine))

    async def _ask_health(self, engine: Engine) -> None:
        try:
            status, _ = await get(engine.upstream, "/health", engine.bearer, HEALTH_TIMEOUT_S)
            self._health_said(engine, status, self.clock())
            if self.peer_processes is not None:
                self.peer_processes.asked(engine.config.id, status)
        finally:
            engine.asking = None

    def heard_health(self, engine_id: str, status: int | None, now_s: float) -> None:
        """Another process asks an engine, or has its answer."""
        engine = self.by_id.get(engine_id)
        if engine is None:
            return
        if status is None:
            engine.health_monitor.asked(now_s)
        else:
            self._health_said(engine, status, now_s)

    def _health_said(self, engine: Engine, status: int, now_s: float) -> None:
        drains = "engine" in self.drains.of(engine.config.id)
        was_unwell = engine.health_monitor.unwell
        engine.health_monitor.says(status, now_s, drains=drains)
        if engine.health_monitor.unwell and not was_unwell:
            log.error("engine %s hangs: /health answered %s", engine.config.id, status or "nothing")

    def _lost(self) -> list[str]:
        """The engines from which nothing is to be expected: they hang, or have not answered for a while."""
        gone_s = self.clock() - GONE_S
        return [
            id_ for id_, e in self.by_id.items() if not e.up and (e.health_monitor.unwell or e.down_since_s < gone_s)
        ]

    async def _inform(self, engine: Engine, router: Router | None) -> None:
        status, body = await get(engine.upstream, "/server_info", engine.bearer)
        engine.judge_key(status, "/server_info", "key_file")
        info = _object(body) if status == 200 else None
        if info is None:
            return
        engine.informed, engine.informed_at_s = True, self.clock()
        before = engine.workers()
        engine.dp_size = min(max(_int(info, "dp_size") or 1, 1), MAX_DP_RANKS)
        engine.page_tokens = max(_int(info, "page_size") or 1, 1)
        engine.bootstrap_port = engine.config.bootstrap_port or _int(info, "disaggregation_bootstrap_port")
        engine.host_cache = info.get("enable_hierarchical_cache") is True
        engine.has_store = engine.host_cache and isinstance(info.get("hicache_storage_backend"), str)
        engine.kv_source = _kv_source_of(engine, info)
        started_at = info.get("start_time") or info.get("startup_time")
        restarted = engine.started_at is not None and started_at != engine.started_at
        engine.started_at = started_at
        if router is not None:
            _retell(router, before, engine.workers(), restarted)
            if before != engine.workers() and self.drains.draining(engine.config.id):
                for worker in engine.workers():
                    router.set_draining(worker.id, draining=True)
            gone = {worker.id for worker in before} - {worker.id for worker in engine.workers()}
            for worker_id in gone:
                self._kv_events.leave(worker_id)

    async def _observe_loads(self, engine: Engine, router: Router) -> None:
        status, body = await get(engine.upstream, "/v1/loads", engine.bearer)
        found = _object(body) if status == 200 else None
        rows = found.get("loads") if found else None
        by_rank = {w.dp_rank: w for w in engine.workers()}
        if isinstance(rows, list):
            engine.health_monitor.shows([_work_of(row) for row in rows if isinstance(row, dict)], self.clock())
        for row in rows if isinstance(rows, list) else []:
            worker = by_rank.get(_int(row, "dp_rank") or 0) if isinstance(row, dict) else None
            if worker is not None:
                router.observe_loads(worker.id, _loads(row), self.clock())

    async def _observe_moves(self, engine: Engine, router: Router) -> None:
        status, body = await get(engine.upstream, "/metrics", engine.bearer)
        if status != 200:
            return
        before, engine.moves = engine.moves, totals_by_rank(body.decode("utf-8", "replace"))
        for worker in engine.workers():
            now, then = engine.moves.get(worker.dp_rank), before.get(worker.dp_rank)
            if now is None or then is None:
                continue
            moves: list[tuple[Tier, tuple[int, float]]] = [
                ("host", now.load_since(then)),
                ("storage", now.fetch_since(then)),
            ]
            for tier, (tokens, seconds) in moves:
                if tokens > 0 and seconds > 0:
                    router.observe_moves(worker.id, tier, tokens, seconds)


def _kv_source_of(engine: Engine, info: dict[str, Any]) -> KvSource | None:
    """Where to follow an engine's events. A tag would keep blocks from eviction where sessions do that."""
    unwanted = not engine.config.kv_events or engine.config.role == "decode"
    if unwanted or info.get("enable_session_radix_cache") is True:
        return None
    return kv_source(info, engine.upstream.host)


def _retell(router: Router, before: list[Worker], now: list[Worker], restarted: bool) -> None:
    if before != now:
        for worker_id in {worker.id for worker in before} - {worker.id for worker in now}:
            router.remove_worker(worker_id)
        for worker in now:
            router.add_worker(worker)
    if restarted:
        for worker in now:
            router.worker_restarted(worker.id)


def _work_of(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what changes by itself."""
    return {name: value for name, value in row.items() if name != "timestamp"}


def _loads(row: dict[str, Any]) -> EngineLoads:
    return EngineLoads(
        running=_int(row, "num_running_reqs"),
        waiting_uncached_tokens=_int(row, "num_waiting_uncached_tokens"),
        used_tokens=_int(row, "num_used_tokens"),
        prefill_uncached_tokens_total=_int(row, "total_prefill_uncached_tokens"),
        prefill_busy_us_total=_int(row, "total_prefill_busy_us"),
        waiting=_int(row, "num_waiting_reqs"),
        total_tokens=_int(row, "num_total_tokens"),
        max_running=_int(row, "max_running_requests"),
        max_tokens=_int(row, "max_total_num_tokens"),
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
