"""Routes for operators that show and change tenants and API keys in the database, and show who changed them.

GET, POST            /admin/tenants             list the tenants of config and database; add a tenant
GET, PATCH, DELETE   /admin/tenants/{name}      show a tenant; change settings; remove it and revoke its keys
GET, POST            /admin/keys                list keys; make a key, which is shown only once
GET, PATCH, DELETE   /admin/keys/{id}           show a key; change its note or expiry; revoke it
POST                 /admin/keys/{id}/rotate    make a new key; the old key stays valid for some time
GET                  /admin/audit               who changed what

Lists come in pages of `limit` entries. `after` names the last entry of the previous page. The audit log has `before`
instead.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from fastapi import FastAPI, Path, Request, Response
from msgspec import UNSET, Meta, Struct
from msgspec.structs import asdict

from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.control.answers import json_answer, refused
from warmroute_proxy.server.control.described import changing_route
from warmroute_proxy.server.control.models import (
    ChangedKey,
    ChangedTenant,
    Limit,
    Name,
    NewKey,
    NewTenant,
    Page,
    RemovedTenant,
    RevokedKey,
    RotatedKey,
    Since,
    Tenant,
)
from warmroute_proxy.server.control.usage_question import given_once, read_question
from warmroute_proxy.server.ledger.usage_sums import MAX_LISTED
from warmroute_proxy.server.stores.directory.access import Access
from warmroute_proxy.server.stores.directory.changing import Ask, DirectoryChange, Operator
from warmroute_proxy.server.stores.directory.key_admin import KeyAdmin, KeyId, ListedKey, MadeKey
from warmroute_proxy.server.stores.directory.tenant_admin import StoredTenant, TenantAdmin
from warmroute_proxy.server.stores.store_state import NotDone, StoreError
from warmroute_proxy.server.stores.store_thread import StoreBusy

LISTED: Final = 50
KINDS: Final = ("key", "price", "tenant")
_STATUS: Final = {"not_found": 404, "conflict": 409, "invalid_value": 400}

B = TypeVar("B", bound=Struct)

_LIST: Final[Mapping[str, Any]] = {"limit": Limit, "after": Name}
_KEYS: Final[Mapping[str, Any]] = {"limit": Limit, "after": KeyId, "tenant": Name}
_AUDIT: Final[Mapping[str, Any]] = {
    "limit": Limit,
    "before": Annotated[int, Meta(ge=0, le=10**18 - 1)],
    "since": Since,
    "kind": Literal["key", "price", "tenant"],
}
KeyPath = Annotated[str, Path(alias="id")]


class DirectoryAdmin:
    def __init__(self, access: Access, ask: Ask, region: str) -> None:
        self._access = access
        self.operator = Operator(ask, f"admin@{region}")

    @property
    def of_config(self) -> list[str]:
        """The names of the tenants of the config file."""
        return sorted(self._access.of_file.tenant_by_name)

    def key_ids(self, tenant: str) -> set[str]:
        """The ids of a tenant's keys in the database, also of keys that have ended."""
        return self._access.ids_by_tenant.get(tenant, set())

    def tenants(self) -> TenantAdmin:
        return TenantAdmin(self.operator, self._access.of_file)

    def keys(self) -> KeyAdmin:
        return KeyAdmin(self.operator, self.of_config)


def add_directory(app: FastAPI, admin: DirectoryAdmin | None) -> None:
    """Add the routes to the admin application. `admin`: None if there is no database."""
    if admin is not None:
        for kind in (NotDone, StoreBusy, StoreError):
            app.add_exception_handler(kind, _failed)
        _add_tenants(app, admin)
        _add_tenant(app, admin)
        _add_keys(app, admin)
        _add_key(app, admin)
        _add_audit(app, admin)
        return

    for what in ("tenants", "keys", "audit"):
        for path in (f"/admin/{what}", f"/admin/{what}/{{rest:path}}"):
            app.add_api_route(path, _no_database, methods=["GET", "POST", "PATCH", "DELETE"])


