"""A request to Anthropic's `/v1/messages` as one to `/v1/chat/completions`, and what its answer is translated by."""

from typing import Final

import msgspec
from msgspec.structs import replace

from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.dialects.messages.blocks import BadRequest
from warmroute_proxy.dialects.messages.errors import error, status_of
from warmroute_proxy.dialects.messages.request import ChatRequest, chat_request
from warmroute_proxy.server.base.config import TenantConfig
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.http.shared_bytes import LARGE_BYTES
from warmroute_proxy.server.intake.caller import Caller
from warmroute_proxy.server.intake.intake import CHAT
from warmroute_proxy.server.intake.intakes import Intakes
from warmroute_proxy.server.intake.parsed_request import Intake

MESSAGES: Final = "/v1/messages"
COUNT_TOKENS: Final = "/v1/messages/count_tokens"
MESSAGES_ROUTES: Final = frozenset({MESSAGES, COUNT_TOKENS})


class MessagesRefusal(Refusal):
    """A refusal as Anthropic's clients know it."""

    @classmethod
    def of(cls, refusal: Refusal) -> "MessagesRefusal":
        """The same refusal."""
        status, after_s = status_of(refusal.status), refusal.retry_after_s
        return cls(status, refusal.message, code=refusal.code, retry_after_s=after_s, headers=refusal.headers)

    def body(self) -> bytes:
        """The error object."""
        return error(self.status, self.message, self.code)


def translate(request: Request, tenant: TenantConfig) -> tuple[Request, ChatRequest]:
    """The request as one of chat. It takes the body over. Raises: Refusal."""
    if request.shared is not None:
        problem = f"a request to {request.path} has {LARGE_BYTES} bytes at most: send less, or images by their address"
        raise Refusal(413, problem, code="request_too_large")
    try:
        found = chat_request(bytes(request.body), counts_only=request.path == COUNT_TOKENS)
    except BadRequest as error:
        raise Refusal(400, str(error), code="invalid_value", param=error.path) from None
    unlisted = found.dropped - {"redacted_thinking"}
    if unlisted and tenant.unlisted_fields.value == "refuse":
        raise Refusal(400, f"{min(unlisted)}: is not a field that the proxy knows; remove it", code="unknown_field")
    chat = Request(request.received_s, request.method, CHAT, request.headers)
    chat.caller, chat.tenant, chat.reservation = request.caller, request.tenant, request.reservation
    chat.body, request.body = found.body, b""
    chat.length = len(found.body)
    return chat, found


def noted(intake: Intake, found: ChatRequest) -> Intake:
    """The intake of a translated request: its route, and what was dropped of it."""
    return replace(intake, route=MESSAGES, dropped=intake.dropped | found.dropped)


def count_tokens(request: Request, caller: Caller, intakes: Intakes, router: Router) -> bytes:
    """How many tokens a prompt has, by the learned bytes per token of its model. Raises: Refusal."""
    facts = intakes.facts(translate(request, caller.tenant)[0], caller)
    tokens = router.estimated_tokens(facts)
    return msgspec.json.encode({"input_tokens": tokens, "warmroute": {"estimated": ["input_tokens"]}})
