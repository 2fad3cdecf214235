"""What an engine gives with a call, and wants back with it, comes back through each API, whole and streamed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec import Raw

from tests.apis.folded import of_gemini, of_messages, of_responses
from tests.apis.played import Answered, Scene, completion
from warmroute_proxy.dialects.call_extras import carrying, parted

EXTRA: Final = {"google": {"thought_signature": "CiQBVKhc7h9Kt0Wk/+=" + "x" * 2000}}
CALL: Final = {
    "index": 0, "id": "call_x7", "type": "function",
    "function": {"name": "read_file", "arguments": '{"path":"a"}'}, "extra_content": EXTRA,
}  # fmt: skip
SECOND: Final = {**CALL, "index": 1, "id": "call_x8", "extra_content": None}
USAGE: Final = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
SCHEMA: Final = {"type": "object"}


def messages(answer: dict[str, Any] | None, *, streams: bool) -> dict[str, Any]:
    turns: list[Any] = [{"role": "user", "content": "one"}]
    if answer is not None:
        ids = [block["id"] for block in answer["content"]]
        results = [{"type": "tool_result", "tool_use_id": each, "content": "text"} for each in ids]
        turns += [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": results}]
    tools = [{"name": "read_file", "input_schema": SCHEMA}]
    return {"model": "claude-x", "max_tokens": 9, "messages": turns, "tools": tools, "stream": streams}


def responses(answer: dict[str, Any] | None, *, streams: bool) -> dict[str, Any]:
    items: list[Any] = [{"role": "user", "content": "one"}]
    if answer is not None:
        ids = [item["call_id"] for item in answer["output"]]
        items += answer["output"]
        items += [{"type": "function_call_output", "call_id": each, "output": "text"} for each in ids]
    tools = [{"type": "function", "name": "read_file", "parameters": SCHEMA}]
    return {"model": "gpt-5.6", "input": items, "tools": tools, "stream": streams}


def gemini(answer: dict[str, Any] | None, *, streams: bool) -> dict[str, Any]:
    contents: list[Any] = [{"role": "user", "parts": [{"text": "one"}]}]
    if answer is not None:
        said = answer["candidates"][0]["content"]
        calls = [part["functionCall"] for part in said["parts"] if "functionCall" in part]
        results = [{"functionResponse": {"id": each["id"], "name": each["name"], "response": {}}} for each in calls]
        contents += [said, {"role": "user", "parts": results}]
    return {"contents": contents, "tools": [{"functionDeclarations": [{"name": "read_file"}]}]}


BODIES: Final[dict[str, tuple[str, Callable[..., dict[str, Any]]]]] = {
    "messages": ("/v1/messages", messages),
    "responses": ("/v1/responses", responses),
    "gemini": ("/v1beta/models/gemini-2.5-pro", gemini),
}
STREAMED: Final = {"messages": of_messages, "responses": of_responses, "gemini": of_gemini}


def read(api: str, answered: Answered, *, streams: bool) -> dict[str, Any]:
    """The answer as the client has it."""
    found: dict[str, Any] = STREAMED[api](answered.body.decode()) if streams else json.loads(answered.body)
    return found


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("api", ["messages", "responses", "gemini"])
def test_a_signature_comes_back_with_its_call(tmp_path: Path, api: str, streams: bool) -> None:
    says = completion({"tool_calls": [CALL, SECOND]}, USAGE, stream=streams, reason="tool_calls")
    path, body = BODIES[api]
    if api == "gemini":
        path += ":streamGenerateContent?alt=sse" if streams else ":generateContent"

    def turn(answers: list[Answered]) -> bytes:
        before = read(api, answers[-1], streams=streams) if answers else None
        return json.dumps(body(before, streams=streams), separators=(",", ":")).encode()

    scene = Scene(tmp_path / "p", [says, says], engine_count=1)
    scene.play_turns(path, [turn, turn])
    _, called, *results = scene.sent[1][1]["messages"]
    assert called["tool_calls"] == [
        {name: value for name, value in call.items() if name != "index" and value is not None}
        for call in (CALL, SECOND)
    ]
    assert [result["tool_call_id"] for result in results] == ["call_x7", "call_x8"]


@pytest.mark.parametrize("call_id", ["call-xc-", "call-xc-e30x", "call-xc-W10", "a-xc-" + "A" * 20_000])
def test_an_id_that_only_looks_like_one_that_carries_stays(call_id: str) -> None:
    assert parted(call_id) == (call_id, None)


def test_what_is_too_long_is_not_carried() -> None:
    assert carrying("call_1", Raw(b'{"a":"%b"}' % (b"x" * 20_000))) == "call_1"
