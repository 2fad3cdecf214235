"""Mends tools that engines refuse: schemas of earlier drafts, and two tools of one name. MCP servers bring both.
Clients of OpenAI also bring tools that are not functions, some in the shape of Responses.

SGLang checks the schema of each tool against draft 2020-12, and OpenAI against rules of its own. One schema that breaks
them ends the session, since an agent sends all of its tools with each turn.
"""

from typing import Any, Final

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.raw_json import MAX_SHOWN_CHARS, Members, encode, text_in

MAX_SCHEMA_LEVELS: Final = 32
_BOUNDS: Final = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))
_TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_OF_SCHEMAS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_ONE: Final = frozenset({"items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else"})
_MANY: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_LISTS: Final = frozenset({"enum", "examples", *_MANY})
_decode_tools: Final = msgspec.json.Decoder(list[Members]).decode
_decode_choice: Final = msgspec.json.Decoder(Members | str | None).decode
_decode: Final = msgspec.json.Decoder().decode
_PROBLEMS: Final = (msgspec.DecodeError, ValueError, RecursionError)


def sound(tools: bytes) -> bytes | None:
    """The tools with schemas that engines accept, and each name once; None if they cannot be read."""
    try:
        found = [_tool(tool) for tool in _decode_tools(tools)]
    except _PROBLEMS:
        return None
    return encode(list({_name(tool, at): tool for at, tool in enumerate(found)}.values()))


def functions_only(tools: bytes, choice: bytes | None) -> tuple[dict[str, bytes], frozenset[str]]:
    """The values of `tools` and `tool_choice` for an engine that takes only functions, if they change, and names of
    what is left out. If no function is left, nothing changes: an answer would be made up.
    """
    changed: dict[str, bytes] = {}
    try:
        listed, chosen = _decode_tools(tools), _decode(choice or b"null")
    except _PROBLEMS:
        return changed, frozenset()
    left = [tool for tool in listed if "function" in tool]
    if not left:
        return changed, frozenset()
    names = {f"tools.{text_in(tool, 'type')[:MAX_SHOWN_CHARS]}" for tool in listed if "function" not in tool}
    if names:
        changed["tools"] = encode(left)
    if isinstance(chosen, dict) and "function" not in chosen:
        names.add(f"tool_choice.{chosen.get('type')}"[:MAX_SHOWN_CHARS])
        allowed = chosen.get("allowed_tools", chosen)
        is_required = isinstance(allowed, dict) and allowed.get("mode") == "required"
        changed["tool_choice"] = b'"required"' if is_required else b'"auto"'
    return changed, frozenset(names)


def nested_custom(tools: bytes, choice: bytes | None) -> dict[str, bytes]:
    """The values of `tools` and `tool_choice` with custom tools in chat's shape, if they change."""
    changed: dict[str, bytes] = {}
    try:
        listed, chosen = _decode_tools(tools), _decode_choice(choice or b"null")
        left = [_with_custom(tool) for tool in listed]
        choosing = _with_custom(chosen) if isinstance(chosen, dict) else chosen
    except _PROBLEMS:
        return changed
    if left != listed:
        changed["tools"] = encode(left)
    if choosing != chosen:
        changed["tool_choice"] = encode(choosing)
    return changed


def _with_custom(tool: Members) -> Members:
    if text_in(tool, "type") != "custom" or "custom" in tool or "name" not in tool:
        return tool
    custom: dict[str, Any] = {name: tool[name] for name in ("name", "description", "format") if name in tool}
    form = _decode(tool.get("format", b"null"))
    if isinstance(form, dict) and "definition" in form:
        grammar = {name: value for name, value in form.items() if name != "type"}
        custom["format"] = {"type": form.get("type"), "grammar": grammar}
    return {"type": tool["type"], "custom": Raw(encode(custom))}


def _name(tool: Any, at: int) -> str | int:
    """What is to be unique. Of two tools with one name, the last counts, as in agents."""
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else at


def _tool(tool: Members) -> Any:
    if "function" not in tool:
        return tool
    function = _decode(tool["function"])
    if isinstance(function, dict) and isinstance(function.get("parameters"), dict):
        function["parameters"] = {"type": "object", "properties": {}, **_schema(function["parameters"], 0)}
    return {**tool, "function": function}


def _schema(schema: Any, level: int) -> Any:
    """The schema as draft 2020-12 has it. A member that no draft has in this form is left out."""
    if not isinstance(schema, dict) or level > MAX_SCHEMA_LEVELS:
        return schema if isinstance(schema, bool) else {}
    found = {name: _member(name, value, level) for name, value in schema.items() if _is_sound(name, value)}
    for name, bound in _BOUNDS:
        if schema.get(name) is True and bound in found:
            found[name] = found.pop(bound)
    if isinstance(schema.get("items"), list) and schema["items"]:
        found["prefixItems"] = [_schema(each, level + 1) for each in schema["items"]]
    if found.get("type") == "array":
        found.setdefault("items", {})
    return found


def _is_sound(name: str, value: Any) -> bool:
    if name == "type":
        return value in _TYPES if isinstance(value, str) else _are_texts(value) and _TYPES.issuperset(value)
    if name == "required":
        return _are_texts(value)
    if name in _OF_SCHEMAS:
        return isinstance(value, dict)
    if name in _ONE:
        return isinstance(value, dict | bool)
    if name in _LISTS:
        return isinstance(value, list) and bool(value)
    return name not in ("exclusiveMinimum", "exclusiveMaximum") or not isinstance(value, bool)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _member(name: str, value: Any, level: int) -> Any:
    if name in _OF_SCHEMAS:
        return {key: _schema(each, level + 1) for key, each in value.items() if isinstance(each, dict | bool)}
    if name in _ONE:
        return _schema(value, level + 1)
    return [_schema(each, level + 1) for each in value] if name in _MANY else value
