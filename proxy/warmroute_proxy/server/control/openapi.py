"""The OpenAPI description of what clients and operators reach, served at `/openapi.json`.

Written by hand: the inference routes do not run through a framework, and it describes what the proxy itself reads,
requires and refuses. Further members are allowed everywhere: engines get those that are listed in
`dialects.openai_fields`, within the bounds there, and others are dropped unless the tenant's config says otherwise.
"""

from typing import Any, Final

from warmroute.contract.identity import KINDS
from warmroute.contract.money import CacheRates
from warmroute.contract.receipt import RATES
from warmroute_proxy.dialects.openai_fields import MAX_CHOICES, MAX_COUNT
from warmroute_proxy.server.control.openapi_directory import directory_paths
from warmroute_proxy.server.control.openapi_reload import reload_paths
from warmroute_proxy.server.control.openapi_view import view_paths
from warmroute_proxy.server.ledger.usage_sums import MAX_LISTED

Schema = dict[str, Any]

_ERRORS: Final = {
    "400": "The request is malformed, or the engine refuses its content.",
    "401": "The API key is missing or unknown.",
    "403": "Only operators may ask this.",
    "404": "No such model, receipt or route; or it is not yours.",
    "405": "The route takes another method.",
    "408": "The request did not arrive in time.",
    "409": "The answer that belongs to this Idempotency-Key is gone.",
    "413": "The body is too large.",
    "414": "The target is too long.",
    "415": "The body is compressed.",
    "422": "The Idempotency-Key was used with another body.",
    "429": "Too many requests; `retry-after` says when to come back.",
    "431": "The head is too large.",
    "500": "A fault of the proxy.",
    "502": "A fault of the engine; nothing was charged.",
    "503": "Nothing can serve it now; `retry-after` says when to come back.",
    "504": "The engine did not answer in time; nothing was charged.",
}
_READING: Final = ("400", "401", "404", "405", "408", "413", "414", "429", "431", "500", "503")


def description(version: str) -> Schema:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "warmroute",
            "version": version,
            "description": "The APIs of OpenAI, Anthropic and Gemini, with a receipt for every turn.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"key": []}],
        "paths": {
            "/health": {"get": _get("Whether the process answers", _object(status=_STRING), open_to_all=True)},
            "/ready": {
                "get": _get("Whether requests should be sent here", _READY, open_to_all=True, also={"503": _READY})
            },
            "/openapi.json": {"get": _get("This description", {"type": "object"}, open_to_all=True)},
            "/v1/models": {"get": _get("The models that you may use", _list_of(_MODEL))},
            "/v1/models/{name}": {"get": _get("One model, by name or alias", _MODEL, name="name")},
            **_usage_paths(),
            "/v1/sessions/expect": {"post": _in_headers("How soon a session of yours returns")},
            "/v1/chat/completions": {"post": _post("The next message of a conversation", "chat.completion", _CHAT)},
            **_other_apis(),
            "/v1/completions": {"post": _post("What follows a text", "text_completion", _COMPLETION)},
            **directory_paths(),
            **reload_paths(),
            **view_paths(),
        },
        "components": {
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "admin_key": {"type": "http", "scheme": "bearer"},
            },
            "schemas": {
                "Error": _ERROR,
                "MessagesError": _MESSAGES_ERROR,
                "GeminiError": _GEMINI_ERROR,
                "Usage": _USAGE,
                "Receipt": _RECEIPT,
            },
        },
    }


