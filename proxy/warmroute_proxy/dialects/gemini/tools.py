"""Translates function declarations to functions of chat. Tools that Google runs are dropped, and named in the receipt.

A declaration has its parameters as a JSON schema, which is copied, or as an OpenAPI 3.0 schema, which is converted.
OpenAPI schemas here have types in capitals, and `nullable` instead of JSON schema's type `null`.
"""

from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.chat_draft import function_tool
from warmroute_proxy.dialects.known import Known
from warmroute_proxy.dialects.raw_json import (
    BadRequest,
    ChatPart,
    Members,
    encode,
    is_object,
    list_at,
    object_at,
    text_at,
)
from warmroute_proxy.dialects.work import TranslationWork, is_deeper

MAX_SCHEMA_DEPTH: Final = 32
ALLOWED: Final = "toolConfig.allowedFunctionNames"  # the name in the receipt if it is dropped
_NO_SCHEMA: Final = Raw(b'{"type":"object","properties":{}}')
_CALLING: Final = ("functionCallingConfig", "function_calling_config")
_READ: Final = ("mode", "allowedFunctionNames", "allowed_function_names")
_MODES: Final = {"AUTO": "auto", "ANY": "required", "NONE": "none", "VALIDATED": "auto", "MODE_UNSPECIFIED": "auto"}
_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_ONE: Final = frozenset({"items", "additionalProperties"})
_MANY: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_COUNTS: Final = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
_REFERENCES: Final = ("ref", "$ref")
_VALUES: Final = frozenset({"default", "const", "example"})
"""The members that may be null: Google's clients also write null for what is not given."""

_decode: Final = msgspec.json.Decoder().decode
_decode_texts: Final = msgspec.json.Decoder(list[str]).decode


def either(members: Members, name: str) -> Raw | None:
    """The member with this name in camel case, or else in snake case."""
    found = members.get(name)
    return found if found is not None else members.get(snake(name))


def as_list(raw: Raw) -> Raw:
    """A single object as a list, as Google reads it."""
    return Raw(b"[%b]" % bytes(raw)) if is_object(raw) else raw


def snake(name: str) -> str:
    """`systemInstruction` as `system_instruction`."""
    return "".join([f"_{char.lower()}" if char.isupper() else char for char in name])


_OURS: Final = {"defs": "$defs", **{snake(name): name for name in (*_NAMED, *_MANY, *_ONE, *_COUNTS)}}
"""JSON schema's names of members that Google also writes in another way."""


class Functions(NamedTuple):
    """`chat`: the functions of a request as the JSON list `tools` of chat completions, or empty. `dropped`: the
    kinds of all other tools.
    """

    chat: bytes
    dropped: frozenset[str]


NO_FUNCTIONS: Final = Functions(b"", frozenset())
MAX_KNOWN_BYTES: Final = 4_194_304
_KNOWN: Final[Known[Functions]] = Known(MAX_KNOWN_BYTES)


def listed_functions(raw: Raw, key: bytes, work: TranslationWork) -> Functions:
    """Translate the tools. Raises: BadRequest.

    `key`: the key of the tenant's share group (tenants that may use each other's cached prompts). A cached translation
    is reused only under the same key.
    """
    found = _KNOWN.get(key, raw)
    if found is None:
        found = _read(raw, work)
        _KNOWN.keep(key, raw, found, len(found.chat))
    return found


def _read(raw: Raw, work: TranslationWork) -> Functions:
    found: list[ChatPart] = []
    dropped: set[str] = set()
    for at, each in enumerate(work.take_tools(as_list(raw))):
        tool = object_at(each, f"tools[{at}]")
        declared = either(tool, "functionDeclarations")
        dropped.update(name for name in tool if name not in ("functionDeclarations", "function_declarations"))
        if declared is not None:
            path = f"tools[{at}].functionDeclarations"
            functions = list_at(declared, path)
            work.take(len(functions))
            found += [_function(inner, f"{path}[{number}]", work) for number, inner in enumerate(functions)]
    return Functions(encode(found) if found else b"", frozenset(dropped))


