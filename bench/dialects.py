"""Converts bodies of the workloads to OpenAI's Responses and to Gemini's API, as clients of these APIs write them."""

import json
from collections.abc import Callable
from typing import Any, Final

from bench.bodies import Body
from bench.engines import MODEL

RESPONSES: Final = "/v1/responses"
_GEMINI: Final = f"/v1beta/models/{MODEL}"


def as_responses(body: Body) -> tuple[str, Body]:
    """The path and the body of a request converted to OpenAI's Responses."""
    chat = json.loads(body.data)
    items = [item for message in chat["messages"] for item in _items(message)]
    found: dict[str, Any] = {"model": chat["model"], "input": items, "store": False}
    found |= {name: chat[name] for name in ("temperature", "stream") if name in chat}
    if "max_tokens" in chat:
        found["max_output_tokens"] = chat["max_tokens"]
    if "tools" in chat:
        found["tools"] = [{"type": "function", **tool["function"], "strict": False} for tool in chat["tools"]]
    return RESPONSES, Body(body.session, json.dumps(found, ensure_ascii=False).encode())


def _items(message: dict[str, Any]) -> list[dict[str, Any]]:
    if message["role"] == "tool":
        return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}]
    answers = message["role"] == "assistant"
    items: list[dict[str, Any]] = []
    if message["content"]:
        text = {"type": "output_text" if answers else "input_text", "text": message["content"]}
        role = "developer" if message["role"] == "system" else message["role"]
        items.append({"type": "message", "role": role, "content": [text]})
    calls = message.get("tool_calls", ())
    return items + [{"type": "function_call", "call_id": call["id"], **call["function"]} for call in calls]


def as_gemini(body: Body) -> tuple[str, Body]:
    """The path and the body of a request converted to Gemini's API."""
    chat = json.loads(body.data)
    system = [{"text": message["content"]} for message in chat["messages"] if message["role"] == "system"]
    names = {
        call["id"]: call["function"]["name"] for message in chat["messages"] for call in message.get("tool_calls", ())
    }
    contents = [_content(message, names) for message in chat["messages"] if message["role"] != "system"]
    found: dict[str, Any] = {"contents": contents, "systemInstruction": {"parts": system}, "generationConfig": {}}
    for theirs, ours in (("temperature", "temperature"), ("maxOutputTokens", "max_tokens")):
        if ours in chat:
            found["generationConfig"][theirs] = chat[ours]
    if "tools" in chat:
        found["tools"] = [{"functionDeclarations": [_declaration(tool["function"]) for tool in chat["tools"]]}]
    method = "streamGenerateContent?alt=sse" if chat.get("stream") else "generateContent"
    return f"{_GEMINI}:{method}", Body(body.session, json.dumps(found, ensure_ascii=False).encode())


def _declaration(function: dict[str, Any]) -> dict[str, Any]:
    schema = {"parametersJsonSchema": function["parameters"]}
    return {"name": function["name"], "description": function["description"], **schema}


def _content(message: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    if message["role"] == "tool":
        call_id = message["tool_call_id"]
        result = {"id": call_id, "name": names[call_id], "response": {"output": message["content"]}}
        return {"role": "user", "parts": [{"functionResponse": result}]}
    parts: list[dict[str, Any]] = [{"text": message["content"]}] if message["content"] else []
    for call in message.get("tool_calls", ()):
        function = call["function"]
        given = {"id": call["id"], "name": function["name"], "args": json.loads(function["arguments"])}
        parts.append({"functionCall": given})
    return {"role": "model" if message["role"] == "assistant" else "user", "parts": parts}


TRANSLATIONS: Final[dict[str, Callable[[Body], tuple[str, Body]]]] = {"r": as_responses, "g": as_gemini}
