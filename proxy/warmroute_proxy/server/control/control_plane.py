"""The control plane: small JSON for tenants (models, usage, receipts) and for operators (metrics, workers, decisions).

The control plane is two FastAPI applications behind the proxy's own connections. No token of an answer passes through.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from msgspec import UNSET
from starlette.exceptions import HTTPException as StarletteHTTPException

from warmroute.contract.version import VERSION
from warmroute_proxy import BUILD
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.base.config import ModelConfig
from warmroute_proxy.server.base.config_file import ConfigError
from warmroute_proxy.server.base.config_source import LiveConfig
from warmroute_proxy.server.base.errors import Refusal, error_body, no_model
from warmroute_proxy.server.control.answers import error_answer, get, json_answer, refused
from warmroute_proxy.server.control.described import admin_route, changing_route, described
from warmroute_proxy.server.control.directory_routes import DirectoryAdmin, add_directory
from warmroute_proxy.server.control.engine_admin import EngineAdmin, add_engine_routes
from warmroute_proxy.server.control.engine_flip import EngineFlips, add_flip_routes
from warmroute_proxy.server.control.exposition import OPEN_METRICS_TYPE, TEXT_TYPE, wants_open_metrics
from warmroute_proxy.server.control.metrics_page import MetricsPage
from warmroute_proxy.server.control.models import AppliedChange, Decisions, Health, Json, ListOf, Model, Ready, Reloaded
from warmroute_proxy.server.control.openapi import description
from warmroute_proxy.server.control.page_files import PageFile, add_page
from warmroute_proxy.server.control.readiness import Readiness
from warmroute_proxy.server.control.session_routes import SessionWords, add_sessions
from warmroute_proxy.server.control.usage_routes import (
    Asking,
    Receipts,
    add_admin_usage,
    add_operators_question,
    add_receipts,
    add_usage,
)
from warmroute_proxy.server.control.view_routes import Views, add_views, decision_body
from warmroute_proxy.server.dialects.dialect import Dialect
from warmroute_proxy.server.dialects.routes import APIS, no_route, shape_of
from warmroute_proxy.server.regions.versions import HERE
from warmroute_proxy.server.reload.orders import ReloadOrders
from warmroute_proxy.server.request.admission import Admission
from warmroute_proxy.server.request.open_requests import OpenRequests
from warmroute_proxy.server.stores.prices import Prices


def add_models(app: FastAPI, live: LiveConfig, prices: Prices) -> None:
    """Add `/v1/models`, and the paths at which clients of other APIs look for models."""

    @get(app, "/v1/models")
    @described(ListOf[Model])
    async def models(request: Request) -> Response:
        """The models that the tenant may use."""
        found = live.now.models_of(request.state.tenant)
        api = _api_of(request)
        return json_answer(
            ListOf(data=[_model(each, prices) for each in found]) if api is None else api.model_list(found)
        )

    @get(app, "/v1/models/{name:path}")
    @described(Model)
    async def model(name: str, request: Request) -> Response:
        """One model, by name or alias."""
        found, api = live.now.model_of(name), _api_of(request)
        if found is None or not request.state.tenant.may_use(found):
            problem = no_model(name, [each.name for each in live.now.models_of(request.state.tenant)])
            error = (error_body if api is None else api.error)(404, problem, "model_not_found", None)
            return Response(error, 404, media_type="application/json")
        return json_answer(_model(found, prices) if api is None else api.model_card(found))

    for prefix in (api.prefix for api in APIS if api.prefix):
        for path, handler in ((f"{prefix}models", models), (f"{prefix}models/{{name:path}}", model)):
            app.add_api_route(path, handler, methods=["GET", "HEAD"], include_in_schema=False)


def _api_of(request: Request) -> Dialect | None:
    """The API in whose form a client expects models; None for OpenAI's."""
    return next((api for api in APIS if api.lists_models(request.url.path, request.headers)), None)


def _model(model: ModelConfig, prices: Prices) -> Model:
    book = prices.now(model.name)
    return Model(
        id=model.name,
        rates_usd_per_mtok=book.rates.as_usd_per_mtok(),
        price_book=book.name,
        max_model_len=UNSET if model.context_tokens is None else model.context_tokens,
    )


# `POST /admin/reload` applies the config file, or with `?dry_run=true` says what the file would change.
#
# The route is on the admin listener only.


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


MAX_LISTED_DECISIONS: Final = 1000


class PublicParts(NamedTuple):
    """The objects that the public routes use."""

    live: LiveConfig
    prices: Prices
    readiness: Readiness
    receipts: Receipts
    asking: Asking
    sessions: SessionWords


class AdminParts(NamedTuple):
    """The objects that operators' routes use. `directory`: tenants and keys in the database; None without one."""

    page: MetricsPage
    engines: EngineAdmin
    flips: EngineFlips
    router: Router
    admission: Admission
    open_requests: OpenRequests
    directory: DirectoryAdmin | None
    asking: Asking
    views: Views
    orders: ReloadOrders
    clock: Callable[[], float]


def public_app(parts: PublicParts) -> FastAPI:
    app = _app("warmroute", no_route)
    _add_health(app, parts)
    add_models(app, parts.live, parts.prices)
    add_receipts(app, parts.receipts)
    add_usage(app, parts.asking)
    add_operators_question(app, parts.asking)
    add_sessions(app, parts.sessions)
    return app


