"""A request of another API as one to `/v1/chat/completions`."""

from functools import partial

from msgspec.structs import replace

from warmroute.contract.changes import Changes
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.server.base.terms import Terms
from warmroute_proxy.server.dialects.dialect import Dialect, Translated, translated
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.intake.intake import CHAT, check_light
from warmroute_proxy.server.intake.parsed_request import ReadRequest


def translate(request: Request, dialect: Dialect, terms: Terms) -> tuple[Request, Translated]:
    """The request as one of chat, in the event loop. It takes the body over. Raises: Refusal, TooMuch."""
    raw = bytes(request.body)
    check_light(raw)
    by = partial(dialect.translate, request.path, request.query)
    found = translated(by, raw, terms, TranslationWork.in_loop(len(raw)))
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
    dialect.begins(read.parsed.routing.lineage)
    return read._replace(parsed=replace(read.parsed, route=dialect.route, changes=changes))
