"""Anthropic's messages through a real proxy and real engines, by the official client."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from tests.subjects.processes import ProxyProcess
from warmroute.contract import receipt as contract_receipt

MODEL = "kimi-k2.5"
TOOLS: list[Any] = [
    {
        "name": "read",
        "description": "Reads a file.",
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
]
CALLS = {"tool_calls": [{"name": "read", "arguments": {"path": "a.txt"}}, {"name": "read", "arguments": {}}]}


@pytest.fixture(scope="module")
def client(proxy: ProxyProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=proxy.url, api_key=proxy.keys[0], max_retries=0) as found:
        yield found


@pytest.fixture(scope="module")
def raw(proxy: ProxyProcess) -> Iterator[httpx.Client]:
    headers = {"x-api-key": proxy.keys[0], "anthropic-version": "2023-06-01"}
    with httpx.Client(base_url=proxy.url, headers=headers) as found:
        yield found


def body(text: str, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 64, "messages": [{"role": "user", "content": text}], **more}


def script(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"script": json.dumps(steps)}


def test_a_whole_answer_has_usage_and_a_sound_receipt(client: anthropic.Anthropic, proxy: ProxyProcess) -> None:
    answer = client.messages.create(**body("whole", system="Be short.", metadata=script({"text": "Hello."})))
    assert (answer.role, answer.model, answer.stop_reason) == ("assistant", MODEL, "end_turn")
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "Hello."}]
    assert answer.usage.cache_creation_input_tokens == 0
    usage = answer.usage.model_dump()
    assert contract_receipt.check(usage) == []
    assert answer._request_id == usage["warmroute"]["id"]
    row = proxy.row(str(answer._request_id))
    assert (row["route"], row["outcome"]) == ("/v1/messages", "completed")


def test_a_stream_is_the_same_message(client: anthropic.Anthropic) -> None:
    asked = body("streamed")
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        events = list(stream)
        streamed = stream.get_final_message()
    assert [block.to_dict() for block in streamed.content] == [block.to_dict() for block in whole.content]
    assert (streamed.stop_reason, streamed.model) == (whole.stop_reason, whole.model)
    usage = next(event.usage for event in events if event.type == "message_delta")
    assert contract_receipt.check(usage.model_dump()) == []
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert (events[0].type, events[-1].type) == ("message_start", "message_stop")
    first: Any = events[0]
    assert first.message.usage.input_tokens + (first.message.usage.cache_read_input_tokens or 0) > 0


@pytest.mark.parametrize("streams", [False, True])
def test_tools_are_called_and_their_results_come_back_warm(client: anthropic.Anthropic, streams: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": f"Read a.txt. {streams} " + "Look closely. " * 200}]
    more: Any = {"tools": TOOLS, "metadata": script(CALLS, {"text": "Done."})}

    def turn() -> tuple[Any, Any]:
        """The message and its receipt."""
        if not streams:
            answer: Any = client.messages.create(model=MODEL, max_tokens=64, messages=messages, **more)
            return answer, answer.usage.warmroute
        with client.messages.stream(model=MODEL, max_tokens=64, messages=messages, **more) as stream:
            ends: list[Any] = [event for event in stream if event.type == "message_delta"]
            return stream.get_final_message(), ends[0].usage.warmroute

    asked, receipt = turn()
    assert asked.stop_reason == "tool_use"
    called = [(block.type, block.input) for block in asked.content]
    assert called == [("tool_use", {"path": "a.txt"}), ("tool_use", {})]
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "no"}], "is_error": True}
        for block in asked.content
    ]
    messages += [{"role": "assistant", "content": asked.content}, {"role": "user", "content": results}]
    done, next_receipt = turn()
    assert (done.stop_reason, done.content[0].text) == ("end_turn", "Done.")
    assert done.usage.cache_read_input_tokens > 500
    assert next_receipt["turn"] == receipt["turn"] + 1
    assert next_receipt["session"] == receipt["session"]


def test_a_session_of_claude_code_is_recognised(raw: httpx.Client) -> None:
    user = {"user_id": json.dumps({"device_id": "d", "account_uuid": "", "session_id": "5f2c"})}
    by_body = raw.post("/v1/messages?beta=true", json=body("who", metadata=user)).json()
    by_header = raw.post("/v1/messages", json=body("who"), headers={"x-claude-code-session-id": "5f2c"}).json()
    session = by_body["usage"]["warmroute"]["session"]
    assert session is not None
    assert by_header["usage"]["warmroute"]["session"] == session


def test_a_chat_with_the_same_prompt_is_warm(raw: httpx.Client, proxy: ProxyProcess) -> None:
    """Both are one prompt to the engine."""
    text = "one prompt, two dialects " * 100
    raw.post("/v1/messages", json=body(text))
    asked = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 8}
    headers = {"authorization": f"Bearer {proxy.keys[0]}"}
    usage = raw.post("/v1/chat/completions", json=asked, headers=headers).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 300


def test_reasoning_comes_back_by_its_signature(raw: httpx.Client) -> None:
    thinks = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    asked = body("why", **thinks, metadata=script({"text": "So."}))
    thought, text = raw.post("/v1/messages", json=asked).json()["content"]
    assert (thought["type"], text["text"]) == ("thinking", "So.")
    assert thought["thinking"]
    told = [*asked["messages"], {"role": "assistant", "content": [thought, text]}, {"role": "user", "content": "and?"}]
    receipt = raw.post("/v1/messages", json={**asked, "messages": told}).json()["usage"]["warmroute"]
    assert "dropped_blocks" not in receipt
    redacted = {"type": "redacted_thinking", "data": "x"}
    told[1]["content"] = [{**thought, "thinking": "Because."}, redacted, text]
    receipt = raw.post("/v1/messages", json={**asked, "messages": told}).json()["usage"]["warmroute"]
    assert receipt["dropped_blocks"] == {"thinking": 1, "redacted_thinking": 1}


def test_models_in_their_shape(client: anthropic.Anthropic, raw: httpx.Client, proxy: ProxyProcess) -> None:
    listed = client.models.list()
    assert [(model.id, model.type) for model in listed] == [(MODEL, "model"), ("other", "model")]
    assert client.models.retrieve("claude-opus-9").id == MODEL, "by a pattern"
    with pytest.raises(anthropic.NotFoundError) as refused:
        client.models.retrieve("gpt-9")
    assert refused.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    headers = {"authorization": f"Bearer {proxy.keys[0]}"}
    assert httpx.get(f"{proxy.url}/v1/models", headers=headers).json()["object"] == "list"


def test_tokens_are_counted_and_not_billed(client: anthropic.Anthropic) -> None:
    text = "How many tokens is this? " * 50
    used = client.messages.create(**body(text)).usage
    asked = client.messages.with_raw_response
    answer = asked.count_tokens(model=MODEL, messages=[{"role": "user", "content": text}])
    assert "x-warmroute-receipt" not in answer.headers
    counted = answer.parse()
    tokens = used.input_tokens + (used.cache_read_input_tokens or 0)
    assert counted.input_tokens == tokens
    assert counted.to_dict()["warmroute"] == {"estimated": []}


def test_a_retry_with_an_idempotency_key_gets_the_same_message(raw: httpx.Client) -> None:
    for more in ({}, {"stream": True}):
        headers = {"idempotency-key": f"key-{len(more)}"}
        first = raw.post("/v1/messages", json=body("again", **more), headers=headers)
        again = raw.post("/v1/messages", json=body("again", **more), headers=headers)
        assert first.status_code == 200
        assert again.content == first.content