def admin_app(parts: AdminParts, files: Mapping[str, PageFile]) -> FastAPI:
    """The application of the admin listener. `files`: the files of the admin page."""
    app = _app("warmroute admin", lambda path: f"there is no route {path[:200]!r}")
    add_flip_routes(app, parts.engines, parts.flips)  # first, since an engine's id may have a slash
    add_engine_routes(app, parts.engines)
    _add_state(app, parts)
    add_directory(app, parts.directory)
    add_admin_usage(app, parts.asking)
    add_views(app, parts.views)
    add_page(app, files)
    add_reload(app, parts.orders)
    return app


def described_routes() -> dict[str, Any]:
    """The OpenAPI document, made from applications whose parts are placeholders, since they serve no request."""
    nothing: Any = None
    apps = [public_app(PublicParts(*[nothing] * 6)), admin_app(AdminParts(*[object()] * 11), {})]  # type: ignore[arg-type]
    return description(apps)


def _add_health(app: FastAPI, parts: PublicParts) -> None:
    @get(app, "/health")
    @described(Health, security=())
    async def health() -> Response:
        """Whether the process answers."""
        return json_answer(Health("ok"))

    @get(app, "/ready")
    @described(Ready, also={503: Ready}, security=())
    async def ready() -> Response:
        """Whether requests should be sent here."""
        reasons = [problem.text for problem in parts.readiness.problems()]
        degraded = [problem.text for problem in parts.readiness.degraded()]
        status: Literal["ready", "not ready"] = "not ready" if reasons else "ready"
        proxy = parts.live.now.proxy
        return json_answer(
            Ready(
                status=status,
                region=proxy.region,
                version=VERSION,
                build=BUILD,
                reasons=reasons,
                forward_versions=list(HERE),
                degraded=degraded or msgspec.UNSET,
                elsewhere=parts.readiness.elsewhere or msgspec.UNSET,
                counts_alone=proxy.counts_alone or msgspec.UNSET,
            ),
            503 if reasons else 200,
        )

    made: asyncio.Task[bytes] | None = None  # the document takes half a second in a thread, so it is made once

    @get(app, "/openapi.json")
    @described(Json, security=())
    async def openapi() -> Response:
        """This description."""
        nonlocal made
        if made is None:
            made = asyncio.create_task(asyncio.to_thread(lambda: msgspec.json.encode(described_routes())))
        return Response(await asyncio.shield(made), media_type="application/json")


def _add_state(app: FastAPI, parts: AdminParts) -> None:
    @app.get("/admin/conditions")
    @admin_route(Json)
    async def conditions() -> Response:
        """What is wrong with engines for longer than a moment."""
        return json_answer(parts.engines.watching.as_dict(parts.clock()))

    @app.get("/metrics")
    @admin_route(None, media_types=(OPEN_METRICS_TYPE, TEXT_TYPE))
    async def metrics(request: Request) -> Response:
        """Prometheus' text format, or OpenMetrics where `Accept` prefers it."""
        open_metrics = wants_open_metrics(request.headers.get("accept", ""))
        media_type = OPEN_METRICS_TYPE if open_metrics else TEXT_TYPE
        return Response(parts.page.render(open_metrics=open_metrics), headers={"content-type": media_type})

    @app.get("/admin/workers")
    @admin_route(Json)
    async def workers() -> Response:
        """What the router knows of each worker."""
        return json_answer(parts.router.snapshot(parts.clock()))

    @app.get("/admin/admission")
    @admin_route(Json)
    async def queue() -> Response:
        """The queue, and what is left of tenants' limits."""
        return json_answer(parts.admission.as_dict(parts.clock()))

    @app.get("/admin/decisions")
    @admin_route(Decisions)
    async def decisions(limit: int = 50) -> Response:
        """The newest decisions with their reasons, newest first."""
        newest = list(parts.open_requests.decisions)[-min(max(limit, 1), MAX_LISTED_DECISIONS) :][::-1]
        return json_answer(Decisions([decision_body(receipt_id, decision) for receipt_id, decision in newest]))


def _app(title: str, no_route_text: Callable[[str], str]) -> FastAPI:
    app = FastAPI(title=title, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)

    @app.exception_handler(StarletteHTTPException)
    async def in_dialect(request: Request, error: HTTPException) -> Response:
        path, status = request.url.path, error.status_code
        message, code = str(error.detail), None
        if status == 404:
            message, code = no_route_text(path), "not_found"
        elif status == 405:
            message, code = f"{path[:200]} does not take {request.method}", "method_not_allowed"
        dialect = shape_of(path)
        if dialect is None:
            return error_answer(status, message, code)
        return Response(dialect.error(status, message, code, None), status, media_type="application/json")

    @app.exception_handler(Refusal)
    async def refuse(request: Request, refusal: Refusal) -> Response:  # noqa: ARG001
        return refused(refusal)

    @app.exception_handler(RequestValidationError)
    async def in_dialect_too(request: Request, error: RequestValidationError) -> Response:  # noqa: ARG001
        what = error.errors()[0]
        return error_answer(400, f"{what['loc'][-1]}: {what['msg']}", "invalid_value")

    return app
