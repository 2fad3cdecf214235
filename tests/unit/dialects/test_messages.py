"""Anthropic's messages in chat's terms, and chat's answers in theirs, case by case."""

import json
from typing import Any

import msgspec
import pytest

from warmroute_proxy.dialects.messages.answer import message
from warmroute_proxy.dialects.messages.errors import error as error_object
from warmroute_proxy.dialects.messages.events import EventTranslator
from warmroute_proxy.dialects.messages.request import ChatRequest, chat_request
from warmroute_proxy.dialects.messages.signatures import is_signed, signature_of
from warmroute_proxy.dialects.raw_json import BadRequest
from warmroute_proxy.normalising.texts import Texts

KEY = b"k" * 32


def no_rules(_model: str) -> Texts:
    return Texts(frozenset())


def translator() -> EventTranslator:
    return EventTranslator("msg_1", "m", (), KEY)


def events_of(text: bytes) -> list[dict[str, Any]]:
    return [json.loads(block.partition("\ndata: ")[2]) for block in text.decode().split("\n\n")[:-1]]


def read(**members: Any) -> ChatRequest:
    asked = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    return chat_request(json.dumps(asked | members).encode(), KEY, no_rules)


def chat(**members: Any) -> Any:
    return msgspec.json.decode(read(**members).body)


def test_settings_have_chats_names() -> None:
    found = chat(
        stop_sequences=["a"],
        top_k=3,
        top_p=0.5,
        temperature=1,
        stream=True,
        thinking={"type": "enabled", "budget_tokens": 2000},
        metadata={"user_id": "u"},
        tools=[{"name": "f", "description": "d", "input_schema": {"type": "object"}, "cache_control": {}}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )
    assert found == {
        "model": "m",
        "max_tokens": 5,
        "temperature": 1,
        "top_p": 0.5,
        "top_k": 3,
        "stream": True,
        "metadata": {"user_id": "u"},
        "stop": ["a"],
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"thinking": True, "enable_thinking": True},
        "tools": [
            {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
        ],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "messages": [{"role": "user", "content": "hi"}],
    }


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_how_tools_are_chosen(choice: Any, expected: Any) -> None:
    assert chat(tool_choice=choice, tools=[{"name": "f", "input_schema": {}}])["tool_choice"] == expected


def test_a_turn_with_thoughts_calls_and_results() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "look"}, image]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": signature_of(KEY, "hm")},
                {"type": "thinking", "thinking": "another's", "signature": "EqQBCkgIARABGAIi"},
                {"type": "thinking", "thinking": "unsigned"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"b": 1, "a": 2}},
            ],
        },
        {"role": "system", "content": "be quick"},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": [image]},
                {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D"}},
            ],
        },
    ]
    found = read(messages=messages)
    shown = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": 2}'}}
    assert msgspec.json.decode(found.body)["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "look"}, shown]},
        {"role": "assistant", "reasoning_content": "hm", "content": None, "tool_calls": [call]},
        {"role": "system", "content": "be quick"},
        {"role": "tool", "tool_call_id": "t1", "content": "The tool failed:"},
        {"role": "user", "content": [shown, {"type": "text", "text": "T\nD"}]},
    ]
    assert found.dropped == frozenset()
    assert found.dropped_blocks == {"redacted_thinking": 1, "thinking": 2}


def test_marks_are_taken_off_and_counted() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    long = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    results = [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "r", **mark}], **long}]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "u", **long}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}, **mark}]},
        {"role": "user", "content": results},
    ]
    tools = [{"name": "f", "input_schema": {}, **long}]
    found = read(messages=messages, tools=tools, system=[{"type": "text", "text": "s", **mark}], **mark)
    assert found.cache_marks == 7
    assert b"cache_control" not in found.body


def test_tools_of_anthropics_are_dropped_beside_ones_own_and_refused_alone() -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    found = read(tools=[search, {"name": "f", "input_schema": {}}])
    assert [tool["function"]["name"] for tool in msgspec.json.decode(found.body)["tools"]] == ["f"]
    assert found.dropped == {"tools.web_search_20250305"}
    with pytest.raises(BadRequest, match="tools: only Anthropic runs web_search_20250305, and no other"):
        read(tools=[search])


def test_reasoning_is_signed_alike_whole_and_in_a_stream() -> None:
    said = {"role": "assistant", "content": "a", "reasoning_content": "one \u00e9 two"}
    raw = json.dumps({"choices": [{"message": said, "finish_reason": "stop"}]}).encode()
    whole = msgspec.json.decode(message(raw, "msg_1", "m", (), KEY))["content"][0]
    streamed = events_of(
        translator().feed(stream_of({"reasoning_content": "one "}, {"reasoning_content": "\u00e9 two"}))
    )
    deltas = [event["delta"] for event in streamed if event["type"] == "content_block_delta"]
    assert deltas[-1] == {"type": "signature_delta", "signature": whole["signature"]}
    assert "".join(delta.get("thinking", "") for delta in deltas) == whole["thinking"]
    assert is_signed(KEY, whole["thinking"], whole["signature"])


