"""Routes about usage and receipts: a tenant's own, and for operators those of all tenants.

GET  /v1/usage                       sums, over all regions; the header x-session-affinity names a session
GET  /v1/usage/receipts              the newest turns
GET  /v1/usage/receipts/{id}         one receipt
POST /v1/usage/receipts/{id}/void    between proxies alone
GET  /v1/usage/operator              between proxies alone: what /admin/usage asks the other regions
GET  /admin/usage                    the sums of all tenants, or of one
"""

import asyncio
import re
import time
from typing import Any, Final
from urllib.parse import quote

from fastapi import FastAPI, Request, Response

from warmroute.contract import headers as names
from warmroute_proxy.server.base.config import Config, TenantConfig
from warmroute_proxy.server.base.errors import Refusal, quoted
from warmroute_proxy.server.base.live_config import LiveConfig
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.control.answers import error_answer, get, json_answer, refused
from warmroute_proxy.server.control.fleet_usage import FleetUsage, listed_body, usage_body
from warmroute_proxy.server.control.usage_question import Question, read_question, session_key
from warmroute_proxy.server.dialects.other_apis import no_route
from warmroute_proxy.server.ledger.journal import JournalError
from warmroute_proxy.server.ledger.ledger import Ledger
from warmroute_proxy.server.ledger.usage_sums import Listed, Sums, Turns
from warmroute_proxy.server.regions.peers import PeerQuestions

RECEIPT_ID: Final = re.compile(r"wr-[0-9a-f]{24}")
OPERATOR_PATH: Final = "/v1/usage/operator"
_ONLY_OPERATORS: Final = "by=tenant needs the admin key: GET /admin/usage?by=tenant at the admin listener"


def add_usage(app: FastAPI, usage: FleetUsage, secrets: Secrets) -> None:
    """What tenants ask."""

    @get(app, "/v1/usage")
    async def sums(request: Request) -> Response:
        """The tenant's sums, over all regions."""
        try:
            question = _asked(request, ("by", "since"))
            if question.by == "tenant":
                raise Refusal(403, _ONLY_OPERATORS, code="admin_key_needed", param="by")
            turns, session = _turns(request, question, request.state.tenant, secrets)
            if _is_of_peer(request):
                return json_answer(await usage.here(turns, question.by))
            target, own = _target("/v1/usage", question), usage.here(turns, question.by)
            regions, found = await usage.everywhere(own, Sums, request.state.tenant, target, session)
            return json_answer(usage_body(regions, found, question.by, question.since_s))
        except Refusal as refusal:
            return refused(refusal)

    @get(app, "/v1/usage/receipts")
    async def receipts(request: Request) -> Response:
        """The tenant's newest turns, over all regions."""
        try:
            question = _asked(request, ("since", "limit"))
            turns, session = _turns(request, question, request.state.tenant, secrets)
            if _is_of_peer(request):
                return json_answer(await usage.listed_here(turns, question.limit))
            target = _target("/v1/usage/receipts", question, limit=str(question.limit))
            own = usage.listed_here(turns, question.limit)
            regions, found = await usage.everywhere(own, Listed, request.state.tenant, target, session)
            return json_answer(listed_body(regions, found, question.limit))
        except Refusal as refusal:
            return refused(refusal)


def add_receipts(app: FastAPI, ledger: Ledger, questions: PeerQuestions, usage: FleetUsage) -> None:
    """One receipt, and its void."""

    @app.post("/v1/usage/receipts/{receipt_id}/void")
    async def void(receipt_id: str, request: Request) -> Response:
        """Void a row whose answer was lost between regions; only for the proxy that forwarded the request."""
        if request.state.forwarded != request.url.path:
            return error_answer(404, no_route(request.url.path), "not_found")
        durable: asyncio.Future[JournalError | None] = asyncio.get_running_loop().create_future()
        state = ledger.void(request.state.tenant.name, receipt_id, durable.set_result)
        if state == "voided" and await asyncio.shield(durable) is not None:
            return error_answer(503, "the ledger cannot be written", "ledger_unavailable")
        return json_answer({"state": state}, {"open": 409, "unknown": 404}.get(state, 200))

    @get(app, "/v1/usage/receipts/{receipt_id}")
    async def receipt(receipt_id: str, request: Request) -> Response:
        """One receipt of the tenant's own; 202 while its request is under way. Another region may have served it."""
        tenant: TenantConfig = request.state.tenant
        found = ledger.receipt(tenant.name, receipt_id) or await usage.receipt(tenant.name, receipt_id)
        if found is None and not request.state.forwarded and RECEIPT_ID.fullmatch(receipt_id):
            elsewhere = await questions.ask(tenant, request.url.path)
            if elsewhere is not None:
                return Response(elsewhere[1], elsewhere[0], media_type="application/json")
        if found is None:
            return error_answer(404, f"there is no receipt {receipt_id[:64]!r} of yours", "receipt_not_found")
        return json_answer(found, 202 if found.get("state") == "open" else 200)


