"""The engines of this region, which of them drain, and the tags that match requests with KV events.

A worker is one data-parallel rank of an engine. The proxy sends each prompt under a tag. The engine's KV events name
the tag, and so show which cached blocks belong to the prompt. `probing` keeps the state of the engines up to date.
"""

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, Literal, Protocol

from warmroute_proxy.core.accounting.engine_counts import CounterReading, EngineCounts
from warmroute_proxy.core.accounting.receipt import ServedBy
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.server.base.config import EngineConfig
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.base.turns import Turns
from warmroute_proxy.server.engines.engine import Engine
from warmroute_proxy.server.engines.kv_events import KvEvents
from warmroute_proxy.server.engines.kv_feed import PromptTokens
from warmroute_proxy.server.engines.watching import Watching
from warmroute_proxy.server.http.body_memory import BodyMemory, BodyReservation
from warmroute_proxy.server.ledger.counter_file import CounterFile

# Which engines drain. An engine that drains gets no new work although it answers. The source of a drain is an
# operator's order, the engine's own report, or a config that no longer names the engine.
#
# `Drains` has all drain state of a process, without sockets or clock. An operator's order holds until it is taken back,
# even over restarts of the engine and of the proxy (`drain_orders`). An engine's own report holds until its `/ready`
# answers 200 again. There is at most one entry for each engine and source.

DrainedBy = Literal["operator", "engine", "config"]
SOURCES: Final[tuple[DrainedBy, ...]] = ("operator", "engine", "config")


class Drains:
    """Which engines drain, by which source, and since when."""

    def __init__(self) -> None:
        self._since_by_source: dict[DrainedBy, dict[str, float]] = {by: {} for by in SOURCES}

    def set(self, engine_id: str, by: DrainedBy, draining: bool, unix_s: float) -> bool:
        """Set whether the source `by` makes the engine drain. Returns whether the engine begins or ceases to drain."""
        since = self._since_by_source[by]
        before = self.draining(engine_id)
        if not draining:
            since.pop(engine_id, None)
        elif engine_id not in since:
            since[engine_id] = unix_s
        return before != self.draining(engine_id)

    def draining(self, engine_id: str) -> bool:
        return any(engine_id in since for since in self._since_by_source.values())

    def of(self, engine_id: str) -> dict[DrainedBy, float]:
        """Source by which the engine drains -> unix time since when."""
        return {by: since[engine_id] for by, since in self._since_by_source.items() if engine_id in since}

    def forget(self, engine_id: str) -> None:
        for since in self._since_by_source.values():
            since.pop(engine_id, None)

    def by_operator(self) -> dict[str, float]:
        """Engine that drains by an operator's order -> unix time since when."""
        return dict(self._since_by_source["operator"])

    def engines(self) -> frozenset[str]:
        return frozenset().union(*self._since_by_source.values())


# The interface by which this package exchanges updates with the other processes of the proxy.
#
# `processes.peer_processes` implements it. A proxy with one process has no such object.


class PeerUpdates(Protocol):
    def apply_updates(self) -> None:
        """Apply what the other processes have sent."""

    def send_tag(self, cache_worker: str, tag: str) -> None:
        """Send the tag of the request that the router dispatched last."""

    def send(self, update: PromptTokens) -> None:
        """Send the tokens of a request that has ended."""

    def send_health(self, engine: str, url: str, status: int | None) -> None:
        """Send that this process requests `/health` (`status` None), or the answer's status: 0 without an answer."""


# Ids that this process makes at random: of receipts, of requests to engines (rids), and of bootstrap rooms.
#
# Rids have one fixed length, because an engine matches abort ids by prefix. A bootstrap room is the number by which
# SGLang joins a prefill to its decode. Rooms are unique over all processes of a fleet, never 0, and leave space below
# 2^63 for the prompts of a request. If a prefill engine has more than one DP rank, the room modulo the number of ranks
# chooses the rank (SGLang's `follow_bootstrap_room`).

