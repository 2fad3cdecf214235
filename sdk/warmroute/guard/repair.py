"""Rules that undo a client's changes, so that the prefix of the session stays as it was sent.

The client names the rules that it wants. A rule is applied only if the comparison of prompts found the rule's cause;
the exception is `anthropic-breakpoints`, which is applied if a request has too many `cache_control` marks. A rule
returns a new request and leaves the caller's objects unchanged. After each rule the request is compared again, at most
`MAX_STEPS` times.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeGuard

from warmroute.guard.canonical import digest_of_message
from warmroute.guard.causes import Cause
from warmroute.guard.compare import Break
from warmroute.guard.history import is_answered_alike, same_but_reasoning
from warmroute.guard.memory import Memory, Reading, Remembered
from warmroute.guard.prompt import Prompt, Section, role_of, text_of, tool_name
from warmroute.guard.volatile import DAY

# The rule `move-volatile`: changed lines stay as they were first sent; the newest user message gets the new lines.
#
# The text that the rule adds to a user message is remembered by the digest of the message. The rule adds the text again
# whenever the client sends that message, because the client does not know of the text.

MAX_LINES: Final = 20
"""The maximum number of changed lines that the rule moves. A larger change is not treated as volatile text."""

_HEADING: Final = "Now:"

Body = Mapping[str, Any]


def move(body: Body, reading: Reading, broken: Break, remembered: Remembered) -> Body | None:
    """The request with the system part as first sent, and the new lines at the end of the newest user message."""
    assert reading.before is not None
    sent, now = reading.before.system, reading.prompt.system
    for at in range(min(len(sent), len(now))):
        if now.where(at) == broken.where and sent.piece(at) is not None:
            old, new = text_of(sent.piece(at)), text_of(now.piece(at))
            known = set(old.split("\n"))
            lines = [line for line in new.split("\n") if line not in known and line.strip()]
            if len(lines) > MAX_LINES:
                return None
            found = with_text(body, now, at, old)
            if found is None or not lines:
                return found
            return _with_news(found, reading, "\n".join([_HEADING, *lines]), remembered)
    return None


def moved_again(body: Body, remembered: Remembered) -> Body:
    """The request with the text that the rule added to these user messages in earlier turns."""
    field = _field(body)
    items = body.get(field)
    if not isinstance(items, list):
        return body
    made = [
        _appended(item, remembered.moved[digest])
        if role_of(item) == "user" and (digest := digest_of_message(item).value) in remembered.moved
        else item
        for item in items
    ]
    return body if made == items else {**body, field: made}


def with_text(body: Body, section: Section, at: int, text: str) -> Body | None:
    """The request with another text in one part; None if that part has no text or several texts."""
    field = section.name
    if isinstance(body.get(field), str):
        return {**body, field: text}
    outer = body.get(field)
    items = outer.get("parts") if isinstance(outer, dict) else outer
    if not isinstance(items, list) or section.start + at >= len(items):
        return None
    piece = _part_with_text(items[section.start + at], text)
    if piece is None:
        return None
    changed = [*items[: section.start + at], piece, *items[section.start + at + 1 :]]
    return {**body, field: {**outer, "parts": changed} if isinstance(outer, dict) else changed}


def _part_with_text(piece: Any, text: str) -> Any:
    if isinstance(piece, str):
        return text
    if not isinstance(piece, dict):
        return None
    for name in ("text", "content"):
        if isinstance(piece.get(name), str):
            return {**piece, name: text}
    blocks = piece.get("content")
    if isinstance(blocks, list) and len(blocks) == 1 and isinstance(blocks[0], dict) and "text" in blocks[0]:
        return {**piece, "content": [{**blocks[0], "text": text}]}
    return None


def _with_news(body: Body, reading: Reading, text: str, remembered: Remembered) -> Body:
    """The request with a text at the end of its newest message. Unchanged, unless that message is new and a user's."""
    assert reading.before is not None
    field = _field(body)
    items = body.get(field)
    if not isinstance(items, list) or not items or role_of(items[-1]) != "user":
        return body
    digest = digest_of_message(items[-1]).value
    if digest in reading.before.messages.digests:
        return body
    remembered.note_moved(digest, text)
    return {**body, field: [*items[:-1], _appended(items[-1], text)]}


