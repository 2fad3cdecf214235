"""Turns a whole request into an `InferenceRequest`: finds its tenant, reads it, and checks whether it may begin.

An `Arrival` takes its steps in order. A step may wait for Redis, or for another process that reads a large body. Such a
step returns False, and `go_on` takes the next step when the answer has come. Any step may refuse the request. Then this
module, and no other, answers the client, in the error format of the client's API.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from warmroute.contract import headers as names
from warmroute.contract.changes import NO_CHANGES, Changes
from warmroute_proxy.core.accounting.idempotency import IdempotentCall
from warmroute_proxy.dialects.work import TooMuch, TranslationWork
from warmroute_proxy.server.authentication import Authentication
from warmroute_proxy.server.base.config import TenantConfig
from warmroute_proxy.server.base.errors import Refusal, shutting_down
from warmroute_proxy.server.base.terms import Terms
from warmroute_proxy.server.dialects.dialect import Dialect, DialectRefusal, Translated, translated
from warmroute_proxy.server.dialects.exchange import DialectExchange
from warmroute_proxy.server.dialects.routes import COUNTS_FIRST
from warmroute_proxy.server.dialects.token_counts import TokenCounts
from warmroute_proxy.server.http.exchange import Exchange, Request, answer_error
from warmroute_proxy.server.http.shared_bytes import SharedBytes
from warmroute_proxy.server.intake.caller import Caller
from warmroute_proxy.server.intake.intake import check_light
from warmroute_proxy.server.intake.parsed_request import CHAT, ReadRequest
from warmroute_proxy.server.intake.request_parser import RequestParser
from warmroute_proxy.server.ledger.ledger import Ledger
from warmroute_proxy.server.regions.forward_claim import Forward
from warmroute_proxy.server.request.idempotency import IdempotentCalls, SharedExchange
from warmroute_proxy.server.request.inference_request import NewRequest
from warmroute_proxy.server.request.request_path import RequestPath

# The functions up to `noted` translate a request of another API into one for `/v1/chat/completions`.


def translate(request: Request, dialect: Dialect, terms: Terms) -> tuple[Request, Translated]:
    """Translate a request into a chat request, which takes over its body. Runs in the event loop. Raises: Refusal;
    TooMuch, if the translation would take too long there.
    """
    raw = bytes(request.body)
    check_light(raw)
    by = partial(dialect.translate, request.path, request.query)
    found = translated(by, raw, terms, TranslationWork.in_loop(len(raw)))
    request.body, found.pieces = b"".join(found.pieces), []
    return chat_request_of(request), found


def chat_request_of(request: Request) -> Request:
    """A chat request that takes over the translated body of `request`."""
    chat = Request(request.received_s, request.method, CHAT, request.headers)
    chat.caller, chat.tenant, chat.body_reservation = request.caller, request.tenant, request.body_reservation
    chat.body, chat.shared, chat.length = request.body, request.shared, len(request.body)
    chat.carrier = request.carrier
    request.body, request.shared = b"", None
    return chat


def noted(read: ReadRequest, dialect: Dialect, changes: Changes) -> ReadRequest:
    """A translated request, with the route that the client called and the changes that the translation made."""
    dialect.begins(read.parsed.routing.lineage)
    first = dialect.counts_first
    return read._replace(parsed=replace(read.parsed, route=dialect.route, changes=changes, counts_first=first))


class Arrivals:
    """Begins requests. `path`: what each inference request uses; `new_request`: makes an inference request."""

    def __init__(
        self,
        parser: RequestParser,
        authentication: Authentication,
        ledger: Ledger,
        idempotent_calls: IdempotentCalls,
        path: RequestPath,
        new_request: NewRequest,
    ) -> None:
        self.parser = parser
        self.authentication = authentication
        self.ledger = ledger
        self.idempotent_calls = idempotent_calls
        self.path = path
        self.new_request = new_request
        self.token_counts = TokenCounts(path.engines, path.placing.router, parser.counted_tokens_per_minute)

    def begin(self, request: Request, exchange: Exchange) -> None:
        """Begin a request that needs no translation. Raises: Refusal.

        Most requests do not wait for anything. They skip the steps, which would take 1 % of a small request's time.
        """
        caller = request.caller
        if isinstance(caller, Caller) and not caller.idempotent and request.shared is None:
            self.check_open()
            try:
                read = self.parser.read(request, caller)
            except TooMuch:
                pass
            else:
                self.new_request(self.path, exchange, read, self.path.engines.ids.receipt()).begin()
                return
        Arrival(self, request, exchange, None).go_on()

    def begin_translated(self, request: Request, exchange: Exchange, dialect: Dialect) -> None:
        Arrival(self, request, exchange, dialect).go_on()

    def check_open(self) -> None:
        """Check whether requests may begin. Raises: Refusal, if not."""
        if self.path.open_requests.closed:
            raise shutting_down()
        if not self.ledger.healthy:
            raise Refusal(503, "the ledger cannot be written", code="ledger_unavailable", retry_after_s=1)


class Arrival:
    """One request that takes its steps. `dialect`: the translator of its API; None if it needs no translation."""

    def __init__(self, uses: Arrivals, request: Request, exchange: Exchange, dialect: Dialect | None) -> None:
        """Choose the steps of a request. Raises: Refusal, if requests may not begin."""
        caller = request.caller
        self._uses = uses
        self._request = request
        self._exchange = exchange
        self._dialect = dialect
        self._caller = caller if isinstance(caller, Caller) else None
        self._claim: Forward | None = None  # what the forwarding proxy's token says, once the token is used up
        self._call: IdempotentCall | None = None  # for a request with an Idempotency-Key
        self._chat: Request | None = None  # the chat request into which the request was translated
        self._found: Any = None  # the result of the translation, which also translates the answer
        self._read: ReadRequest | None = None
        if dialect is not None:
            self._steps = iter(_TRANSLATED)
            return
        uses.check_open()
        if request.shared is not None:
            self._steps = iter(_LARGE)
        elif self._caller is None:
            self._steps = iter(_FORWARDED)
        else:
            self._steps = iter(_IDEMPOTENT if self._caller.idempotent else _LARGE)

    def go_on(self) -> None:
        """Take the remaining steps, up to the first one that waits."""
        try:
            for step in self._steps:
                if not step(self):
                    return
        except Exception as error:
            self._refuse(error)

    def _open(self) -> bool:
        self._uses.check_open()
        return True

    def _take_claim(self) -> bool:
        """Use up the forwarding proxy's token, and ask whether another proxy of the region has used it before."""
        uses, caller = self._uses, self._caller
        if self._claim is not None or (caller is not None and caller.region is None):
            return True
        tenant, claim = uses.authentication.of_forwarded(self._request)
        self._claim = claim
        if caller is None:
            self._caller = self._forwarded_by(tenant, claim)
        uses.authentication.once_in_region(claim, self._claimed)
        return False

    def _claimed(self, refusal: Refusal | None) -> None:
        if self._exchange.ended:
            return
        if refusal is None:
            self.go_on()
        else:
            self._refuse(refusal)

    def _forwarded_by(self, tenant: TenantConfig, claim: Forward) -> Caller:
        request = self._request
        return self._uses.parser.callers.of(request.path, tenant, request.headers, claim.key, claim.region)

    def _join(self) -> bool:
        """Join the answer of another request with this request's Idempotency-Key, if one has begun."""
        uses, caller, request = self._uses, self._caller, self._request
        assert caller is not None
        if not caller.idempotent or self._claim is not None:
            return True
        count = partial(uses.path.admission.count, caller)
        key = request.headers[names.IDEMPOTENCY]
        self._call = uses.idempotent_calls.join(caller.tenant.name, key, self._exchange, count)
        return self._call is not None

    def _read_large(self) -> bool:
        self._steps, self._call = iter(_READ_ELSEWHERE), None
        return self._read_elsewhere(None)

    def _read_body(self) -> bool:
        """Read the body in the event loop, or have another process read it."""
        assert self._caller is not None
        try:
            self._read = self._uses.parser.read(self._request, self._caller)
        except TooMuch:
            pass
        else:
            return True
        return self._read_large()

    def _read_elsewhere(self, translate_by: Callable[..., Any] | None) -> bool:
        if self._caller is None:
            self._caller = self._forwarded_by(*self._uses.authentication.of_forwarded_head(self._request))
        shared = _shared(self._request)
        self._uses.parser.large_bodies.read(self._exchange, shared, self._caller, self._was_read, translate_by)
        return False

    def _was_read(self, read: ReadRequest | Refusal, found: object) -> None:
        if self._exchange.ended:
            return
        if isinstance(read, Refusal):  # not raised, since the traceback would keep the body in memory
            self._refuse(read)
        else:
            self._read, self._found = read, found
            self.go_on()

    def _translate(self) -> bool:
        """Translate the request into a chat request, here or in another process."""
        request, dialect, caller = self._request, self._dialect, self._caller
        assert dialect is not None
        if caller is None:
            raise Refusal(400, f"another proxy forwards chat completions, not {request.path}", code="bad_request")
        if request.shared is None:
            try:
                self._chat, self._found = translate(request, dialect, self._uses.parser.terms(caller.tenant))
            except TooMuch:
                pass
            else:
                return True
        return self._read_elsewhere(dialect.elsewhere(request.path, request.query))

    def _take_translation(self) -> bool:
        """Go on with the translated request. If its tokens are only to be counted, or its messages only to be kept for
        a later request, answer it here.
        """
        uses, caller, dialect, found, read = self._uses, self._caller, self._dialect, self._found, self._read
        assert caller is not None
        assert dialect is not None
        counts, chat = dialect.counts(self._request.path), self._chat
        if chat is None:
            dialect.translated(found)
        elif (model := dialect.only_kept(found)) is not None:
            uses.check_open()
            uses.parser.check_model(model, caller)
            uses.path.admission.count(caller)
            self._exchange.start(200, ())
            self._exchange.end(dialect.kept_answer())
            return False
        elif counts:
            read = uses.parser.unserved(chat, caller)
        if counts:
            assert read is not None
            uses.token_counts.count(read, partial(_answer_count, self._exchange, dialect))
            return False
        if chat is None:
            chat = chat_request_of(self._request)
        if read is None:
            read = uses.parser.read_translated(chat, caller)
        self._read = noted(read, dialect, found.changes)
        self._exchange = DialectExchange(self._exchange, chat, dialect, found)
        self._request = chat
        return True

    def _begin(self) -> bool:
        uses, claim, call, read = self._uses, self._claim, self._call, self._read
        assert read is not None
        if call is None:
            path, receipt_id = uses.path, ""
            if claim is not None:
                read, receipt_id = _as_claimed(read, claim), claim.request_id
            uses.new_request(path, self._exchange, read, receipt_id or path.engines.ids.receipt()).begin()
        else:
            assert self._caller is not None
            shared = uses.idempotent_calls.share(call, self._exchange, may_keep=self._caller.served_here)
            uses.idempotent_calls.begin(shared, partial(self._begin_shared, shared, read))
        return True

    def _begin_shared(self, shared: SharedExchange, read: ReadRequest) -> None:
        """Begin a request with an Idempotency-Key, once it is known that no other process has the key."""
        uses = self._uses
        try:
            uses.check_open()
            inference = uses.new_request(uses.path, shared, read, uses.path.engines.ids.receipt())
            shared.served = inference
            inference.begin()
        except Exception as error:
            answer_error(self._request, shared, error)

    def _refuse(self, error: Exception) -> None:
        dialect = self._dialect
        if dialect is not None and isinstance(error, Refusal) and not self._exchange.translates:
            error = DialectRefusal(dialect, error)
        answer_error(self._request, self._exchange, error)


