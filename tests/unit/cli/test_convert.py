"""The conversion of each dialect to a chat-completions body."""

import gzip
import json
from types import ModuleType
from typing import Any


def test_anthropic_messages(convert: ModuleType) -> None:
    mark = {"type": "ephemeral"}
    body = {
        "model": "claude",
        "messages": [
            {"role": "user", "content": "hello"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "ls", "input": {"path": "/"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "etc", "cache_control": mark},
                    {"type": "text", "text": "go on"},
                ],
            },
        ],
        "system": [{"type": "text", "text": "be kind", "cache_control": mark}],
        "tools": [{"name": "ls", "description": "list", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto"},
        "metadata": {"user_id": "u"},
        "max_tokens": 10,
        "thinking": {"type": "enabled"},
        "stream": True,
    }
    assert convert.convert_request("/v1/messages?beta=true", body) == {
        "model": "claude",
        "tools": [
            {"type": "function", "function": {"name": "ls", "description": "list", "parameters": {"type": "object"}}}
        ],
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "be kind", "cache_control": mark}]},
            {"role": "user", "content": "hello"},
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "I look."}],
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "t1", "type": "function", "function": {"name": "ls", "arguments": '{"path":"/"}'}}
                ],
            },
            {
                "role": "tool",
                "tool_call_id": "t1",
                "content": [{"type": "text", "text": "etc", "cache_control": mark}],
            },
            {"role": "user", "content": [{"type": "text", "text": "go on"}]},
        ],
        "tool_choice": "auto",
        "max_tokens": 10,
        "metadata": {"user_id": "u"},
        "stream": True,
    }


def test_openai_responses(convert: ModuleType) -> None:
    function = {"type": "function", "name": "run", "description": "d", "parameters": {"type": "object"}}
    body = {
        "model": "gpt",
        "stream": True,
        "input": [
            {"type": "message", "id": "msg_1", "role": "developer", "content": [{"type": "input_text", "text": "be"}]},
            {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "run", "arguments": "{}"},
            {"type": "function_call", "id": "fc_2", "call_id": "c2", "name": "run", "arguments": "{}"},
            {"type": "function_call_output", "id": "fco_1", "call_id": "c1", "output": "done"},
            {"type": "function_call_output", "id": "fco_2", "call_id": "c2", "output": "done"},
            {"role": "developer", "content": "a reminder"},
        ],
        "tools": [
            function,
            {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "close"}]},
            {"type": "web_search", "external_web_access": True},
        ],
        "tool_choice": "auto",
        "reasoning": {"effort": "medium"},
        "max_output_tokens": 9,
        "store": False,
        "prompt_cache_key": "key",
    }
    found = convert.convert_request("/v1/responses", body)
    assert list(found)[:3] == ["model", "tools", "messages"]
    assert [tool["function"]["name"] for tool in found["tools"]] == ["run", "agents__close", "web_search"]
    call: dict[str, Any] = {"type": "function", "function": {"name": "run", "arguments": "{}"}}
    assert found["messages"] == [
        {"role": "system", "content": [{"type": "text", "text": "be"}]},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", **call}, {"id": "c2", **call}]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
        {"role": "tool", "tool_call_id": "c2", "content": "done"},
        {"role": "developer", "content": "a reminder"},
    ]
    rest = {name: value for name, value in found.items() if name not in {"model", "tools", "messages"}}
    assert rest == {
        "tool_choice": "auto",
        "max_tokens": 9,
        "reasoning_effort": "medium",
        "prompt_cache_key": "key",
        "stream": True,
    }


def test_gemini(convert: ModuleType) -> None:
    body = {
        "contents": [
            {"role": "user", "parts": [{"text": "hello"}]},
            {
                "role": "model",
                "parts": [
                    {"text": "hm", "thought": True},
                    {"functionCall": {"id": "g1", "name": "ls", "args": {"p": 1}}, "thoughtSignature": "s"},
                ],
            },
            {"role": "user", "parts": [{"functionResponse": {"id": "g1", "name": "ls", "response": {"output": "x"}}}]},
        ],
        "systemInstruction": {"role": "user", "parts": [{"text": "be kind"}]},
        "tools": [{"functionDeclarations": [{"name": "ls", "parametersJsonSchema": {"type": "object"}}]}],
        "generationConfig": {"temperature": 1, "topP": 0.95, "topK": 64},
    }
    found = convert.convert_request("/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse", body)
    assert found == {
        "model": "gemini-2.5-pro",
        "tools": [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}],
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "be kind"}]},
            {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "tool_calls": [{"id": "g1", "type": "function", "function": {"name": "ls", "arguments": '{"p":1}'}}],
            },
            {"role": "tool", "tool_call_id": "g1", "content": '{"output":"x"}'},
        ],
        "temperature": 1,
        "top_p": 0.95,
        "stream": True,
    }


def test_chat_bodies_are_only_reordered(convert: ModuleType) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "model": "m", "unknown": {"kept": 1}, "tools": [{"a": 1}]}
    found = convert.convert_request("/v1/chat/completions", body)
    assert found == body
    assert list(found) == ["model", "tools", "messages", "unknown"]


def test_headers_lose_credentials_and_transport(convert: ModuleType) -> None:
    headers = [["Authorization", "masked"], ["Host", "h"], ["Content-Length", "1"], ["X-Session-Id", "s"]]
    assert convert.kept_headers(headers) == {"X-Session-Id": "s"}


def test_samples_keep_each_part_once_and_have_the_same_bytes_every_time(convert: ModuleType) -> None:
    first = {"role": "user", "content": "x"}
    bodies = [{"model": "m", "messages": [first]}, {"model": "m", "messages": [first, first]}]
    lines = [
        json.dumps({"n": n, "path": "/v1/chat/completions", "headers": [["A", "b"]], "body": body})
        for n, body in enumerate(bodies)
    ]
    sample = convert.to_sample("oc_test", lines)
    assert sample["parts"] == [first]
    assert [request["messages"] for request in sample["requests"]] == [[0], [0, 0]]
    assert (sample["harness"], sample["headers"]) == ("opencode", [{"A": "b"}])
    data = convert.compress(sample)
    assert data == convert.compress(convert.to_sample("oc_test", lines))
    assert json.loads(gzip.decompress(data)) == sample
