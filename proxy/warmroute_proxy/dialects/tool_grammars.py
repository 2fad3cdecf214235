"""Bounds the tool schemas that an engine compiles, as the schema of an answer is bounded.

SGLang 0.5.23 compiles a grammar from all tools of a request if `tool_choice` requires a call, and from each `strict`
tool (`srt/function_call/function_call_parser.py`, `get_structure_constraint`). It only reads other tools into the
prompt.
"""

import re
from typing import Any, Final

import msgspec

from warmroute_proxy.dialects.openai_fields import schema_problem

MAX_SCHEMA_VALUES: Final = 16_384
"""The maximum number of members and elements in all tools, if a schema has patterns, lengths or counts. Checking them
takes 5 ms."""

_FREE_CHOICES: Final = frozenset({b"", b"null", b'"auto"', b'"none"'})
_STRICT: Final = re.compile(rb'"strict"[ \t\r\n]*+:[ \t\r\n]*+t')
_ESCAPED_LETTER: Final = re.compile(rb"\\u00(?:4[1-9a-f]|5[0-9a]|6[1-9a-f]|7[0-9a])", re.IGNORECASE)
"""Programs do not escape letters, but a client's JSON may do so, even in names."""

_COSTLY: Final = re.compile(rb'"(?:pattern|patternProperties|m(?:ax|in)(?:Length|Items|Properties))"')


def tools_problem(tools: bytes, choice: bytes) -> str | None:
    """What is wrong with `tools`, or None. `choice`: `tool_choice`. Both are valid JSON. Time: linear in the bytes."""
    free = choice.strip() in _FREE_CHOICES
    # A search for bytes is ten times as fast as a search for a pattern, and is mostly all that is needed.
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
