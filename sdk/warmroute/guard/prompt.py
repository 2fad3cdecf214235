"""Reads a request as parts in template order (tools, system, messages), with digests and a chain of hashes.

The *chain* has a hash for the prompt up to each part. A part that equals a part of an earlier prompt reuses the earlier
part's digest and copy. So a conversation that only grows costs one comparison of lists, which Python makes in C, and
the digests of the new parts. In each dialect, only the fields that a chat template renders are read:

    chat completions   tools, messages (leading system messages are the system part)
    Anthropic          tools, system, messages
    Responses          tools, instructions, input
    Gemini             tools, systemInstruction, contents
    completions        prompt
"""

import marshal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from warmroute.guard.canonical import Digest, digest_of_message, digest_of_tool, printed_objects, snapshot
from warmroute.guard.volatile import marks

MAX_PARTS: Final = 10_000
"""The maximum number of parts that are read in a section; further parts are ignored."""

SYSTEM_ROLES: Final = frozenset({"system", "developer"})

_SETTINGS: Final = (
    "reasoning_effort",
    "chat_template_kwargs",
    "response_format",
    "thinking",
    "reasoning",
    "text",
    "service_tier",
)
"""Fields that chat templates render into the prompt, or that servers include in the cache key."""

_CONFIG_SETTINGS: Final = ("thinkingConfig", "responseSchema", "responseMimeType")


@dataclass(slots=True)
class Section:
    """All parts of one kind: tools, system prompt or messages. `name`: the field of the request that has the parts.
    `start`: the index of the first part in that field.
    """

    name: str
    start: int = 0
    raw: list[Any] | None = field(default_factory=list)
    """The parts themselves, as copies; None if only digests are known."""
    digests: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)
    printed: dict[int, bytes | None] = field(default_factory=dict)
    """By the index of a part: those of its objects in which the order of keys counts, serialised."""

    def __len__(self) -> int:
        return len(self.digests)

    def where(self, at: int) -> str:
        """The place of a part in the request, such as `messages[3] (tool)`."""
        role = f" ({self.roles[at]})" if at < len(self.roles) and self.roles[at] else ""
        name = self.name if self.name in ("instructions", "prompt") else f"{self.name}[{self.start + at}]"
        return name + role

    def piece(self, at: int) -> Any:
        """A part; None if only digests are known."""
        return self.raw[at] if self.raw is not None else None


@dataclass(slots=True)
class Prompt:
    """One request as parts, settings and hashes."""

    model: str
    settings: dict[str, int]
    """Digests of the settings that the request has."""
    tools: Section
    system: Section
    messages: Section
    tools_order: int
    """A hash of the tools that includes the order of keys. Tools with equal hashes are not compared again."""
    chain: list[int]
    """A hash for the prompt up to each of its parts, in template order."""
    set_to: dict[str, Any] | None = None
    """The values of the settings; None if only digests are known."""
    marks: dict[str, str] = field(default_factory=dict)
    """Digests of the system text by `volatile.marks`, for comparisons after the text is dropped."""
    tokens: int = 0
    """The server's token count of the prompt; 0 if it is unknown."""
    continues: bool = False
    """Whether the prompt continues one that the server has counted, as those of a main loop do."""
    ended: bool = False
    """Whether the prompt's call has ended, with a count or without one."""
    sent_s: float = 0.0
    """The time of sending, by the caller's clock."""

    @property
    def sections(self) -> tuple[Section, Section, Section]:
        """All parts, in template order."""
        return self.tools, self.system, self.messages

    @property
    def size(self) -> int:
        """Bytes of all parts in canonical form."""
        return sum(self.tools.sizes) + sum(self.system.sizes) + sum(self.messages.sizes)

    @property
    def has_text(self) -> bool:
        """Whether the prompt has its parts, and not only their digests."""
        return self.messages.raw is not None

    def system_text(self) -> str:
        """The text of the system part; empty if only digests are known."""
        return "\n".join(map(text_of, self.system.raw or ()))

    def marked(self) -> dict[str, str]:
        """The marks of the system text (`volatile.marks`), computed on first use."""
        if not self.marks and self.system.raw is not None:
            self.marks = marks(self.system_text())
        return self.marks

    def without_text(self) -> "Prompt":
        """A copy with digests alone. The original sections stay unchanged, because other prompts may share them."""
        self.marked()
        tools, system, messages = (replace(section, raw=None, printed={}) for section in self.sections)
        return replace(self, tools=tools, system=system, messages=messages, set_to=None)

    def begins(self, later: "Prompt") -> bool:
        """Whether `later` begins with this whole prompt."""
        count = len(self.chain)
        return (
            0 < count <= len(later.chain)
            and self.chain[-1] == later.chain[count - 1]
            and len(self.tools) == len(later.tools)
            and self.model == later.model
            and self.settings == later.settings
        )


