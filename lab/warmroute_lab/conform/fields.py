"""The checks of fields that are lost in translation: what must change the prompt's tokens, or the answer, and does not.

They need no sound model: a tool that reaches the template makes the prompt longer, whatever is answered.
"""

from collections.abc import Callable
from typing import Final

from warmroute_lab.conform.shapes import Asked
from warmroute_lab.conform.trial import Trial, problem
from warmroute_lab.conform.verdicts import Cell, failed, not_tried, passed
from warmroute_lab.conform.wire import Exchange

SYSTEM: Final = "You work on a project. Use the tools that you have."
BASE: Final = Asked(SYSTEM, ["What does the file say?"])


def tools(trial: Trial) -> Cell:
    return longer(trial, "keeps tools", BASE, BASE._replace(tools=True))


def tool_calls(trial: Trial) -> Cell:
    """Whether calls and results of earlier turns reach the prompt."""
    before = BASE._replace(tools=True)
    return longer(trial, "keeps tool calls", before, before._replace(with_call=True))


def system(trial: Trial) -> Cell:
    more = BASE._replace(system=f"{SYSTEM} Answer in short sentences, and name the lines that you mean.")
    return longer(trial, "keeps the system prompt", BASE, more)


def longer(trial: Trial, check: str, short: Asked, more: Asked) -> Cell:
    """Whether a request has a longer prompt than another."""
    first, second = trial.send(short), trial.send(more)
    if 400 <= second.status < 500:
        return not_tried(check, f"refused: {problem(second)}")
    for each in (first, second):
        if not each.ok:
            return failed(check, problem(each), each)
    before, after = first.counts.prompt, second.counts.prompt
    if before is None or after is None:
        return not_tried(check, "the answer has no usage")
    if after <= before:
        return failed(check, f"the prompt has {before} tokens without, and {after} with them", first, second)
    return passed(check, f"{after - before} tokens more")


def answer_limit(trial: Trial) -> Cell:
    """Whether the limit of the answer's length reaches the engine."""
    check = "keeps the answer's limit"
    found = trial.send(BASE._replace(answer_tokens=1))
    if not found.ok:
        return failed(check, problem(found), found)
    tokens = found.counts.completion
    if tokens is None:
        return not_tried(check, "the answer has no usage")
    return failed(check, f"asked for 1 token, got {tokens}", found) if tokens > 1 else passed(check, "1 token")


def logprobs(trial: Trial) -> Cell:
    """Whether log probabilities come back. Only chat completions have them in a form that all servers share."""
    check = "keeps logprobs"
    if trial.api != "openai":
        return not_tried(check, "only for chat completions")
    found = trial.send(BASE._replace(extra={"logprobs": True, "top_logprobs": 1}))
    if 400 <= found.status < 500:
        return not_tried(check, f"refused: {problem(found)}")
    if not found.ok:
        return failed(check, problem(found), found)
    return passed(check, "they come back") if _has_logprobs(found) else failed(check, "they do not come back", found)


def _has_logprobs(found: Exchange) -> bool:
    choices = found.answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    return isinstance(first.get("logprobs"), dict)


def identity(trial: Trial) -> Cell:
    """Whether an answer says what it is: id, model, and why it ended."""
    check = "answers name themselves"
    found = trial.send(BASE)
    if not found.ok:
        return failed(check, problem(found), found)
    missing = [name for name, there in _MEMBERS[trial.api] if not there(found)]
    return failed(check, f"missing: {', '.join(missing)}", found) if missing else passed(check, "id, model, end")


def _reason(exchange: Exchange, array: str, name: str) -> bool:
    found = exchange.answer.get(array)
    first = found[0] if isinstance(found, list) and found and isinstance(found[0], dict) else {}
    return bool(first.get(name))


_MEMBERS: Final[dict[str, tuple[tuple[str, Callable[[Exchange], bool]], ...]]] = {
    "openai": (
        ("id", lambda found: bool(found.answer.get("id"))),
        ("model", lambda found: bool(found.answer.get("model"))),
        ("finish_reason", lambda found: _reason(found, "choices", "finish_reason")),
    ),
    "anthropic": (
        ("id", lambda found: bool(found.answer.get("id"))),
        ("model", lambda found: bool(found.answer.get("model"))),
        ("stop_reason", lambda found: bool(found.answer.get("stop_reason"))),
    ),
    "responses": (
        ("id", lambda found: bool(found.answer.get("id"))),
        ("model", lambda found: bool(found.answer.get("model"))),
        ("status", lambda found: bool(found.answer.get("status"))),
    ),
    "gemini": (
        ("modelVersion", lambda found: bool(found.answer.get("modelVersion"))),
        ("finishReason", lambda found: _reason(found, "candidates", "finishReason")),
    ),
}
