"""The public endpoint: passes requests for inference to `Arrivals`, and small GETs to the control plane.

All other routes are refused, including those that only engines have (`/generate`, `/abort_request`, ...). Routes of
APIs that are not served are refused before authentication, because their clients send the key in a different header.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from warmroute_proxy.server.authentication import Authentication, KnownKey
from warmroute_proxy.server.base.errors import Refusal, check_plain, is_websocket, wrong_method
from warmroute_proxy.server.base.metrics import Counter
from warmroute_proxy.server.dialects.base_urls import deployment_of, meant_path
from warmroute_proxy.server.dialects.dialect import Dialect, DialectRefusal, Sockets
from warmroute_proxy.server.dialects.routes import (
    DIALECT_OF_PATH,
    PREFIXES,
    dialect_for,
    dialect_of,
    no_route,
    refuse_other_api,
    shape_of,
    without_key,
)
from warmroute_proxy.server.http.asgi import Bridge
from warmroute_proxy.server.http.cross_origin import NO_STORE, is_allowed_preflight
from warmroute_proxy.server.http.exchange import Exchange, Request, answer_error
from warmroute_proxy.server.intake.caller import Callers
from warmroute_proxy.server.intake.parsed_request import CHAT, ROUTES
from warmroute_proxy.server.regions.versions import ANNOUNCEMENTS, MAX_ANNOUNCED_BYTES

OPEN_PATHS: Final = frozenset({"/health", "/ready", "/openapi.json"})
_NAMED_PATHS: Final = frozenset({*ROUTES, *DIALECT_OF_PATH, *OPEN_PATHS, "/v1/models", "/v1/usage"})
"""Paths that are values of the metrics' label `route`. Other paths have the route of their API, or "other"."""


class Begins(Protocol):
    def begin(self, request: Request, exchange: Exchange) -> None:
        """Begin a request that needs no translation. Raises: Refusal."""

    def begin_translated(self, request: Request, exchange: Exchange, dialect: Dialect) -> None:
        """Begin a request of an API that is translated into chat completions."""


class Settings(Protocol):
    """The settings of the endpoint in the present config."""

    def cors_origins(self) -> tuple[str, ...]:
        """The origins of web pages that may read answers."""

    def serves_websockets(self) -> bool:
        """Whether WebSocket upgrades are accepted."""


class CountsAnswers(Protocol):
    def answers(self, route: str, status: int) -> Counter:
        """The counter of a route and a status."""

    def answered(self, tenant: str, status: int) -> None:
        """Count an error answer to a tenant."""


