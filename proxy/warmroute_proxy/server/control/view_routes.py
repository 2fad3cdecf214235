"""Read-only routes for the admin page: an operator sees all tenants, a tenant's API key shows that tenant alone.

GET /admin/view                 whether the viewer is an operator or a tenant
GET /admin/view/minutes         sums of the last hour by minute, tenant and worker, which this proxy counts in memory
GET /admin/view/usage           sums of one tenant; for operators also of all tenants
GET /admin/view/ladder          where the newest turns of this region lost cached tokens
GET /admin/view/receipts        the newest turns, or those of one session by its hash
GET /admin/view/receipts/{id}   a receipt, as JSON and in words
GET /admin/view/keys            API keys without their secret part
GET /admin/view/budgets         limits and budgets

An operator names a tenant by `tenant=`. A tenant must not name another tenant.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, get_args

import msgspec
from fastapi import FastAPI, Request, Response
from msgspec.structs import asdict

from warmroute.contract.version import VERSION
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.queue.scope import Scope
from warmroute_proxy.server.base.config import Config, TenantConfig
from warmroute_proxy.server.base.errors import Refusal, quoted
from warmroute_proxy.server.base.minutes import OTHERS, SHOWN, Minute, Row
from warmroute_proxy.server.base.secrets import config_key_id
from warmroute_proxy.server.control.answers import json_answer
from warmroute_proxy.server.control.described import VIEWING, described
from warmroute_proxy.server.control.directory_routes import DirectoryAdmin
from warmroute_proxy.server.control.models import (
    OF_TENANT,
    Budgets,
    ByForAll,
    Hash,
    Ladder,
    Limit,
    Minutes,
    ReceiptInWords,
    Rows,
    Since,
    Sums,
    Viewer,
)
from warmroute_proxy.server.control.receipt_words import in_words
from warmroute_proxy.server.control.usage_question import Question, read_question
from warmroute_proxy.server.control.usage_routes import Asking, Receipts, asked, no_receipt, not_by_tenant, tenant_of
from warmroute_proxy.server.ledger.ladder_sums import MAX_LADDER_GROUPS, LadderBy
from warmroute_proxy.server.request.admission import Admission
from warmroute_proxy.server.request.open_requests import OpenRequests
from warmroute_proxy.server.stores.store_state import NotDone, StoreError
from warmroute_proxy.server.stores.store_thread import StoreBusy

MAX_TENANTS: Final = 200
"""The largest number of tenants that an operator's page can choose from."""

MAX_KEYS: Final = 200
"""The largest number of listed API keys: first the keys in the database, the newest first, then those of the config."""

MAX_LIMITS: Final = 1_000
"""The largest number of limits of each kind in an answer for all tenants. An answer for one tenant has all limits."""


_SUMS: Final[Mapping[str, Any]] = {"by": ByForAll, "since": Since, **OF_TENANT}
_LADDER: Final[Mapping[str, Any]] = {"by": LadderBy, "since": Since, "session_hash": Hash, **OF_TENANT}
_LIST: Final[Mapping[str, Any]] = {"since": Since, "limit": Limit, "session_hash": Hash, **OF_TENANT}
_view = partial(described, errors=VIEWING, security=("admin_key", "key"))