Step = Callable[[Arrival], bool]
"""Takes a step. Returns whether the next step may follow at once."""

_IDEMPOTENT: Final[tuple[Step, ...]] = (Arrival._join, Arrival._read_body, Arrival._begin)
_FORWARDED: Final[tuple[Step, ...]] = (Arrival._take_claim, Arrival._open, Arrival._read_body, Arrival._begin)
_LARGE: Final[tuple[Step, ...]] = (Arrival._read_large,)
_READ_ELSEWHERE: Final[tuple[Step, ...]] = (Arrival._take_claim, Arrival._open, Arrival._join, Arrival._begin)
_TRANSLATED: Final[tuple[Step, ...]] = (
    Arrival._translate, Arrival._take_translation, Arrival._open, Arrival._join, Arrival._begin,
)  # fmt: skip


def _shared(request: Request) -> SharedBytes:
    """Move a body into memory that another process can read. Raises: Refusal, if too many bodies are there."""
    if request.shared is None:
        shared = SharedBytes.of([bytes(request.body)], request.tenant)
        if shared is None:
            message = "too many large or dense request bodies wait to be read; try again in 1 s"
            raise Refusal(503, message, code="overloaded", retry_after_s=1)
        request.shared, request.body = shared, shared.view()
    return request.shared


def _as_claimed(read: ReadRequest, claim: Forward) -> ReadRequest:
    """A forwarded request, with the route, changes and round trip that the forwarding proxy's token states."""
    parsed = read.parsed
    if claim.route is None and claim.changes == NO_CHANGES:
        parsed = replace(parsed, rtt_ms=claim.rtt_ms)
    else:
        route, first = claim.route or parsed.route, claim.route in COUNTS_FIRST
        parsed = replace(parsed, route=route, changes=claim.changes, rtt_ms=claim.rtt_ms, counts_first=first)
    return read._replace(parsed=parsed)


def _answer_count(exchange: Exchange, dialect: Dialect, tokens: int, estimated: bool) -> None:
    """Answer with a count of tokens, unless the client has left."""
    if not exchange.ended:
        exchange.respond(200, (("content-type", "application/json"),), dialect.count(tokens, estimated=estimated))
