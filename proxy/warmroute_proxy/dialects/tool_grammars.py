"""Schemas of tools where an engine compiles them: bounded as the schema of an answer is.

SGLang 0.5.23 makes a grammar of a request's tools where `tool_choice` requires a call, and of those that are `strict`
(`srt/function_call/function_call_parser.py`, `get_structure_constraint`). Elsewhere it only reads them into the prompt.
"""

import re
from typing import Any, Final

import msgspec

from warmroute_proxy.dialects.openai_fields import schema_problem

MAX_SCHEMA_VALUES: Final = 16_384
"""Members and elements of tools that have patterns, lengths or counts: what is looked through in 5 ms."""

_FREE_CHOICES: Final = frozenset({b"", b"null", b'"auto"', b'"none"'})
_STRICT: Final = re.compile(rb'"strict"[ \t\r\n]*+:[ \t\r\n]*+t')
_ESCAPED_LETTER: Final = re.compile(rb"\\u00(?:4[1-9a-f]|5[0-9a]|6[1-9a-f]|7[0-9a])", re.IGNORECASE)
"""No program writes one; a name may have it all the same."""

_COSTLY: Final = re.compile(rb'"(?:pattern|patternProperties|m(?:ax|in)(?:Length|Items|Properties))"')


def tools_problem(tools: bytes, choice: bytes) -> str | None:
    """What is wrong with valid JSON of `tools`, given that of `tool_choice`, or None. Linear in its bytes."""
    free = choice.strip() in _FREE_CHOICES
    # A search for bytes is ten times as fast as one for a pattern, and mostly ends it.
    if b"\\u00" not in tools or _ESCAPED_LETTER.search(tools) is None:
        if free and (b'"strict"' not in tools or _STRICT.search(tools) is None):
            return None
        if _COSTLY.search(tools) is None:
            return None
    if tools.count(b",") + tools.count(b":") > MAX_SCHEMA_VALUES:
        return f"holds more than {MAX_SCHEMA_VALUES} values, and schemas in it that an engine has to compile"
    listed = msgspec.json.decode(tools)
    return schema_problem(
        [tool for tool in listed if _is_strict(tool)] if free and isinstance(listed, list) else listed
    )


def _is_strict(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and function.get("strict") is True
