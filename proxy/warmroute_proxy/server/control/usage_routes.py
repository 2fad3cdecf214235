"""Routes about usage and receipts: for a tenant its own, for operators those of all tenants.

GET  /v1/usage                       sums, over all regions; the header x-session-affinity names a session
GET  /v1/usage/receipts              the newest turns
GET  /v1/usage/receipts/{id}         one receipt
POST /v1/usage/receipts/{id}/void    only for other proxies: void the row of a lost answer
GET  /v1/usage/operator              only for other proxies: /admin/usage of another region asks for sums here
GET  /admin/usage                    the sums of all tenants, or of one
"""

import asyncio
import re
import time
from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec
from fastapi import FastAPI, Request, Response

from warmroute.contract import headers as names
from warmroute_proxy.core.accounting.entry_steps import turns_in
from warmroute_proxy.server.base.config import ANY, Config, TenantConfig
from warmroute_proxy.server.base.config_source import LiveConfig
from warmroute_proxy.server.base.errors import Refusal, quoted
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.control.answers import error_answer, get, json_answer
from warmroute_proxy.server.control.described import VIEWING, described
from warmroute_proxy.server.control.fleet_usage import Elsewhere, FleetUsage, listed_body, usage_body
from warmroute_proxy.server.control.models import OF_TENANT, SESSION, By, ByForAll, Hash, Json, Limit, Rows, Since
from warmroute_proxy.server.control.usage_question import Question, read_question, session_key
from warmroute_proxy.server.dialects.routes import no_route
from warmroute_proxy.server.ledger.journal import JournalError
from warmroute_proxy.server.ledger.ladder_sums import Climbed, LadderBy
from warmroute_proxy.server.ledger.ledger import Ledger, OnDurable, Voided
from warmroute_proxy.server.ledger.usage_sums import Listed, Sums, Turns
from warmroute_proxy.server.regions.other_proxies import OtherProxies
from warmroute_proxy.server.regions.peers import PeerQuestions
from warmroute_proxy.server.stores.store_state import StoreError
from warmroute_proxy.server.stores.store_thread import StoreBusy

RECEIPT_ID: Final = re.compile(r"wr-[0-9a-f]{24}")
OPERATOR_PATH: Final = "/v1/usage/operator"
_SUMS: Final[Mapping[str, Any]] = {"by": By, "since": Since, "session_hash": Hash}
_LIST: Final[Mapping[str, Any]] = {"since": Since, "limit": Limit, "session_hash": Hash}
_ONLY_OPERATORS: Final = "by=tenant needs the admin key: GET /admin/usage?by=tenant at the admin listener"


