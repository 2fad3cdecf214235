"""The OpenAPI description of what clients and operators reach, served at `/openapi.json`.

FastAPI describes the routes that it serves (`described`). The inference routes, which it does not serve, are written
here: what the proxy itself reads, requires and refuses. Further members are allowed everywhere: engines get those that
are listed in `dialects.openai_fields`, within the bounds there, and others are dropped unless the tenant's config says
otherwise.
"""

from typing import Any, Final

from fastapi import FastAPI

from warmroute.contract.identity import KINDS
from warmroute.contract.money import CacheRates
from warmroute.contract.receipt import RATES
from warmroute.contract.version import VERSION
from warmroute_proxy.dialects.openai_fields import MAX_CHOICES, MAX_COUNT
from warmroute_proxy.server.control.described import ERRORS, READING, answer, document
from warmroute_proxy.server.control.models import Error

Schema = dict[str, Any]


def description(apps: list[FastAPI]) -> Schema:
    """The whole document. `apps`: applications that are made for it, and serve nothing."""
    found = document(apps, {"Error": Error})
    inference = {
        "/v1/chat/completions": {"post": _post("The next message of a conversation", "chat.completion", _CHAT)},
        **_other_apis(),
        "/v1/completions": {"post": _post("What follows a text", "text_completion", _COMPLETION)},
    }
    schemas = {
        "MessagesError": _MESSAGES_ERROR, "GeminiError": _GEMINI_ERROR, "Usage": _USAGE, "Receipt": _RECEIPT,
    }  # fmt: skip
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "warmroute",
            "version": VERSION,
            "description": "The APIs of OpenAI, Anthropic and Gemini, with a receipt for every turn.",
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


def _other_apis() -> Schema:
    """The routes that are translated, and the models of Gemini's API."""
    return {
        "/v1/messages": {
            "post": _translated("The next message, in Anthropic's API", _object(usage=_ANY), _MESSAGES, "MessagesError")
        },
        "/v1/messages/count_tokens": {
            "post": _translated("How many tokens a prompt has", _object(input_tokens=_COUNT), _COUNTED, "MessagesError")
        },
        "/v1/responses": {
            "post": _translated("The next items, in OpenAI's Responses", _object(usage=_ANY), _RESPONSES, "Error")
        },
        "/v1/responses/input_tokens": {
            "post": _translated("How many tokens a prompt has", _object(input_tokens=_COUNT), _RESPONSES, "Error")
        },
        "/v1beta/models": {"get": _gemini_get("The models that you may use", _object(models=_MANY))},
        "/v1beta/models/{model}": {"get": _gemini_get("One model, by name or alias", _object(name=_STRING), one=True)},
        **{f"/v1beta/models/{{model}}:{method}": {"post": _gemini(*about)} for method, about in _GEMINI.items()},
    }


def _object(*optional: str, **members: Schema) -> Schema:
    return {"type": "object", "properties": members, "required": [name for name in members if name not in optional]}