@dataclass(slots=True)
class _Wire:
    """The parts of a request as the client gave them."""

    tools: Sequence[Any]
    system_field: str
    system: Sequence[Any]
    messages_field: str
    start: int
    messages: Sequence[Any]


def read(body: Mapping[str, Any], earlier: Iterable[Prompt] = ()) -> Prompt:
    """Read a request. Equal parts of the most similar `earlier` prompt are reused; of equally similar prompts, the
    first counts.
    """
    wire = _wire(body)
    tools_order = _order(wire.tools)
    base = _base(wire, tools_order, earlier)
    if base is not None and tools_order == base.tools_order and base.tools.raw is not None:
        tools = base.tools
    else:
        tools = _section("tools", 0, wire.tools, None, digest_of_tool)  # None: `==` ignores the order of keys
    system = _section(wire.system_field, 0, wire.system, base.system if base else None, digest_of_message)
    messages = _section(
        wire.messages_field, wire.start, wire.messages, base.messages if base else None, digest_of_message
    )
    set_to = _settings(body)
    if base is not None and base.set_to == set_to:
        settings = base.settings
    else:
        settings = {name: digest_of_tool(value).value for name, value in set_to.items()}
    model = str(body.get("model"))
    chain = _chain(model, (tools, system, messages), base)
    return Prompt(model, settings, tools, system, messages, tools_order, chain, set_to)


def is_partial(body: Mapping[str, Any]) -> bool:
    """Whether the server adds earlier items to the prompt, so that the request does not have the whole prompt."""
    return bool(body.get("previous_response_id") or (body.get("conversation") and "messages" not in body))


def common_parts(left: Sequence[int], right: Sequence[int]) -> int:
    """The number of equal digests at the beginning of two sequences."""
    count = min(len(left), len(right))
    if left[:count] == right[:count]:
        return count
    return next(at for at in range(count) if left[at] != right[at])


def role_of(message: object) -> str:
    """The role of a message, or the type of an item without a role."""
    if not isinstance(message, dict):
        return ""
    return str(message.get("role") or message.get("type") or "")


def text_of(piece: object) -> str:
    """All text of a part; line breaks separate the texts of its inner parts."""
    if isinstance(piece, str):
        return piece
    if not isinstance(piece, dict):
        return ""
    inner = piece.get("content")
    if isinstance(inner, str):
        return inner
    for name in ("text", "output", "thinking"):
        if isinstance(piece.get(name), str):
            return str(piece[name])
    inner = piece.get("parts") if inner is None else inner
    return "\n".join(map(text_of, inner)) if isinstance(inner, list) else ""


def tool_name(tool: object) -> str:
    """The name of a tool, or `?` for a tool without a name."""
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    return str(function.get("name") or function.get("type") or "?") if isinstance(function, dict) else "?"


def tools_of(body: Mapping[str, Any]) -> Sequence[Any]:
    """The tools of a request as one list, with Gemini's declarations taken out of their groups."""
    tools = _items(body.get("tools"))
    if not any(isinstance(tool, dict) and "functionDeclarations" in tool for tool in tools):
        return tools
    found: list[Any] = []
    for tool in tools:
        declared = tool.get("functionDeclarations") if isinstance(tool, dict) else None
        found += declared if isinstance(declared, list) else [tool]
    return found


def _wire(body: Mapping[str, Any]) -> _Wire:
    tools = tools_of(body)
    tools = () if body.get("tool_choice") == "none" else tools
    if "contents" in body:
        instruction = body.get("systemInstruction", body.get("system_instruction"))
        parts = instruction.get("parts") if isinstance(instruction, dict) else instruction
        return _Wire(tools, "systemInstruction", _items(parts), "contents", 0, _items(body["contents"]))
    if "input" in body and "messages" not in body:
        return _with_system(tools, "instructions", body.get("instructions"), "input", _items(body["input"]))
    if "messages" in body or "prompt" not in body:
        return _with_system(tools, "system", body.get("system"), "messages", _items(body.get("messages")))
    return _Wire(tools, "system", (), "prompt", 0, _items(body["prompt"]))


