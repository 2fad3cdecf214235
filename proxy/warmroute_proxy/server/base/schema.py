"""Schemas of bodies and answers, as OpenAPI writes them."""

from typing import Any, Final, NamedTuple

from warmroute_proxy.dialects.openai_fields import MAX_CHOICES, MAX_COUNT

Schema = dict[str, Any]

STRING: Final[Schema] = {"type": "string"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
ANY: Final[Schema] = {"type": "object"}
MANY: Final[Schema] = {"type": "array", "items": {"type": "object"}}


class Operation(NamedTuple):
    """What a route of an API does. `body`: the schema of a POST's body, None for a GET; `name`: the parameter in its
    path, if any.
    """

    summary: str
    answer: Schema
    body: Schema | None
    name: str = ""


def object_of(*optional: str, **members: Schema) -> Schema:
    return {"type": "object", "properties": members, "required": [name for name in members if name not in optional]}


def or_null(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


COMMON: Final[dict[str, Schema]] = {
    "model": {"type": "string", "description": "A name or an alias of `/v1/models`."},
    "stream": or_null({"type": "boolean"}),
    "stream_options": or_null(object_of("include_usage", include_usage=or_null({"type": "boolean"}))),
    "n": {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_CHOICES},
    "max_tokens": {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_COUNT},
    "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 100},
    "top_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
    "seed": {"type": ["integer", "null"], "minimum": -(2**63), "maximum": 2**63 - 1},
    "user": {"type": ["string", "null"], "maxLength": 1024},
    "metadata": or_null({"type": "object"}),
    "prompt_cache_key": {"type": ["string", "null"], "maxLength": 256, "description": "Names the session."},
}
MESSAGE: Final[Schema] = {
    "type": "object",
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"type": ["string", "array", "null"], "items": {"type": "object"}},
    },
    "required": ["role"],
}
