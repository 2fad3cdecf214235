"""Mends members of a chat that a client wrote in another API's or another server's terms.

Engines parse numbers loosely, so a client may send `"max_tokens": "4096"` or `4096.0`; LM Studio and llama.cpp take -1
for no limit. Editors with a key of their own send tools and choices of Responses or Messages to any chat API.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.openai_fields import MAX_COUNT
from warmroute_proxy.dialects.raw_json import BadRequest, Members, encode, is_object, object_at, text_in
from warmroute_proxy.dialects.work import TranslationWork

_LIMITS: Final = frozenset({"max_tokens", "max_completion_tokens"})
_WHOLE: Final = _LIMITS | {"min_tokens", "top_k", "seed", "n", "best_of", "top_logprobs"}
_NUMBERS: Final = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
_USUAL_CHOICES: Final = frozenset({b"", b"null", b'"auto"', b'"none"', b'"required"'})
_CHOICES: Final = {"auto": "auto", "none": "none", "any": "required", "required": "required"}
_NO_SCHEMA: Final = Raw(b'{"type":"object","properties":{}}')
_decode_number: Final = msgspec.json.Decoder(int | float, strict=False).decode
_PROBLEMS: Final = (msgspec.DecodeError, ValueError, RecursionError)


_FUNCTIONS: Final = (None, "", "function")
"""The types of a tool that is a function, whether it has a schema or not."""


class _Tool(msgspec.Struct):
    """A tool, as far as its shape shows in it."""

    type: Any = None
    function: Raw = Raw()
    name: Raw = Raw()
    parameters: Raw = Raw()
    input_schema: Raw = Raw()

    @property
    def is_flat(self) -> bool:
        """Whether it is a function of Responses or Messages, which has no member `function`."""
        has_schema = bool(self.parameters or self.input_schema)
        return not self.function and bool(self.name) and (has_schema or self.type in _FUNCTIONS)


_OF_CHAT: Final = re.compile(rb'\s*\[\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"function"\s*:')
_decode_tools: Final = msgspec.json.Decoder(list[_Tool]).decode


def mended(members: Mapping[str, Raw], work: TranslationWork) -> dict[str, Raw | None]:
    """The members that change, with their new values; None for one that is left out. Raises: as `work` does."""
    found: dict[str, Raw | None] = {}
    for name in (*sorted(_WHOLE), *_NUMBERS):
        if name in members:
            value = _number(name, members[name])
            if value is None or value != members[name]:
                found[name] = value
    choice, tools = chosen(bytes(members.get("tool_choice", b""))), members.get("tools")
    if choice is not None:
        found["tool_choice"] = choice
    if tools is not None and has_flat(bytes(tools)):
        found["tools"] = _nested(tools, work)
    return found


def _number(name: str, raw: Raw) -> Raw | None:
    """A number that is written as a text, or a whole number with a fraction of zero, in the usual form. None for -1 as
    a limit, which stands for no limit.
    """
    try:
        value = _decode_number(raw)
    except _PROBLEMS:
        return raw
    if isinstance(value, bool) or not math.isfinite(value):
        return raw
    if name in _WHOLE and value == int(value):
        value = int(value)
    if name in _LIMITS and value == -1:
        return None
    return Raw(encode(min(value, MAX_COUNT) if name in _LIMITS else value))


def chosen(raw: bytes) -> Raw | None:
    """A `tool_choice` of Responses, Messages or Mistral in chat's terms; None if it is in chat's terms, or unknown."""
    if raw in _USUAL_CHOICES:
        return None
    try:
        value: Any = msgspec.json.decode(raw)
    except _PROBLEMS:
        return None
    kind = value.get("type") if isinstance(value, dict) else value
    if isinstance(value, dict) and kind in ("tool", "function") and "function" not in value:
        name = value.get("name")
        return Raw(encode({"type": "function", "function": {"name": name}})) if isinstance(name, str) else None
    if not isinstance(kind, str) or _CHOICES.get(kind, value) == value:
        return None
    return Raw(encode(_CHOICES[kind]))


def has_flat(tools: bytes) -> bool:
    """Whether some of the tools are functions in the shape of Responses or Messages.

    Reading all tools takes long. So if the first one is in chat's shape, words of the other shapes are searched.
    """
    begins = _OF_CHAT.match(tools)
    if begins is not None:
        of_responses = b'"function", "name"' if b", " in begins[0] else b'"function","name"'
        if of_responses not in tools and b'"input_schema"' not in tools:
            return False
    try:
        return any(tool.is_flat for tool in _decode_tools(tools))
    except _PROBLEMS:
        return False


def _nested(tools: Raw, work: TranslationWork) -> Raw:
    return Raw(encode([_function(tool, f"tools[{at}]") for at, tool in enumerate(work.take_tools(tools))]))


def _function(raw: Raw, path: str) -> Any:
    tool: Members = object_at(raw, path) if is_object(raw) else {}
    if "function" in tool or "name" not in tool:
        return raw
    schema = tool.get("parameters", tool.get("input_schema"))
    if schema is None and text_in(tool, "type") not in _FUNCTIONS:
        return raw
    if not text_in(tool, "name"):
        raise BadRequest(f"{path}.name", "must be a text")
    copied = {name: tool[name] for name in ("name", "description", "strict") if name in tool}
    return {"type": "function", "function": {**copied, "parameters": schema or _NO_SCHEMA}}
