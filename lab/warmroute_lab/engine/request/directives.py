"""Directives in a prompt's own text, which the engine obeys when it is started with `--obey-prompts`.

Programs send no script in their metadata, but they send what their user types. So a line of it says what is answered:

    obey: call bash {"command": "ls"}
    obey: think 40; call read {"path": "a.py"}; call read {"path": "b.py"}
    obey: run 400
    obey: answer All is done.

Each such line is a step: one answer of the model. The newest message of role `user` or `tool` that has such lines
counts; its step is that with the number of assistant messages behind it, so one message drives many turns. A directive
has to begin its line: one inside the arguments of a call, as for a sub-agent, is for whoever gets it as a message.

Orders of a step are separated by `;`. `answer` takes the rest of the line, or a JSON string where line breaks are
needed. Behind the last step, pseudo-words come. Only tools that the request offers can be called. For any other tool,
and for a line that cannot be read, the answer is a text that says so.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from json import JSONDecodeError, JSONDecoder
from typing import Any, Final

from warmroute_lab.engine.request.text import MAX_SCRIPT_STEPS, NO_SCRIPT, Script, ScriptedCall

MAX_RUN_TOKENS: Final = 100_000
MAX_CALLS: Final = 64
MAX_NAMED_TOOLS: Final = 64
_LINE: Final = re.compile(r"^[ \t]*obey:[ \t]*(.*)$", re.MULTILINE)
_WORD: Final = re.compile(r"[^\s;]+")
_decode: Final = JSONDecoder().raw_decode


class BadDirective(ValueError):
    """What is wrong with a line; the message is for whoever wrote it."""


def obeyed(body: Mapping[str, Any]) -> Script:
    """The step that the messages of a chat body order; no script where they order nothing."""
    messages: Sequence[Mapping[str, Any]] = body.get("messages") or ()
    if body.get("continue_final_message"):
        messages = messages[:-1]  # the answer itself, begun
    turn = 0
    for message in reversed(messages):
        role = str(message.get("role")).lower()
        if role == "assistant":
            turn += 1
        elif role in ("user", "tool"):
            lines = _LINE.findall(_text(message.get("content")))
            if lines:
                return _step(lines[turn], _offered(body)) if turn < min(len(lines), MAX_SCRIPT_STEPS) else NO_SCRIPT
    return NO_SCRIPT


def _step(line: str, offered: Sequence[str]) -> Script:
    try:
        script = _read(line)
    except BadDirective as error:
        return Script(text=f"This directive cannot be obeyed: {error}.")
    missing = next((call.name for call in script.calls if call.name not in offered), None)
    if missing is None:
        return script
    names = ", ".join(offered[:MAX_NAMED_TOOLS]) or "none"
    return replace(script, calls=(), text=f"The tool {missing} is not offered in this request; offered: {names}.")


def _read(line: str) -> Script:
    script, at = NO_SCRIPT, 0
    while True:
        order, at = _word(line, at)
        if order == "answer":
            return replace(script, text=_answer(line[at:].strip()))
        if order == "call":
            name, at = _word(line, at)
            arguments, at = _arguments(line, at)
            if len(script.calls) == MAX_CALLS:
                raise BadDirective(f"it has more than {MAX_CALLS} calls")
            script = replace(script, calls=(*script.calls, ScriptedCall(name, arguments)))
        elif order == "think":
            count, at = _word(line, at)
            script = replace(script, think_tokens=_tokens(order, count))
        elif order == "run":
            count, at = _word(line, at)
            script = replace(script, output_tokens=_tokens(order, count))
        else:
            raise BadDirective(f"{order[:40]!r} is not an order; there are call, think, run and answer")
        rest = line[at:].lstrip()
        if not rest:
            return script
        if rest[0] != ";":
            raise BadDirective(f"a ; is missing before {rest[:40]!r}")
        at = len(line) - len(rest) + 1


def _word(line: str, at: int) -> tuple[str, int]:
    found = _WORD.search(line, at)
    if found is None or line[at : found.start()].strip():
        raise BadDirective("a word is missing: call TOOL {JSON}, think N, run N, answer TEXT")
    return found[0], found.end()


def _arguments(line: str, at: int) -> tuple[str, int]:
    """The JSON object of a call, as it is written."""
    begin = len(line) - len(line[at:].lstrip())
    try:
        value, end = _decode(line, begin)
    except (JSONDecodeError, RecursionError):
        value, end = None, begin
    if not isinstance(value, dict):
        raise BadDirective("the arguments of a call must be a JSON object")
    return line[begin:end], end


def _tokens(order: str, count: str) -> int:
    if not count.isascii() or not count.isdecimal() or not 1 <= int(count[:9]) <= MAX_RUN_TOKENS:
        raise BadDirective(f"{order} takes a number from 1 to {MAX_RUN_TOKENS}")
    return int(count)


def _answer(text: str) -> str:
    if text.startswith('"'):
        try:
            value, end = _decode(text)
        except JSONDecodeError:
            return text
        if isinstance(value, str) and end == len(text):
            return value
    return text


def _text(content: Any) -> str:
    if isinstance(content, list):
        texts = [piece.get("text") for piece in content if isinstance(piece, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _offered(body: Mapping[str, Any]) -> list[str]:
    """The names of the tools that may be called."""
    if body.get("tool_choice") == "none":
        return []
    tools = [tool.get("function") for tool in body.get("tools") or () if isinstance(tool, dict)]
    return [str(tool.get("name")) for tool in tools if isinstance(tool, dict)]
