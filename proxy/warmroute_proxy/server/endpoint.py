"""Which request goes where: inference paths to a turn, small GETs to the control plane, everything else nowhere.

Keys are checked by the head alone, before a body is read. Routes that exist on engines only (`/generate`,
`/abort_request`, `/flush_cache`, ...) do not exist here.
"""

import logging
from collections.abc import Callable
from typing import Final

from warmroute.contract import headers as names
from warmroute_proxy.server.base.config import TenantConfig
from warmroute_proxy.server.base.errors import Refusal, no_route
from warmroute_proxy.server.base.metrics import Counter
from warmroute_proxy.server.base.secrets import MAX_CACHED, admin_key_matches
from warmroute_proxy.server.http.asgi import Bridge
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.intake.caller import Caller, Callers
from warmroute_proxy.server.intake.intake import ROUTES, read
from warmroute_proxy.server.request.forward_claim import Forward
from warmroute_proxy.server.request.relay import InferenceRequest
from warmroute_proxy.server.request.services import Services

log = logging.getLogger(__name__)

OPEN_PATHS: Final = frozenset({"/health", "/ready", "/openapi.json"})
_NAMED_PATHS: Final = ROUTES | OPEN_PATHS | {"/v1/models", "/v1/usage"}  # label values; all other paths are "other"


def bearer(request: Request) -> bytes:
    """The API key of a request, empty where it has none."""
    value = request.headers.get("authorization", "")
    scheme, _, key = value.partition(" ")
    if scheme.lower() != "bearer":
        key = request.headers.get("api-key") or request.headers.get("x-api-key") or ""
    return key.strip().encode("latin-1", "replace")


