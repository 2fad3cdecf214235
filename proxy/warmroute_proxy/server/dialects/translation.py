"""A request of another API as one to `/v1/chat/completions`, and its refusals as that API's clients know them."""

from collections.abc import Callable
from functools import partial

import msgspec
from msgspec.structs import replace

from warmroute.contract.changes import Changes
from warmroute_proxy.dialects.chat_answers import has_surrogate, whole_pairs
from warmroute_proxy.dialects.raw_json import BadRequest
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.terms import Terms
from warmroute_proxy.server.dialects.dialect import Dialect, Translated
from warmroute_proxy.server.dialects.responses import RESPONSES
from warmroute_proxy.server.dialects.routes import dialect_of
from warmroute_proxy.server.dialects.socket_turn import TranslatedTurn, TurnDialect
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.intake.intake import CHAT, check_light
from warmroute_proxy.server.intake.parsed_request import ReadRequest


class DialectRefusal(Refusal):
    """A refusal as the clients of a dialect know it."""

    def __init__(self, dialect: Dialect, refusal: Refusal) -> None:
        status, after_s = dialect.status(refusal.status), refusal.retry_after_s
        super().__init__(
            status, refusal.message, code=refusal.code, param=refusal.param, retry_after_s=after_s,
            headers=refusal.headers,
        )  # fmt: skip
        self._dialect = dialect

    def body(self) -> bytes:
        return self._dialect.error(self.status, self.message, self.code, self.param)


def translated_body(path: str, query: bytes, raw: bytes, terms: Terms) -> Translated:
    """A body that came to a path of a dialect, in chat's terms, away from the event loop. Raises: Refusal, TooMuch."""
    dialect = dialect_of(path)
    assert dialect is not None
    return _translated(partial(dialect.translate, path, query), raw, terms, TranslationWork())


def _translated(
    by: Callable[[bytes, Terms, TranslationWork], Translated], raw: bytes, terms: Terms, work: TranslationWork
) -> Translated:
    try:
        found = _made(by, raw, terms, work)
    except BadRequest as error:
        raise Refusal(400, str(error), code=error.code, param=error.path) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise Refusal(400, "the request body is not valid JSON", code="invalid_json") from None
    if found.unlisted and terms.tenant.unlisted_fields.value == "refuse":
        unknown = min(found.unlisted)
        raise Refusal(400, f"{unknown}: is not a field that the proxy knows; remove it", code="unknown_field")
    return found


def _made(
    by: Callable[[bytes, Terms, TranslationWork], Translated], raw: bytes, terms: Terms, work: TranslationWork
) -> Translated:
    """Translate; where half a surrogate pair stands in the way, with U+FFFD in its place."""
    try:
        return by(raw, terms, work)
    except (BadRequest, msgspec.DecodeError):
        if not has_surrogate(raw) or (mended := whole_pairs(raw)) == raw:
            raise
        return by(mended, terms, work)


def whole_turn(raw: bytes, terms: Terms) -> Translated:
    """A turn that continues nothing, in chat's terms; nor is it kept. Raises: as `translated_body`."""
    found = _translated(partial(TurnDialect().translate, RESPONSES, b""), raw, terms, TranslationWork())
    assert isinstance(found, TranslatedTurn)
    found.more = None
    return found


def translated_elsewhere(request: Request) -> Callable[[bytes, Terms], Translated]:
    """What translates a request that is too large for the event loop. Raises: Refusal, where nothing can."""
    turn = request.dialect
    if isinstance(turn, TurnDialect):
        turn.check_elsewhere()
        return whole_turn
    return partial(translated_body, request.path, request.query)


def dialect_for(request: Request) -> Dialect | None:
    turn = request.dialect
    return turn if isinstance(turn, TurnDialect) else dialect_of(request.path)


def translate(request: Request, terms: Terms) -> tuple[Request, Translated]:
    """The request as one of chat, in the event loop. It takes the body over. Raises: Refusal, TooMuch."""
    dialect, raw = dialect_for(request), bytes(request.body)
    assert dialect is not None
    check_light(raw)
    found = _translated(
        partial(dialect.translate, request.path, request.query), raw, terms, TranslationWork.in_loop(len(raw))
    )
    request.body, found.pieces = b"".join(found.pieces), []
    return chat_request_of(request), found


def chat_request_of(request: Request) -> Request:
    """A request to chat completions with the body of this one, which was translated; it takes it over."""
    chat = Request(request.received_s, request.method, CHAT, request.headers)
    chat.caller, chat.tenant, chat.body_reservation = request.caller, request.tenant, request.body_reservation
    chat.body, chat.shared, chat.length = request.body, request.shared, len(request.body)
    chat.carrier = request.carrier
    request.body, request.shared = b"", None
    return chat


def noted(read: ReadRequest, dialect: Dialect, changes: Changes) -> ReadRequest:
    """A translated request, with its own route and what was changed in it."""
    if isinstance(dialect, TurnDialect):
        dialect.begins(read.parsed.routing.lineage)
    return read._replace(parsed=replace(read.parsed, route=dialect.route, changes=changes))
