"""Request bodies: 2 KB chats, agents' turns of 200 KB and 1 MB, and whole sessions of agents that grow.

An agent's turn has tools, a system prompt and all earlier turns, and appends a tool call with its result. All sessions
have the same tools and system prompt. Bodies are the same in every run.
"""

import json
import keyword
import random
from dataclasses import dataclass
from typing import Any, Final

from bench.engines import MODEL

_WORDS: Final = keyword.kwlist  # the words in texts, as in a coding agent's files
_TOOLS: Final = 18
_SYSTEM_BYTES: Final = 12_000
_MARK: Final = {"cache_control": {"type": "ephemeral"}}
_RESULT_BYTES: Final = (600, 2500, 6000, 9000)


@dataclass(frozen=True)
class Body:
    """A request and the session that it belongs to."""

    session: str
    data: bytes


def _text(draw: random.Random, size: int) -> str:
    words: list[str] = []
    length = 0
    while length < size:
        word = draw.choice(_WORDS)
        if draw.random() < 0.08:
            word += '\n    "x": {'  # characters that JSON escapes
        elif draw.random() < 0.01:
            word += " ✓ café"
        words.append(word)
        length += len(word) + 1
    return " ".join(words)[:size]


def _encode(messages: list[dict[str, Any]], **more: object) -> bytes:
    body = {"model": MODEL, "temperature": 0.7, "max_tokens": 256, "messages": messages, **more}
    return json.dumps(body, ensure_ascii=False).encode()


def small(connection: int, stream: bool) -> Body:
    """A chat of 2 KB. The chats of two connections differ from the first words on."""
    draw = random.Random(7)
    system = {"role": "system", "content": f"You are assistant {connection:04}. " + _text(draw, 600)}
    user = {"role": "user", "content": _text(draw, 1180)}
    more: dict[str, object] = {"stream": stream}
    if stream:
        more["stream_options"] = {"include_usage": True}
    return Body(f"session-{connection}", _encode([system, user], **more))


def _tool(draw: random.Random, number: int) -> dict[str, Any]:
    properties = {f"p{i}": {"type": "string", "description": _text(draw, 80)} for i in range(6)}
    parameters = {"type": "object", "properties": properties, "required": ["p0"]}
    function = {"name": f"tool_{number}", "description": _text(draw, 300), "parameters": parameters}
    return {"type": "function", "function": function}


def _call(draw: random.Random, name: str, number: int, result_bytes: int) -> list[dict[str, Any]]:
    arguments = json.dumps({"p0": _text(draw, 120)})
    function = {"name": f"tool_{number % _TOOLS}", "arguments": arguments}
    calls = [{"id": name, "type": "function", "function": function}]
    return [
        {"role": "assistant", "content": _text(draw, 200), "tool_calls": calls},
        {"role": "tool", "tool_call_id": name, "content": _text(draw, result_bytes)},
    ]


def agents(size: int, sessions: int, turns: int) -> list[list[Body]]:
    """A list of turns for each of some agents. The first turn has about `size` bytes, each later turn 2 KB more."""
    draw = random.Random(11)
    tools = [_tool(draw, number) for number in range(_TOOLS)]
    system = {"role": "system", "content": _text(draw, _SYSTEM_BYTES)}
    found = []
    for session in range(sessions):
        messages = [system, {"role": "user", "content": f"session {session}: " + _text(draw, 1500)}]
        began = len(_encode(messages, tools=tools))
        number = 0
        while began < size:
            result_bytes = draw.choice(_RESULT_BYTES)
            pair = _call(draw, f"call_{session}_{number}", number, result_bytes)
            began += len(json.dumps(pair, ensure_ascii=False).encode())
            messages += pair
            number += 1
        bodies = []
        for turn in range(turns):
            bodies.append(Body(f"agent-{session}", _encode(messages, tools=tools, stream=False)))
            messages = messages + _call(draw, f"call_{session}_later_{turn}", turn, 2000)
        found.append(bodies)
    return found


def renamed(body: Body, generation: int) -> Body:
    """The turn as one of a session that no proxy has seen: with another first user message."""
    session = f"{body.session}-{generation}"
    number = body.session.removeprefix("agent-")
    data = body.data.replace(f"session {number}: ".encode(), f"session {number}.{generation}: ".encode(), 1)
    return Body(session, data)


def growing(number: int, stream: bool, sessions: int = 32, turns: int = 24) -> list[list[Body]]:
    """Set `number` of whole sessions, which grow from about 30 to 160 KB. All sets share tools and system prompt."""
    shared = random.Random(11)
    tools = [_tool(shared, each) for each in range(_TOOLS)]
    system = {"role": "system", "content": _text(shared, _SYSTEM_BYTES)}
    draw = random.Random(1000 + 2 * number + stream)
    more: dict[str, object] = {"tools": tools, "stream": stream}
    if stream:
        more["stream_options"] = {"include_usage": True}
    found = []
    for session in range(sessions):
        name = f"{'s' if stream else 'w'}{number}-{session}"
        messages = [system, {"role": "user", "content": f"session {name}: " + _text(draw, 1500)}]
        bodies = []
        for turn in range(turns):
            bodies.append(Body(f"agent-{name}", _encode(messages, **more)))
            messages = messages + _call(draw, f"call_{name}_{turn}", turn, draw.choice(_RESULT_BYTES))
        found.append(bodies)
    return found


def as_messages(body: Body) -> Body:
    """A request converted to Anthropic's Messages API as its clients write it: blocks, with `cache_control` marks."""
    chat = json.loads(body.data)
    system = [
        {"type": "text", "text": each["content"], **_MARK} for each in chat["messages"] if each["role"] == "system"
    ]
    messages = [_message(each) for each in chat["messages"] if each["role"] != "system"]
    messages[-1]["content"][-1] |= _MARK
    found = {name: chat[name] for name in ("model", "max_tokens", "temperature", "stream") if name in chat}
    if "tools" in chat:
        tools = [each["function"] for each in chat["tools"]]
        found["tools"] = [
            {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
            for tool in tools
        ]
    data = json.dumps({**found, "system": system, "messages": messages}, ensure_ascii=False).encode()
    return Body(body.session, data)


def _message(chat: dict[str, Any]) -> dict[str, Any]:
    if chat["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": chat["tool_call_id"], "content": chat["content"]}
        return {"role": "user", "content": [result]}
    content: list[dict[str, Any]] = [{"type": "text", "text": chat["content"]}]
    for call in chat.get("tool_calls", ()):
        function = call["function"]
        given = json.loads(function["arguments"])
        content.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": given})
    return {"role": chat["role"], "content": content}
