"""Digests of the parts of a prompt, and which part a client changed since an earlier turn.

An engine reuses the longest prefix that is equal token by token, and a chat template puts tools before messages. So the
first different part, in that order, is where the cache ends; everything behind it is computed again. The digests follow
the template and not the JSON: `cache_control` does not count, a string is the same as one text part, and the order of
keys has no meaning. Only digests are stored, never text.

The digests are Python's own 64-bit hashes: a string keeps its hash, so a conversation that grows by appending costs
little to digest again. They have no meaning outside of the process, and are never sent or stored on disk.
"""

import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from warmroute.contract.conversations import Asked

MAX_PARTS: Final = 512
"""How many parts of a prompt are compared: tools and messages each."""

MAX_UNDATED: Final = 256
"""System prompts whose digest without dates is remembered; the oldest is dropped."""

_SETTINGS: Final = ("reasoning_effort", "chat_template_kwargs", "response_format")
"""Fields that chat templates may write into the prompt."""

_MONTH: Final = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_DATE: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?)?(?:Z|[+-]\d{2}:?\d{2})?"
    r"|\d{1,4}[/.]\d{1,2}[/.]\d{1,4}"
    r"|\b\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?[AaPp][Mm])?\b"
    rf"|\b{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?(?:,? \d{{4}})?|\b\d{{1,2}} {_MONTH}(?: \d{{4}})?"
    r"|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)(?:day|sday|nesday|rsday|urday)?\b"
    r"|\b\d{10}(?:\d{3})?\b"
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """The digests of one prompt."""

    model: str
    settings: int
    tools: "array[int]"
    messages: "array[int]"
    undated: int
    """Digest of the system prompt with dates and times masked, 0 without a system prompt."""


class PromptReader:
    """Makes `Prompt`s, and remembers the undated digests of `MAX_UNDATED` system prompts."""

    def __init__(self) -> None:
        self._undated: OrderedDict[int, int] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, body: Mapping[str, Any]) -> Prompt:
        """The digests of a request body."""
        tools, messages = _parts(body.get("tools")), _parts(_messages(body))
        return Prompt(
            model=str(body.get("model")),
            settings=digest([body.get(name) for name in _SETTINGS]),
            tools=array("q", map(digest, tools)),
            messages=array("q", map(digest, messages)),
            undated=self._system_without_dates(messages),
        )

    def _system_without_dates(self, messages: Sequence[Any]) -> int:
        text = "\n".join(_text(message) for message in messages if _role(message) in ("system", "developer"))
        if not text:
            return 0
        known = self._undated.get(hash(text))
        if known is not None:
            return known
        undated = hash(_DATE.sub("#", text))
        with self._lock:
            self._undated[hash(text)] = undated
            if len(self._undated) > MAX_UNDATED:
                self._undated.popitem(last=False)
        return undated


class Beginnings(NamedTuple):
    """A digest for the prompt up to each of its messages, and its users' messages: the one that ends it, and those that
    an assistant's follows.
    """

    hashes: list[int]
    asked: Asked | None
    returned: list[Asked]


def beginnings_of(body: Mapping[str, Any]) -> Beginnings | None:
    """The beginnings of a prompt of messages, a user's among them; None of any other."""
    messages = body.get("messages") or body.get("input")
    if not isinstance(messages, Sequence) or not any(_role(message) == "user" for message in messages):
        return None
    hash_ = hash((str(body.get("model")), digest(body.get("tools"))))
    hashes: list[int] = []
    returned: list[Asked] = []
    asked = None
    for message in messages:
        role = _role(message)
        if role == "assistant" and asked is not None:
            returned.append(asked)
        text = _text(message).encode("utf-8", "surrogatepass") if role == "user" else b""
        asked = Asked(len(hashes), hash_, text) if text else None
        hash_ = hash((hash_, digest(message)))
        hashes.append(hash_)
    return Beginnings(hashes, asked, returned)