_BOOTSTRAP_ROOM_BITS: Final = 39
_BOOTSTRAP_ROOM_STEP: Final = 1024  # rooms reserved for one request, for its prompts and the choice of a rank


class Ids:
    """Draws the rids, rooms and receipt ids of one process. 53 or more random bits make them unique over processes."""

    def __init__(self) -> None:
        self._prefix = os.urandom(10).hex()
        self._count = 0
        self._random: list[str] = []  # random digits for the next receipts, taken from the end
        self._second = ""
        self._bootstrap_room_base = int.from_bytes(os.urandom(3), "big") << _BOOTSTRAP_ROOM_BITS  # 24 + 39 = 63 bits
        # Counting begins at a random number, since two processes may draw the same base.
        self._bootstrap_rooms = int.from_bytes(os.urandom(4), "big")

    def receipt(self) -> str:
        """`wr-` and 24 hex digits: the second in which random bits were drawn for 256 ids, then 64 of these bits.

        So ids roughly ascend, and the ledger, which indexes its rows by id, writes at the end of its index.
        """
        if not self._random:
            drawn = os.urandom(8 * 256).hex()
            self._random = [drawn[at : at + 16] for at in range(len(drawn) - 16, -1, -16)]
            self._second = f"wr-{int(time.time()):08x}"
        return self._second + self._random.pop()

    def rid(self) -> str:
        """32 hex digits."""
        self._count += 1
        return self._prefix + (self._count & 0xFFFFFFFFFFFF).to_bytes(6, "big").hex()

    def bootstrap_room(self, rank: int, ranks: int, prompts: int) -> int:
        """The room of a request's first prompt; modulo `ranks`, it is `rank`. Further prompts get the next rooms.

        Rooms are from 1 to 2^63 - 1,024.
        """
        assert prompts + ranks <= _BOOTSTRAP_ROOM_STEP
        self._bootstrap_rooms += 1
        space = (1 << _BOOTSTRAP_ROOM_BITS) // _BOOTSTRAP_ROOM_STEP - 2
        first = self._bootstrap_room_base + (1 + self._bootstrap_rooms % space) * _BOOTSTRAP_ROOM_STEP
        return first - first % ranks + rank


log = logging.getLogger(__name__)