def _or_null(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


_STRING: Final[Schema] = {"type": "string"}
_OUR_ERROR: Final[Schema] = {"$ref": "#/components/schemas/Error"}
_MODEL_NAME: Final[Schema] = {"name": "model", "in": "path", "required": True, "schema": _STRING}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_RATES: Final = _object(*CacheRates._fields, **dict.fromkeys(RATES, _STRING))
_PREFIX_BREAK: Final = _object(
    "compacted_tokens", "saved_nanousd_a_turn", where=_STRING, cause=_STRING, tokens=_COUNT, nanousd=_COUNT,
    compacted_tokens=_COUNT, saved_nanousd_a_turn=_COUNT,
)  # fmt: skip
_NOT_ALWAYS: Final = (
    "agent", "name", "continued", "dropped_fields", "kind", "parent", "dropped_blocks", "cache_control", "normalised",
    "prefix_changed_by", "prefix_break", "credit", "price_book", "cache_write",
)  # fmt: skip
_RECEIPT: Final = _object(
    *_NOT_ALWAYS,
    v={"const": 1},
    id={"type": "string", "pattern": "^wr-[0-9a-f]{24}$"},
    session=_or_null(_STRING),
    turn=_COUNT,
    region=_STRING,
    workers={"type": "array", "items": _object(id=_STRING, dp_rank=_COUNT, role=_STRING)},
    cached=_object(device=_COUNT, host=_COUNT, storage=_COUNT),
    predicted_cached=_COUNT,
    loss={"type": "object", "additionalProperties": _COUNT},
    rates_usd_per_mtok=_RATES,
    list_nanousd=_COUNT,
    price_nanousd=_COUNT,
    saved_nanousd={"type": "integer"},
    price_book=_STRING,
    cache_write=_object(**{"5m": _COUNT, "1h": _COUNT}),
    estimated={"type": "array", "items": _STRING},
    agent=_STRING,
    name=_STRING,
    parent=_STRING,
    kind={"enum": [*KINDS]},
    dropped_fields={"type": "array", "items": _STRING},
    dropped_blocks={"type": "object", "additionalProperties": _COUNT},
    cache_control=_COUNT,
    normalised={"type": "array", "items": _STRING},
    prefix_changed_by={"type": "array", "items": _STRING},
    prefix_break=_PREFIX_BREAK,
    credit=_object(tokens=_COUNT, nanousd=_COUNT),
    continued=_object(after_tokens=_COUNT, by={"enum": ["text"]}),
)
_USAGE: Final = _object(
    prompt_tokens=_COUNT,
    completion_tokens=_COUNT,
    total_tokens=_COUNT,
    prompt_tokens_details=_object(cached_tokens=_COUNT),
    cost={"type": "number", "minimum": 0, "description": "USD"},
    warmroute={"$ref": "#/components/schemas/Receipt"},
)

_COMMON: Final[dict[str, Schema]] = {
    "model": {"type": "string", "description": "A name or an alias of `/v1/models`."},
    "stream": _or_null({"type": "boolean"}),
    "stream_options": _or_null(_object("include_usage", include_usage=_or_null({"type": "boolean"}))),
    "n": {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_CHOICES},
    "max_tokens": {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_COUNT},
    "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 100},
    "top_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
    "seed": {"type": ["integer", "null"], "minimum": -(2**63), "maximum": 2**63 - 1},
    "user": {"type": ["string", "null"], "maxLength": 1024},
    "metadata": _or_null({"type": "object"}),
    "prompt_cache_key": {"type": ["string", "null"], "maxLength": 256, "description": "Names the session."},
}
_MESSAGE: Final = {
    "type": "object",
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"type": ["string", "array", "null"], "items": {"type": "object"}},
    },
    "required": ["role"],
}
_CHAT: Final = {
    "type": "object",
    "properties": {
        **_COMMON,
        "messages": {"type": "array", "items": _MESSAGE, "minItems": 1},
        "tools": {"type": ["array", "null"], "items": {"type": "object"}},
    },
    "required": ["model", "messages"],
}
_ANY: Final[Schema] = {"type": "object"}
_MESSAGES_ERROR: Final = _object(type={"const": "error"}, error=_object(type=_STRING, message=_STRING))
_COUNTED: Final[Schema] = {
    "type": "object",
    "properties": {"model": _COMMON["model"], "messages": {"type": "array", "items": _MESSAGE, "minItems": 1}},
    "required": ["model", "messages"],
}
_MESSAGES: Final[Schema] = {
    "type": "object",
    "properties": {
        **_COUNTED["properties"],
        "max_tokens": {"type": "integer", "minimum": 1, "maximum": MAX_COUNT},
        "stream": _COMMON["stream"],
    },
    "required": [*_COUNTED["required"], "max_tokens"],
}
_GEMINI_ERROR: Final = _object(error=_object(code=_COUNT, message=_STRING, status=_STRING))
_MANY: Final[Schema] = {"type": "array", "items": {"type": "object"}}
_RESPONSES: Final[Schema] = {
    "type": "object",
    "properties": {
        **{name: _COMMON[name] for name in ("model", "stream", "temperature", "top_p", "metadata", "prompt_cache_key")},
        "input": {"anyOf": [{**_STRING, "minLength": 1}, {**_MANY, "minItems": 1}]},
        "instructions": _or_null(_STRING),
        "max_output_tokens": _COMMON["max_tokens"],
        "store": _or_null({"type": "boolean"}),
    },
    "required": ["model", "input"],
}
_CONTENTS: Final[Schema] = {
    "type": "object",
    "properties": {
        "contents": {**_MANY, "minItems": 1, "items": _object(parts={**_MANY, "minItems": 1})},
        "systemInstruction": _or_null({"type": "object"}),
        "generationConfig": _or_null({"type": "object"}),
    },
    "required": ["contents"],
}
_GEMINI: Final = {
    "generateContent": ("The next content", _object(candidates=_MANY, usageMetadata=_ANY)),
    "streamGenerateContent": ("The next content, streamed: as events with `alt=sse`, else as one array", _MANY),
    "countTokens": ("How many tokens a prompt has", _object(totalTokens=_COUNT)),
}
_COMPLETION: Final = {
    "type": "object",
    "properties": {**_COMMON, "prompt": {"anyOf": [{**_STRING, "minLength": 1}, {"type": "array", "minItems": 1}]}},
    "required": ["model", "prompt"],
}