def digest(value: object) -> int:
    """A digest that is equal for values which a template writes in the same way."""
    if isinstance(value, str):
        return hash(value)
    if isinstance(value, Mapping):
        items = (
            (name, digest(_as_parts(item) if name == "content" else item))
            for name, item in value.items()
            if name != "cache_control" and item is not None
        )
        return hash(frozenset(items))
    if isinstance(value, Sequence):
        return hash(tuple(map(digest, value)))
    return hash((type(value).__name__, repr(value)))


def closest(prompt: Prompt, earlier: Iterable[Prompt]) -> Prompt | None:
    """The earlier prompt that `prompt` most likely continues: sessions interleave titles, agents and sub-agents."""
    best, best_score = None, (-1, -1)
    for candidate in earlier:
        pairs = _common(prompt.tools, candidate.tools), _common(prompt.messages, candidate.messages)
        shared = len(set(prompt.tools) & set(candidate.tools)) + len(set(prompt.messages) & set(candidate.messages))
        if (score := (sum(pairs), shared)) >= best_score:
            best, best_score = candidate, score
    return best


def first_change(before: Prompt, now: Prompt, body: Mapping[str, Any]) -> str | None:
    """A clause that names the first part of `now` that breaks the prefix of `before`; None where it only grew."""
    if now.model != before.model:
        return f"the model changed from {before.model} to {now.model}, and each model has a cache of its own"
    if not _related(before, now):
        return "this prompt shares no part with the session's last turns: another agent or conversation under its key"
    if (tool := _changed_tool(before.tools, now.tools, _parts(body.get("tools")))) is not None:
        return tool
    if now.settings != before.settings:
        return f"one of {', '.join(_SETTINGS)} changed, which templates write into the prompt"
    return _changed_message(before, now, _parts(_messages(body)))


def _changed_tool(before: Sequence[int], now: Sequence[int], tools: Sequence[Any]) -> str | None:
    if list(before) == list(now):
        return None
    at = _common(before, now)
    here = f"tools[{at}] {_tool_name(tools[at])!r}" if at < len(now) else f"tools[{at}]"
    if sorted(before) == sorted(now):
        return f"the tools came in another order, from {here} on"
    if at == len(now) or (now[at] in before and before[at] not in now):
        return f"the tool that was tools[{at}] was removed"
    if at == len(before) or before[at] in now:
        return f"{here} was added"
    return f"{here} changed"


def _changed_message(before: Prompt, now: Prompt, messages: Sequence[Any]) -> str | None:
    at = _common(before.messages, now.messages)
    if at == len(before.messages):
        return None
    if at == len(now.messages):
        return f"the history was cut: messages[{at}] and what followed are gone"
    role = _role(messages[at]) or "no role"
    if role in ("system", "developer"):
        dated = before.undated == now.undated
        return f"the system prompt (messages[{at}]) changed" + (
            "; only a date or time in it is different" if dated else ""
        )
    return f"messages[{at}] ({role}) changed"


def _related(before: Prompt, now: Prompt) -> bool:
    if not now.messages or not before.messages:
        return True
    shared = set(before.tools) & set(now.tools) or set(before.messages) & set(now.messages)
    return bool(shared) or (now.undated != 0 and before.undated == now.undated)


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))


def _messages(body: Mapping[str, Any]) -> object:
    """The messages of a chat body; a bare prompt counts as one message."""
    prompt = body.get("prompt")
    return body.get("messages") or ([prompt] if isinstance(prompt, str) else prompt)


def _parts(value: object) -> Sequence[Any]:
    return value[:MAX_PARTS] if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else ()


def _as_parts(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _role(message: object) -> str:
    return str(message.get("role", "")) if isinstance(message, Mapping) else ""


def _text(message: Mapping[str, Any]) -> str:
    content = _as_parts(message.get("content"))
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part["text"]) for part in parts if isinstance(part, Mapping) and "text" in part)


def _tool_name(tool: object) -> str:
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    return str(function.get("name", "?")) if isinstance(function, Mapping) else "?"