async def _failed(request: Request, error: Exception) -> Response:  # noqa: ARG001
    """The answer if the database refuses a question or a change, or cannot be used."""
    if isinstance(error, NotDone):
        return refused(Refusal(_STATUS[error.code], str(error), code=error.code))
    if isinstance(error, StoreBusy):
        return refused(Refusal(503, "too many queries wait for the database", code="overloaded", retry_after_s=1))
    text = f"the database cannot be used ({error}); the change may or may not be stored: check before you try again"
    return refused(Refusal(503, text, code="database_unavailable", retry_after_s=1))


async def _no_database() -> Response:
    """The answer without a database: the config file has all tenants and keys."""
    text = "this proxy has no database: its tenants and keys are those of its config ([ledger] dsn_file names one)"
    return refused(Refusal(404, text, code="no_database"))


def _add_tenants(app: FastAPI, admin: DirectoryAdmin) -> None:
    @app.get("/admin/tenants")
    @changing_route(Page[Tenant], asks=_LIST)
    async def tenants(request: Request) -> Response:
        """The tenants of the config and of the database, by name."""
        asked = given_once(request.query_params.multi_items(), _LIST)
        limit, after = _limit(asked), asked.get("after")
        stored = await admin.tenants().tenants(after, limit + 1)
        in_config = set(admin.of_config)
        rows = [_tenant(each, is_used=each.name not in in_config) for each in stored]
        rows += [_of_config(name) for name in in_config if after is None or name > after]
        rows.sort(key=lambda row: (row.name, row.source))
        return _page(rows, limit)

    @app.post("/admin/tenants")
    @changing_route(Tenant, status=201, body=NewTenant)
    async def add(request: Request) -> Response:
        """Add a tenant."""
        asked = await _body(request, NewTenant)
        return json_answer(_tenant(await admin.tenants().add(asked.name, asked.settings)), 201)


def _add_tenant(app: FastAPI, admin: DirectoryAdmin) -> None:
    @app.get("/admin/tenants/{name:path}")
    @changing_route(Tenant)
    async def tenant(name: str, request: Request) -> Response:
        """One tenant."""
        given_once(request.query_params.multi_items(), ())
        if name in admin.of_config:
            return json_answer(_of_config(name))
        return json_answer(_tenant(await admin.tenants().tenant(name)))

    @app.patch("/admin/tenants/{name:path}")
    @changing_route(Tenant, body=ChangedTenant)
    async def change(name: str, request: Request) -> Response:
        """Change settings of a tenant."""
        asked = await _body(request, ChangedTenant)
        return json_answer(_tenant(await admin.tenants().change(name, asked.settings)))

    @app.delete("/admin/tenants/{name:path}")
    @changing_route(RemovedTenant)
    async def remove(name: str) -> Response:
        """Remove a tenant, and revoke its keys."""
        return json_answer(RemovedTenant(name, True, await admin.tenants().remove(name)))


def _add_keys(app: FastAPI, admin: DirectoryAdmin) -> None:
    @app.get("/admin/keys")
    @changing_route(Page[ListedKey], asks=_KEYS)
    async def keys(request: Request) -> Response:
        """Keys, the newest first."""
        asked = given_once(request.query_params.multi_items(), _KEYS)
        limit = _limit(asked)
        return _page(await admin.keys().keys(asked.get("tenant"), asked.get("after"), limit + 1), limit)

    @app.post("/admin/keys")
    @changing_route(MadeKey, status=201, body=NewKey)
    async def make(request: Request) -> Response:
        """Make a key, which is shown once."""
        asked = await _body(request, NewKey)
        return json_answer(await admin.keys().make(asked.tenant, asked.note, asked.lifetime_s), 201)