class Engines:
    def __init__(
        self,
        configs: Iterable[EngineConfig],
        connect_timeout_s: float,
        clock: Callable[[], float],
        unix_clock: Callable[[], float],
        metrics: Metrics,
        region: str = "",
        counters: CounterFile | None = None,
        peer_updates: PeerUpdates | None = None,
    ) -> None:
        """`counters`: the file for readings of the engines' own counters; None if another process writes the file.

        `peer_updates`: the other processes, which share tags and health. Their updates are applied before KV events.
        """
        self.ids = Ids()
        self.drains = Drains()
        self.lost: frozenset[str] = frozenset()
        """Engines that hang or have stopped answering: nothing sent to them will be answered."""

        self.by_id = {config.id: Engine(config, connect_timeout_s, clock) for config in configs}
        self.turns: Turns | None = None
        self.departed: dict[str, Engine] = {}
        """Id -> an engine that has left, kept until its last aborts are sent."""

        self.clock = clock
        self.memory: BodyMemory | None = None
        """Counts what engines send to the proxy itself. None: nothing is counted."""

        self.kv_events = KvEvents(
            metrics, unix_clock, peer_updates.apply_updates if peer_updates is not None else None, self.memory_of
        )
        self.watching = Watching(region, metrics, unix_clock)
        self.reading: dict[str, asyncio.Task[None]] = {}
        """Engine id -> the running request for the engine's metrics."""

        self.probing: dict[Engine, asyncio.Task[None]] = {}
        """The running probes."""

        self._strict_models: frozenset[str] = frozenset()
        self._on_strict_models: Callable[[frozenset[str]], None] | None = None

        self._counters = counters
        self.peer_updates = peer_updates
        self._unix_clock = unix_clock
        self._served_by: dict[str, tuple[ServedBy, ...]] = {}  # by worker; cleared by `workers_changed`

    def take_turns(self, turns: Turns) -> None:
        """From the next connection on, handle bytes from engines when `turns` says so (fairly between tenants)."""
        self.turns = self.kv_events.turns = turns
        for engine in self.by_id.values():
            engine.upstream.turns = turns

    def memory_of(self, tenant: str) -> BodyReservation | None:
        """A reservation for what an engine sends. `tenant`: who needs it; the engine's `line` if no tenant does."""
        return None if self.memory is None else self.memory.reserve(tenant, 0)

    def of(self, worker: Worker) -> Engine:
        engine = self.by_id.get(worker.engine)
        return engine if engine is not None else self.departed[worker.engine]

    def has(self, engine: Engine) -> bool:
        """Whether the engine is still one of this region's."""
        return self.by_id.get(engine.config.id) is engine

    def served_by(self, decision: Decision) -> tuple[ServedBy, ...]:
        worker = decision.worker
        if worker is None:
            return tuple([ServedBy(w.id, w.dp_rank, w.role) for w in decision.workers])
        served_by = self._served_by.get(worker.id)
        if served_by is None:
            served_by = self._served_by[worker.id] = (ServedBy(worker.id, worker.dp_rank, worker.role),)
        return served_by

    def templates_asked(self) -> None:
        """Report the models whose templates take a system message only at the beginning, if they have changed."""
        strict = [engine.config.models for engine in self.by_id.values() if engine.refuses_late_system]
        models = frozenset[str]().union(*strict)
        if models != self._strict_models:
            self._strict_models = models
            if self._on_strict_models is not None:
                self._on_strict_models(models)

    def follow_templates(self, on_models: Callable[[frozenset[str]], None]) -> None:
        """Call `on_models` with the names of models whose templates take a system message only at the beginning: now,
        and whenever they change.
        """
        self._on_strict_models = on_models
        if self._strict_models:
            on_models(self._strict_models)

    def workers_changed(self) -> None:
        self._served_by.clear()

    def workers(self) -> list[Worker]:
        return [worker for engine in self.by_id.values() for worker in engine.workers()]

    def warm_tokens(self, router: Router, now_s: float) -> dict[str, int]:
        """The KV tokens of sessions that each engine holds. Engines whose KV pool is unknown are left out."""
        books = router.working_set.as_dict(now_s)
        found: dict[str, int] = {}
        for engine_id, engine in self.by_id.items():
            known = [books[worker.id]["tokens"] for worker in engine.workers() if worker.id in books]
            if known:
                found[engine_id] = sum(known)
        return found

    def drain(
        self, engine_id: str, by: DrainedBy, draining: bool, router: Router, since_s: float | None = None
    ) -> None:
        """Give an engine no new work, or give it work again. `since_s`: unix time of an order that was given earlier.

        Raises: KeyError, if the engine is unknown.
        """
        engine = self.by_id[engine_id]
        if self.drains.set(engine_id, by, draining, self._unix_clock() if since_s is None else since_s):
            log.warning("engine %s %s (by the %s)", engine_id, "drains" if draining else "takes work again", by)
            for worker in engine.workers():
                router.set_draining(worker.id, draining)

    def why_unavailable(self, model: str) -> str:
        """Why no engine takes a request for a model, for an error message: each cause with its number of engines."""
        draining = self.drains.engines()
        causes: Counter[str] = Counter()
        for engine in self.by_id.values():
            if engine.config.models & {model, "*"}:
                cause = "draining engines" if engine.config.id in draining else engine.unavailable
                causes[cause or "engines that failed lately or lack a partner"] += 1
        words = ", ".join(f"{cause}: {count}" for cause, count in causes.most_common())
        return f" ({words}); operators: `warmroute proxy --check --probe`" if words else ""

    def leaving(self) -> list[str]:
        draining = self.drains.engines()
        return [id_ for id_ in self.by_id if id_ in draining or id_ in self.lost]

    def split(self) -> frozenset[str]:
        """The ids of the workers that do only prefill or only decode."""
        return frozenset(worker.id for worker in self.workers() if worker.role != "aggregated")

    def all_split(self) -> bool:
        """Whether every worker does only prefill or only decode."""
        return len(self.split()) == len(self.workers())

    def tag(self, decision: Decision, rid: str, chain: Chain) -> bool:
        """Expect KV events about the blocks of a request, under its rid as the tag. Returns whether the request must
        carry the tag: False if the KV events of its worker are not followed.
        """
        feed = self.kv_events.feed(decision.cache_worker)
        if feed is None:
            return False
        feed.blocks.expect(rid, chain)
        if self.peer_updates is not None:
            self.peer_updates.send_tag(decision.cache_worker, rid)
        return True

    def settled(
        self,
        decision: Decision,
        rid: str,
        prompt_tokens: int,
        cached_tokens: int | None = None,
        answer_tokens: int = 0,
    ) -> None:
        """Record that a request has ended. The tokens are as reported. If `prompt_tokens` is 0, the decision's estimate
        counts. `cached_tokens`: None if unknown. `answer_tokens`: thoughts included.
        """
        feed = self.kv_events.feed(decision.cache_worker)
        if feed is not None:
            tokens = prompt_tokens or decision.prompt_tokens_est
            kept_tokens = answer_tokens if decision.prefill is None else 0  # a prefill engine never has the answer
            ended = PromptTokens(decision.cache_worker, rid, tokens, cached_tokens, kept_tokens)
            feed.settled(ended)
            if self.peer_updates is not None:
                self.peer_updates.send(ended)

    def apply_tag(self, cache_worker: str, tag: str, chain: Chain) -> None:
        feed = self.kv_events.feed(cache_worker)
        if feed is not None:
            feed.blocks.expect(tag, chain)

    def apply_prompt_tokens(self, ended: PromptTokens) -> None:
        """Record the tokens of a request that another process has sent."""
        feed = self.kv_events.feed(ended.cache_worker)
        if feed is not None:
            feed.settled(ended)

    def apply_health(self, engine_id: str, url: str, status: int | None, now_s: float) -> None:
        """Record that a process of this proxy requests `/health` of an engine (`status` None), or the answer's status.

        `url`: who was asked. In another process, the engine may have moved to another address already.
        """
        engine = self.by_id.get(engine_id)
        if engine is None or engine.config.url != url:
            return
        health_monitor = engine.health_monitor
        if status is None:
            health_monitor.probe_sent(now_s)
            return
        was_unwell = health_monitor.unwell
        health_monitor.observe_probe(status, now_s, drains="engine" in self.drains.of(engine_id))
        if health_monitor.unwell and not was_unwell:
            log.error("engine %s hangs: /health answered %s", engine_id, status or "nothing")

    async def note_counts(self, engine: Engine, counts: EngineCounts) -> None:
        """Keep the counts of an engine. Runs in a thread, because it writes a file."""
        if self._counters is not None:
            config = engine.config
            reading = CounterReading(config.id, config.url, engine.role, self._unix_clock(), counts)
            await asyncio.to_thread(self._counters.note, reading)

    def sweep(self) -> None:
        for engine in self.by_id.values():
            engine.upstream.sweep()

    async def all_sent(self, timeout_s: float) -> None:
        """Wait until every request has a connection, so that aborts reach their engines before a shutdown."""
        connecting = [task for engine in self.by_id.values() for task in engine.upstream.connecting]
        if connecting:
            await asyncio.wait(connecting, timeout=timeout_s)

    def close(self) -> None:
        self.kv_events.close()
        if self._counters is not None:
            self._counters.close()
        for task in [*self.reading.values(), *self.probing.values()]:
            task.cancel()
        for engine in [*self.by_id.values(), *self.departed.values()]:
            engine.close()
