"""Checks what Codex sends and reads over OpenAI's Responses API (vllm-project/vllm#56285, sgl-project/sglang#38690).

A session of Codex ends if the server refuses an item of its history, or if a tool does not reach the model.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from warmroute_lab.conform.answers import LONG_ANSWER
from warmroute_lab.conform.shapes import ABOUT, LINES, SCHEMA, TOOL, Asked
from warmroute_lab.conform.trial import Cell, Trial, failed, not_tried, passed, problem
from warmroute_lab.conform.wire import Exchange

SYSTEM: Final = "You work on a project. Use the tools that you have."
BASE: Final = Asked(SYSTEM, ["What does the file say?"])


def tools(trial: Trial) -> Cell:
    return longer(trial, "keeps tools", BASE, BASE._replace(tools=True))


def tool_calls(trial: Trial) -> Cell:
    """Whether tool calls and their results reach the prompt."""
    before = BASE._replace(tools=True)
    return longer(trial, "keeps tool calls", before, before._replace(with_call=True))


def system(trial: Trial) -> Cell:
    more = BASE._replace(system=f"{SYSTEM} Answer in short sentences, and name the lines that you mean.")
    return longer(trial, "keeps the system prompt", BASE, more)


def longer(trial: Trial, check: str, short: Asked, more: Asked) -> Cell:
    """Whether the prompt of `more` has more tokens than that of `short`: what was added has reached the model."""
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
    """Whether the request's limit on the answer's length reaches the engine."""
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
    """Whether an answer has an id, a model, and the reason why it ended."""
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


Json = dict[str, Any]

_USER: Final = {"role": "user", "content": BASE.turns[0]}
_FUNCTION: Final = {"type": "function", "name": TOOL, "description": ABOUT, "parameters": SCHEMA, "strict": False}
_CUSTOM: Final = {"type": "custom", "name": "apply_patch", "description": ABOUT}
_NAMESPACE: Final = {"type": "namespace", "name": "files", "description": ABOUT, "tools": [_FUNCTION]}
_SEARCH: Final = {"type": "tool_search", "execution": "client", "description": ABOUT}
_PARTS: Final = [{"type": "input_text", "text": LINES}]
_LATER: Final = {"role": "developer", "content": [{"type": "input_text", "text": LINES}]}
_CUSTOM_CALL: Final = {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": LINES}
_FOUND: Final = {"type": "tool_search_output", "call_id": "c1", "execution": "client", "tools": [_NAMESPACE]}

LENGTHENS: Final[Mapping[str, Json]] = {
    "keeps custom tools": {"tools": [_CUSTOM]},
    "keeps tools in namespaces": {"tools": [_NAMESPACE]},
    "keeps tools in items": {
        "input": [{"type": "additional_tools", "role": "developer", "tools": [_NAMESPACE]}, _USER]
    },
    "keeps developer messages": {"input": [_LATER, _USER]},
    "keeps agents' messages": {"input": [_USER, {"type": "agent_message", "author": "/root/a", "content": _PARTS}]},
    "keeps outputs in parts": {
        "tools": [_FUNCTION],
        "input": [
            _USER,
            {"type": "function_call", "call_id": "c1", "name": TOOL, "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": _PARTS},
        ],
    },
    "keeps custom calls": {
        "tools": [_CUSTOM],
        "input": [_USER, _CUSTOM_CALL, {"type": "custom_tool_call_output", "call_id": "c1", "output": LINES}],
    },
    "keeps what a search has found": {
        "tools": [_SEARCH],
        "input": [
            _USER,
            {"type": "tool_search_call", "call_id": "c1", "execution": "client", "arguments": {"query": "read"}},
            _FOUND,
        ],
    },
}
"""Check -> members of the body that must make the prompt longer."""


def lengthens(check: str) -> partial[Cell]:
    """The check of this name in `LENGTHENS`: whether the members reach the model."""
    return partial(longer, check=check, short=BASE, more=BASE._replace(extra=LENGTHENS[check]))


def history(trial: Trial) -> Cell:
    """Whether the server takes a history with items of another provider, such as its web searches and reasoning."""
    check = "takes foreign items"
    items = [
        _USER,
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA-of-another-provider"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Noted."}]},
        {"role": "user", "content": "Go on."},
    ]
    found = trial.send(BASE._replace(extra={"input": items}))
    return passed(check, "served") if found.ok else failed(check, problem(found), found)


def streamed_items(trial: Trial) -> Cell:
    """Whether the items of a stream have the same ids as the items of the response that ends it."""
    check = "items have one id"
    found = trial.send(BASE._replace(stream=True, answer_tokens=LONG_ANSWER))
    if not found.ok:
        return failed(check, problem(found), found)
    done, at_end = _ids(found.answer.get("items")), _ids(_output(found.answer))
    if not at_end:
        return not_tried(check, "the response has no items")
    same = done == at_end
    return passed(check, f"{len(at_end)} items") if same else failed(check, "the end has other items", found)


def cut(trial: Trial) -> Cell:
    """Whether a stream that ends at the token limit ends as `response.incomplete`."""
    check = "a cut answer is incomplete"
    found = trial.send(BASE._replace(stream=True, answer_tokens=1))
    if 400 <= found.status < 500:
        return not_tried(check, f"refused: {problem(found)}")
    if not found.ok:
        return failed(check, problem(found), found)
    kind = str(found.answer.get("type"))
    return passed(check, kind) if kind == "response.incomplete" else failed(check, f"it ends as {kind[:40]}", found)


def sealed(trial: Trial) -> Cell:
    """Whether reasoning comes encrypted if the server stores nothing (`store`), so that the client can send it back."""
    check = "reasoning comes sealed"
    extra = {"include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low"}, "store": False}
    found = trial.send(BASE._replace(extra=extra, answer_tokens=LONG_ANSWER))
    if not found.ok:
        return failed(check, problem(found), found)
    reasoning = [item for item in _output(found.answer) if item.get("type") == "reasoning"]
    if not reasoning:
        return not_tried(check, "the model has not reasoned")
    whole = all(item.get("encrypted_content") for item in reasoning)
    return passed(check, "it does") if whole else failed(check, "it has no encrypted_content", found)


def unknown_model(trial: Trial) -> Cell:
    """Whether the server refuses a model that it does not have, instead of answering with another one."""
    check = "an unknown model is refused"
    found = trial.send(BASE._replace(extra={"model": "no-such-model-here"}))
    if 400 <= found.status < 500:
        return passed(check, f"{found.status}")
    return failed(check, "it is answered" if found.ok else problem(found), found)


def compaction(trial: Trial) -> Cell:
    """Whether a conversation is compacted: Codex ends unless the answer has exactly one compaction item."""
    check = "compacts"
    asked = {"input": [_USER, {"type": "compaction_trigger"}]}
    found = trial.send(BASE._replace(extra=asked, answer_tokens=LONG_ANSWER))
    if 400 <= found.status < 500:
        return not_tried(check, f"refused: {problem(found)}")
    if not found.ok:
        return failed(check, problem(found), found)
    items = [item for item in _output(found.answer) if item.get("type") == "compaction"]
    if len(items) == 1 and items[0].get("encrypted_content"):
        return passed(check, "one item")
    return failed(check, f"the answer has {len(items)} compaction items", found)


def _output(answer: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The output items of a response, or of the response in the last event of a stream."""
    response = answer.get("response", answer)
    found = response.get("output") if isinstance(response, dict) else None
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _ids(items: object) -> list[tuple[object, object]]:
    found = items if isinstance(items, list) else []
    return [(item.get("id"), item.get("call_id")) for item in found if isinstance(item, dict)]