def _appended(message: Any, text: str) -> Any:
    for name in ("content", "parts"):
        inner = message.get(name)
        if isinstance(inner, str):
            return {**message, name: f"{inner}\n\n{text}"}
        if isinstance(inner, list):
            kind = next((piece.get("type") for piece in inner if isinstance(piece, dict) and "text" in piece), "text")
            block = {"text": text} if name == "parts" else {"type": kind or "text", "text": text}
            return {**message, name: [*inner, block]}
    return message


def _field(body: Body) -> str:
    return next((name for name in ("messages", "input", "contents") if name in body), "messages")


# The rule `anthropic-breakpoints`: at most four marks, at places that stay from turn to turn.
#
# Anthropic refuses a request with more than four `cache_control` marks. The rule keeps the marks that help most: the
# last mark of the tools, the last mark of the system prompt, and the newest marks in the messages. Source:
# docs.anthropic.com, prompt caching (4 breakpoints, 20 blocks of look-back).

MAX_BREAKPOINTS: Final = 4
_MARK: Final = "cache_control"


def too_many(body: Body) -> bool:
    """Whether a request has more marks than Anthropic accepts."""
    return sum(map(_count, (body.get(name) for name in ("tools", "system", "messages")))) > MAX_BREAKPOINTS


def with_four(body: Body) -> Body:
    """The request with the four marks that help most."""
    made = dict(body)
    left = MAX_BREAKPOINTS
    for name in ("tools", "system"):
        if _count(body.get(name)):
            made[name], found = _last_kept(body[name], 1)
            left -= found
    made["messages"], _ = _last_kept(body.get("messages"), left)
    return made


def _last_kept(value: Any, left: int) -> tuple[Any, int]:
    """The value with only its last `left` marks, and the number of marks that it still has."""
    if isinstance(value, list):
        items, found = [], 0
        for item in reversed(value):
            item_kept, count = _last_kept(item, left - found)
            found += count
            items.append(item_kept)
        return items[::-1], found
    if not isinstance(value, dict):
        return value, 0
    inner, found = _last_kept(value.get("content"), left)
    made = {**value, "content": inner} if isinstance(value.get("content"), list) else dict(value)
    if _MARK in made and found < left:
        return made, found + 1
    made.pop(_MARK, None)
    return made, found


def _count(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_count, value))
    if isinstance(value, dict):
        return (_MARK in value) + _count(value.get("content"))
    return 0


MAX_STEPS: Final = 8


class Rule(StrEnum):
    """A rule by its name in `repair=[...]`."""

    SORT_TOOLS = "sort-tools"
    CANONICAL_SCHEMAS = "canonical-schemas"
    FREEZE_DATE = "freeze-date"
    MOVE_VOLATILE = "move-volatile"
    APPEND_ONLY_TOOLS = "append-only-tools"
    KEEP_REASONING = "keep-reasoning"
    ANTHROPIC_BREAKPOINTS = "anthropic-breakpoints"


SAFE: Final = (Rule.SORT_TOOLS, Rule.CANONICAL_SCHEMAS, Rule.FREEZE_DATE)
"""`repair="safe"`: rules that keep the meaning of a prompt, except for the day's date."""


class Use(NamedTuple):
    """One use of a rule, with the cause and its place in the request."""

    rule: Rule
    cause: Cause
    where: str


class Repaired(NamedTuple):
    """A request after the rules, its comparison with earlier prompts, and the rules that were used."""

    body: Mapping[str, Any]
    reading: Reading
    uses: tuple[Use, ...]


Applied = Callable[[Body, Reading, Break, Remembered], Body | None]