def _usage_paths() -> Schema:
    """Sums and receipts of a tenant's own turns."""
    return {
        "/v1/usage": {
            "get": _asked("Your sums over all regions", {"type": "object"}, by=_BY, since=_SINCE),
        },
        "/v1/usage/receipts": {
            "get": _asked(
                "Your newest turns, newest first",
                _list_of({"type": "object"}),
                since=_SINCE,
                limit=_LIMIT,
                session_hash=_HASH,
            ),
        },
        "/v1/usage/receipts/{receipt_id}": {
            "get": _get("One receipt", {"type": "object"}, name="receipt_id", also={"202": {"type": "object"}})
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
        "/v1beta/models/{model}": {
            "get": _gemini_get("One model, by name or alias", _object(name=_STRING), name="model")
        },
        **{f"/v1beta/models/{{model}}:{method}": {"post": _gemini(*about)} for method, about in _GEMINI.items()},
    }


def _object(*optional: str, **members: Schema) -> Schema:
    return {"type": "object", "properties": members, "required": [name for name in members if name not in optional]}


def _or_null(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


def _list_of(item: Schema) -> Schema:
    return _object(object={"const": "list"}, data={"type": "array", "items": item})


_STRING: Final[Schema] = {"type": "string"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_ERROR: Final = _object(error=_object(message=_STRING, type=_STRING, param=_or_null(_STRING), code=_or_null(_STRING)))
_BY: Final[Schema] = {"enum": ["session", "model", "day", "hour"]}
_SINCE: Final[Schema] = {
    "type": "string",
    "description": "A time ago (`1h`, `7d`), a day (`2026-11-23`, UTC) or unix seconds.",
}
_LIMIT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": MAX_LISTED}
_HASH: Final[Schema] = {"type": "string", "pattern": "^[0-9a-f]{16}$"}
_READY: Final = _object(
    "degraded",
    status={"enum": ["ready", "not ready"]},
    region=_STRING,
    version=_STRING,
    build={"enum": ["compiled", "pure"]},
    reasons={"type": "array", "items": _STRING},
    degraded={"type": "array", "items": _STRING},
)
_RATES: Final = _object(*CacheRates._fields, **dict.fromkeys(RATES, _STRING))
_MODEL: Final = _object(
    "max_model_len",
    id=_STRING,
    object={"const": "model"},
    owned_by=_STRING,
    rates_usd_per_mtok=_RATES,
    price_book=_STRING,
    max_model_len=_COUNT,
)
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


def _answer(summary: str, schema: Schema) -> Schema:
    return {"description": summary, "content": {"application/json": {"schema": schema}}}


def _errors(statuses: tuple[str, ...]) -> dict[str, Schema]:
    return {status: _answer(_ERRORS[status], {"$ref": "#/components/schemas/Error"}) for status in statuses}


def _get(
    summary: str,
    schema: Schema,
    *,
    name: str | None = None,
    open_to_all: bool = False,
    also: dict[str, Schema] | None = None,
) -> Schema:
    responses = {**_errors(_READING), "200": _answer(summary, schema)}
    for status, other in (also or {}).items():
        responses[status] = _answer(summary, other)
    described: Schema = {"summary": summary, "responses": responses}
    if open_to_all:
        described["security"] = []
    if name is not None:
        described["parameters"] = [{"name": name, "in": "path", "required": True, "schema": _STRING}]
    return described


def _asked(summary: str, schema: Schema, **parameters: Schema) -> Schema:
    """A question about many turns."""
    described = _get(summary, schema)
    described["responses"] |= _errors(("403",))
    described["parameters"] = [
        {"name": name, "in": "query", "required": False, "schema": wanted} for name, wanted in parameters.items()
    ] + [_session()]
    return described


def _in_headers(summary: str) -> Schema:
    """What a client says of its session between two turns."""
    expect = {"name": "x-warmroute-expect", "in": "header", "required": True, "schema": {"enum": ["end", "human"]}}
    responses = {**_errors(_READING), "204": {"description": "Noted, whether or not the session is known"}}
    return {"summary": summary, "parameters": [{**_session(), "required": True}, expect], "responses": responses}


def _session() -> Schema:
    """The header that names a session."""
    schema = {"type": "string", "maxLength": 256}
    return {"name": "x-session-affinity", "in": "header", "required": False, "schema": schema}


def _translated(summary: str, schema: Schema, body: Schema, error: str) -> Schema:
    """A route of another API. What is refused before its route is known has OpenAI's error object."""
    answer = _answer(f"{summary}: as one object, or as events.", schema)
    answer["content"]["text/event-stream"] = {"schema": _STRING}
    either = {"anyOf": [{"$ref": f"#/components/schemas/{error}"}, {"$ref": "#/components/schemas/Error"}]}
    errors = {status: _answer(text, either) for status, text in {**_ERRORS, "529": _ERRORS["503"]}.items()}
    content = {"application/json": {"schema": body}}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": content},
        "responses": {**errors, "200": answer},
    }


def _gemini(summary: str, schema: Schema) -> Schema:
    """A route of Gemini's API that asks a model."""
    described = _translated(f"{summary}, in Gemini's API", schema, _CONTENTS, "GeminiError")
    return {**described, "parameters": [{"name": "model", "in": "path", "required": True, "schema": _STRING}]}


def _gemini_get(summary: str, schema: Schema, name: str | None = None) -> Schema:
    """The same of its models."""
    described = _get(f"{summary}, in Gemini's API", schema, name=name)
    either = {"anyOf": [{"$ref": "#/components/schemas/GeminiError"}, {"$ref": "#/components/schemas/Error"}]}
    described["responses"] |= {status: _answer(_ERRORS[status], either) for status in _READING}
    return described


def _post(summary: str, kind: str, body: Schema) -> Schema:
    answer = _answer(
        "The answer: as one object, or with `stream` as events, of which the last but `[DONE]` has the usage if "
        "`stream_options.include_usage` is true.",
        _object(
            object={"const": kind},
            choices={"type": "array", "items": {"type": "object"}},
            usage={"$ref": "#/components/schemas/Usage"},
        ),
    )
    answer["content"]["text/event-stream"] = {"schema": _STRING}
    names = ("x-warmroute-receipt", "x-warmroute-home")
    answer["headers"] = {name: {"schema": _STRING} for name in names}
    return {
        "summary": summary,
        "parameters": [
            {"name": name, "in": "header", "required": False, "schema": {"type": "string", "maxLength": 256}}
            for name in ("x-session-affinity", "idempotency-key")
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {**_errors(tuple(_ERRORS)), "200": answer},
    }