class Views:
    def __init__(
        self,
        asking: Asking,
        receipts: Receipts,
        open_requests: OpenRequests,
        admission: Admission,
        directory: DirectoryAdmin | None,
        clock: Callable[[], float],
        minutes: Callable[[], list[Minute]],
    ) -> None:
        """`directory`: tenants and keys in the database; None without one. `minutes`: returns the last hour, summed
        over all processes of this proxy.
        """
        self.asking = asking
        self.receipts = receipts
        self._open_requests = open_requests
        self._admission = admission
        self._directory = directory
        self._clock = clock
        self._minutes = minutes

    @property
    def config(self) -> Config:
        return self.asking.live.now

    def about(self, viewer: TenantConfig | None) -> Viewer:
        region = self.config.proxy.region
        if viewer is not None:
            return Viewer("tenant", viewer.name, [viewer.name], region, VERSION)
        names = sorted(tenant.name for tenant in self.config.tenants)
        return Viewer("operator", None, names[:MAX_TENANTS], region, VERSION, max(0, len(names) - MAX_TENANTS))

    def minutes(self, tenant: TenantConfig | None) -> dict[str, Any]:
        """The last hour of one tenant; without a `tenant`, the sums of all, with rows for each tenant and worker."""
        found = self._minutes()
        name = None if tenant is None else tenant.name
        rows = [minute.all() if name is None else minute.tenants.get(name, Row()) for minute in found]
        body: dict[str, Any] = {
            "object": "warmroute.minutes",
            "region": self.config.proxy.region,
            "counted_since": (self.config.proxy.state_dir / "lock").stat().st_mtime,
            "complete": name is None or not any(name not in each.tenants and OTHERS in each.tenants for each in found),
            **_row_body(rows),
            "minutes": [{"key": each.key, **_row_body([row])} for each, row in zip(found, rows, strict=True)],
        }
        if name is None:
            tenants = {each for minute in found for each in minute.tenants}
            of_tenant = {each: [minute.tenants.get(each, Row()) for minute in found] for each in tenants}
            body["tenants"] = [{"key": each, **_row_body(rows)} for each, rows in sorted(of_tenant.items())]
            workers = {each for minute in found for each in minute.workers}
            body["workers"] = {
                each: [_worker_body(minute.workers.get(each, (0, 0, 0))) for minute in found] for each in workers
            }
        return body

    def decision(self, receipt_id: str) -> Decision | None:
        """The placement of a turn; None if this process does not remember it."""
        newest_first = reversed(self._open_requests.decisions)
        return next((decision for id_, decision in newest_first if id_ == receipt_id), None)

    async def keys(self, tenant: TenantConfig | None) -> dict[str, Any]:
        of = self.config.tenants if tenant is None else (tenant,)
        rows = [
            {"id": config_key_id(digest), "tenant": each.name, "note": "", "source": "config", "state": "good"}
            for each in of
            for digest in each.key_sha256
        ]
        if self._directory is not None:
            stored = await self._directory.keys().keys(None if tenant is None else tenant.name, None, MAX_KEYS + 1)
            in_database = {key.id for key in stored}
            rows = [row for row in rows if row["id"] not in in_database]
            rows = [{**asdict(key), "source": "database"} for key in stored] + rows
        return {"object": "list", "data": rows[:MAX_KEYS], "has_more": len(rows) > MAX_KEYS}

    def budgets(self, tenant: TenantConfig | None, *, shared: bool) -> dict[str, Any]:
        """Limits and budgets of one tenant or of all. `shared`: include those that the tenant shares with others."""
        limits, now_s = self._admission.limits, self._clock()
        if tenant is None:
            return limits.first(MAX_LIMITS, now_s)
        name, key_ids = tenant.name, {config_key_id(digest) for digest in tenant.key_sha256}
        if self._directory is not None:
            key_ids |= self._directory.key_ids(name)

        def visible(scope: Scope) -> bool:
            return shared or (set(scope.tenants) <= {name} and key_ids.issuperset(scope.keys))

        return {**limits.of_tenant(name, key_ids, visible, now_s), "left_out": 0}


def add_views(app: FastAPI, views: Views) -> None:
    @app.get("/admin/view")
    @_view(Viewer)
    async def about(request: Request) -> Response:
        """Whose view it is."""
        return json_answer(views.about(request.state.viewer))

    _add_minutes(app, views)
    _add_usage(app, views)
    _add_ladder(app, views)
    _add_receipts(app, views)
    _add_keys_and_budgets(app, views)


def _add_minutes(app: FastAPI, views: Views) -> None:
    @app.get("/admin/view/minutes")
    @_view(Minutes, asks=OF_TENANT)
    async def minutes(request: Request) -> Response:
        """Sums of the last hour by minute: turns, errors, 429s, time to the first token, tokens and USD."""
        return json_answer(views.minutes(_tenant(request, asked(request, OF_TENANT), views.config)))


def _row_body(rows: list[Row]) -> dict[str, Any]:
    """The sums of `rows`, as members of a JSON object."""
    total = Row()
    for row in rows:
        total.plus(row)
    percentiles = [total.ttft_s(share) for share in (0.5, 0.9)]
    ttft = dict(zip(("ttft_p50_s", "ttft_p90_s"), percentiles, strict=True))
    prompt = total.prompt_tokens - total.warm_prompt_tokens
    return {
        **{name: getattr(total, name) for name in SHOWN},
        "hit_ratio": round((total.cached_tokens - total.warm_cached_tokens) / prompt, 6) if prompt > 0 else None,
        "saved_nanousd": total.list_nanousd - total.price_nanousd,
        **ttft,
        "losses": total.loss,
    }


def _worker_body(sums: Sequence[int]) -> dict[str, Any]:
    turns, prompt, cached = sums
    return {"turns": turns, "prompt_tokens": prompt, "cached_tokens": cached}


def _add_usage(app: FastAPI, views: Views) -> None:
    @app.get("/admin/view/usage")
    @_view(Sums, asks=_SUMS)
    async def usage(request: Request) -> Response:
        """Sums, over all regions."""
        question = asked(request, (*_SUMS, "session_hash"))
        viewer = _tenant(request, question, views.config)
        if request.state.viewer is None and question.session_hash is None:
            return json_answer(await views.asking.operators_sums(request, question))
        not_by_tenant(question)
        if viewer is None or question.session_hash is not None:
            text = "session_hash is not allowed here: the turns of the session have its sums"
            raise Refusal(400, text, code="invalid_value", param="session_hash")
        return json_answer(await views.asking.sums(request, question._replace(tenant=None), viewer))