def rules_of(repair: str | Iterable[str] | None) -> tuple[Rule, ...]:
    """The rules of an option: `"safe"`, a name, several names, or None. Raises: ValueError, which lists the names."""
    names = () if repair is None else (repair,) if isinstance(repair, str) else tuple(repair)
    found: list[Rule] = []
    for name in names:
        if name == "safe":
            found.extend(SAFE)
            continue
        try:
            found.append(Rule(name))
        except ValueError:
            raise ValueError(f"{name!r} is not a rule of repair; there are: safe, {', '.join(Rule)}") from None
    return tuple(dict.fromkeys(found))


def repaired(memory: Memory, key: str, body: Body, rules: Sequence[Rule], prompt: Prompt | None = None) -> Repaired:
    """Apply the rules to a request of a session if needed. `prompt`: the request, if it was read before."""
    remembered, uses, given = memory.session(key), [], body
    if Rule.MOVE_VOLATILE in rules and remembered.moved:
        body = moved_again(body, remembered)
    if Rule.ANTHROPIC_BREAKPOINTS in rules and too_many(body):
        body = with_four(body)
        uses.append(Use(Rule.ANTHROPIC_BREAKPOINTS, Cause.CACHE_MARKS, "cache_control"))
    reading = memory.read(key, body, prompt if body is given else None)
    for _ in range(MAX_STEPS if rules else 0):
        if (broken := reading.broken) is None:
            break
        step = _step(body, reading, broken, remembered, rules)
        if step is None:
            break
        rule, body = step
        uses.append(Use(rule, broken.cause, broken.where))
        reading = memory.read(key, body)
        if reading.broken == broken:
            break  # the rule did not help, so another rule would not either
    return Repaired(body, reading, tuple(uses))


def _step(
    body: Body, reading: Reading, broken: Break, remembered: Remembered, rules: Sequence[Rule]
) -> tuple[Rule, Body] | None:
    """The first rule for this break that changes the request, and the changed request."""
    for rule, apply in _RULES.get(broken.cause, ()):
        if rule in rules and (found := apply(body, reading, broken, remembered)) is not None:
            return rule, found
    return None


def _tools_in_order(body: Body, reading: Reading, _broken: Break, _remembered: Remembered) -> Body | None:
    """The request with known tools in the order of the earlier prompt, then the new tools, sorted by name."""
    assert reading.before is not None
    tools = body.get("tools")
    if not _is_plain(tools):
        return None
    known = {name: at for at, name in reversed(list(enumerate(reading.before.tools.roles)))}
    if not set(known) <= {tool_name(tool) for tool in tools}:
        return None
    wanted = sorted(tools, key=lambda tool: (known.get(tool_name(tool), len(known)), _new_name(tool, known)))
    return None if wanted == tools else {**body, "tools": wanted}


def _is_plain(tools: object) -> TypeGuard[list[Any]]:
    """Whether the tools are a list of single tools. Gemini's groups of declarations are not repaired."""
    return isinstance(tools, list) and not any(
        isinstance(tool, dict) and "functionDeclarations" in tool for tool in tools
    )


def _new_name(tool: object, known: Mapping[str, int]) -> str:
    name = tool_name(tool)
    return "" if name in known else name


def _tools_kept(body: Body, reading: Reading, _broken: Break, _remembered: Remembered) -> Body | None:
    """The request with all tools of the earlier prompt, as this request defines them, then the new tools."""
    assert reading.before is not None
    tools, before = body.get("tools"), reading.before.tools
    if not _is_plain(tools) or before.raw is None:
        return None
    now, sent = [_tool_key(tool) for tool in tools], [_tool_key(tool) for tool in before.raw]
    kept_tools = list[Any]()
    for tool, key in zip(before.raw, sent, strict=True):
        if tool in tools or key not in now:
            kept_tools.append(tool)
        elif now.count(key) == sent.count(key) == 1:
            kept_tools.append(tools[now.index(key)])
        else:
            return None  # several tools have this name, and any of them may be the changed one
    return {**body, "tools": [*kept_tools, *(tool for tool in tools if tool not in kept_tools)]}


def _tool_key(tool: object) -> tuple[str, object]:
    """What tells tools apart: the name, and the server's label, since all servers of Responses are named `mcp`."""
    return tool_name(tool), tool.get("server_label") if isinstance(tool, dict) else None


