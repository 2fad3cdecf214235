"""Translates tools: functions stay, custom tools become functions with one text, namespaces become name prefixes.

A custom tool takes any text, and may restrict it by a grammar. Chat has only functions, so the tool becomes a function
with the argument `input`. The grammar goes into the function's description, and nothing enforces it. A tool search that
the client runs becomes a function, too, and so do its shell and patches (`client_tools`). A tool that OpenAI itself
runs is dropped, and its type is counted.

Tools defined in items (`additional_tools`, the output of a search) follow the others in their order of arrival. Of all
tools, those with `defer_loading` come last. A tool that is defined again keeps its place.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.chat_draft import function_tool
from warmroute_proxy.dialects.known import Known
from warmroute_proxy.dialects.raw_json import (
    BadRequest,
    ChatPart,
    Members,
    Misshapen,
    encode,
    is_text,
    list_at,
    object_at,
    text_at,
    text_in,
)
from warmroute_proxy.dialects.responses.client_tools import client_tool
from warmroute_proxy.dialects.work import TranslationWork

INPUT: Final = "input"  # the argument that holds a custom tool's text
SEARCH: Final = "tool_search"
_SEARCH_SCHEMA: Final = Raw(b'{"type":"object","properties":{"query":{"type":"string"}},"required":["query"]}')
_INPUT_SCHEMA: Final = Raw(b'{"type":"object","properties":{"input":{"type":"string"}},"required":["input"]}')
UNREAD: Final = "tools.unread"  # the name in the receipt for malformed tools in items
_NO_SCHEMA: Final = Raw(b'{"type":"object","properties":{}}')
_SEPARATOR: Final = "__"
_CHOICES: Final = ("auto", "required", "none")
GRAMMAR: Final = "tools.format.grammar"  # the name in the receipt for a dropped grammar
ALLOWED: Final = "tool_choice.allowed_tools"
_decode_text: Final = msgspec.json.Decoder(str).decode


class Tool(NamedTuple):
    """The client's tool that a function of chat stands for. `searches`: whether it is a search for tools. `is_typed`:
    whether only its type defines it.
    """

    name: str
    namespace: str | None
    custom: bool
    searches: bool = False
    is_typed: bool = False


def chat_name(name: str, namespace: str | None) -> str:
    """The name of a tool in chat, with its namespace: names are unique only within a namespace. Codex ends some names
    of namespaces with the separator.
    """
    if not namespace or namespace.endswith(_SEPARATOR):
        return f"{namespace or ''}{name}"
    return f"{namespace}{_SEPARATOR}{name}"


def called(tools: Mapping[str, Tool], name: str) -> Tool:
    """The tool that the model calls; a name that the client did not define is a function."""
    return tools.get(name) or Tool(name, None, custom=False)


class ListedTools(NamedTuple):
    """The tools of a request. `chat`: the JSON list for chat; empty without tools. `by_name`: the client's tools by
    their names in chat. `dropped`: types of tools that nobody can run, and names of what was lost, such as `GRAMMAR`.
    """

    chat: bytes
    by_name: dict[str, Tool]
    dropped: frozenset[str]


_NO_TOOLS: Final = ListedTools(b"", {}, frozenset())
MAX_KNOWN_BYTES: Final = 4_194_304
_KNOWN: Final[Known[ListedTools]] = Known(MAX_KNOWN_BYTES)


def read_tools(members: Members, added: list[bytes], key: bytes, work: TranslationWork) -> ListedTools:
    """The tools of a request. Raises: BadRequest.

    `added`: the tool definitions in items. `key`: the share group's; translations are cached for each key apart.
    """
    raw = members.get("tools")
    own_count = None
    if added:
        given = [] if raw is None else list_at(raw, "tools")
        own_count = len(given)
        raw = Raw(b"[%b]" % b",".join([*map(bytes, given), *added]))
    if raw is None:
        return _NO_TOOLS
    scope = key if own_count is None else (key, own_count)
    found = _KNOWN.get(scope, raw)
    if found is None:
        found = _Tools(work).read(raw, own_count)
        _KNOWN.keep(scope, raw, found, len(found.chat))
    return found


class _Tools:
    """Reads a list of tools."""

    def __init__(self, work: TranslationWork) -> None:
        self._work = work
        self._chat: dict[str, ChatPart] = {}  # by name in chat
        self._deferred: dict[str, ChatPart] = {}  # by name; last, since later turns may add more
        self._by_name: dict[str, Tool] = {}
        self._dropped: set[str] = set()

    def read(self, raw: Raw, own_count: int | None) -> ListedTools:
        """`own_count`: how many tools are the request's own; the rest come from items, and may be malformed."""
        for at, each in enumerate(self._work.take_tools(raw)):
            try:
                self._add(each, f"tools[{at}]", None)
            except Misshapen:
                if own_count is None or at < own_count:
                    raise
                self._dropped.add(UNREAD)
        listed = [*self._chat.values(), *self._deferred.values()]
        chat = encode(listed) if listed else b""
        return ListedTools(chat, self._by_name, frozenset(self._dropped))

    def _add(self, raw: Raw, path: str, namespace: str | None) -> None:
        tool = object_at(raw, path)
        kind = text_at(tool, "type", path)
        if kind == "function":
            name = self._name(tool, path, namespace, custom=False)
            is_deferred = bytes(tool.get("defer_loading", b"")) == b"true" and name not in self._chat
            (self._deferred if is_deferred else self._chat)[name] = _function(tool, path, name)
        elif kind == "custom":
            name = self._name(tool, path, namespace, custom=True)
            self._chat[name] = self._custom(tool, path, name)
        elif kind == SEARCH and text_in(tool, "execution") == "client":
            self._by_name[SEARCH] = Tool(SEARCH, None, custom=False, searches=True)
            self._chat[SEARCH] = _function({"parameters": _SEARCH_SCHEMA, **tool}, path, SEARCH)
        elif kind == "namespace" and namespace is None:
            name = text_at(tool, "name", path)
            if "tools" not in tool:
                raise Misshapen(f"{path}.tools", "is required")
            for at, inner in enumerate(self._work.take_list(tool["tools"], f"{path}.tools")):
                self._add(inner, f"{path}.tools[{at}]", name)
        elif namespace is None and (function := client_tool(kind, tool, path, self._work)) is not None:
            self._by_name[kind] = Tool(kind, None, custom=False, is_typed=True)
            self._chat[kind] = function
        else:
            self._dropped.add(kind)

    def _name(self, tool: Members, path: str, namespace: str | None, *, custom: bool) -> str:
        name = text_at(tool, "name", path)
        if not name:
            raise Misshapen(f"{path}.name", "is empty")
        in_chat = chat_name(name, namespace)
        self._by_name[in_chat] = Tool(name, namespace, custom)
        return in_chat

    def _custom(self, tool: Members, path: str, name: str) -> ChatPart:
        texts = [text_at(tool, "description", path)] if "description" in tool else []
        if "format" in tool:
            form = object_at(tool["format"], f"{path}.format")
            if text_at(form, "type", f"{path}.format") == "grammar":
                self._dropped.add(GRAMMAR)
                syntax = text_at(form, "syntax", f"{path}.format")
                texts.append(f"The input has this {syntax} grammar:\n{text_at(form, 'definition', f'{path}.format')}")
        function: dict[str, Any] = {"name": name}
        if texts:
            function["description"] = "\n\n".join(texts)
        function["parameters"] = _INPUT_SCHEMA
        return {"type": "function", "function": function}


