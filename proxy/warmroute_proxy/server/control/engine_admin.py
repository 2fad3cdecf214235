"""What operators ask of engines: how each one is, and that it be drained or take work again. Admin listener only.

    GET    /admin/engines               all engines
    GET    /admin/engines/{id}          one
    GET    /admin/engines/{id}/drain    the same, for who waits until it is drained
    POST   /admin/engines/{id}/drain    no new work; what runs there ends in peace
    DELETE /admin/engines/{id}/drain    it may get work again, unless it says itself that it wants none

Each answers with the engine as it is now. Asking twice changes nothing.
"""

from typing import Any, Final

import msgspec
from fastapi import FastAPI, Response

from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.server.base.errors import error_body
from warmroute_proxy.server.engines import drain_orders
from warmroute_proxy.server.request.services import Services

MOVE_WAIT_S: Final = 60.0


def add_engine_routes(app: FastAPI, services: Services) -> None:
    """Add the routes to the admin application."""
    engines = services.engines

    def one(engine_id: str) -> Response:
        if engine_id not in engines.by_id:
            known = ", ".join(engines.by_id)
            message = f"there is no engine {engine_id[:64]!r} in this region; there are: {known}"
            return Response(error_body(404, message, "engine_not_found"), 404, media_type="application/json")
        return _json(engine_status(services, engine_id))

    def order(engine_id: str, draining: bool) -> Response:
        if engine_id in engines.by_id:
            engines.drain(engine_id, "operator", draining, services.router)
            drain_orders.save(services.config.proxy.state_dir, engines.drains.by_operator())
            if services.peer_processes is not None:
                services.peer_processes.send_drain(engine_id, draining)
        return one(engine_id)

    @app.get("/admin/engines")
    async def all_engines() -> Response:
        """All engines of this region."""
        return _json({"engines": [engine_status(services, engine_id) for engine_id in engines.by_id]})

    @app.get("/admin/engines/{engine_id}")
    @app.get("/admin/engines/{engine_id}/drain")
    async def engine(engine_id: str) -> Response:
        """One engine."""
        return one(engine_id)

    @app.post("/admin/engines/{engine_id}/drain")
    async def drain(engine_id: str) -> Response:
        """It gets no new work."""
        return order(engine_id, draining=True)

    @app.delete("/admin/engines/{engine_id}/drain")
    async def undrain(engine_id: str) -> Response:
        """It may get work again."""
        return order(engine_id, draining=False)


def engine_status(services: Services, engine_id: str) -> dict[str, Any]:
    """One engine as pages show it. `drained`: it drains, nothing that this proxy sent runs there any more, and of its
    hot prompts none waits to be computed elsewhere, or has waited for `MOVE_WAIT_S`: a fleet may be too busy for it.
    """
    engine = services.engines.by_id[engine_id]
    workers = services.router.snapshot(services.clock())["workers"]
    mine = [workers[worker.id] for worker in engine.workers() if worker.id in workers]
    running = sum(worker["running"] for worker in mine)
    waiting = services.re_prefills.waiting(engine_id)
    drains = services.engines.drains.of(engine_id)
    moved = waiting == 0 or services.unix_clock() - min(drains.values(), default=0.0) > MOVE_WAIT_S
    found: dict[str, Any] = {
        "id": engine_id,
        "url": engine.config.url,
        "role": engine.config.role,
        "state": "down" if not engine.up else "draining" if drains else _state(mine),
        "draining_since": drains,
        "running": running,
        "re_prefills_waiting": waiting,
        "drained": bool(drains) and running == 0 and moved,
    }
    unserved = _unserved(services, engine.workers()) if drains else []
    if unserved:
        found["warning"] = f"nothing else here serves {', '.join(unserved)} as {engine.config.role}"
    return found


def _state(workers: list[dict[str, Any]]) -> str:
    return "open" if workers and all(worker["health"] == "open" for worker in workers) else "up"


def _unserved(services: Services, leaving: list[Worker]) -> list[str]:
    """Models that no engine of the same role serves any more, once these are gone."""
    stay = [
        worker
        for engine in services.engines.by_id.values()
        if engine.up and not services.engines.drains.draining(engine.config.id)
        for worker in engine.workers()
    ]
    role = leaving[0].role
    names = [model.name for model in services.config.models if leaving[0].serves(model.name)]
    return [name for name in names if not any(worker.role == role and worker.serves(name) for worker in stay)]


def _json(body: object) -> Response:
    return Response(msgspec.json.encode(body), 200, media_type="application/json")