class PublicEndpoint:
    def __init__(
        self,
        arrivals: Begins,
        settings: Settings,
        callers: Callers,
        authentication: Authentication,
        control_plane: Bridge,
        sockets: Mapping[str, Sockets],
        announced: Callable[[Request, Exchange], None],
        metrics: CountsAnswers,
    ) -> None:
        """`sockets`: the objects that open WebSockets, by path. `announced`: applies another proxy's announcements, and
        may raise Refusal.
        """
        self._arrivals = arrivals
        self._settings = settings
        self._callers = callers
        self._authentication = authentication
        self._control_plane = control_plane
        self._sockets = sockets
        self._announced = announced
        self._metrics = metrics
        self._answers: dict[tuple[str, int], Counter] = {}  # by route and status

    def on_head(self, request: Request) -> None:
        path = request.path
        if "origin" in request.headers and is_allowed_preflight(request, self._settings.cors_origins()):
            return
        if path in ROUTES and not request.query:
            self._on_head(request, path)
            return
        if path not in _NAMED_PATHS and dialect_of(path) is None:
            request.deployment = deployment_of(path)
            request.path = path = meant_path(path)
        without_key(request)
        dialect = shape_of(path)
        try:
            if dialect_of(path) is None:
                self._on_head(request, path)
            else:
                self._on_dialect_head(request)
        except Refusal as refusal:
            raise refusal if dialect is None else DialectRefusal(dialect, refusal) from None

    def _on_dialect_head(self, request: Request) -> None:
        """Check the head of a request in another API, or of a WebSocket upgrade."""
        if self._is_offer(request):
            if request.length != 0:
                raise Refusal(400, f"{request.path} takes no body with GET", code="bad_request")
            self._check_key(request)
            return
        if request.method != "POST":
            raise wrong_method(request.path, request.method, request.headers)
        self._on_head(request, CHAT)

    def _on_head(self, request: Request, path: str) -> None:
        if "content-encoding" in request.headers:
            check_plain(request.headers)
        if path in OPEN_PATHS:
            if request.length != 0:  # clients are not authenticated on these paths: accept no bodies
                raise Refusal(400, f"{path} takes no body", code="bad_request")
            return
        if path == ANNOUNCEMENTS:
            self._authentication.check_proxy(request, MAX_ANNOUNCED_BYTES)
            return
        if path in ROUTES:
            if request.method != "POST":
                raise wrong_method(path, request.method, request.headers)
        else:
            if request.method == "POST":
                refuse_other_api(path)
            if not path.startswith(PREFIXES):
                raise Refusal(404, no_route(path), code="not_found")
        key = self._check_key(request)
        if key is not None and path in ROUTES:
            request.caller = self._callers.of(path, key.tenant, request.headers, key.key_id)

    def _check_key(self, request: Request) -> KnownKey | None:
        """Authenticate the request and record its tenant. Raises: Refusal."""
        key = self._authentication.of_head(request)
        if key is not None:
            request.tenant = key.tenant.name
        return key

    def _is_offer(self, request: Request) -> bool:
        serves = request.path in self._sockets and self._settings.serves_websockets()
        return serves and request.method == "GET" and is_websocket(request.headers)

    def handle(self, request: Request, exchange: Exchange) -> None:
        try:
            if request.method == "OPTIONS" and request.more_lines:
                exchange.respond(200, (), b"")
                return
            if request.path in ROUTES:
                self._arrivals.begin(request, exchange)
            elif request.method == "GET" and request.path in self._sockets:
                self._sockets[request.path].open(request, exchange)
            elif (dialect := dialect_for(request)) is not None:
                self._arrivals.begin_translated(request, exchange, dialect)
            elif request.path in OPEN_PATHS:
                self._control_plane.handle(exchange)
            elif request.path == ANNOUNCEMENTS:
                self._announced(request, exchange)
            else:
                request.more_lines += NO_STORE
                tenant, claim = self._authentication.of_whole(request)
                of_claim = {"forwarded": claim and claim.request_id, "came_from": claim and claim.region}
                state = {"tenant": tenant, **of_claim}
                self._authentication.once_in_region(claim, partial(self._answer_small, exchange, state))
        except Exception as error:
            answer_error(request, exchange, error)

    def in_shape(self, request: Request, refusal: Refusal) -> Refusal:
        """A refusal in the error format of the API to which the request's path belongs."""
        dialect = None if isinstance(refusal, DialectRefusal) else shape_of(request.path)
        return refusal if dialect is None else DialectRefusal(dialect, refusal)

    def on_status(self, request: Request, status: int) -> None:
        path = request.path
        counter = self._answers.get((path, status))
        if counter is None:
            counter = self._counter(path if path in _NAMED_PATHS else _route_of(path), status)
        counter[0] += 1
        if status >= 429 and path not in OPEN_PATHS:
            self._metrics.answered(request.tenant, status)

    def _counter(self, route: str, status: int) -> Counter:
        counter = self._answers.get((route, status))
        if counter is None:
            counter = self._answers[route, status] = self._metrics.answers(route, status)
        return counter

    def _answer_small(self, exchange: Exchange, state: dict[str, Any], refusal: Refusal | None) -> None:
        """Have the control plane answer. `refusal`: set if another proxy of the region has accepted this forwarded
        request's one-time token."""
        if exchange.ended:
            return
        if refusal is not None:
            exchange.refuse(refusal)
            return
        try:
            self._control_plane.handle(exchange, state)
        except Exception as error:
            answer_error(exchange.request, exchange, error)


def _route_of(path: str) -> str:
    """The `route` label of a path that is not in `_NAMED_PATHS`: the route of its API, or "other"."""
    dialect = dialect_of(path)
    return "other" if dialect is None else dialect.route
