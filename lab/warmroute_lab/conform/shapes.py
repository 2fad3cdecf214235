"""Requests and answers of four APIs, as far as the checks need them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from warmroute.contract import headers

ANSWER_TOKENS: Final = 4
TOOL: Final = "read_file"
ABOUT: Final = "Reads a file of the project and returns its lines, with their numbers in front of them."
SCHEMA: Final = {
    "type": "object",
    "properties": {"path": {"type": "string", "description": "Path of the file, from the root of the project."}},
    "required": ["path"],
}
_CALL: Final = "call_1"
_PATH: Final[Mapping[str, str]] = {"path": "src/main/handlers/sessions.py"}
LINES: Final = "1 import asyncio\n2 import json\n3 class Sessions:\n4     pass\n"


class Asked(NamedTuple):
    """A request, independent of the API. `session`: the key of its session. `signal`: the header or field that carries
    the key. `with_call`: the conversation has a tool call and its result.
    """

    system: str
    turns: Sequence[str]
    stream: bool = False
    answers: int = 1
    session: str = ""
    signal: str = ""
    tools: bool = False
    with_call: bool = False
    extra: Mapping[str, Any] = {}
    extra_headers: Mapping[str, str] = {}
    answer_tokens: int = ANSWER_TOKENS


class Shape(NamedTuple):
    """A request of one API: its path, headers without a key, and body."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


SIGNALS: Final[Mapping[str, tuple[str, ...]]] = {
    "openai": ("", "x-session-id", headers.AFFINITY, "prompt_cache_key"),
    "anthropic": ("", "x-session-id", headers.AFFINITY, "metadata.user_id"),
    "gemini": ("", "x-session-id", headers.AFFINITY),
    "responses": ("", "x-session-id", headers.AFFINITY, "prompt_cache_key"),
}
"""API -> the headers and fields that name a session; "": the session is not named."""


def key_headers(api: str, key: str) -> dict[str, str]:
    if not key:
        return {}
    if api == "anthropic":
        return {"x-api-key": key}
    return {"x-goog-api-key": key} if api == "gemini" else {"authorization": f"Bearer {key}"}


def shape_of(api: str, model: str, asked: Asked) -> Shape:
    given = {"content-type": "application/json", **asked.extra_headers}
    if asked.session and asked.signal.startswith("x-"):
        given[asked.signal] = asked.session
    make = {"openai": _openai, "anthropic": _anthropic, "gemini": _gemini, "responses": _responses}[api]
    return make(model, asked, given)


def _talk(turns: Sequence[str]) -> list[dict[str, Any]]:
    """The messages of these turns of a user, with an answer between each two."""
    messages: list[dict[str, Any]] = []
    for at, text in enumerate(turns):
        messages += [{"role": "assistant", "content": "Noted."}] if at else []
        messages.append({"role": "user", "content": text})
    return messages


def _openai(model: str, asked: Asked, given: dict[str, str]) -> Shape:
    messages = [{"role": "system", "content": asked.system}, *_talk(asked.turns)]
    if asked.with_call:
        function = {"name": TOOL, "arguments": json.dumps(_PATH)}
        calls = [{"id": _CALL, "type": "function", "function": function}]
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        messages.append({"role": "tool", "tool_call_id": _CALL, "content": LINES})
    body: dict[str, Any] = {"model": model, "messages": messages, "max_tokens": asked.answer_tokens, "temperature": 0}
    if asked.tools:
        described: dict[str, Any] = {"name": TOOL, "description": ABOUT, "parameters": SCHEMA}
        body["tools"] = [{"type": "function", "function": described}]
    if asked.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if asked.answers > 1:
        body |= {"n": asked.answers, "temperature": 1}
    if asked.signal == "prompt_cache_key":
        body["prompt_cache_key"] = asked.session
    return Shape("/v1/chat/completions", given, body | dict(asked.extra))


