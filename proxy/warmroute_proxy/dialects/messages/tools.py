"""Tools and how they are chosen.

Tools that Anthropic runs itself have a type and no schema (`web_search_20250305`). No engine runs them. Beside tools of
the client's own they are dropped and named, so that an agent that offers one more goes on; a request that offers
nothing else is for that tool alone, as Claude Code's web search is, and gets a 400: an answer would be made up.
"""

from typing import Any, Final, NamedTuple

from warmroute_proxy.dialects.messages.blocks import Blocks
from warmroute_proxy.dialects.raw_json import (
    MAX_SHOWN_CHARS,
    BadRequest,
    ChatPart,
    Members,
    kind_of,
    list_at,
    object_at,
    text_at,
)

_CHOICES: Final[dict[str, Any]] = {"auto": "auto", "any": "required", "none": "none"}
_OURS: Final = "custom"


class ChatTools(NamedTuple):
    """The members of the chat body, and the types of tools that are not in it, as `tools.TYPE`."""

    chat: dict[str, Any]
    dropped: frozenset[str]


def read_tools(members: Members, blocks: Blocks) -> ChatTools:
    """The tools of a request."""
    chat: dict[str, Any] = {}
    tools: list[ChatPart] = []
    dropped: set[str] = set()
    if "tools" in members:
        for at, raw in enumerate(list_at(members["tools"], "tools")):
            path = f"tools.{at}"
            tool = blocks.block(raw, path)
            kind = kind_of(tool, path) if "type" in tool else _OURS
            if kind == _OURS:
                tools.append(_tool(tool, path))
            else:
                text_at(tool, "name", path)
                dropped.add(kind[:MAX_SHOWN_CHARS])
    if dropped and not tools:
        shown = ", ".join(sorted(dropped))
        raise BadRequest("tools", f"only Anthropic runs {shown}, and no other tool is offered: send tools of your own")
    if tools:
        chat["tools"] = tools
    if "tool_choice" in members:
        chat |= _choice(object_at(members["tool_choice"], "tool_choice"))
    return ChatTools(chat, frozenset(f"tools.{kind}" for kind in dropped))


def _choice(choice: Members) -> dict[str, Any]:
    found: dict[str, Any] = {}
    kind = kind_of(choice, "tool_choice")
    if kind == "tool":
        found["tool_choice"] = {"type": "function", "function": {"name": text_at(choice, "name", "tool_choice")}}
    elif kind in _CHOICES:
        found["tool_choice"] = _CHOICES[kind]
    else:
        raise BadRequest("tool_choice.type", f"must be one of {', '.join([*_CHOICES, 'tool'])}")
    alone = bytes(choice.get("disable_parallel_tool_use", b"false"))
    if alone not in (b"true", b"false"):
        raise BadRequest("tool_choice.disable_parallel_tool_use", "must be true or false")
    if alone == b"true":
        found["parallel_tool_calls"] = False
    return found


def _tool(tool: Members, path: str) -> ChatPart:
    """A tool of the client's."""
    function: dict[str, Any] = {"name": text_at(tool, "name", path)}
    if "input_schema" not in tool:
        raise BadRequest(f"{path}.input_schema", "is required")
    object_at(tool["input_schema"], f"{path}.input_schema")
    if "description" in tool:
        text_at(tool, "description", path)
        function["description"] = tool["description"]
    function["parameters"] = tool["input_schema"]
    return {"type": "function", "function": function}
