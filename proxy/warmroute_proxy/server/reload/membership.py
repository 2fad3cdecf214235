"""Joining and leaving engines of this region: engines that a new config names join, those it no longer names leave.

An engine that joins gets traffic once a probe has found it ready (`engines.probing`); a server that is not probed gets
traffic at once. An engine that leaves drains: it gets no new requests, its running requests end there, and its hot
prompts (recent prompts in memory) are computed on other engines. Then its workers, their loads and their cache contents
are forgotten. An engine's models and store are changed in place. If anything else of its config changes, such as its
address or a key file, it counts as another engine, which joins under the old id when the old engine has left. An
operator's drain order holds even for an engine that joins later.

    absent --joins--> joined --named no more--> leaving --nothing runs there--> absent
                        ^---------named again------|
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.base.config import EngineConfig, copies_of_bodies
from warmroute_proxy.server.base.secrets import SecretError
from warmroute_proxy.server.engines import drain_orders
from warmroute_proxy.server.engines.engine import Engine
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.http.body_memory import BodyMemory
from warmroute_proxy.server.request.re_prefill import RePrefills

log = logging.getLogger(__name__)

MOVE_WAIT_S: Final = 60.0
"""How long a leaving engine stays only for its hot prompts, since a fleet may be too busy to compute them elsewhere."""

CLOSE_AFTER_S: Final = 6.0
"""How long the connections of an engine that has left stay open for its last aborts, whose deadline is 5 s."""


class Membership:
    """The engines that join and leave. `clock`: monotonic seconds."""

    def __init__(
        self,
        engines: Engines,
        router: Router,
        re_prefills: RePrefills,
        memory: BodyMemory,
        connect_timeout_s: float,
        state_dir: Path,
        clock: Callable[[], float],
    ) -> None:
        """`state_dir`: where operators' drain orders are kept."""
        self._engines = engines
        self._router = router
        self._re_prefills = re_prefills
        self._memory = memory
        self._connect_timeout_s = connect_timeout_s
        self._state_dir = state_dir
        self._clock = clock
        self._leaving: dict[str, float] = {}  # engine id -> since when the engine leaves
        self._joining: dict[str, Engine] = {}  # id -> a new engine, which waits until the old one with this id has left

    def make(self, configs: Iterable[EngineConfig]) -> dict[str, Engine]:
        """Id -> an engine that would join, made for `replace`. Raises: SecretError, if a key file cannot be read."""
        known = self._engines.by_id
        made = {
            config.id: Engine(config, self._connect_timeout_s, self._clock)
            for config in configs
            if config.id not in known or not _is_same(known[config.id].config, config)
        }
        for engine in made.values():
            engine.upstream.turns = self._engines.turns
        return made

    def replace(self, configs: Iterable[EngineConfig], made: dict[str, Engine]) -> None:
        """Change to the engines of `configs`. `made`: the result of `make` for them."""
        wanted = {config.id: config for config in configs}
        self._memory.copies = copies_of_bodies(wanted.values())
        still = {
            id_: each for id_, each in self._joining.items() if id_ in wanted and _is_same(each.config, wanted[id_])
        }
        self._joining = {**still, **made}
        for engine_id, engine in self._engines.by_id.items():
            config = wanted.get(engine_id)
            if config is None or engine_id in self._joining:
                self._leave(engine_id)
            else:
                self._stay(engine, config)
        self.sweep()

    @property
    def key_files(self) -> set[Path]:
        configs = [each.config for each in self._all()]
        return {file for each in configs for file in (each.key_file, each.admin_key_file) if file is not None}

    def read_keys(self) -> None:
        """Read the keys of all engines again. If a file cannot be read, the engine keeps its keys."""
        for engine in self._all():
            try:
                if engine.read_keys():
                    log.info("engine %s has another key", engine.config.id)
            except SecretError as error:
                log.error("the keys of engine %s stay as they were: %s", engine.config.id, error)

    def sweep(self) -> None:
        """Remove engines that have left, and add engines that can join. Called a few times a second."""
        for engine_id, since_s in list(self._leaving.items()):
            if self._has_left(engine_id, since_s):
                self._remove(engine_id)
        free = [engine_id for engine_id in self._joining if engine_id not in self._engines.by_id]
        orders = drain_orders.load(self._state_dir) if free else {}
        for engine_id in free:
            self._join(self._joining.pop(engine_id), orders.get(engine_id))

    def _all(self) -> list[Engine]:
        return [*self._engines.by_id.values(), *self._joining.values()]

    def _leave(self, engine_id: str) -> None:
        if engine_id not in self._leaving:
            self._leaving[engine_id] = self._clock()
            self._engines.drain(engine_id, "config", True, self._router)

    def _stay(self, engine: Engine, config: EngineConfig) -> None:
        if self._leaving.pop(config.id, None) is not None:
            self._engines.drain(config.id, "config", False, self._router)
        if engine.config != config:
            engine.config = config
            for worker in engine.workers():
                self._router.add_worker(worker)
            self._engines.workers_changed()

    def _join(self, engine: Engine, drains_since_s: float | None) -> None:
        engines, engine_id = self._engines, engine.config.id
        log.warning("engine %s joins", engine_id)
        engine.up = not engine.is_sglang
        engine.down_since_s = self._clock()
        engines.by_id[engine_id] = engine
        for worker in engine.workers():
            self._router.add_worker(worker)
            self._router.set_up(worker.id, engine.up)
        if drains_since_s is not None:
            engines.drain(engine_id, "operator", True, self._router, drains_since_s)
        engines.workers_changed()

    def _has_left(self, engine_id: str, since_s: float) -> bool:
        workers = self._engines.by_id[engine_id].workers()
        if any(self._router.running(worker.id) for worker in workers):
            return False
        return not self._re_prefills.waiting(engine_id) or self._clock() - since_s > MOVE_WAIT_S

    def _remove(self, engine_id: str) -> None:
        engines = self._engines
        log.warning("engine %s has left", engine_id)
        del self._leaving[engine_id]
        engine = engines.by_id.pop(engine_id)
        for worker in engine.workers():
            engines.kv_events.leave(worker.id)
            self._router.remove_worker(worker.id)
        engines.workers_changed()
        engines.drains.forget(engine_id)
        engines.watching.forget(engine_id)
        engines.lost -= {engine_id}
        engines.departed[engine_id] = engine
        asyncio.get_running_loop().call_later(CLOSE_AFTER_S, self._close, engine)

    def _close(self, engine: Engine) -> None:
        if self._engines.departed.get(engine.config.id) is engine:
            del self._engines.departed[engine.config.id]
        engine.close()


def _is_same(one: EngineConfig, other: EngineConfig) -> bool:
    """Whether two configs differ at most in models and store, so that an engine can change from one to the other."""
    return replace(one, models=other.models, model_names=other.model_names, store=other.store) == other