def _add_ladder(app: FastAPI, views: Views) -> None:
    @app.get("/admin/view/ladder")
    @_view(Ladder, asks=_LADDER)
    async def ladder(request: Request) -> Response:
        """Where cached tokens were lost, step by step, of the newest turns that this region has served."""
        given = [(name, value) for name, value in request.query_params.multi_items() if name != "by"]
        question = read_question(given, [name for name in _LADDER if name != "by"], time.time())
        by = _ladder_by(request.query_params.getlist("by"))
        operator = request.state.viewer is None
        viewer = _tenant(request, question, views.config)
        found = await views.asking.ladder(question, by, viewer, operator=operator)
        about = {"kind": "ledger", "region": views.config.proxy.region, "since": question.since_s}
        body = found.ladder.as_dict(about, MAX_LADDER_GROUPS)
        return json_answer({**body, "complete": found.complete, "counted_since": found.counted_since})


def _ladder_by(given: list[str]) -> LadderBy | None:
    """The grouping that the `by` parameters name; None without one. Raises: Refusal."""
    if not given:
        return None
    for by in get_args(LadderBy):
        if given == [by]:
            found: LadderBy = by
            return found
    text = f"by: {quoted(', '.join(given))} is not one of {', '.join(get_args(LadderBy))}"
    raise Refusal(400, text, code="invalid_value", param="by")


def _add_receipts(app: FastAPI, views: Views) -> None:
    @app.get("/admin/view/receipts")
    @_view(Rows, asks=_LIST)
    async def listed(request: Request) -> Response:
        """The newest turns: of a tenant over all regions, of all tenants those that this region knows."""
        question = asked(request, _LIST)
        tenant = _tenant(request, question, views.config)
        if tenant is None:
            return json_answer(await views.asking.listed_of_all(question, views.config.proxy.region))
        by_operator, of_it = request.state.viewer is None, question._replace(tenant=None)
        return json_answer(await views.asking.listed(request, of_it, tenant, operator=by_operator))

    @app.get("/admin/view/receipts/{receipt_id}")
    @_view(ReceiptInWords, asks=OF_TENANT, also={202: ReceiptInWords})
    async def receipt(receipt_id: str, request: Request) -> Response:
        """A receipt, with its words. Operators also get why its turn was placed there, while the proxy knows it."""
        tenant = _tenant(request, asked(request, OF_TENANT), views.config)
        if tenant is None:
            text = "a receipt belongs to one tenant: add tenant=NAME"
            raise Refusal(400, text, code="invalid_value", param="tenant")
        found = await views.receipts.find(tenant, receipt_id)
        if found is None:
            return no_receipt(receipt_id)
        body = msgspec.json.decode(found[1])
        decision = views.decision(receipt_id) if request.state.viewer is None else None
        shown = None if decision is None else decision_body(receipt_id, decision)
        return json_answer({**body, "words": in_words({"id": receipt_id, **body}, shown)}, found[0])


def _add_keys_and_budgets(app: FastAPI, views: Views) -> None:
    @app.get("/admin/view/keys")
    @_view(Rows, asks=OF_TENANT)
    async def keys(request: Request) -> Response:
        """API keys: their ids and notes. A key itself is known to its holder alone."""
        try:
            return json_answer(await views.keys(_tenant(request, asked(request, OF_TENANT), views.config)))
        except (NotDone, StoreBusy, StoreError):
            text = "the database of the keys cannot be read now"
            raise Refusal(503, text, code="database_unavailable", retry_after_s=1) from None

    @app.get("/admin/view/budgets")
    @_view(Budgets, asks=OF_TENANT)
    async def budgets(request: Request) -> Response:
        """Limits and budgets, and what is left of them."""
        tenant = _tenant(request, asked(request, OF_TENANT), views.config)
        return json_answer(views.budgets(tenant, shared=request.state.viewer is None))


def decision_body(receipt_id: str, decision: Decision) -> dict[str, Any]:
    names = zip(Decision.__struct_fields__, Decision.__struct_encode_fields__, strict=True)
    return {
        "id": receipt_id,
        **{shown: getattr(decision, field) for field, shown in names if field != "reasons"},
        "reasons": [candidate._asdict() for candidate in decision.reasons],
    }


def _tenant(request: Request, question: Question, config: Config) -> TenantConfig | None:
    """The tenant in question: the viewer, or the tenant that an operator names. None: all. Raises: Refusal."""
    viewer: TenantConfig | None = request.state.viewer
    if viewer is None:
        return tenant_of(question, config)
    if question.tenant not in {None, viewer.name}:
        text = "your key is of another tenant: it sees that one alone"
        raise Refusal(403, text, code="admin_key_needed", param="tenant")
    return viewer
