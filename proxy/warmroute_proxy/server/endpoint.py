"""Which request goes where: inference paths to an `InferenceRequest`, small GETs to the control plane.

All other routes are refused, also those that exist on engines only (`/generate`, `/abort_request`, ...). Routes of
other APIs are refused before authentication, because their clients send the key in a different header.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from warmroute.contract import headers as names
from warmroute.contract.changes import NO_CHANGES
from warmroute_proxy.core.cache.return_times import OVER
from warmroute_proxy.dialects.work import TooMuch
from warmroute_proxy.server.authentication import Authentication, KnownKey
from warmroute_proxy.server.base.config import TenantConfig
from warmroute_proxy.server.base.errors import Refusal, check_plain, is_websocket, shutting_down, wrong_method
from warmroute_proxy.server.base.metrics import Counter
from warmroute_proxy.server.dialects.dialect import Dialect
from warmroute_proxy.server.dialects.exchange import DialectExchange
from warmroute_proxy.server.dialects.gemini import GEMINI, cut_key
from warmroute_proxy.server.dialects.open_conversations import OpenConversations
from warmroute_proxy.server.dialects.other_apis import no_route, refuse_other_api
from warmroute_proxy.server.dialects.responses import RESPONSES
from warmroute_proxy.server.dialects.responses_socket import ResponsesSockets
from warmroute_proxy.server.dialects.routes import DIALECT_OF_PATH, dialect_of, shape_of
from warmroute_proxy.server.dialects.socket_turn import TranslatedTurn, TurnDialect, TurnExchange
from warmroute_proxy.server.dialects.token_counts import TokenCounts
from warmroute_proxy.server.dialects.translation import (
    DialectRefusal,
    chat_request_of,
    dialect_for,
    noted,
    translate,
    translated_elsewhere,
)
from warmroute_proxy.server.http.asgi import Bridge
from warmroute_proxy.server.http.cross_origin import NO_STORE, is_allowed_preflight
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.http.shared_bytes import SharedBytes
from warmroute_proxy.server.intake.caller import Caller
from warmroute_proxy.server.intake.intake import CHAT, ROUTES
from warmroute_proxy.server.intake.parsed_request import ReadRequest
from warmroute_proxy.server.intake.request_parser import RequestParser
from warmroute_proxy.server.ledger.ledger import Ledger
from warmroute_proxy.server.regions.announcements import ANNOUNCEMENTS, MAX_BYTES, Announcements
from warmroute_proxy.server.regions.forward_claim import Forward
from warmroute_proxy.server.request.idempotency import IdempotentCalls, SharedExchange
from warmroute_proxy.server.request.request_path import RequestPath
from warmroute_proxy.server.tracing.traced_request import NewRequest

log = logging.getLogger(__name__)

OPEN_PATHS: Final = frozenset({"/health", "/ready", "/openapi.json"})
_NAMED_PATHS: Final = frozenset({*ROUTES, *DIALECT_OF_PATH, *OPEN_PATHS, "/v1/models", "/v1/usage"})
"""Label values; all other paths are "other"."""


class PublicEndpoint:
    """What clients and other proxies reach."""

    def __init__(
        self,
        parser: RequestParser,
        authentication: Authentication,
        ledger: Ledger,
        idempotent_calls: IdempotentCalls,
        path: RequestPath,
        announcements: Announcements,
        control_plane: Bridge,
        new_request: NewRequest,
    ) -> None:
        """`path` is what each inference request uses, `new_request` makes one."""
        self._parser = parser
        self._authentication = authentication
        self._ledger = ledger
        self._idempotent_calls = idempotent_calls
        self._path = path
        self._announcements = announcements
        self._control_plane = control_plane
        self._new_request = new_request
        self._token_counts = TokenCounts(path.engines, path.placing.router, parser.counted_tokens_per_minute)
        self._sockets = ResponsesSockets(
            parser.terms, OpenConversations(self._over, path.placing.router.working_set.turns_of_open)
        )
        self._answers: dict[tuple[str, int], Counter] = {}  # by path and status, of named paths

    def on_head(self, request: Request) -> None:
        path = request.path
        if "origin" in request.headers and is_allowed_preflight(request, self._parser.cors_origins()):
            return
        if path in ROUTES and not request.query:
            self._on_head(request, path)
            return
        cut_key(request)
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
            if request.length != 0:  # reject bodies from unauthenticated clients
                raise Refusal(400, f"{path} takes no body", code="bad_request")
            return
        if path == ANNOUNCEMENTS:
            self._authentication.check_proxy(request, MAX_BYTES)
            return
        if path in ROUTES:
            if request.method != "POST":
                raise wrong_method(path, request.method, request.headers)
        else:
            if request.method == "POST":
                refuse_other_api(path)
            if not path.startswith(("/v1/", GEMINI)):
                raise Refusal(404, no_route(path), code="not_found")
        key = self._check_key(request)
        if key is not None and path in ROUTES:
            request.caller = self._parser.callers.of(path, key.tenant, request.headers, key.key_id)

    def _check_key(self, request: Request) -> KnownKey | None:
        """Authenticate the request and record its tenant. Raises: Refusal."""
        key = self._authentication.of_head(request)
        if key is not None:
            request.tenant = key.tenant.name
        return key

    def _is_offer(self, request: Request) -> bool:
        serves = request.path == RESPONSES and self._parser.serves_websockets()
        return serves and request.method == "GET" and is_websocket(request.headers)

    def handle(self, request: Request, exchange: Exchange) -> None:
        try:
            if request.method == "OPTIONS" and request.more_lines:
                exchange.respond(200, (), b"")
                return
            if request.path in ROUTES:
                self._begin_request(request, exchange)
            elif request.method == "GET" and request.path == RESPONSES:
                self._sockets.open(request, exchange)
            elif (dialect := dialect_for(request)) is not None:
                self._begin_translated(request, exchange, dialect)
            elif request.path in OPEN_PATHS:
                self._control_plane.handle(exchange)
            elif request.path == ANNOUNCEMENTS:
                self._receive_announcements(request, exchange)
            else:
                request.more_lines += NO_STORE
                tenant, claim = self._authentication.of_whole(request)
                of_claim = {"forwarded": claim and claim.request_id, "came_from": claim and claim.region}
                state = {"tenant": tenant, **of_claim}
                self._once(exchange, claim, partial(self._control_plane.handle, exchange, state))
        except Exception as error:
            _answer_error(request, exchange, error)

    def in_shape(self, request: Request, refusal: Refusal) -> Refusal:
        """In the shape of the API whose route it is."""
        dialect = None if isinstance(refusal, DialectRefusal) else shape_of(request.path)
        return refusal if dialect is None else DialectRefusal(dialect, refusal)

    def on_status(self, request: Request, status: int) -> None:
        path = request.path
        counter = self._answers.get((path, status))
        if counter is None:
            counter = self._counter(path if path in _NAMED_PATHS else _route_of(path), status)
        counter[0] += 1

    def _counter(self, route: str, status: int) -> Counter:
        counter = self._answers.get((route, status))
        if counter is None:
            counter = self._answers[route, status] = self._path.metrics.answers(route, status)
        return counter

    def _begin_request(self, request: Request, exchange: Exchange) -> None:
        self._check_open()
        try:
            if request.shared is not None:
                raise TooMuch
            self._begin_light_request(request, exchange)
        except TooMuch:
            self._read_large_request(request, exchange)

    def _begin_light_request(self, request: Request, exchange: Exchange) -> None:
        """Begin a request. Raises: TooMuch, if its body is too big to parse in the event loop."""
        caller = request.caller
        if not isinstance(caller, Caller):
            tenant, claim = self._authentication.of_forwarded(request)
            self._once(exchange, claim, partial(self._begin_forwarded_request, request, exchange, tenant, claim))
        elif caller.idempotent:
            self._begin_idempotent_request(request, exchange, caller)
        else:
            read = self._parser.read(request, caller)
            self._new_request(self._path, exchange, read, self._path.engines.ids.receipt()).begin()

    def _receive_announcements(self, request: Request, exchange: Exchange) -> None:
        router, conversations = self._path.placing.router, self._parser.callers.conversations
        here = self._announcements.region
        self._announcements.receive(
            request, exchange, router, conversations, lambda tenant: self._authentication.may_be_served(tenant, here)
        )

    def _begin_translated(self, request: Request, exchange: Exchange, dialect: Dialect) -> None:
        caller = request.caller
        try:
            if not isinstance(caller, Caller):
                raise Refusal(400, f"another proxy forwards chat completions, not {request.path}", code="bad_request")
            try:
                if request.shared is not None:
                    raise TooMuch
                chat, found = translate(request, self._parser.terms(caller.tenant))
            except TooMuch:
                on_read = partial(self._begin_large_translated, request, exchange, dialect, caller)
                read_by = translated_elsewhere(request)
                self._parser.large_bodies.read(exchange, _shared(request), caller, on_read, read_by)
                return
            if isinstance(found, TranslatedTurn) and isinstance(exchange, TurnExchange) and not exchange.dialect.asks:
                self._check_open()
                self._parser.check_model(found.model, caller)
                self._path.admission.count(caller)
                exchange.prepare()
                return
            if dialect.counts(request.path):
                self._count_tokens(self._parser.unserved(chat, caller), exchange, dialect)
                return
            read = noted(self._parser.read_translated(chat, caller), dialect, found.changes)
        except Refusal as refusal:
            raise DialectRefusal(dialect, refusal) from None
        self._begin_read_request(DialectExchange(exchange, chat, dialect, found), caller, read)

    def _begin_large_translated(
        self,
        request: Request,
        exchange: Exchange,
        dialect: Dialect,
        caller: Caller,
        read: ReadRequest | Refusal,
        found: Any,
    ) -> None:
        """The same, of a request that another process has translated and read, unless its client has left."""
        if exchange.ended:
            return
        if isinstance(read, Refusal):
            exchange.refuse(DialectRefusal(dialect, read))
        elif dialect.counts(request.path):
            self._count_tokens(read, exchange, dialect)
        else:
            chat = chat_request_of(request)
            read = noted(read, dialect, found.changes)
            if isinstance(dialect, TurnDialect):
                dialect.translated(found)
            self._begin_read_request(DialectExchange(exchange, chat, dialect, found), caller, read)

    def _count_tokens(self, read: ReadRequest, exchange: Exchange, dialect: Dialect) -> None:
        self._token_counts.count(read, partial(_answer_count, exchange, dialect))

    def _over(self, lineage: int) -> None:
        self._path.placing.router.observe_session(lineage, OVER, self._path.engines.clock())

    def _check_open(self) -> None:
        """Raises: Refusal, where no request may begin."""
        if self._path.open_requests.closed:
            raise shutting_down()
        if not self._ledger.healthy:
            raise Refusal(503, "the ledger cannot be written", code="ledger_unavailable", retry_after_s=1)

    def _read_large_request(self, request: Request, exchange: Exchange, spent: Forward | None = None) -> None:
        shared, caller = _shared(request), request.caller
        if not isinstance(caller, Caller):
            tenant, claim = self._authentication.of_forwarded_head(request)
            caller = self._caller_of(request, tenant, claim)
        on_read = partial(self._begin_read_request, exchange, caller, spent=spent)
        self._parser.large_bodies.read(exchange, shared, caller, on_read)

    def _begin_read_request(
        self,
        exchange: Exchange,
        caller: Caller,
        read: ReadRequest | Refusal,
        _translated: object = None,
        *,
        spent: Forward | None = None,
    ) -> None:
        """Begin a request that was read before, unless its client has left. `spent`: its claim, if that is spent."""
        request = exchange.request
        if exchange.ended:
            return
        if isinstance(read, Refusal):  # not raised: its traceback would hold this frame, and so the body
            exchange.refuse(read)
            return
        try:
            self._check_open()
            if spent is not None:
                self._begin_claimed(exchange, read, spent)
            elif caller.region is not None:
                claim = self._authentication.of_forwarded(request)[1]
                self._once(exchange, claim, partial(self._begin_claimed, exchange, read, claim))
            elif caller.idempotent:
                self._begin_idempotent_request(request, exchange, caller, read)
            else:
                self._new_request(self._path, exchange, read, self._path.engines.ids.receipt()).begin()
        except Exception as error:
            _answer_error(request, exchange, error)

    def _once(self, exchange: Exchange, claim: Forward | None, begin: Callable[[], None]) -> None:
        """Start the request once its forward token is known to be unused in this region."""

        def answered(refusal: Refusal | None) -> None:
            if exchange.ended:
                return
            try:
                if refusal is not None:
                    raise refusal
                begin()
            except Exception as error:
                _answer_error(exchange.request, exchange, error)

        self._authentication.once_in_region(claim, answered)

    def _begin_forwarded_request(
        self, request: Request, exchange: Exchange, tenant: TenantConfig, claim: Forward
    ) -> None:
        try:
            read = self._parser.read(request, self._caller_of(request, tenant, claim))
        except TooMuch:
            self._read_large_request(request, exchange, claim)
        else:
            self._begin_claimed(exchange, read, claim)

    def _begin_claimed(self, exchange: Exchange, read: ReadRequest, claim: Forward) -> None:
        """Begin it. Its receipt has the id that the other proxy has given it."""
        self._check_open()
        self._new_request(self._path, exchange, _as_claimed(read, claim), claim.request_id).begin()

    def _caller_of(self, request: Request, tenant: TenantConfig, claim: Forward) -> Caller:
        """The caller of a request that another proxy forwards."""
        return self._parser.callers.of(request.path, tenant, request.headers, claim.key, claim.region)

    def _begin_idempotent_request(
        self, request: Request, exchange: Exchange, caller: Caller, read: ReadRequest | None = None
    ) -> None:
        """Join the request that the key stands for, or begin it. `read`: where it was read already."""
        count = partial(self._path.admission.count, caller)
        call = self._idempotent_calls.join(caller.tenant.name, request.headers[names.IDEMPOTENCY], exchange, count)
        if call is None:
            return
        if read is None:
            read = self._parser.read(request, caller)
        shared = self._idempotent_calls.share(call, exchange, may_keep=caller.served_here)
        self._idempotent_calls.begin(shared, partial(self._begin_shared_request, request, shared, read))

    def _begin_shared_request(self, request: Request, shared: SharedExchange, read: ReadRequest) -> None:
        """Begin a request that no other process has, maybe a moment after it came."""
        try:
            self._check_open()
            inference = self._new_request(self._path, shared, read, self._path.engines.ids.receipt())
            shared.served = inference
            inference.begin()
        except Exception as error:
            _answer_error(request, shared, error)


def _shared(request: Request) -> SharedBytes:
    """The body of a request, where another process can read it. Raises: Refusal, where the tenant has many there."""
    if request.shared is None:
        shared = SharedBytes.of([bytes(request.body)], request.tenant)
        if shared is None:
            message = "too many large or dense request bodies wait to be read; try again in 1 s"
            raise Refusal(503, message, code="overloaded", retry_after_s=1)
        request.shared, request.body = shared, shared.view()
    return request.shared


def _route_of(path: str) -> str:
    """The label of a path that is not named: its dialect's route, or one for all others."""
    dialect = dialect_of(path)
    return "other" if dialect is None else dialect.route


def _as_claimed(read: ReadRequest, claim: Forward) -> ReadRequest:
    """A forwarded request, with what the proxy that its client has reached knows of it."""
    parsed = read.parsed
    if claim.route is None and claim.changes == NO_CHANGES:
        parsed = replace(parsed, rtt_ms=claim.rtt_ms)
    else:
        parsed = replace(parsed, route=claim.route or parsed.route, changes=claim.changes, rtt_ms=claim.rtt_ms)
    return read._replace(parsed=parsed)


def _answer_count(exchange: Exchange, dialect: Dialect, tokens: int, estimated: bool) -> None:
    """Answer with a number of tokens, unless the client has left."""
    if not exchange.ended:
        exchange.respond(200, (("content-type", "application/json"),), dialect.count(tokens, estimated=estimated))


def _answer_error(request: Request, exchange: Exchange, error: Exception) -> None:
    """Answer with a refusal, or as an error of ours: whatever goes wrong, the client gets an answer."""
    if isinstance(error, Refusal):
        exchange.refuse(error)
    else:
        log.error("answering %s failed: %s", request.path[:100], type(error).__name__)
        exchange.fail()
