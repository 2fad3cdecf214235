"""`POST /admin/reload`: apply the config file, or with `?dry_run=true` say what it would change.

It is on the admin listener only.
"""

from typing import Any

from fastapi import FastAPI, Request, Response

from warmroute_proxy.server.base.config_difference import Change
from warmroute_proxy.server.base.config_file import ConfigError
from warmroute_proxy.server.control.answers import error_answer, json_answer
from warmroute_proxy.server.reload.orders import ReloadOrders


def add_reload(app: FastAPI, orders: ReloadOrders) -> None:
    """Add the route to the admin application."""

    @app.post("/admin/reload")
    async def reload(request: Request, dry_run: bool = False) -> Response:
        """Check the file whole; apply it whole, or nothing of it."""
        unknown = request.query_params.keys() - {"dry_run"}
        if unknown:
            return error_answer(400, f"{min(unknown)[:64]!r} is not known; there is dry_run=true", "invalid_value")
        try:
            found = orders.look(dry_run=dry_run)
        except ConfigError as error:
            return error_answer(400, f"nothing is changed: {error}", "invalid_config")
        answer: dict[str, Any] = {
            "config": found.read.digest,
            "applied": not dry_run,
            "changes": [_change(change) for change in found.changes],
            "waits_for_restart": found.waiting,
        }
        if not dry_run:
            in_force = await orders.apply(found)
            answer |= {"processes": in_force.processes, "processes_behind": in_force.behind}
        return json_answer(answer)


def _change(change: Change) -> dict[str, Any]:
    return {
        "table": change.table,
        "name": change.name,
        "change": change.kind.value,
        "keys": list(change.keys),
        "waits_for_restart": change.waits_for_restart,
    }