class Asking:
    """Answers questions about usage that tenants, operators and other regions ask."""

    def __init__(self, usage: FleetUsage, secrets: Secrets, live: LiveConfig) -> None:
        self._usage = usage
        self._secrets = secrets
        self.live = live

    async def sums(self, request: Request, question: Question, tenant: TenantConfig) -> dict[str, Any]:
        """The sums of a tenant, over all regions. Raises: Refusal."""
        turns, session = _turns(request, question, tenant, self._secrets)
        own, target = self._usage.here(turns, question.by), _target("/v1/usage", question)
        regions, found = await self._usage.everywhere(own, Sums, Elsewhere(tenant, target, session))
        return usage_body(regions, found, question.by, question.since_s)

    async def listed(
        self, request: Request, question: Question, tenant: TenantConfig, *, operator: bool = False
    ) -> dict[str, Any]:
        """The newest turns of a tenant, over all regions. `operator`: an operator asks. Raises: Refusal."""
        turns, session = _turns(request, question, tenant, self._secrets)
        own = self._usage.listed_here(turns, question.limit, operator=operator)
        target = _target("/v1/usage/receipts", question, limit=str(question.limit))
        regions, found = await self._usage.everywhere(own, Listed, Elsewhere(tenant, target, session))
        return listed_body(regions, found, question.limit)

    async def listed_of_all(self, question: Question, region: str) -> dict[str, Any]:
        """The newest turns of all tenants that this region knows. Raises: Refusal."""
        if question.session_hash is not None:
            raise _needs_tenant()
        found = await self._usage.listed_here(Turns(None, None, question.since_s), question.limit)
        return listed_body({region: "counted"}, [found], question.limit)

    async def ladder(
        self, question: Question, by: LadderBy | None, tenant: TenantConfig | None, *, operator: bool
    ) -> Climbed:
        """The ladder (the steps at which cached tokens were lost) of the newest turns in this region, of `tenant` or of
        all tenants. Raises: Refusal.
        """
        turns = Turns(None if tenant is None else tenant.name, question.session_hash, question.since_s)
        return await self._usage.ladder_here(turns, by, operator=operator)

    async def operators_sums(self, request: Request, question: Question) -> dict[str, Any]:
        """The sums of all tenants, or of the tenant that the question names, over all regions. Raises: Refusal."""
        tenant = tenant_of(question, self.live.now)
        turns, session = _turns(request, question, tenant, self._secrets)
        # A token for another region's proxy must name a tenant, even if the question is about all tenants. The path in
        # the token says that an operator asks.
        name = tenant or _any_tenant(self.live.now)
        own = self._usage.here(turns, question.by, operator=True)
        asked = Elsewhere(name, _target(OPERATOR_PATH, question), session, of_all=tenant is None)
        regions, found = await self._usage.everywhere(own, Sums, asked)
        return usage_body(regions, found, question.by, question.since_s)

    async def here(
        self, request: Request, question: Question, tenant: TenantConfig | None, *, operator: bool = False
    ) -> Sums:
        """The sums of this region alone. `operator`: an operator asks. Raises: Refusal."""
        turns, _ = _turns(request, question, tenant, self._secrets)
        return await self._usage.here(turns, question.by, operator=operator)

    async def listed_here(self, request: Request, question: Question, tenant: TenantConfig) -> Listed:
        """The newest turns of this region alone. Raises: Refusal."""
        return await self._usage.listed_here(_turns(request, question, tenant, self._secrets)[0], question.limit)


def add_usage(app: FastAPI, asking: Asking) -> None:
    @get(app, "/v1/usage")
    @described(Json, asks=_SUMS, headers=SESSION, errors=VIEWING)
    async def sums(request: Request) -> Response:
        """The tenant's sums, over all regions."""
        question = asked(request, _SUMS)
        not_by_tenant(question)
        if _is_of_peer(request):
            return json_answer(await asking.here(request, question, request.state.tenant))
        return json_answer(await asking.sums(request, question, request.state.tenant))

    @get(app, "/v1/usage/receipts")
    @described(Rows, asks=_LIST, headers=SESSION, errors=VIEWING)
    async def receipts(request: Request) -> Response:
        """The tenant's newest turns, over all regions."""
        question = asked(request, _LIST)
        if _is_of_peer(request):
            return json_answer(await asking.listed_here(request, question, request.state.tenant))
        return json_answer(await asking.listed(request, question, request.state.tenant))


_FOUND: Final = frozenset({200, 202})