def add_operators_question(app: FastAPI, usage: FleetUsage, secrets: Secrets, live: LiveConfig) -> None:
    """What the proxy of another region asks in the name of its operator."""

    @get(app, OPERATOR_PATH)
    async def for_operator(request: Request) -> Response:
        """The sums of all tenants, or of one, in this region."""
        try:
            if not _is_of_peer(request):
                return error_answer(404, no_route(request.url.path), "not_found")
            question = _asked(request, ("by", "since", "tenant"))
            turns, _ = _turns(request, question, _tenant(question, live.now), secrets)
            return json_answer(await usage.here(turns, question.by))
        except Refusal as refusal:
            return refused(refusal)


def add_admin_usage(app: FastAPI, usage: FleetUsage, secrets: Secrets, live: LiveConfig) -> None:
    """What operators ask, on the admin listener."""

    @app.get("/admin/usage")
    async def all_usage(request: Request) -> Response:
        """The sums of all tenants, or of one, over all regions."""
        try:
            question = _asked(request, ("by", "since", "tenant"))
            turns, session = _turns(request, question, _tenant(question, live.now), secrets)
            own = usage.here(turns, question.by)
            # A token is in the name of some tenant. That it is for this path says that an operator asks.
            regions, found = await usage.everywhere(
                own, Sums, _any_tenant(live.now), _target(OPERATOR_PATH, question), session
            )
            return json_answer(usage_body(regions, found, question.by, question.since_s))
        except Refusal as refusal:
            return refused(refusal)


def _asked(request: Request, allowed: tuple[str, ...]) -> Question:
    return read_question(request.query_params.multi_items(), allowed, time.time())


def _turns(
    request: Request, question: Question, tenant: TenantConfig | None, secrets: Secrets
) -> tuple[Turns, str | None]:
    """Which turns are asked for, and the header that names their session."""
    header = request.headers.get(names.AFFINITY)
    key = session_key(header)
    if key is None:
        return Turns(None if tenant is None else tenant.name, None, question.since_s), None
    if tenant is None:
        raise Refusal(400, "a session is of one tenant: name it by tenant=", code="invalid_value", param="tenant")
    return Turns(tenant.name, secrets.session_of(tenant.share_group, key)[0], question.since_s), header


def _tenant(question: Question, config: Config) -> TenantConfig | None:
    if question.tenant is None:
        return None
    found = config.tenant_by_name.get(question.tenant)
    if found is None:
        raise Refusal(400, f"tenant: {quoted(question.tenant)} is no tenant here", code="invalid_value", param="tenant")
    return found


def _any_tenant(config: Config) -> TenantConfig:
    if not config.tenants:
        raise Refusal(404, "there is no tenant yet: `warmroute tenants add`", code="not_found")
    return config.tenants[0]


def _target(path: str, question: Question, **more: str) -> str:
    """The same question to another region, its times fixed."""
    given: dict[str, Any] = {"by": question.by, "tenant": question.tenant, **more}
    if question.since_s is not None:
        given["since"] = f"{max(question.since_s, 0.0):.3f}"
    words = [f"{name}={quote(value, safe='')}" for name, value in given.items() if value is not None]
    return f"{path}?{'&'.join(words)}" if words else path


def _is_of_peer(request: Request) -> bool:
    """Whether the proxy of another region asks. Raises: Refusal, where its token is for another question."""
    asked = f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path
    if request.state.forwarded not in {None, asked}:
        raise Refusal(401, "the forward token is for another question", code="invalid_forward")
    return request.state.forwarded is not None
