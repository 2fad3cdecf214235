"""The OpenAPI description of what the page of the admin listener reads, a part of `/openapi.json`.

The routes take the admin key, or a tenant's API key, which sees that tenant alone.
"""

from typing import Any, Final

from warmroute_proxy.server.base.config_table import NAME
from warmroute_proxy.server.control.openapi_directory import SERVERS
from warmroute_proxy.server.ledger.usage_sums import MAX_LISTED

Schema = dict[str, Any]

_STRING: Final[Schema] = {"type": "string"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_MANY: Final[Schema] = {"type": "array", "items": {"type": "object"}}
_TENANT: Final[Schema] = {"type": "string", "pattern": f"^{NAME.pattern}$"}
_SINCE: Final[Schema] = {"type": "string", "description": "As of `/v1/usage`."}
_ERRORS: Final = {
    "400": "A parameter is unknown or wrong.",
    "401": "The key is neither the admin key nor the API key of a tenant.",
    "403": "The API key is of another tenant than the one that is asked for.",
    "404": "There is no such receipt of this tenant.",
    "405": "The route takes another method.",
    "429": "Too many questions of this tenant wait for an answer.",
    "503": "The ledger or the database cannot be read now.",
}


def view_paths() -> Schema:
    """The paths, by their names."""
    listed = {"since": _SINCE, "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LISTED}, "tenant": _TENANT}
    hashed = {"session_hash": {"type": "string", "pattern": "^[0-9a-f]{16}$"}}
    by = {"enum": ["session", "model", "day", "hour", "tenant"], "description": "`tenant`: for operators."}
    about = {"role": {"enum": ["operator", "tenant"]}, "tenant": {"type": ["string", "null"]}, "tenants": {
        "type": "array", "items": _STRING}, "region": _STRING, "version": _STRING}  # fmt: skip
    lists = {"object": {"const": "list"}, "data": _MANY}
    budgets = {"tenants": {"type": "object"}, "limits": {"type": "object"}, "budgets": _MANY, "at_once": _MANY,
        "left_out": _COUNT}  # fmt: skip
    words = {"id": _STRING, "words": {"type": "array", "items": _STRING}}
    paths = {
        "": _get("Whose view it is", about, {}),
        "/usage": _get("Sums over all regions", {"turns": _COUNT}, {"by": by, "since": _SINCE, "tenant": _TENANT}),
        "/receipts": _get("The newest turns", lists, listed | hashed),
        "/receipts/{receipt_id}": _get("A receipt, in words too", words, {"tenant": _TENANT}, named="receipt_id"),
        "/keys": _get("API keys, without the keys themselves", lists, {"tenant": _TENANT}),
        "/budgets": _get("Limits and budgets", budgets, {"tenant": _TENANT}),
    }
    return {f"/admin/view{path}": {"servers": SERVERS, "get": operation} for path, operation in paths.items()}


def _get(summary: str, members: Schema, parameters: Schema, named: str = "") -> Schema:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    schema = {"type": "object", "properties": members, "required": list(members) if not named else ["words"]}
    in_path = [{"name": named, "in": "path", "required": True, "schema": _STRING}] if named else []
    answer = {"description": f"{summary}.", "content": {"application/json": {"schema": schema}}}
    return {
        "summary": summary,
        "security": [{"admin_key": []}, {"key": []}],
        "parameters": in_path
        + [{"name": name, "in": "query", "required": False, "schema": wanted} for name, wanted in parameters.items()],
        "responses": {
            "200": answer,
            **({"202": answer} if named else {}),
            **{code: {"description": text, "content": error} for code, text in _ERRORS.items()},
        },
    }