class PublicEndpoint:
    """What clients and other proxies reach."""

    def __init__(self, services: Services, control_plane: Bridge) -> None:
        self._services = services
        self._control_plane = control_plane
        self._known: dict[str, TenantConfig] = {}  # by `Authorization` header, only valid ones; cleared when full
        self._callers = Callers(services.secrets)
        self._answers: dict[tuple[str, int], Counter] = {}  # by path and status, of named paths

    def on_head(self, request: Request) -> None:
        """Refuse by method, route and key."""
        path = request.path
        if path in OPEN_PATHS:
            if request.length != 0:  # nobody is to fill our memory without a key
                raise Refusal(400, f"{path} takes no body", code="bad_request")
            return
        if not request.path.startswith("/v1/"):
            raise Refusal(404, no_route(path), code="not_found")
        if request.path in ROUTES and request.method != "POST":
            raise Refusal(405, f"{request.path} takes POST, not {request.method}", code="method_not_allowed")
        if self._is_forwarded(request):
            self._services.forwards.check_head(request.headers[names.FORWARD])
            return
        tenant = self._known.get(request.headers.get("authorization", "")) or self._tenant_of(request)
        if path in ROUTES:
            request.caller = self._callers.of(path, tenant, request.headers)

    def handle(self, request: Request, exchange: Exchange) -> None:
        """Answer a request that came whole."""
        try:
            if request.path in ROUTES:
                self._begin_request(request, exchange)
            elif request.path in OPEN_PATHS:
                self._control_plane.handle(exchange)
            else:
                tenant, claim = self._asker(request)
                self._control_plane.handle(exchange, {"tenant": tenant, "forwarded": claim is not None})
        except Refusal as refusal:
            exchange.refuse(refusal)
        except Exception as error:  # the last net: whatever goes wrong here, the client gets an answer
            log.error("answering %s failed: %s", request.path[:100], type(error).__name__)
            exchange.fail()

    def on_status(self, request: Request, status: int) -> None:
        """Count an answer."""
        path = request.path
        counter = self._answers.get((path, status))
        if counter is None:
            counter = self._counter(path if path in _NAMED_PATHS else "other", status)
        counter[0] += 1

    def _counter(self, route: str, status: int) -> Counter:
        counter = self._answers.get((route, status))
        if counter is None:
            labels = ("route", route), ("status", str(status))
            counter = self._answers[route, status] = self._services.metrics.counter("warmroute_requests_total", labels)
        return counter

    def _begin_request(self, request: Request, exchange: Exchange) -> None:
        services = self._services
        if services.draining:
            raise Refusal(503, "the proxy is shutting down", code="draining", retry_after_s=1)
        if not services.ledger.healthy:
            raise Refusal(503, "the ledger cannot be written", code="ledger_unavailable", retry_after_s=1)
        caller = request.caller
        if not isinstance(caller, Caller):
            self._begin_forwarded_request(request, exchange)
        elif caller.keyed:
            self._begin_idempotent_request(request, exchange, caller)
        else:
            intake = read(request, caller, self._callers.kept, services.config, services.secrets)
            InferenceRequest(services, exchange, intake, services.engines.ids.receipt()).begin()

    def _begin_forwarded_request(self, request: Request, exchange: Exchange) -> None:
        """One that another proxy asks for."""
        services = self._services
        claim = services.forwards.check(request.headers[names.FORWARD], request.body)
        caller = self._callers.of(request.path, self._vouched_for(claim), request.headers, claim.region)
        intake = read(request, caller, self._callers.kept, services.config, services.secrets)
        InferenceRequest(services, exchange, intake, claim.request_id).begin()

    def _begin_idempotent_request(self, request: Request, exchange: Exchange, caller: Caller) -> None:
        """Join the turn that the key stands for, or begin it."""
        services = self._services
        call = services.idempotent_calls.join(caller.tenant.name, request.headers[names.IDEMPOTENCY], exchange)
        if call is None:
            return
        intake = read(request, caller, self._callers.kept, services.config, services.secrets)
        shared = services.idempotent_calls.share(call, exchange)
        try:
            shared.turn = turn = InferenceRequest(services, shared, intake, services.engines.ids.receipt())
            turn.begin()
        except Exception:
            shared.fail()
            raise

    def _asker(self, request: Request) -> tuple[TenantConfig, Forward | None]:
        """The tenant that asks, and the claim of the proxy that asks for it."""
        tenant = self._known.get(request.headers.get("authorization", ""))
        if tenant is not None:
            return tenant, None
        if not self._is_forwarded(request):
            return self._tenant_of(request), None
        claim = self._services.forwards.check(request.headers[names.FORWARD], request.body)
        return self._vouched_for(claim), claim

    def _is_forwarded(self, request: Request) -> bool:
        """A request with a key of its own is a client's: its forward header, if any, is dropped."""
        return names.FORWARD in request.headers and not bearer(request)

    def _tenant_of(self, request: Request) -> TenantConfig:
        key = bearer(request)
        if not key:
            raise Refusal(401, "no API key: send it as `Authorization: Bearer <key>`", code="invalid_api_key")
        name = self._services.api_keys.tenant_of(key)
        if name is None:
            raise Refusal(401, "the API key is not known here", code="invalid_api_key")
        tenant = self._services.config.tenant_by_name[name]
        value = request.headers.get("authorization", "")
        if value[:7].lower() == "bearer " and value[7:].strip():  # the key came from this header alone
            if len(self._known) >= MAX_CACHED:
                self._known.clear()
            self._known[value] = tenant
        return tenant

    def _vouched_for(self, claim: Forward) -> TenantConfig:
        tenant = self._services.config.tenant_by_name.get(claim.tenant)
        if tenant is None or tenant.share_group != claim.share_group:
            raise Refusal(401, "the forwarding proxy knows a tenant that this one does not", code="invalid_forward")
        return tenant


class AdminEndpoint:
    """What operators reach, on a listener of its own: everything needs the admin key."""

    def __init__(self, key_matches: Callable[[bytes], bool], control_plane: Bridge) -> None:
        self._key_matches = key_matches
        self._control_plane = control_plane

    @classmethod
    def with_key(cls, sha256_hex: str, control_plane: Bridge) -> "AdminEndpoint":
        """An endpoint that takes the key with this digest."""
        return cls(lambda key: admin_key_matches(key, sha256_hex), control_plane)

    def on_head(self, request: Request) -> None:
        """Refuse without the admin key."""
        if not self._key_matches(bearer(request)):
            raise Refusal(401, "the admin key is missing or wrong", code="invalid_api_key")

    def handle(self, request: Request, exchange: Exchange) -> None:  # noqa: ARG002
        """All of it is the control plane's."""
        self._control_plane.handle(exchange)

    def on_status(self, request: Request, status: int) -> None:
        """Not counted: an operator's look is no traffic."""
