"""The OpenAPI description of `POST /admin/reload`, a part of `/openapi.json`.

The route is at the admin listener, with the admin key.
"""

from typing import Any, Final

from warmroute_proxy.server.base.config_difference import Kind
from warmroute_proxy.server.control.openapi_directory import SERVERS

Schema = dict[str, Any]

_STRING: Final[Schema] = {"type": "string"}
_STRINGS: Final[Schema] = {"type": "array", "items": _STRING}
_FLAG: Final[Schema] = {"type": "boolean"}
_CHANGE: Final[Schema] = {
    "type": "object",
    "properties": {
        "table": _STRING,
        "name": {"type": "string", "description": "Empty for a table that there is once, and for an order."},
        "change": {"enum": [kind.value for kind in Kind]},
        "keys": {"type": "array", "items": _STRING, "description": "The keys that changed, without their values."},
        "waits_for_restart": _FLAG,
    },
    "required": ["table", "name", "change", "keys", "waits_for_restart"],
}
_ANSWER: Final[Schema] = {
    "type": "object",
    "properties": {
        "config": {"type": "string", "description": "A digest of the file."},
        "applied": {"type": "boolean", "description": "False for a dry run."},
        "changes": {"type": "array", "items": _CHANGE},
        "waits_for_restart": _STRINGS,
        "processes": {"type": "integer", "description": "Those in which the file is in force."},
        "processes_behind": {"type": "integer", "description": "Those that have not applied it yet."},
    },
    "required": ["config", "applied", "changes", "waits_for_restart"],
}
_ERRORS: Final = {
    "400": "The file has problems, or a parameter is not known; nothing is changed.",
    "401": "The admin key is missing or wrong.",
    "405": "The route takes another method.",
}


def reload_paths() -> Schema:
    """The path, by its name."""
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    operation = {
        "summary": "Apply the config file, or say what it would change",
        "security": [{"admin_key": []}],
        "parameters": [{"name": "dry_run", "in": "query", "required": False, "schema": _FLAG}],
        "responses": {
            "200": {
                "description": "What changes, and in how many processes.",
                "content": {"application/json": {"schema": _ANSWER}},
            },
            **{code: {"description": text, "content": error} for code, text in _ERRORS.items()},
        },
    }
    return {"/admin/reload": {"servers": SERVERS, "post": operation}}
