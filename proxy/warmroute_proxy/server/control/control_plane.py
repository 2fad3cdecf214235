"""The control plane: small JSON for tenants (models, usage, receipts) and for operators (metrics, workers, decisions).

Two FastAPI applications, run behind our own connections. Neither is on the path of a token.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException

from warmroute.contract.version import VERSION
from warmroute_proxy import BUILD
from warmroute_proxy.core.base.trouble import Problem, Trouble
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.base.live_config import LiveConfig
from warmroute_proxy.server.control.answers import error_answer, get, json_answer
from warmroute_proxy.server.control.engine_admin import EngineAdmin, add_engine_routes
from warmroute_proxy.server.control.exposition import OPEN_METRICS_TYPE, TEXT_TYPE, wants_open_metrics
from warmroute_proxy.server.control.metrics_page import MetricsPage
from warmroute_proxy.server.control.model_routes import add_models
from warmroute_proxy.server.control.openapi import description
from warmroute_proxy.server.control.usage_routes import (
    Asking,
    Receipts,
    add_operators_question,
    add_receipts,
    add_usage,
)
from warmroute_proxy.server.control.view_routes import decision_body
from warmroute_proxy.server.dialects.other_apis import no_route
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.ledger.ledger import Ledger
from warmroute_proxy.server.request.admission import Admission
from warmroute_proxy.server.request.open_requests import OpenRequests
from warmroute_proxy.server.stores.prices import Prices

MAX_LISTED_DECISIONS: Final = 1000


class Readiness:
    """Why no requests should be sent here now."""

    def __init__(
        self,
        open_requests: OpenRequests,
        ledger: Ledger,
        engines: Engines,
        degraded: Sequence[Callable[[], list[Problem]]],
    ) -> None:
        """`degraded`: what each part says that does not work as it should."""
        self._open_requests = open_requests
        self._ledger = ledger
        self._engines = engines
        self._degraded = degraded

    def degraded(self) -> list[Problem]:
        """What does not work as it should while requests are served."""
        return [problem for problems in self._degraded for problem in problems()]

    def problems(self) -> list[Problem]:
        """The reasons; none where the proxy is ready."""
        reasons = []
        if self._open_requests.closed:
            reasons.append(Problem(Trouble.SHUTTING_DOWN, "shutting down"))
        if not self._ledger.healthy:
            waiting = self._ledger.waiting
            text = "the ledger cannot be written" + (f": the rows of {waiting} turns wait" if waiting else "")
            reasons.append(Problem(Trouble.LEDGER_UNWRITABLE, text))
        up = [engine_id for engine_id, engine in self._engines.by_id.items() if engine.serves]
        if not up:
            reasons.append(Problem(Trouble.NO_ENGINE, "no engine is up"))
        elif all(map(self._engines.drains.draining, up)):
            reasons.append(Problem(Trouble.ALL_ENGINES_DRAIN, "all engines that are up drain"))
        return reasons

    def troubles(self) -> tuple[str, ...]:
        """What this process says at `/ready`, by name."""
        return tuple({problem.trouble.value for problem in (*self.problems(), *self.degraded())})


def public_app(
    live: LiveConfig,
    prices: Prices,
    readiness: Readiness,
    receipts: Receipts,
    asking: Asking,
) -> FastAPI:
    """`/health`, `/ready`, `/openapi.json`, `/v1/models`, and what `usage_routes` has; `add_sessions` adds
    `/v1/sessions/expect`.
    """
    app = _app("warmroute", no_route)
    _add_health(app, readiness, live.now.proxy.region)
    add_models(app, live, prices)
    add_receipts(app, receipts)
    add_usage(app, asking)
    add_operators_question(app, asking)
    return app


def _add_health(app: FastAPI, readiness: Readiness, region: str) -> None:
    document = msgspec.json.encode(description(VERSION))

    @get(app, "/health")
    async def health() -> Response:
        """Whether the process answers."""
        return json_answer({"status": "ok"})

    @get(app, "/ready")
    async def ready() -> Response:
        """Whether requests should be sent here."""
        reasons = [problem.text for problem in readiness.problems()]
        status = "not ready" if reasons else "ready"
        body = {"status": status, "region": region, "version": VERSION, "build": BUILD, "reasons": reasons}
        if degraded := readiness.degraded():
            body["degraded"] = [problem.text for problem in degraded]
        return json_answer(body, 503 if reasons else 200)

    @get(app, "/openapi.json")
    async def openapi() -> Response:
        """What clients reach, in OpenAPI's terms."""
        return Response(document, media_type="application/json")


def admin_app(
    page: MetricsPage,
    engine_admin: EngineAdmin,
    router: Router,
    admission: Admission,
    open_requests: OpenRequests,
    clock: Callable[[], float],
) -> FastAPI:
    """`/metrics`, `/admin/workers`, `/admin/admission`, `/admin/decisions`, `/admin/conditions`, `/admin/engines`;
    `add_admin_usage` adds `/admin/usage`, `add_flip_routes` the flips of engines, `add_reload` `/admin/reload`,
    `add_views` and `add_page` the page and what it reads.
    """
    app = _app("warmroute admin", lambda path: f"there is no route {path[:200]!r}")
    add_engine_routes(app, engine_admin)

    @app.get("/admin/conditions")
    async def conditions() -> Response:
        """What is wrong with engines for longer than a moment."""
        return json_answer(engine_admin.watching.as_dict(clock()))

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Prometheus' text format, or OpenMetrics where `Accept` prefers it."""
        open_metrics = wants_open_metrics(request.headers.get("accept", ""))
        media_type = OPEN_METRICS_TYPE if open_metrics else TEXT_TYPE
        return Response(page.render(open_metrics=open_metrics), headers={"content-type": media_type})

    @app.get("/admin/workers")
    async def workers() -> Response:
        """What the router knows of each worker."""
        return json_answer(router.snapshot(clock()))

    @app.get("/admin/admission")
    async def queue() -> Response:
        """The queue, and what is left of tenants' limits."""
        return json_answer(admission.as_dict(clock()))

    @app.get("/admin/decisions")
    async def decisions(limit: int = 50) -> Response:
        """The newest decisions with their reasons, newest first."""
        newest = list(open_requests.decisions)[-min(max(limit, 1), MAX_LISTED_DECISIONS) :][::-1]
        return json_answer({"decisions": [decision_body(receipt_id, decision) for receipt_id, decision in newest]})

    return app


def _app(title: str, no_route_text: Callable[[str], str]) -> FastAPI:
    app = FastAPI(title=title, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)

    @app.exception_handler(StarletteHTTPException)
    async def in_dialect(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404:
            return error_answer(404, no_route_text(request.url.path), "not_found")
        return error_answer(error.status_code, str(error.detail), None)

    @app.exception_handler(RequestValidationError)
    async def in_dialect_too(request: Request, error: RequestValidationError) -> Response:  # noqa: ARG001
        what = error.errors()[0]
        return error_answer(400, f"{what['loc'][-1]}: {what['msg']}", "invalid_value")

    return app
