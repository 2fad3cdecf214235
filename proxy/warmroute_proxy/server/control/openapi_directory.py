"""The OpenAPI description of what operators ask about tenants and API keys, a part of `/openapi.json`.

These routes are at the admin listener, with the admin key.
"""

from typing import Any, Final

from warmroute_proxy.server.base.config_table import NAME
from warmroute_proxy.server.ledger.usage_sums import MAX_LISTED
from warmroute_proxy.server.stores.directory.key_admin import ID, MAX_LIFETIME_S, MAX_NOTE_CHARS

Schema = dict[str, Any]

SERVERS: Final = [
    {
        "url": "{admin_url}",
        "description": "The proxy's admin listener.",
        "variables": {"admin_url": {"default": "http://127.0.0.1:9001"}},
    }
]
_ERRORS: Final = {
    "400": "A parameter or a member of the body cannot be used.",
    "401": "The admin key is missing or wrong.",
    "404": "There is no such tenant or key, or this proxy has no database.",
    "405": "The route takes another method.",
    "408": "The request did not arrive in time.",
    "409": "There is one already, or there are as many as may be.",
    "413": "The body is too large.",
    "414": "The target is too long.",
    "415": "The body is compressed.",
    "431": "The head is too large.",
    "500": "A fault of the proxy.",
    "503": "The database does not answer: look before you try again.",
}
_STRING: Final[Schema] = {"type": "string"}
_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_NO_TIME: Final[Schema] = {"type": ["string", "null"], "format": "date-time"}
_FLAG: Final[Schema] = {"type": "boolean"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_NAME: Final[Schema] = {"type": "string", "pattern": f"^{NAME.pattern}$"}
_ID: Final[Schema] = {"type": "string", "pattern": f"^{ID.pattern}$"}
_NOTE: Final[Schema] = {"type": "string", "maxLength": MAX_NOTE_CHARS, "pattern": "^[ -~]*$"}
_LIFETIME: Final[Schema] = {
    "type": ["number", "null"],
    "exclusiveMinimum": 0,
    "maximum": MAX_LIFETIME_S,
    "description": "Seconds from now; null: it never expires.",
}
_SETTINGS: Final[Schema] = {
    "type": "object",
    "description": "The keys of a [[tenant]] of the configuration but name and key_sha256.",
    "properties": {
        "share_group": _NAME,
        "models": {"type": "array", "items": _STRING, "minItems": 1, "uniqueItems": True},
        "regions": {"type": "array", "items": _STRING, "minItems": 1, "uniqueItems": True},
        "salt_epoch": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
        **{
            name: {"type": "integer", "minimum": 1, "maximum": 10**12}
            for name in ("requests_per_minute", "tokens_per_minute", "requests_at_once", "tokens_at_once")
        },
        "cached_weight": {"type": "number", "minimum": 0, "maximum": 1},
    },
}


def _object(*optional: str, **members: Schema) -> Schema:
    return {"type": "object", "properties": members, "required": [name for name in members if name not in optional]}


_TENANT: Final = _object(
    "settings",
    "made_at",
    "changed_at",
    name=_NAME,
    source={"enum": ["config", "database"]},
    is_used={"type": "boolean", "description": "False where the config has a tenant of this name: that one counts."},
    settings={"type": "object"},
    made_at=_TIME,
    changed_at=_TIME,
)
_KEY: Final = _object(
    id=_ID,
    tenant=_NAME,
    note=_STRING,
    made_at=_TIME,
    expires_at=_NO_TIME,
    state={"enum": ["good", "expired", "revoked"]},
)
_MADE_KEY: Final = _object(
    id=_ID,
    key={"type": "string", "description": "The key itself, shown this once."},
    tenant=_NAME,
    expires_at=_NO_TIME,
)
_CHANGE: Final = _object(
    id=_COUNT,
    at=_TIME,
    who=_STRING,
    kind={"enum": ["key", "price", "tenant"]},
    action=_STRING,
    subject=_STRING,
    tenant=_STRING,
    old={"type": ["object", "null"]},
    new={"type": ["object", "null"]},
)


def _body(**members: Schema) -> Schema:
    """A body whose members may all be left out, and that has no others."""
    return {"type": "object", "properties": members, "additionalProperties": False}


_NEW_TENANT: Final = {**_body(name=_NAME, settings=_SETTINGS), "required": ["name"]}
_CHANGED_TENANT: Final = {**_body(settings={"type": "object"}), "required": ["settings"]}
_NEW_KEY: Final = {**_body(tenant=_NAME, note=_NOTE, lifetime_s=_LIFETIME), "required": ["tenant"]}
_CHANGED_KEY: Final = _body(note=_NOTE, lifetime_s=_LIFETIME)
_ROTATED_KEY: Final = _body(overlap_s={"type": "number", "minimum": 0, "maximum": MAX_LIFETIME_S}, lifetime_s=_LIFETIME)
_LIMIT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": MAX_LISTED}
_SINCE: Final[Schema] = {
    "type": "string",
    "description": "A time ago (`1h`, `7d`), a day (`2026-11-23`, UTC) or unix seconds.",
}


def directory_paths() -> Schema:
    """The paths, by their names."""
    name, key_id = _parameter("name", _NAME), _parameter("id", _ID)
    return {
        "/admin/tenants": {
            "servers": SERVERS,
            "get": _operation("Tenants of config and database, by name", _page(_TENANT), limit=_LIMIT, after=_NAME),
            "post": _operation("Add a tenant", _TENANT, 201, _NEW_TENANT),
        },
        "/admin/tenants/{name}": {
            "servers": SERVERS,
            "parameters": [name],
            "get": _operation("One tenant", _TENANT),
            "patch": _operation("Set settings of a tenant; null takes one away", _TENANT, 200, _CHANGED_TENANT),
            "delete": _operation(
                "Remove a tenant, and revoke its keys", _object(name=_NAME, removed=_FLAG, keys_revoked=_COUNT)
            ),
        },
        "/admin/keys": {
            "servers": SERVERS,
            "get": _operation("API keys, the newest first", _page(_KEY), limit=_LIMIT, after=_ID, tenant=_NAME),
            "post": _operation("Make a key, shown once", _MADE_KEY, 201, _NEW_KEY),
        },
        "/admin/keys/{id}": {
            "servers": SERVERS,
            "parameters": [key_id],
            "get": _operation("One key", _KEY),
            "patch": _operation("Change the note of a key, or when it expires", _KEY, 200, _CHANGED_KEY),
            "delete": _operation("Revoke a key", _object(id=_ID, revoked=_FLAG, tenant=_NAME)),
        },
        "/admin/keys/{id}/rotate": {
            "servers": SERVERS,
            "parameters": [key_id],
            "post": _operation("Make a key in place of one, which is good still", _MADE_KEY, 201, _ROTATED_KEY),
        },
        "/admin/audit": {
            "servers": SERVERS,
            "get": _operation(
                "Who changed what, the newest first",
                _page(_CHANGE),
                limit=_LIMIT,
                before={"type": "integer", "minimum": 0, "maximum": 10**18 - 1},
                since=_SINCE,
                kind={"enum": ["key", "price", "tenant"]},
            ),
        },
    }


def _page(item: Schema) -> Schema:
    return _object(object={"const": "list"}, data={"type": "array", "items": item}, has_more=_FLAG)


def _parameter(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _operation(summary: str, answer: Schema, status: int = 200, body: Schema | None = None, **asked: Schema) -> Schema:
    """An operation. `asked`: its query parameters."""
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    found: Schema = {
        "summary": summary,
        "security": [{"admin_key": []}],
        "responses": {
            **{code: {"description": text, "content": error} for code, text in _ERRORS.items()},
            str(status): {"description": summary, "content": {"application/json": {"schema": answer}}},
        },
    }
    if asked:
        found["parameters"] = [
            {"name": name, "in": "query", "required": False, "schema": schema} for name, schema in asked.items()
        ]
    if body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return found
