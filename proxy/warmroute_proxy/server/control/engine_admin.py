"""Routes for operators that show engines, drain them, and let them take work again. Admin listener only.

    GET    /admin/engines               show all engines
    GET    /admin/engines/{id}          show one engine
    GET    /admin/engines/{id}/drain    show one engine, for scripts that wait until it is drained
    POST   /admin/engines/{id}/drain    give the engine no new work; running requests continue to their end
    DELETE /admin/engines/{id}/drain    give the engine work again, unless the engine itself reports that it drains

Each answer shows the engine as it is now. A repeated request changes nothing.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from fastapi import FastAPI, Response
from msgspec import UNSET

from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.base.config_source import LiveConfig
from warmroute_proxy.server.control.answers import error_answer, json_answer
from warmroute_proxy.server.control.described import admin_route, changing_route
from warmroute_proxy.server.control.models import EngineList, EngineState
from warmroute_proxy.server.engines import drain_orders
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.engines.watching import Watching
from warmroute_proxy.server.processes.peer_processes import PeerProcesses
from warmroute_proxy.server.reload.membership import MOVE_WAIT_S
from warmroute_proxy.server.request.re_prefill import RePrefills


class EngineAdmin:
    def __init__(
        self,
        engines: Engines,
        router: Router,
        re_prefills: RePrefills,
        live: LiveConfig,
        state_dir: Path,
        peer_processes: PeerProcesses | None,
        clock: Callable[[], float],
        unix_clock: Callable[[], float],
    ) -> None:
        """`state_dir`: where drain orders are kept; `peer_processes`: the other processes, which get each order."""
        self._engines = engines
        self._router = router
        self._re_prefills = re_prefills
        self._live = live
        self._state_dir = state_dir
        self._peer_processes = peer_processes
        self._clock = clock
        self._unix_clock = unix_clock

    @property
    def watching(self) -> Watching:
        return self._engines.watching

    @property
    def ids(self) -> list[str]:
        return list(self._engines.by_id)

    def unknown(self, engine_id: str) -> Response | None:
        """The answer if this region has no such engine; None if it has."""
        if engine_id in self._engines.by_id:
            return None
        message = f"there is no engine {engine_id[:64]!r} in this region; there are: {', '.join(self.ids)}"
        return error_answer(404, message, "engine_not_found")

    def drain(self, engine_id: str, draining: bool) -> None:
        """Drain an engine or end its drain, here and in the other processes. The order survives a restart."""
        self._engines.drain(engine_id, "operator", draining, self._router)
        drain_orders.note(self._state_dir, engine_id, self._engines.drains.of(engine_id).get("operator"))
        if self._peer_processes is not None:
            self._peer_processes.send_drain(engine_id, draining)

    def status(self, engine_id: str) -> EngineState:
        """The state of one engine for operators.

        `drained`: the engine drains, no request of this proxy runs there any more, and none of its hot prompts (recent
        prompts in memory) waits to be computed elsewhere. After `MOVE_WAIT_S` waiting prompts do not count, since a
        fleet may be too busy for them.
        """
        engine = self._engines.by_id[engine_id]
        workers = self._router.snapshot(self._clock())["workers"]
        mine = [workers[worker.id] for worker in engine.workers() if worker.id in workers]
        running = sum(worker["running"] for worker in mine)
        waiting = self._re_prefills.waiting(engine_id)
        drains = self._engines.drains.of(engine_id)
        moved = waiting == 0 or self._unix_clock() - min(drains.values(), default=0.0) > MOVE_WAIT_S
        unserved = self._unserved(engine.workers()) if drains else []
        return EngineState(
            id=engine_id,
            url=engine.config.url,
            role=engine.role,
            state="down" if not engine.up else "draining" if drains else _state(mine),
            draining_since={str(who): since for who, since in drains.items()},
            running=running,
            re_prefills_waiting=waiting,
            drained=bool(drains) and running == 0 and moved,
            warm_tokens=self._engines.warm_tokens(self._router, self._clock()).get(engine_id, UNSET),
            warning=f"nothing else here serves {', '.join(unserved)} as {engine.role}" if unserved else UNSET,
        )

    def _unserved(self, leaving: list[Worker]) -> list[str]:
        """The models that no other engine with this role serves once the workers `leaving` are gone."""
        stay = [
            worker
            for engine in self._engines.by_id.values()
            if engine.up and not self._engines.drains.draining(engine.config.id)
            for worker in engine.workers()
        ]
        role = leaving[0].role
        names = [model.name for model in self._live.now.models if leaving[0].serves(model.name)]
        return [name for name in names if not any(worker.role == role and worker.serves(name) for worker in stay)]


def add_engine_routes(app: FastAPI, admin: EngineAdmin) -> None:
    def one(engine_id: str) -> Response:
        return admin.unknown(engine_id) or json_answer(admin.status(engine_id))

    def order(engine_id: str, draining: bool) -> Response:
        if engine_id in admin.ids:
            admin.drain(engine_id, draining)
        return one(engine_id)

    @app.get("/admin/engines")
    @admin_route(EngineList)
    async def all_engines() -> Response:
        """All engines of this region."""
        return json_answer(EngineList([admin.status(engine_id) for engine_id in admin.ids]))

    @app.get("/admin/engines/{engine_id:path}")
    @app.get("/admin/engines/{engine_id:path}/drain")
    @admin_route(EngineState)
    async def engine(engine_id: str) -> Response:
        """One engine."""
        return one(engine_id)

    @app.post("/admin/engines/{engine_id:path}/drain")
    @changing_route(EngineState)
    async def drain(engine_id: str) -> Response:
        """Drain an engine: it gets no new requests."""
        return order(engine_id, draining=True)

    @app.delete("/admin/engines/{engine_id:path}/drain")
    @changing_route(EngineState)
    async def undrain(engine_id: str) -> Response:
        """It may get work again."""
        return order(engine_id, draining=False)


def _state(workers: list[dict[str, Any]]) -> Literal["open", "up"]:
    return "open" if workers and all(worker["health"] == "open" for worker in workers) else "up"
