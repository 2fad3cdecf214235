"""The OpenAPI description of all routes for clients and operators, served at `/openapi.json`.

FastAPI describes the routes that it serves (`described`). It does not serve the inference routes, so their description
is written here: the members that the proxy itself reads, requires and refuses. Any other member may be sent. Engines
get the members in `dialects.openai_fields`, within the bounds there. All other members are dropped unless the tenant's
config says otherwise.
"""

from typing import Final

from fastapi import FastAPI

from warmroute.contract.identity import KINDS
from warmroute.contract.money import CacheRates
from warmroute.contract.receipt import RATES
from warmroute.contract.version import VERSION
from warmroute_proxy.server.base.schema import COMMON, COUNT, MESSAGE, STRING, Schema, object_of, or_null
from warmroute_proxy.server.control.described import ERRORS, READING, answer, document
from warmroute_proxy.server.control.models import Error
from warmroute_proxy.server.dialects.dialect import Dialect
from warmroute_proxy.server.dialects.routes import APIS


def description(apps: list[FastAPI]) -> Schema:
    """The whole document. `apps`: applications that are made only for the document, and serve no request."""
    found = document(apps, {"Error": Error})
    inference = {
        "/v1/chat/completions": {"post": _post("The next message of a conversation", "chat.completion", _CHAT)},
        **{path: described for api in APIS for path, described in _translated(api).items()},
        "/v1/completions": {"post": _post("What follows a text", "text_completion", _COMPLETION)},
    }
    schemas: Schema = {"Usage": _USAGE, "Receipt": _RECEIPT}
    for api in APIS:
        schemas |= api.error_schema
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "warmroute",
            "version": VERSION,
            "description": f"The APIs of {_VENDORS}, with a receipt for every turn.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"key": []}],
        "paths": {**found["paths"], **inference},
        "components": {
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "admin_key": {"type": "http", "scheme": "bearer"},
            },
            "schemas": {**found["components"]["schemas"], **schemas},
        },
    }


_NAMES: Final = ["OpenAI", *sorted({api.vendor for api in APIS} - {"OpenAI"})]
_VENDORS: Final = " and ".join([", ".join(_NAMES[:-1]), _NAMES[-1]])
_OUR_ERROR: Final[Schema] = {"$ref": "#/components/schemas/Error"}
_RATES: Final = object_of(*CacheRates._fields, **dict.fromkeys(RATES, STRING))
_PREFIX_BREAK: Final = object_of(
    "compacted_tokens", "saved_nanousd_a_turn", where=STRING, cause=STRING, tokens=COUNT, nanousd=COUNT,
    compacted_tokens=COUNT, saved_nanousd_a_turn=COUNT,
)  # fmt: skip
_NOT_ALWAYS: Final = (
    "agent", "name", "continued", "dropped_fields", "kind", "parent", "dropped_blocks", "cache_control", "normalised",
    "prefix_changed_by", "prefix_break", "credit", "price_book", "cache_write", "max_tokens_lowered_to",
)  # fmt: skip
_RECEIPT: Final = object_of(
    *_NOT_ALWAYS,
    v={"const": 1},
    id={"type": "string", "pattern": "^wr-[0-9a-f]{24}$"},
    session=or_null(STRING),
    turn=COUNT,
    region=STRING,
    workers={"type": "array", "items": object_of(id=STRING, dp_rank=COUNT, role=STRING)},
    cached=object_of(device=COUNT, host=COUNT, storage=COUNT),
    predicted_cached=COUNT,
    loss={"type": "object", "additionalProperties": COUNT},
    rates_usd_per_mtok=_RATES,
    list_nanousd=COUNT,
    price_nanousd=COUNT,
    saved_nanousd={"type": "integer"},
    price_book=STRING,
    cache_write=object_of(**{"5m": COUNT, "1h": COUNT}),
    estimated={"type": "array", "items": STRING},
    agent=STRING,
    name=STRING,
    parent=STRING,
    kind={"enum": [*KINDS]},
    dropped_fields={"type": "array", "items": STRING},
    dropped_blocks={"type": "object", "additionalProperties": COUNT},
    cache_control=COUNT,
    normalised={"type": "array", "items": STRING},
    prefix_changed_by={"type": "array", "items": STRING},
    prefix_break=_PREFIX_BREAK,
    credit=object_of(tokens=COUNT, nanousd=COUNT),
    max_tokens_lowered_to=COUNT,
    continued=object_of(after_tokens=COUNT, by={"enum": ["text"]}),
)
_USAGE: Final = object_of(
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    total_tokens=COUNT,
    prompt_tokens_details=object_of(cached_tokens=COUNT),
    cost={"type": "number", "minimum": 0, "description": "USD"},
    warmroute={"$ref": "#/components/schemas/Receipt"},
)

_CHAT: Final = {
    "type": "object",
    "properties": {
        **COMMON,
        "messages": {"type": "array", "items": MESSAGE, "minItems": 1},
        "tools": {"type": ["array", "null"], "items": {"type": "object"}},
    },
    "required": ["model", "messages"],
}
_COMPLETION: Final = {
    "type": "object",
    "properties": {**COMMON, "prompt": {"anyOf": [{**STRING, "minLength": 1}, {"type": "array", "minItems": 1}]}},
    "required": ["model", "prompt"],
}


def _errors(statuses: tuple[int, ...], schema: Schema) -> dict[str, Schema]:
    return {str(status): answer(ERRORS[status], schema) for status in statuses}


def _translated(api: Dialect) -> dict[str, Schema]:
    """The routes of another API. A request that is refused before its route is known gets OpenAI's error object."""
    ours, name = {"$ref": "#/components/schemas/Error"}, next(iter(api.error_schema), "")
    error = {"anyOf": [{"$ref": f"#/components/schemas/{name}"}, ours]} if name else ours
    paths: dict[str, Schema] = {}
    for path, operation in api.operations.items():
        parameter = {"name": operation.name, "in": "path", "required": True, "schema": STRING}
        if operation.body is None:
            responses = {**_errors(READING, error), "200": answer(operation.summary, operation.answer)}
            paths[path] = {"get": {"summary": operation.summary, "responses": responses, "parameters": []}}
        else:
            found = answer(f"{operation.summary}: as one object, or as events.", operation.answer)
            found["content"]["text/event-stream"] = {"schema": STRING}
            paths[path] = {
                "post": {
                    "summary": operation.summary,
                    "requestBody": {"required": True, "content": {"application/json": {"schema": operation.body}}},
                    "responses": {**_errors(tuple(ERRORS), error), "200": found},
                }
            }
        if operation.name:
            next(iter(paths[path].values()))["parameters"] = [parameter]
    return paths


def _post(summary: str, kind: str, body: Schema) -> Schema:
    found = answer(
        "The answer: as one object, or with `stream` as events, of which the last but `[DONE]` has the usage if "
        "`stream_options.include_usage` is true.",
        object_of(
            object={"const": kind},
            choices={"type": "array", "items": {"type": "object"}},
            usage={"$ref": "#/components/schemas/Usage"},
        ),
    )
    found["content"]["text/event-stream"] = {"schema": STRING}
    names = ("x-warmroute-receipt", "x-warmroute-home")
    found["headers"] = {name: {"schema": STRING} for name in names}
    return {
        "summary": summary,
        "parameters": [
            {"name": name, "in": "header", "required": False, "schema": {"type": "string", "maxLength": 256}}
            for name in ("x-session-affinity", "idempotency-key")
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {**_errors(tuple(ERRORS)[:-1], _OUR_ERROR), "200": found},
    }
