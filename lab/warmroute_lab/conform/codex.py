"""Checks what Codex sends and reads over OpenAI's Responses API (vllm-project/vllm#56285, sgl-project/sglang#38690).

A session of Codex ends if the server refuses an item of its history, or if a tool does not reach the model.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from warmroute_lab.conform.answers import LONG_ANSWER
from warmroute_lab.conform.shapes import ABOUT, LINES, SCHEMA, TOOL, Asked
from warmroute_lab.conform.trial import Outcome, Trial, failed, not_tried, passed, problem, unanswered
from warmroute_lab.conform.wire import Exchange

SYSTEM: Final = "You work on a project. Use the tools that you have."
BASE: Final = Asked(SYSTEM, ["What does the file say?"])


def tools(trial: Trial) -> Outcome:
    return longer(trial, BASE, BASE._replace(tools=True))


def tool_calls(trial: Trial) -> Outcome:
    """Whether tool calls and their results reach the prompt."""
    before = BASE._replace(tools=True)
    return longer(trial, before, before._replace(with_call=True))


def system(trial: Trial) -> Outcome:
    more = BASE._replace(system=f"{SYSTEM} Answer in short sentences, and name the lines that you mean.")
    return longer(trial, BASE, more)


def longer(trial: Trial, short: Asked, more: Asked) -> Outcome:
    """Whether the prompt of `more` has more tokens than that of `short`: what was added has reached the model."""
    first, second = trial.send(short), trial.send(more)
    if 400 <= second.status < 500:
        return not_tried(f"refused: {problem(second)}")
    for each in (first, second):
        if not each.ok:
            return failed(problem(each), each)
    before, after = first.counts.prompt, second.counts.prompt
    if before is None or after is None:
        return not_tried("the answer has no usage")
    if after <= before:
        return failed(f"the prompt has {before} tokens without, and {after} with them", first, second)
    return passed(f"{after - before} tokens more")


def answer_limit(trial: Trial) -> Outcome:
    """Whether the request's limit on the answer's length reaches the engine."""
    found = trial.send(BASE._replace(answer_tokens=1))
    if not found.ok:
        return failed(problem(found), found)
    tokens = found.counts.completion
    if tokens is None:
        return not_tried("the answer has no usage")
    return failed(f"asked for 1 token, got {tokens}", found) if tokens > 1 else passed("1 token")


def logprobs(trial: Trial) -> Outcome:
    """Whether log probabilities come back. Only chat completions have them in a form that all servers share."""
    if trial.api != "openai":
        return not_tried("only for chat completions")
    found = trial.send(BASE._replace(extra={"logprobs": True, "top_logprobs": 1}))
    if outcome := unanswered(found):
        return outcome
    has_logprobs = isinstance(_first(found, "choices").get("logprobs"), dict)
    return passed("they come back") if has_logprobs else failed("they do not come back", found)


def _first(exchange: Exchange, array: str) -> Mapping[str, Any]:
    """The first object of an array of an answer; empty if there is none."""
    found = exchange.answer.get(array)
    return found[0] if isinstance(found, list) and found and isinstance(found[0], dict) else {}


def identity(trial: Trial) -> Outcome:
    """Whether an answer has an id, a model, and the reason why it ended."""
    found = trial.send(BASE)
    if not found.ok:
        return failed(problem(found), found)
    missing = [name for name in _NAMES[trial.api] if not found.answer.get(name)]
    if trial.api in _REASONS:
        array, name = _REASONS[trial.api]
        missing += [] if _first(found, array).get(name) else [name]
    return failed(f"missing: {', '.join(missing)}", found) if missing else passed("id, model, end")


_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "openai": ("id", "model"),
    "anthropic": ("id", "model", "stop_reason"),
    "responses": ("id", "model", "status"),
    "gemini": ("modelVersion",),
}
_REASONS: Final = {"openai": ("choices", "finish_reason"), "gemini": ("candidates", "finishReason")}
"""API -> the array whose objects say why they ended, and by which member. The other APIs say this in `_NAMES`."""


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


def lengthens(members: Json) -> partial[Outcome]:
    """The check of an entry of `LENGTHENS`: whether the members reach the model."""
    return partial(longer, short=BASE, more=BASE._replace(extra=members))


def history(trial: Trial) -> Outcome:
    """Whether the server takes a history with items of another provider, such as its web searches and reasoning."""
    items = [
        _USER,
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA-of-another-provider"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Noted."}]},
        {"role": "user", "content": "Go on."},
    ]
    found = trial.send(BASE._replace(extra={"input": items}))
    return passed("served") if found.ok else failed(problem(found), found)


def streamed_items(trial: Trial) -> Outcome:
    """Whether the items of a stream have the same ids as the items of the response that ends it."""
    found = trial.send(BASE._replace(stream=True, answer_tokens=LONG_ANSWER))
    if not found.ok:
        return failed(problem(found), found)
    done, at_end = _ids(found.answer.get("items")), _ids(_output(found.answer))
    if not at_end:
        return not_tried("the response has no items")
    same = done == at_end
    return passed(f"{len(at_end)} items") if same else failed("the end has other items", found)


def cut(trial: Trial) -> Outcome:
    """Whether a stream that ends at the token limit ends as `response.incomplete`."""
    found = trial.send(BASE._replace(stream=True, answer_tokens=1))
    if outcome := unanswered(found):
        return outcome
    kind = str(found.answer.get("type"))
    return passed(kind) if kind == "response.incomplete" else failed(f"it ends as {kind[:40]}", found)


def sealed(trial: Trial) -> Outcome:
    """Whether reasoning comes encrypted if the server stores nothing (`store`), so that the client can send it back."""
    extra = {"include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low"}, "store": False}
    found = trial.send(BASE._replace(extra=extra, answer_tokens=LONG_ANSWER))
    if not found.ok:
        return failed(problem(found), found)
    reasoning = [item for item in _output(found.answer) if item.get("type") == "reasoning"]
    if not reasoning:
        return not_tried("the model has not reasoned")
    whole = all(item.get("encrypted_content") for item in reasoning)
    return passed("it does") if whole else failed("it has no encrypted_content", found)


def unknown_model(trial: Trial) -> Outcome:
    """Whether the server refuses a model that it does not have, instead of answering with another one."""
    found = trial.send(BASE._replace(extra={"model": "no-such-model-here"}))
    if 400 <= found.status < 500:
        return passed(f"{found.status}")
    return failed("it is answered" if found.ok else problem(found), found)


def compaction(trial: Trial) -> Outcome:
    """Whether a conversation is compacted: Codex ends unless the answer has exactly one compaction item."""
    asked = {"input": [_USER, {"type": "compaction_trigger"}]}
    found = trial.send(BASE._replace(extra=asked, answer_tokens=LONG_ANSWER))
    if outcome := unanswered(found):
        return outcome
    items = [item for item in _output(found.answer) if item.get("type") == "compaction"]
    if len(items) == 1 and items[0].get("encrypted_content"):
        return passed("one item")
    return failed(f"the answer has {len(items)} compaction items", found)


def _output(answer: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The output items of a response, or of the response in the last event of a stream."""
    response = answer.get("response", answer)
    found = response.get("output") if isinstance(response, dict) else None
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _ids(items: object) -> list[tuple[object, object]]:
    found = items if isinstance(items, list) else []
    return [(item.get("id"), item.get("call_id")) for item in found if isinstance(item, dict)]