@pytest.mark.parametrize("signature", ["", "wr1.", "wr1.x", signature_of(b"o" * 32, "hm"), signature_of(KEY, "hm "), 3])
def test_what_has_another_signature_is_dropped(signature: Any) -> None:
    answer = [{"type": "thinking", "thinking": "hm", "signature": signature}, {"type": "text", "text": "a"}]
    found = read(messages=[{"role": "assistant", "content": answer}, {"role": "user", "content": "b"}])
    assert msgspec.json.decode(found.body)["messages"][0] == {"role": "assistant", "content": "a"}
    assert found.dropped_blocks == {"thinking": 1}


@pytest.mark.parametrize(
    ("members", "where"),
    [
        ({"model": 3}, "model: must be a text"),
        ({"stop_sequences": "a"}, "stop_sequences: must be a list of texts"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type: must be one of"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema: is required"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages.0.role: the last message"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages: no message holds anything"),
    ],
)
def test_what_is_wrong_is_named(members: dict[str, Any], where: str) -> None:
    with pytest.raises(BadRequest, match=where.replace("[", r"\[")):
        read(**members)


def test_an_answer_keeps_arguments_that_are_no_object() -> None:
    calls = [{"id": "t", "type": "function", "function": {"name": "f", "arguments": "[1"}}]
    said = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": calls}
    raw = json.dumps({"choices": [{"message": said, "finish_reason": "tool_calls"}]}).encode()
    found = msgspec.json.decode(message(raw, "msg_1", "m", (), KEY))
    assert found["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": signature_of(KEY, "hm")},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"arguments": "[1"}},
    ]
    assert found["stop_reason"] == "tool_use"


def stream_of(*deltas: dict[str, Any], reason: str = "stop") -> bytes:
    chunks: list[Any] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    chunks.append({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}})
    return b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks) + b"data: [DONE]\n\n"


def call(index: int, arguments: str, call_id: str | None = None) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "id": call_id, "function": {"name": "f", "arguments": arguments}}]}


STREAM = b": the prompt is being computed\n\n" + stream_of(
    {"role": "assistant", "content": ""},
    {"reasoning_content": "hm"},
    {"content": "a"},
    {"content": "b"},
    call(0, "", "t0"),
    call(0, '{"x":'),
    call(0, "1}"),
    call(1, "{}", "t1"),
    reason="tool_calls",
)


def test_the_events_of_a_stream() -> None:
    text = translator().feed(STREAM).decode()
    events = events_of(text.encode())
    assert [line[7:] for line in text.splitlines() if line.startswith("event: ")] == [each["type"] for each in events]
    shown = [(e["type"], e.get("index"), (e.get("delta") or e.get("content_block") or {}).get("type")) for e in events]
    assert shown == [
        ("message_start", None, None),
        ("ping", None, None),
        ("content_block_start", 0, "thinking"),
        ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "signature_delta"),
        ("content_block_stop", 0, None),
        ("content_block_start", 1, "text"),
        ("content_block_delta", 1, "text_delta"),
        ("content_block_delta", 1, "text_delta"),
        ("content_block_stop", 1, None),
        ("content_block_start", 2, "tool_use"),
        ("content_block_delta", 2, "input_json_delta"),
        ("content_block_delta", 2, "input_json_delta"),
        ("content_block_stop", 2, None),
        ("content_block_start", 3, "tool_use"),
        ("content_block_delta", 3, "input_json_delta"),
        ("content_block_stop", 3, None),
        ("message_delta", None, None),
        ("message_stop", None, None),
    ]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert events[-2]["usage"]["input_tokens"] == 9


def test_it_makes_no_difference_how_a_stream_is_cut() -> None:
    whole = translator().feed(STREAM)
    by_byte = translator()
    assert b"".join(by_byte.feed(STREAM[at : at + 1]) for at in range(len(STREAM))) == whole


def test_an_error_in_a_stream_is_the_last_event() -> None:
    stream = translator()
    error = b'data: {"error":{"message":"gone","type":"server_error","code":"draining"}}\n\n'
    text = stream.feed(error + stream_of({"content": "a"}))
    assert text.count(b"event: ") == 1
    assert json.loads(text.partition(b"data: ")[2])["error"]["type"] == "overloaded_error"
    assert stream.ended


def test_a_call_that_had_ended_does_not_go_on() -> None:
    more = {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}
    with pytest.raises(ValueError, match="continued a tool call"):
        translator().feed(stream_of(call(0, "{}", "a"), call(1, "", "b"), more))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_errors_have_their_types(status: int, kind: str) -> None:
    found = json.loads(error_object(status, "why", "c"))
    assert found == {"type": "error", "error": {"type": kind, "message": "why", "code": "c"}}


def test_a_prompt_that_is_too_long_says_so_as_agents_look_for_it() -> None:
    found = json.loads(error_object(400, "why", "context_length_exceeded"))
    assert found["error"]["message"] == "prompt is too long: why"