class Receipts:
    """Finds receipts: in the ledger, in the database, and in other regions."""

    def __init__(self, ledger: Ledger, questions: PeerQuestions, usage: FleetUsage, proxies_here: OtherProxies) -> None:
        self.ledger = ledger
        self.proxies_here = proxies_here
        self._questions = questions
        self._usage = usage

    async def find(
        self, tenant: TenantConfig, receipt_id: str, *, came_from: str | None = None
    ) -> tuple[int, bytes] | None:
        """The status and the body of the answer about a tenant's receipt; None if no proxy has the receipt.

        `came_from`: the region of the proxy that asks; None for a client. A client's question goes to all proxies here
        and to all regions; that of another region to all proxies here, of which its load balancer has chosen one.
        Raises: Refusal, if a proxy or a region that may have the receipt does not answer.
        """
        found = self.ledger.receipt(tenant.name, receipt_id) or await self._usage.receipt(tenant.name, receipt_id)
        if found is not None:
            return 202 if found.get("state") == "open" else 200, msgspec.json.encode(found)
        if came_from == self.proxies_here.region or not RECEIPT_ID.fullmatch(receipt_id):
            return None
        path = f"/v1/usage/receipts/{receipt_id}"
        here = await self.proxies_here.read(path, (tenant.name, tenant.share_group))
        there = (404, b"") if here[0] in _FOUND or came_from is not None else await self._questions.ask(tenant, path)
        for answer in (here, there):
            if answer[0] in _FOUND:
                return answer
        try:
            exists_nowhere = there[0] == 404 and await self.none_missing(here[0])
        except (StoreError, StoreBusy):
            exists_nowhere = False
        if not exists_nowhere:
            text = "a proxy or region that may have the receipt does not answer"
            raise Refusal(503, text, code="overloaded", retry_after_s=1)
        return None

    async def void_sent(self, tenant: str, receipt_id: str, on_durable: OnDurable) -> Voided:
        """Void a row of this region that is in the database, but no longer in the files of the region's proxies.
        `on_durable`: as in `Ledger.void`. Raises: StoreError, StoreBusy.
        """
        found = await self._usage.sent_entry(tenant, receipt_id)
        if found is None or turns_in(receipt_id) != 1 or found[0].region != self.proxies_here.region:
            return "unknown"
        entry, voided = found
        return "free" if voided else self.ledger.void_entry(entry, on_durable)

    async def none_missing(self, status: int) -> bool:
        """Whether a row that was not found does not exist. `status`: the answer of `OtherProxies.ask`. Raises:
        StoreError, StoreBusy.
        """
        return status == 404 or (status == 410 and await self._usage.all_sent())


def no_receipt(receipt_id: str) -> Response:
    return error_answer(404, f"there is no receipt {receipt_id[:64]!r} of yours", "receipt_not_found")


def add_receipts(app: FastAPI, receipts: Receipts) -> None:
    @app.post("/v1/usage/receipts/{receipt_id}/void")
    async def void(receipt_id: str, request: Request) -> Response:
        """Void a row whose answer was lost between regions; only for the proxy that forwarded the request."""
        if request.state.forwarded != request.url.path:
            return error_answer(404, no_route(request.url.path), "not_found")
        durable: asyncio.Future[JournalError | None] = asyncio.get_running_loop().create_future()
        state = receipts.ledger.void(request.state.tenant.name, receipt_id, durable.set_result)
        if state == "unknown" and request.state.came_from != receipts.proxies_here.region:
            # A load balancer does not know which proxy of the region has the row, so ask the others.
            tenant = request.state.tenant
            status = await receipts.proxies_here.ask(request.url.path, (tenant.name, tenant.share_group))
            if status == 200:  # the other proxy has voided the row, durably
                return json_answer({"state": "voided"}, 200)
            if status == 409:
                return json_answer({"state": "open"}, 409)
            try:
                none_missing = await receipts.none_missing(status)  # first, since rows may come meanwhile
                state = await receipts.void_sent(tenant.name, receipt_id, durable.set_result)
                if state == "unknown" and not none_missing:
                    return error_answer(503, "another proxy of this region does not answer", "overloaded")
            except (StoreError, StoreBusy):
                return error_answer(503, "the database of the ledger cannot be read now", "ledger_unavailable")
        if state == "voided" and await asyncio.shield(durable) is not None:
            return error_answer(503, "the ledger cannot be written", "ledger_unavailable")
        return json_answer({"state": state}, {"open": 409, "unknown": 404}.get(state, 200))

    @get(app, "/v1/usage/receipts/{receipt_id}")
    @described(Json, also={202: Json})
    async def receipt(receipt_id: str, request: Request) -> Response:
        """One receipt of the tenant's own; 202 while its request is under way. Another region may have served it."""
        found = await receipts.find(request.state.tenant, receipt_id, came_from=request.state.came_from)
        if found is None:
            return no_receipt(receipt_id)
        return Response(found[1], found[0], media_type="application/json")


