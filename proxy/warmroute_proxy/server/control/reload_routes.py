"""`POST /admin/reload`: apply the config file, or with `?dry_run=true` say what it would change.

It is on the admin listener only.
"""

from fastapi import FastAPI, Request, Response
from msgspec import UNSET

from warmroute_proxy.server.base.config_file import ConfigError
from warmroute_proxy.server.control.answers import error_answer, json_answer
from warmroute_proxy.server.control.described import changing_route
from warmroute_proxy.server.control.models import AppliedChange, Reloaded
from warmroute_proxy.server.reload.orders import ReloadOrders


def add_reload(app: FastAPI, orders: ReloadOrders) -> None:
    @app.post("/admin/reload")
    @changing_route(Reloaded)
    async def reload(request: Request, dry_run: bool = False) -> Response:
        """Check the file whole; apply it whole, or nothing of it."""
        unknown = request.query_params.keys() - {"dry_run"}
        if unknown:
            return error_answer(400, f"{min(unknown)[:64]!r} is not known; there is dry_run=true", "invalid_value")
        try:
            found = orders.look(dry_run=dry_run)
        except ConfigError as error:
            return error_answer(400, f"nothing is changed: {error}", "invalid_config")
        in_force = None if dry_run else await orders.apply(found)
        return json_answer(
            Reloaded(
                config=found.read.digest,
                applied=not dry_run,
                changes=[AppliedChange(*change) for change in found.changes],
                waits_for_restart=found.waiting,
                processes=UNSET if in_force is None else in_force.processes,
                processes_behind=UNSET if in_force is None else in_force.behind,
            )
        )