def tool_choice(raw: Raw, tools: ListedTools, dropped: set[str]) -> Any:
    """`tool_choice` in chat's terms; None if nothing is left of it, as for a dropped tool. Raises: BadRequest."""
    path = "tool_choice"
    if is_text(raw):
        word = _decode_text(raw)
        if word not in _CHOICES:
            raise BadRequest(path, f"must be {', '.join(_CHOICES)} or an object")
        return word if tools.chat else None
    choice = object_at(raw, path)
    kind = text_at(choice, "type", path)
    if kind in ("function", "custom"):
        namespace = text_at(choice, "namespace", path) if "namespace" in choice else None
        name = chat_name(text_at(choice, "name", path), namespace)
        if name not in tools.by_name:
            raise BadRequest(f"{path}.name", "no tool has this name")
        return {"type": "function", "function": {"name": name}}
    if kind == "allowed_tools":
        dropped.add(ALLOWED)
        mode = text_at(choice, "mode", path)
        if mode not in _CHOICES:
            raise BadRequest(f"{path}.mode", f"must be one of {', '.join(_CHOICES)}")
        return mode if tools.chat else None
    if kind in tools.by_name and tools.by_name[kind].is_typed:
        return {"type": "function", "function": {"name": kind}}
    dropped.add(kind)
    return None


def _function(tool: Members, path: str, name: str) -> ChatPart:
    parameters = tool.get("parameters", _NO_SCHEMA)
    object_at(parameters, f"{path}.parameters")
    return function_tool(tool, path, name, parameters, bytes(tool.get("strict", b"false")))