def add_operators_question(app: FastAPI, asking: Asking) -> None:
    """Add the route at which another region's proxy asks in the name of its operator."""

    @get(app, OPERATOR_PATH)
    async def for_operator(request: Request) -> Response:
        """The sums of all tenants, or of one, in this region."""
        if not _is_of_peer(request):
            return error_answer(404, no_route(request.url.path), "not_found")
        question = asked(request, (*_SUMS, *OF_TENANT))
        tenant = tenant_of(question, asking.live.now)
        return json_answer(await asking.here(request, question, tenant, operator=True))


def add_admin_usage(app: FastAPI, asking: Asking) -> None:
    @app.get("/admin/usage")
    @described(Json, asks={**_SUMS, "by": ByForAll, **OF_TENANT}, headers=SESSION, security=("admin_key",))
    async def all_usage(request: Request) -> Response:
        """The sums of all tenants, or of one, over all regions."""
        return json_answer(await asking.operators_sums(request, asked(request, (*_SUMS, *OF_TENANT))))


def asked(request: Request, allowed: Collection[str]) -> Question:
    """The question in a request's query parameters. Raises: Refusal."""
    return read_question(request.query_params.multi_items(), allowed, time.time())


def _turns(
    request: Request, question: Question, tenant: TenantConfig | None, secrets: Secrets
) -> tuple[Turns, str | None]:
    """The turns that a question is about, and the header that names their session."""
    header = request.headers.get(names.AFFINITY)
    key = session_key(header)
    if key is None and question.session_hash is None:
        return Turns(None if tenant is None else tenant.name, None, question.since_s), None
    if tenant is None:
        raise _needs_tenant()
    if key is None:
        return Turns(tenant.name, question.session_hash, question.since_s), None
    if question.session_hash is not None:
        text = f"session_hash and the header {names.AFFINITY} each name a session: send one of them"
        raise Refusal(400, text, code="invalid_value", param="session_hash")
    return Turns(tenant.name, secrets.session_of(tenant.share_group, key)[0], question.since_s), header


def not_by_tenant(question: Question) -> None:
    """Refuse sums by tenant, which only operators may ask for. Raises: Refusal."""
    if question.by == "tenant":
        raise Refusal(403, _ONLY_OPERATORS, code="admin_key_needed", param="by")


def tenant_of(question: Question, config: Config) -> TenantConfig | None:
    """The tenant that a question names; None if it names no tenant. Raises: Refusal."""
    if question.tenant is None:
        return None
    found = config.tenant_by_name.get(question.tenant)
    if found is None:
        problem = f"tenant: {quoted(question.tenant)} is not a tenant here"
        raise Refusal(400, problem, code="invalid_value", param="tenant")
    return found


def _needs_tenant() -> Refusal:
    return Refusal(400, "a session belongs to one tenant: add tenant=NAME", code="invalid_value", param="tenant")


def _any_tenant(config: Config) -> TenantConfig:
    if not config.tenants:
        raise Refusal(404, "there is no tenant yet: `warmroute tenants add`", code="not_found")
    return next((tenant for tenant in config.tenants if ANY in tenant.regions), config.tenants[0])


def _target(path: str, question: Question, **more: str) -> str:
    given: dict[str, Any] = {"by": question.by, "tenant": question.tenant, "session_hash": question.session_hash}
    given |= more
    if question.since_s is not None:
        given["since"] = f"{max(question.since_s, 0.0):.3f}"
    words = [f"{name}={quote(value, safe='')}" for name, value in given.items() if value is not None]
    return f"{path}?{'&'.join(words)}" if words else path


def _is_of_peer(request: Request) -> bool:
    """Whether the proxy of another region asks. Raises: Refusal, if its forward token is for another question."""
    asked = f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path
    if request.state.forwarded not in {None, asked}:
        raise Refusal(401, "the forward token is for another question", code="invalid_forward")
    return request.state.forwarded is not None