def _anthropic(model: str, asked: Asked, given: dict[str, str]) -> Shape:
    messages = _talk(asked.turns)
    if asked.with_call:
        messages.append(
            {"role": "assistant", "content": [{"type": "tool_use", "id": _CALL, "name": TOOL, "input": _PATH}]}
        )
        result = {"type": "tool_result", "tool_use_id": _CALL, "content": LINES}
        messages.append({"role": "user", "content": [result]})
    # Anthropic's own servers cache a prompt only up to a `cache_control` member.
    system = [{"type": "text", "text": asked.system, "cache_control": {"type": "ephemeral"}}]
    body: dict[str, Any] = {
        "model": model, "system": system, "messages": messages, "max_tokens": asked.answer_tokens
    }  # fmt: skip
    if asked.tools:
        body["tools"] = [{"name": TOOL, "description": ABOUT, "input_schema": SCHEMA}]
    if asked.stream:
        body["stream"] = True
    if asked.signal == "metadata.user_id":
        body["metadata"] = {"user_id": f"user_0_account__session_{asked.session}"}
    return Shape("/v1/messages", {**given, "anthropic-version": "2023-06-01"}, body | dict(asked.extra))


def _gemini(model: str, asked: Asked, given: dict[str, str]) -> Shape:
    contents: list[dict[str, Any]] = []
    for at, text in enumerate(asked.turns):
        contents += [{"role": "model", "parts": [{"text": "Noted."}]}] if at else []
        contents.append({"role": "user", "parts": [{"text": text}]})
    if asked.with_call:
        contents.append({"role": "model", "parts": [{"functionCall": {"name": TOOL, "args": _PATH}}]})
        response = {"name": TOOL, "response": {"output": LINES}}
        contents.append({"role": "user", "parts": [{"functionResponse": response}]})
    settings: dict[str, Any] = {"maxOutputTokens": asked.answer_tokens, "temperature": 0}
    if asked.answers > 1:
        settings |= {"candidateCount": asked.answers, "temperature": 1}
    body: dict[str, Any] = {
        "systemInstruction": {"parts": [{"text": asked.system}]},
        "contents": contents,
        "generationConfig": settings,
    }
    if asked.tools:
        tool = {"name": TOOL, "description": ABOUT, "parametersJsonSchema": SCHEMA}
        body["tools"] = [{"functionDeclarations": [tool]}]
    verb = "streamGenerateContent?alt=sse" if asked.stream else "generateContent"
    return Shape(f"/v1beta/models/{model}:{verb}", given, body | dict(asked.extra))


def _responses(model: str, asked: Asked, given: dict[str, str]) -> Shape:
    items = _talk(asked.turns)
    if asked.with_call:
        items.append({"type": "function_call", "call_id": _CALL, "name": TOOL, "arguments": json.dumps(_PATH)})
        items.append({"type": "function_call_output", "call_id": _CALL, "output": LINES})
    body: dict[str, Any] = {
        "model": model, "instructions": asked.system, "input": items, "max_output_tokens": asked.answer_tokens,
        "temperature": 0, "store": False,
    }  # fmt: skip
    if asked.tools:
        body["tools"] = [{"type": "function", "name": TOOL, "description": ABOUT, "parameters": SCHEMA}]
    if asked.stream:
        body["stream"] = True
    if asked.signal == "prompt_cache_key":
        body["prompt_cache_key"] = asked.session
    return Shape("/v1/responses", given, body | dict(asked.extra))


def answers_in(api: str, answer: Mapping[str, Any]) -> int:
    if api == "anthropic":
        return int("content" in answer)
    if api == "responses":
        return int("output" in answer)
    found = answer.get("candidates" if api == "gemini" else "choices")
    return len(found) if isinstance(found, list) else 0


def begins(event: Mapping[str, Any]) -> bool:
    """Whether an event of a stream has or opens a part of the answer."""
    kind = event.get("type")
    return bool(
        event.get("choices") or event.get("candidates") or kind in ("content_block_start", "response.output_item.added")
    )


def ends(api: str, event: Mapping[str, Any]) -> bool:
    """Whether an event of a stream says that the answer has ended. OpenAI's `[DONE]` is not an event."""
    if api == "anthropic":
        return event.get("type") == "message_stop"
    if api == "responses":
        return event.get("type") in ("response.completed", "response.incomplete")
    array, name = ("candidates", "finishReason") if api == "gemini" else ("choices", "finish_reason")
    found = event.get(array)
    return any(isinstance(each, dict) and each.get(name) for each in found) if isinstance(found, list) else False