def _add_key(app: FastAPI, admin: DirectoryAdmin) -> None:
    @app.get("/admin/keys/{id}")
    @changing_route(ListedKey)
    async def key(key_id: KeyPath) -> Response:
        """One key."""
        return json_answer(await admin.keys().key(key_id))

    @app.patch("/admin/keys/{id}")
    @changing_route(ListedKey, body=ChangedKey)
    async def change(key_id: KeyPath, request: Request) -> Response:
        """Change the note of a key, or when it expires."""
        asked = await _body(request, ChangedKey)
        note = None if asked.note is UNSET else asked.note
        end = None if asked.lifetime_s is UNSET else asked.lifetime_s
        sets_end = asked.lifetime_s is not UNSET
        return json_answer(await admin.keys().change(key_id, note, sets_end=sets_end, lifetime_s=end))

    @app.delete("/admin/keys/{id}")
    @changing_route(RevokedKey)
    async def revoke(key_id: KeyPath) -> Response:
        """Revoke a key."""
        return json_answer(RevokedKey(key_id, True, await admin.keys().revoke(key_id)))

    @app.post("/admin/keys/{id}/rotate")
    @changing_route(MadeKey, status=201, body=RotatedKey)
    async def rotate(key_id: KeyPath, request: Request) -> Response:
        """Make a key in place of another one."""
        asked = await _body(request, RotatedKey)
        return json_answer(await admin.keys().rotate(key_id, asked.overlap_s, asked.lifetime_s), 201)


def _add_audit(app: FastAPI, admin: DirectoryAdmin) -> None:
    @app.get("/admin/audit")
    @changing_route(Page[DirectoryChange], asks=_AUDIT)
    async def audit(request: Request) -> Response:
        """Who changed what, the newest first."""
        asked = given_once(request.query_params.multi_items(), _AUDIT)
        limit, since = _limit(asked), [("since", asked["since"])] if "since" in asked else []
        since_s = read_question(since, ("since",), time.time()).since_s
        return _page(await admin.operator.changes(_kinds(asked), since_s, _before(asked), limit + 1), limit)


async def _body(request: Request, kind: type[B]) -> B:
    """The body of a request. Raises: Refusal."""
    try:
        return msgspec.json.decode(await request.body() or b"{}", type=kind)
    except msgspec.MsgspecError as error:
        raise Refusal(400, f"the body cannot be used: {error}", code="invalid_value") from None
    except (UnicodeDecodeError, RecursionError):
        raise Refusal(400, "the body is not JSON in UTF-8, or too deep", code="invalid_value") from None


def _limit(asked: Mapping[str, str]) -> int:
    text = asked.get("limit", str(LISTED))
    if not (text.isascii() and text.isdecimal() and len(text) < 4 and 1 <= int(text) <= MAX_LISTED):
        raise Refusal(400, f"limit: must be a number from 1 to {MAX_LISTED}", code="invalid_value", param="limit")
    return int(text)


def _before(asked: Mapping[str, str]) -> int | None:
    text = asked.get("before")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise Refusal(400, "before: must be the id of a row of the audit log", code="invalid_value", param="before")
    return int(text)


def _kinds(asked: Mapping[str, str]) -> tuple[str, ...]:
    kind = asked.get("kind")
    if kind is not None and kind not in KINDS:
        raise Refusal(400, f"kind: must be one of {', '.join(KINDS)}", code="invalid_value", param="kind")
    return KINDS if kind is None else (kind,)


def _page(rows: Sequence[Struct], limit: int) -> Response:
    """A page of a list. `rows`: the rows of the page, and one more row if the list goes on."""
    return json_answer(Page(data=[*rows[:limit]], has_more=len(rows) > limit))


def _tenant(tenant: StoredTenant, *, is_used: bool = True) -> Tenant:
    return Tenant(**asdict(tenant), source="database", is_used=is_used)


def _of_config(name: str) -> Tenant:
    return Tenant(name=name, source="config")