def _function(raw: Raw, path: str, work: TranslationWork) -> ChatPart:
    declared = object_at(raw, path)
    name = text_at(declared, "name", path)
    schema = either(declared, "parametersJsonSchema")
    if schema is not None:
        object_at(schema, f"{path}.parametersJsonSchema")
        parameters: Any = schema
    elif "parameters" in declared:
        parameters = json_schema(declared["parameters"], f"{path}.parameters", work)
    else:
        parameters = _NO_SCHEMA
    return function_tool(declared, path, name, parameters)


def choice(raw: Raw, tools: Functions, dropped: set[str]) -> Any:
    """`toolConfig` as the `tool_choice` of chat completions; None without a config or tools. Raises: BadRequest."""
    given = object_at(raw, "toolConfig")
    dropped.update(f"toolConfig.{name}" for name in given if name not in _CALLING)
    config = either(given, "functionCallingConfig")
    if config is None or not tools.chat:
        return None
    path = "toolConfig.functionCallingConfig"
    members = object_at(config, path)
    dropped.update(f"toolConfig.{name}" for name in members if name not in _READ)
    mode = text_at(members, "mode", path).upper() if "mode" in members else "AUTO"
    if mode not in _MODES:
        raise BadRequest(f"{path}.mode", f"must be one of {', '.join(_MODES)}")
    names = either(members, "allowedFunctionNames")
    try:
        allowed = [] if names is None else _decode_texts(names)
    except (msgspec.DecodeError, ValueError):
        raise BadRequest(f"{path}.allowedFunctionNames", "must be a list of texts") from None
    if len(allowed) == 1 and mode == "ANY":
        return {"type": "function", "function": {"name": allowed[0]}}
    if allowed:
        dropped.add(ALLOWED)
    return _MODES[mode]


def json_schema(raw: Raw, path: str, work: TranslationWork) -> Any:
    """An OpenAPI schema as a JSON schema. Raises: BadRequest."""
    work.take_values(bytes(raw))
    object_at(raw, path)
    if is_deeper(bytes(raw), MAX_SCHEMA_DEPTH):
        raise BadRequest(path, f"nests deeper than {MAX_SCHEMA_DEPTH} levels")
    try:
        return _converted(_decode(raw))
    except (msgspec.DecodeError, ValueError):
        raise BadRequest(path, "is not valid JSON") from None


def _converted(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    given = [(_OURS.get(name) or name, value) for name, value in schema.items() if value is not None or name in _VALUES]
    for name, value in given:
        if name == "type" and isinstance(value, str):
            if value != "TYPE_UNSPECIFIED":
                found[name] = value.lower()
        elif name == "type" and isinstance(value, list):
            found[name] = [each.lower() if isinstance(each, str) else each for each in value]
        elif name in _REFERENCES and isinstance(value, str) and value.startswith("#"):
            found["$ref"] = f"#/$defs/{value[7:]}" if value.startswith("#/defs/") else value
        elif name in _NAMED and isinstance(value, dict):
            found[name] = {key: _converted(inner) for key, inner in value.items()}
        elif name in _ONE:
            found[name] = _converted(value)
        elif name in _MANY and isinstance(value, list):
            found[name] = [_converted(inner) for inner in value]
        elif name in _COUNTS and isinstance(value, str) and value.isdecimal() and len(value) < 16:
            found[name] = int(value)  # Google's JSON writes 64-bit numbers as texts
        elif name not in ("nullable", "propertyOrdering", "property_ordering"):
            found[name] = value
    return _nullable(found) if schema.get("nullable") is True else found


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    if isinstance(schema.get("enum"), list):
        schema["enum"] = [*schema["enum"], None]
    if isinstance(schema.get("anyOf"), list):
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
    return schema