def _schemas_kept(body: Body, reading: Reading, _broken: Break, _remembered: Remembered) -> Body | None:
    """The request with the earlier form of each tool and message that differs only in the order of keys."""
    assert reading.before is not None
    before = reading.before
    found = dict(body)
    tools = body.get("tools")
    if isinstance(tools, list) and before.tools.raw is not None:
        sent = dict(zip(before.tools.roles, before.tools.raw, strict=True))
        found["tools"] = [_as_sent(sent.get(tool_name(tool)), tool) for tool in tools]
    items = body.get(before.messages.name)
    if isinstance(items, list) and before.messages.raw is not None:
        start = before.messages.start
        head, tail = items[: start + len(before.messages)], items[start + len(before.messages) :]
        remembered = [_as_sent(one, item) for one, item in zip(before.messages.raw, head[start:], strict=False)]
        found[before.messages.name] = [*head[:start], *remembered, *tail]
    return found


def _as_sent(sent: object, item: object) -> object:
    """The earlier value if it equals `item`. The comparison ignores the order of keys."""
    return sent if sent == item else item


def _reasoning_kept(body: Body, reading: Reading, _broken: Break, _remembered: Remembered) -> Body | None:
    assert reading.before is not None
    sent = reading.before.messages
    items = body.get(sent.name)
    if not isinstance(items, list) or sent.raw is None:
        return None
    made, at = list(items[: sent.start]), sent.start
    for piece in sent.raw:
        if at < len(items) and same_but_reasoning(piece, items[at]):
            made.append(piece)
            at += 1
        elif isinstance(piece, dict) and piece.get("type") == "reasoning":
            made.append(piece)
        else:
            break
    return {**body, sent.name: [*made, *items[at:]]}


def _date_frozen(body: Body, reading: Reading, broken: Break, remembered: Remembered) -> Body | None:
    """The request with the dates of the earlier prompt in the changed part. Times of day are left alone, and so are
    messages that the same answer does not follow in both prompts.
    """
    assert reading.before is not None
    before, prompt = reading.before, reading.prompt
    for sent, now in ((before.system, prompt.system), (before.messages, prompt.messages)):
        for at in range(min(len(sent), len(now))):
            if now.where(at) == broken.where and (now is prompt.system or is_answered_alike(sent, now, at)):
                return _frozen_part(body, sent, now, at, remembered.days)
    return None


def _frozen_part(body: Body, sent: Section, now: Section, at: int, days: list[list[str]]) -> Body | None:
    text, piece = text_of(now.piece(at)), sent.piece(at)
    if piece is not None:
        days_sent = DAY.findall(text_of(piece))
        if DAY.sub("\0", text_of(piece)) != DAY.sub("\0", text):
            return None
    elif at < len(days):
        days_sent = days[at]
    else:
        return None
    if len(days_sent) != len(DAY.findall(text)):
        return None
    following = iter(days_sent)
    return with_text(body, now, at, DAY.sub(lambda _: next(following), text))


_RULES: Final[Mapping[Cause, tuple[tuple[Rule, Applied], ...]]] = {
    Cause.TOOL_ORDER: ((Rule.SORT_TOOLS, _tools_in_order),),
    Cause.TOOL_SET: ((Rule.SORT_TOOLS, _tools_in_order), (Rule.APPEND_ONLY_TOOLS, _tools_kept)),
    Cause.KEY_ORDER: ((Rule.CANONICAL_SCHEMAS, _schemas_kept),),
    Cause.REASONING_DROPPED: ((Rule.KEEP_REASONING, _reasoning_kept),),
    Cause.DATE: ((Rule.FREEZE_DATE, _date_frozen), (Rule.MOVE_VOLATILE, move)),
    Cause.NONCE: ((Rule.MOVE_VOLATILE, move),),
    Cause.TOKEN_COUNTER: ((Rule.MOVE_VOLATILE, move),),
    Cause.WORKING_DIRECTORY: ((Rule.MOVE_VOLATILE, move),),
}
