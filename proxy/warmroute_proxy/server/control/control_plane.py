"""The control plane: small JSON for tenants (models, usage, receipts) and for operators (metrics, workers, decisions).

Two FastAPI applications, run behind our own connections. Neither is on the path of a token.
"""

import re
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Final

import msgspec
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException

from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.server.base.config import ANY, ModelConfig, TenantConfig
from warmroute_proxy.server.base.errors import error_body, no_route
from warmroute_proxy.server.base.metrics import Labels
from warmroute_proxy.server.control.engine_admin import add_engine_routes
from warmroute_proxy.server.control.openapi import description
from warmroute_proxy.server.processes.peer_processes import Gauges, ProcessReport, summed_metrics
from warmroute_proxy.server.request.forwarding import ask_peers
from warmroute_proxy.server.request.services import Services

MAX_LISTED_DECISIONS: Final = 1000
RECEIPT_ID: Final = re.compile(r"wr-[0-9a-f]{24}")


def public_app(services: Services) -> FastAPI:
    """`/health`, `/ready`, `/openapi.json`, `/v1/models`, `/v1/usage`, `/v1/usage/receipts/<id>`."""
    app = _app("warmroute", no_route)

    @app.get("/health")
    async def health() -> Response:
        """Whether the process answers."""
        return _json({"status": "ok"})

    @app.get("/ready")
    async def ready() -> Response:
        """Whether requests should be sent here."""
        reasons = _not_ready(services)
        body = {
            "status": "not ready" if reasons else "ready",
            "region": services.config.proxy.region,
            "reasons": reasons,
        }
        return _json(body, 503 if reasons else 200)

    document = msgspec.json.encode(description(version("warmroute")))

    @app.get("/openapi.json")
    async def openapi() -> Response:
        """What clients reach, in OpenAPI's terms."""
        return Response(document, media_type="application/json")

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        """The models that the tenant may use."""
        tenant: TenantConfig = request.state.tenant
        return _json({"object": "list", "data": [_model(m) for m in services.config.models if _allowed(m, tenant)]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str, request: Request) -> Response:
        """One model, by name or alias."""
        found = services.config.model_by_name.get(name)
        if found is None or not _allowed(found, request.state.tenant):
            return _error(404, f"the model {name!r} does not exist or you have no access to it", "model_not_found")
        return _json(_model(found))

    @app.get("/v1/usage")
    async def usage(request: Request) -> Response:
        """The tenant's totals in this region."""
        return _json(services.ledger.totals(request.state.tenant.name))

    @app.get("/v1/usage/receipts/{receipt_id}")
    async def receipt(receipt_id: str, request: Request) -> Response:
        """One receipt of the tenant's own; 202 while its turn is under way. Turns may have been served elsewhere."""
        tenant: TenantConfig = request.state.tenant
        found = services.ledger.receipt(tenant.name, receipt_id)
        if found is None and not request.state.forwarded and RECEIPT_ID.fullmatch(receipt_id):
            elsewhere = await ask_peers(services, tenant, request.url.path)
            if elsewhere is not None:
                return Response(elsewhere[1], elsewhere[0], media_type="application/json")
        if found is None:
            return _error(404, f"there is no receipt {receipt_id[:64]!r} of yours", "receipt_not_found")
        return _json(found, 202 if found.get("state") == "open" else 200)

    return app


def admin_app(services: Services) -> FastAPI:
    """`/metrics`, `/admin/workers`, `/admin/admission`, `/admin/decisions`, `/admin/engines`."""
    app = _app("warmroute admin", lambda path: f"there is no route {path[:200]!r}")
    add_engine_routes(app, services)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus' text format."""
        peer_processes = services.peer_processes
        if peer_processes is None:
            text = services.metrics.render(_gauges(services, []))
        else:  # of this process as it is now, of the others as of their last sweep, or of when they were last asked
            services.publish()  # or the next one asked would show less of this process, or less for ever once it died
            reports = peer_processes.reports()
            total = summed_metrics(services.metrics, reports)
            text = total.render(_gauges(services, list(filter(peer_processes.alive, reports))))
        return Response(text, media_type="text/plain; version=0.0.4")

    @app.get("/admin/workers")
    async def workers() -> Response:
        """What the router knows of each worker."""
        return _json(services.router.snapshot(services.clock()))

    @app.get("/admin/admission")
    async def admission() -> Response:
        """Who waits for room, and what is left of tenants' limits."""
        return _json(services.admission.as_dict(services.clock()))

    @app.get("/admin/decisions")
    async def decisions(limit: int = 50) -> Response:
        """The newest decisions with their reasons, newest first."""
        newest = list(services.decisions)[-min(max(limit, 1), MAX_LISTED_DECISIONS) :][::-1]
        return _json({"decisions": [_decision(receipt_id, decision) for receipt_id, decision in newest]})

    return app


def _decision(receipt_id: str, decision: Decision) -> dict[str, Any]:
    names = zip(Decision.__struct_fields__, Decision.__struct_encode_fields__, strict=True)
    return {
        "id": receipt_id,
        **{shown: getattr(decision, field) for field, shown in names if field != "reasons"},
        "reasons": [candidate._asdict() for candidate in decision.reasons],
    }


def _not_ready(services: Services) -> list[str]:
    reasons = []
    if services.draining:
        reasons.append("shutting down")
    if not services.ledger.healthy:
        waiting = services.ledger.waiting
        reasons.append("the ledger cannot be written" + (f": the rows of {waiting} turns wait" if waiting else ""))
    up = [engine_id for engine_id, engine in services.engines.by_id.items() if engine.up]
    if not up:
        reasons.append("no engine is up")
    elif all(map(services.engines.drains.draining, up)):
        reasons.append("all engines that are up drain")
    return reasons


def _gauges(services: Services, others: list[ProcessReport]) -> list[tuple[str, Labels, float]]:
    gauges = zip(services.gauges(), *(other.gauges for other in others), strict=True)
    rows: list[tuple[str, Labels, float]] = [
        (f"warmroute_{name}", (), float(sum(values))) for name, values in zip(Gauges._fields, gauges, strict=True)
    ]
    if services.peer_processes is not None:
        rows.append(("warmroute_processes", (), float(1 + len(others))))
    for engine in services.engines.by_id.values():
        label: Labels = (("engine", engine.config.id),)
        rows.append(("warmroute_engine_up", label, float(engine.up)))
        rows.append(("warmroute_engine_draining", label, float(services.engines.drains.draining(engine.config.id))))
        connections = engine.upstream.open + sum(other.connections.get(engine.config.id, 0) for other in others)
        rows.append(("warmroute_engine_connections", label, float(connections)))
    for worker_id, worker in services.router.snapshot(services.clock()).get("workers", {}).items():
        for name, value in worker.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                rows.append((f"warmroute_worker_{name}", (("worker", worker_id),), float(value)))
    for worker_id, feed in services.engines.feeds().items():
        rows.append(("warmroute_kv_event_lag_seconds", (("worker", worker_id),), feed.lag_s))
        rows.append(("warmroute_kv_blocks_held", (("worker", worker_id),), float(feed.blocks.blocks)))
    return rows


def _app(title: str, no_route_text: Callable[[str], str]) -> FastAPI:
    app = FastAPI(title=title, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)

    @app.exception_handler(StarletteHTTPException)
    async def in_dialect(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404:
            return _error(404, no_route_text(request.url.path), "not_found")
        return _error(error.status_code, str(error.detail), None)

    @app.exception_handler(RequestValidationError)
    async def in_dialect_too(request: Request, error: RequestValidationError) -> Response:  # noqa: ARG001
        what = error.errors()[0]
        return _error(400, f"{what['loc'][-1]}: {what['msg']}", "invalid_value")

    return app


def _allowed(model: ModelConfig, tenant: TenantConfig) -> bool:
    return ANY in tenant.models or model.name in tenant.models


def _model(model: ModelConfig) -> dict[str, Any]:
    card: dict[str, Any] = {"id": model.name, "object": "model", "created": 0, "owned_by": "warmroute"}
    if model.context_tokens is not None:
        card["max_model_len"] = model.context_tokens
    return card


def _json(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def _error(status: int, message: str, code: str | None) -> Response:
    return Response(error_body(status, message, code), status, media_type="application/json")
