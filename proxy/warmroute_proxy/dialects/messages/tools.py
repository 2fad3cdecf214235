"""Translates tools and `tool_choice`.

All tools are offered to the model. Tools that are defined in messages (`tool_addition`) follow the request's tools in
the order of their addition. All tools with `defer_loading` are then moved to the end. Claude Code adds such a tool only
after the model has searched for it; at the end, the tool leaves the cached prefix before it unchanged (decision 051).

Tools with a type and no schema are Anthropic's. Some of them are run by the client (`bash_20250124`), and offered with
a schema. Others are run by Anthropic itself (`web_search_20250305`), and no engine runs them. If the client also offers
tools that it runs, Anthropic's are dropped and named in the receipt, so that the agent can go on. A request that offers
only tools that Anthropic runs, like Claude Code's web search, gets a 400: an answer would be made up.
"""

from typing import Any, Final, NamedTuple

from msgspec import Raw

from warmroute_proxy.dialects.chat_draft import function_tool
from warmroute_proxy.dialects.known import Known
from warmroute_proxy.dialects.messages.client_tools import client_tool
from warmroute_proxy.dialects.raw_json import (
    MAX_SHOWN_CHARS,
    BadRequest,
    ChatPart,
    Members,
    Misshapen,
    encode,
    is_text,
    kind_of,
    list_at,
    object_at,
    text_at,
    text_in,
)
from warmroute_proxy.dialects.work import TranslationWork

_CHOICES: Final[dict[str, Any]] = {"auto": "auto", "any": "required", "none": "none", "required": "required"}
_OURS: Final = ("custom", "function")
_NO_SCHEMA: Final = Raw(b'{"type":"object","properties":{}}')
UNREAD: Final = "tools.unread"  # the name in the receipt for unreadable tools in messages


class ListedTools(NamedTuple):
    """`chat`: the tools of a request as the JSON list `tools` of chat completions, or empty; `dropped`: the types of
    all other tools, as `tools.TYPE`; `marks`: how many `cache_control` were removed.
    """

    chat: bytes
    dropped: frozenset[str]
    marks: int


_EMPTY: Final = Raw(b"[]")
_NO_TOOLS: Final = ListedTools(b"", frozenset(), 0)
_KNOWN: Final[Known[ListedTools]] = Known()


def read_tools(members: Members, added: list[bytes], key: bytes, work: TranslationWork) -> ListedTools:
    """Translate the tools of a request. Cached translations are found by `key`, the key that signs reasoning, so that
    tenants do not share them.

    `added`: definitions of tools in messages.
    """
    given = members.get("tools", _EMPTY)
    unread: set[str] = set()
    if added:
        given = _with(given, added, unread, work)
    listed = _NO_TOOLS if given is _EMPTY else _listed(given, key, work)
    return listed._replace(dropped=listed.dropped | unread) if unread else listed


def _with(given: Raw, added: list[bytes], unread: set[str], work: TranslationWork) -> Raw:
    """The tools of `given`, then those of `added` whose names have not occurred yet. An unreadable one adds `UNREAD` to
    `unread`."""
    listed = list_at(given, "tools")
    work.take(len(listed))
    names = {text_in(object_at(each, f"tools.{at}"), "name") for at, each in enumerate(listed)}
    for each in added:
        try:
            tool = object_at(each, "tools")
            kind = kind_of(tool, "tools") if "type" in tool else _OURS[0]
            name = _tool(tool, "tools")["function"]["name"] if kind in _OURS else text_in(tool, "name")
        except Misshapen:
            unread.add(UNREAD)
            continue
        if name not in names:
            names.add(name)
            listed.append(Raw(each))
    return Raw(b"[%b]" % b",".join(map(bytes, listed)))


def _listed(given: Raw, key: bytes, work: TranslationWork) -> ListedTools:
    found = _KNOWN.get(key, given)
    if found is None:
        found = _read(given, work)
        _KNOWN.keep(key, given, found, len(found.chat))
    return found


def _read(raw: Raw, work: TranslationWork) -> ListedTools:
    tools: list[ChatPart] = []
    deferred: list[ChatPart] = []
    dropped: set[str] = set()
    marks = 0
    for at, each in enumerate(work.take_tools(raw)):
        path = f"tools.{at}"
        tool = object_at(each, path)
        marks += "cache_control" in tool
        kind = kind_of(tool, path) if "type" in tool else _OURS[0]
        offered = _tool(tool, path) if kind in _OURS else client_tool(kind, tool, path)
        if offered is None:
            dropped.add(kind[:MAX_SHOWN_CHARS])
        else:
            (deferred if bytes(tool.get("defer_loading", b"")) == b"true" else tools).append(offered)
    tools += deferred
    if dropped and not tools:
        shown = ", ".join(sorted(dropped))
        raise BadRequest(
            "tools", f"only Anthropic runs {shown}, and no other tool is offered: send tools that the client runs"
        )
    return ListedTools(encode(tools) if tools else b"", frozenset(f"tools.{kind}" for kind in dropped), marks)


def tool_choice(raw: Raw) -> dict[str, Any]:
    """`tool_choice`, also in OpenAI's shape, as members of a chat. Raises: BadRequest."""
    choice: Members = {"type": raw} if is_text(raw) else object_at(raw, "tool_choice")
    found: dict[str, Any] = {}
    kind = kind_of(choice, "tool_choice")
    if kind in ("tool", "function"):
        named = object_at(choice["function"], "tool_choice.function") if "function" in choice else choice
        found["tool_choice"] = {"type": "function", "function": {"name": text_at(named, "name", "tool_choice")}}
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
    """A tool as a function of chat. OpenAI's functions are read, too: flat, or within `function`."""
    usual = _NO_SCHEMA if text_in(tool, "type") == "function" else None
    if "function" in tool:
        tool = object_at(tool["function"], f"{path}.function")
    name = text_at(tool, "name", path)
    schema = tool.get("input_schema", tool.get("parameters", usual))
    if schema is None:
        raise Misshapen(f"{path}.input_schema", "is required")
    object_at(schema, f"{path}.input_schema")
    return function_tool(tool, path, name, schema, bytes(tool.get("strict", b"false")))