def _errors(statuses: tuple[int, ...], schema: Schema) -> dict[str, Schema]:
    return {str(status): answer(ERRORS[status], schema) for status in statuses}


def _translated(summary: str, schema: Schema, body: Schema, error: str) -> Schema:
    """A route of another API. What is refused before its route is known has OpenAI's error object."""
    found = answer(f"{summary}: as one object, or as events.", schema)
    found["content"]["text/event-stream"] = {"schema": _STRING}
    content = {"application/json": {"schema": body}}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": content},
        "responses": {**_errors(tuple(ERRORS), _either(error)), "200": found},
    }


def _either(error: str) -> Schema:
    return {"anyOf": [{"$ref": f"#/components/schemas/{error}"}, _OUR_ERROR]}


def _gemini(summary: str, schema: Schema) -> Schema:
    described = _translated(f"{summary}, in Gemini's API", schema, _CONTENTS, "GeminiError")
    return {**described, "parameters": [_MODEL_NAME]}


def _gemini_get(summary: str, schema: Schema, *, one: bool = False) -> Schema:
    summary = f"{summary}, in Gemini's API"
    responses = {**_errors(READING, _either("GeminiError")), "200": answer(summary, schema)}
    return {"summary": summary, "responses": responses, "parameters": [_MODEL_NAME] if one else []}


def _post(summary: str, kind: str, body: Schema) -> Schema:
    found = answer(
        "The answer: as one object, or with `stream` as events, of which the last but `[DONE]` has the usage if "
        "`stream_options.include_usage` is true.",
        _object(
            object={"const": kind},
            choices={"type": "array", "items": {"type": "object"}},
            usage={"$ref": "#/components/schemas/Usage"},
        ),
    )
    found["content"]["text/event-stream"] = {"schema": _STRING}
    names = ("x-warmroute-receipt", "x-warmroute-home")
    found["headers"] = {name: {"schema": _STRING} for name in names}
    return {
        "summary": summary,
        "parameters": [
            {"name": name, "in": "header", "required": False, "schema": {"type": "string", "maxLength": 256}}
            for name in ("x-session-affinity", "idempotency-key")
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {**_errors(tuple(ERRORS)[:-1], _OUR_ERROR), "200": found},
    }