def _with_system(tools: Sequence[Any], name: str, system: object, field_name: str, items: Sequence[Any]) -> _Wire:
    if system:
        return _Wire(tools, name, _items(system), field_name, 0, items)
    at = 0
    while at < len(items) and role_of(items[at]) in SYSTEM_ROLES:
        at += 1
    return _Wire(tools, field_name, items[:at], field_name, at, items[at:] if at else items)


def _items(value: object) -> Sequence[Any]:
    if isinstance(value, str):
        return [value]
    return value[:MAX_PARTS] if isinstance(value, (list, tuple)) else ()


def _settings(body: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: snapshot(body[name]) for name in _SETTINGS if body.get(name) is not None}
    config = body.get("generationConfig")
    if isinstance(config, dict):
        found.update({name: snapshot(config[name]) for name in _CONFIG_SETTINGS if config.get(name) is not None})
    return found


def _order(tools: Sequence[Any]) -> int:
    """A hash of the tools that includes their order of keys. It is valid in this process only."""
    try:
        return hash(marshal.dumps(list(tools), 0))
    except ValueError:  # a value that JSON cannot hold
        return hash(repr(tools))


def _section(
    name: str, start: int, items: Sequence[Any], before: Section | None, digest: Callable[[object], Digest]
) -> Section:
    made = Section(name, start)
    same = _equal_beginning(before, items)
    earlier: list[Any] = (None if before is None else before.raw) or []
    raw = earlier[:same]
    if before is not None and same:
        made.digests, made.sizes, made.roles = before.digests[:same], before.sizes[:same], before.roles[:same]
        whole = same == len(before)
        made.printed = dict(before.printed) if whole else {k: v for k, v in before.printed.items() if k < same}
    for at in range(same, len(items)):
        item = items[at]
        if before is not None and at < len(earlier) and _same_part(before, at, item):
            found = Digest(before.digests[at], before.sizes[at])
            raw.append(earlier[at])
        else:
            found = digest(item)
            raw.append(snapshot(item))
        made.digests.append(found.value)
        made.sizes.append(found.size)
        made.roles.append(tool_name(item) if name == "tools" else role_of(item))
        if name != "tools" and (objects := printed_objects(item)):
            made.printed[at] = _printed(objects)
    made.raw = raw
    return made


def _equal_beginning(before: Section | None, items: Sequence[Any]) -> int:
    """The number of parts at the beginning that equal those of the earlier section, including the order of keys."""
    if before is None or before.raw is None:
        return 0
    count = min(len(before.raw), len(items))
    if before.raw[:count] != list(items[:count]):
        for at in range(count):
            if before.raw[at] != items[at]:
                count = at
                break
    for at, printed in before.printed.items():
        if at < count and _printed(printed_objects(items[at])) != printed:
            count = at
    return count


def _same_part(before: Section, at: int, item: object) -> bool:
    assert before.raw is not None
    return bool(before.raw[at] == item) and before.printed.get(at) == _printed(printed_objects(item))


def _printed(objects: list[Mapping[str, Any]]) -> bytes | None:
    if not objects:
        return None
    try:
        return marshal.dumps(objects, 0)
    except ValueError:
        return repr(objects).encode("utf-8", "surrogatepass")


def _chain(model: str, sections: tuple[Section, ...], base: Prompt | None) -> list[int]:
    digests = [digest for section in sections for digest in section.digests]
    chain: list[int] = []
    if base is not None and base.model == model:
        earlier = [digest for section in base.sections for digest in section.digests]
        chain = base.chain[: common_parts(earlier, digests)]
    link = chain[-1] if chain else digest_of_message(model).value
    for digest in digests[len(chain) :]:
        link = hash((link, digest))
        chain.append(link)
    return chain


def _base(wire: _Wire, tools_order: int, earlier: Iterable[Prompt]) -> Prompt | None:
    best, best_score = None, 0
    for prompt in earlier:
        score = (
            2 * (tools_order == prompt.tools_order)
            + 2 * _begins_alike(prompt.messages, wire.messages)
            + _begins_alike(prompt.system, wire.system)
            + (len(prompt.messages) <= len(wire.messages))
        )
        if score > best_score:
            best, best_score = prompt, score
    return best


def _begins_alike(section: Section, items: Sequence[Any]) -> bool:
    return bool(section.raw and items and section.raw[0] == items[0])
