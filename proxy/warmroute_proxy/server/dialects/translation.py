"""A request of another API as one to `/v1/chat/completions`, and its refusals as that API's clients know them."""

from msgspec.structs import replace

from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.dialects.raw_json import BadRequest
from warmroute_proxy.server.base.config import TenantConfig
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.dialects.dialect import Dialect, Translated
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.http.shared_bytes import LARGE_BYTES
from warmroute_proxy.server.intake.caller import Caller
from warmroute_proxy.server.intake.intake import CHAT
from warmroute_proxy.server.intake.intakes import Intakes
from warmroute_proxy.server.intake.parsed_request import Intake


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
        """The error object."""
        return self._dialect.error(self.status, self.message, self.code, self.param)


def translate(request: Request, dialect: Dialect, tenant: TenantConfig, secrets: Secrets) -> tuple[Request, Translated]:
    """The request as one of chat. It takes the body over. Raises: Refusal."""
    if request.shared is not None:
        problem = f"a request to {dialect.route} has {LARGE_BYTES} bytes at most: send less, or images by their address"
        raise Refusal(413, problem, code="request_too_large")
    try:
        found = dialect.translate(request, tenant, secrets)
    except BadRequest as error:
        raise Refusal(400, str(error), code="invalid_value", param=error.path) from None
    if found.unlisted and tenant.unlisted_fields.value == "refuse":
        unknown = min(found.unlisted)
        raise Refusal(400, f"{unknown}: is not a field that the proxy knows; remove it", code="unknown_field")
    chat = Request(request.received_s, request.method, CHAT, request.headers)
    chat.caller, chat.tenant, chat.reservation = request.caller, request.tenant, request.reservation
    chat.body, request.body = found.body, b""
    chat.length = len(found.body)
    return chat, found


def noted(intake: Intake, dialect: Dialect, found: Translated) -> Intake:
    """The intake of a translated request: its route, and what was dropped of it."""
    return replace(intake, route=dialect.route, dropped=intake.dropped | found.dropped)


def count_tokens(request: Request, dialect: Dialect, caller: Caller, intakes: Intakes, router: Router) -> bytes:
    """How many tokens a prompt has, by the learned bytes per token of its model. Raises: Refusal."""
    chat = translate(request, dialect, caller.tenant, intakes.callers.secrets)[0]
    return dialect.count(router.estimated_tokens(intakes.facts(chat, caller)))
