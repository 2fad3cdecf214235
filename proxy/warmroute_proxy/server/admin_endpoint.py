"""Serves the admin listener: metrics, admin calls, the status page and its data (views)."""

from collections import Counter
from collections.abc import Callable
from typing import Final

from warmroute_proxy.server.authentication import Authentication, bearer
from warmroute_proxy.server.base.config import TenantConfig
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.http.asgi import Bridge
from warmroute_proxy.server.http.cross_origin import NO_STORE
from warmroute_proxy.server.http.exchange import Exchange, Request

PAGE: Final = "/page"
VIEW: Final = "/admin/view"
OPERATOR: Final = "the operator"
"""The name under which connections with the admin key are counted. Tenants' names have no spaces, so it is unique."""

MAX_VIEWS: Final = 8
"""How many requests for views a tenant may have under way. A browser sends six requests at a time."""


class AdminEndpoint:
    """Checks keys: everything on the admin listener needs the admin key, with two exceptions. The page's files need no
    key, since a browser loads them before it has one. The page's data can also be read with a tenant's API key.
    """

    def __init__(
        self, key_matches: Callable[[bytes], bool], authentication: Authentication, control_plane: Bridge
    ) -> None:
        self._key_matches = key_matches
        self._authentication = authentication
        self._control_plane = control_plane
        self._under_way: Counter[str] = Counter()  # requests for views, by tenant

    def on_head(self, request: Request) -> None:
        """Check whether the key of a request gives access to its path. Raises: Refusal, if it does not."""
        if _is_page(request.path):
            if request.method not in {"GET", "HEAD"} or request.length != 0:
                raise _without_body(request)
            return
        request.more_lines = NO_STORE
        viewer = self._viewer(request)
        if viewer is not None:
            request.tenant = viewer.name
            if request.length != 0:  # only the public listener reserves memory for bodies
                raise _without_body(request)
        else:
            request.tenant = OPERATOR

    def handle(self, request: Request, exchange: Exchange) -> None:
        """Pass a request to the control plane, with its tenant as `viewer`, or None if it has the admin key."""
        if _is_page(request.path):
            self._control_plane.handle(exchange)
            return
        try:
            viewer = self._viewer(request)
        except Refusal as refusal:  # the key was revoked in the meantime
            exchange.refuse(refusal)
            return
        if viewer is None:
            self._control_plane.handle(exchange, {"viewer": None})
            return
        name = viewer.name
        if self._under_way[name] >= MAX_VIEWS:
            text = "too many of your views wait for an answer"
            exchange.refuse(Refusal(429, text, code="rate_limit_exceeded", retry_after_s=1))
            return
        self._under_way[name] += 1
        self._control_plane.handle(exchange, {"viewer": viewer}, lambda: self._ended(name))

    def _ended(self, tenant: str) -> None:
        self._under_way[tenant] -= 1
        if not self._under_way[tenant]:
            del self._under_way[tenant]

    def _viewer(self, request: Request) -> TenantConfig | None:
        """The tenant that sends a request for a view, by its API key; None for the admin key. Raises: Refusal."""
        key = bearer(request)
        if self._key_matches(key):
            return None
        if key and request.method == "GET" and _is_view(request.path):
            try:
                known = self._authentication.of_head(request)
            except Refusal:
                text = "the key is neither the admin key nor the API key of a tenant"
                raise Refusal(401, text, code="invalid_api_key") from None
            if known is not None:
                return known.tenant
        raise Refusal(401, "the admin key is missing or wrong", code="invalid_api_key")

    def in_shape(self, request: Request, refusal: Refusal) -> Refusal:  # noqa: ARG002
        return refusal

    def on_status(self, request: Request, status: int) -> None:
        """Do nothing, since `warmroute_requests_total` counts only clients' requests."""


def _without_body(request: Request) -> Refusal:
    return Refusal(405, f"{request.path[:200]} takes GET without a body", code="method_not_allowed")


def _is_page(path: str) -> bool:
    return path in {"/", PAGE} or path.startswith(f"{PAGE}/")


def _is_view(path: str) -> bool:
    return path == VIEW or path.startswith(f"{VIEW}/")
