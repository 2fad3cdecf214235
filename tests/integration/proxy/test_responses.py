"""OpenAI's Responses through a real proxy and real engines, by the official client."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from tests.subjects.processes import ProxyProcess
from warmroute.contract import receipt as contract_receipt

MODEL = "kimi-k2.5"
PATH = "/v1/responses"
READ: Any = {
    "type": "function",
    "name": "read",
    "description": "Reads a file.",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    "strict": False,
}
PATCH: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Changes files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
AGENTS: Any = {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [{**READ, "name": "close"}]}


@pytest.fixture(scope="module")
def client(proxy: ProxyProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=proxy.keys[0], max_retries=0) as found:
        yield found


def script(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"script": json.dumps(steps)}


def turn(client: openai.OpenAI, streams: bool, **asked: Any) -> Any:
    """The response, whole or of a stream."""
    if not streams:
        return client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        return stream.get_final_response()


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """The events of a raw stream, each named as its type."""
    found = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert event["type"] == name.removeprefix("event: ")
        found.append(event)
    return found


def test_a_whole_answer_has_usage_and_a_sound_receipt(client: openai.OpenAI, proxy: ProxyProcess) -> None:
    answer = client.responses.create(
        model=MODEL, input="whole", instructions="Be short.", metadata=script({"text": "Hello."}), store=True
    )
    assert (answer.object, answer.status, answer.output_text, answer.model) == (
        "response",
        "completed",
        "Hello.",
        MODEL,
    )
    found: Any = answer
    assert found.store is False
    usage = found.usage.model_dump()
    assert contract_receipt.check(usage) == []
    assert answer._request_id == usage["warmroute"]["id"]
    row = proxy.row(str(answer._request_id))
    assert (row["route"], row["outcome"]) == (PATH, "completed")


def test_a_stream_is_the_same_response(client: openai.OpenAI) -> None:
    whole = client.responses.create(model=MODEL, input="streamed")
    with client.responses.stream(model=MODEL, input="streamed") as stream:
        events = list(stream)
        streamed = stream.get_final_response()
    assert streamed.output_text == whole.output_text
    used: Any = streamed.usage
    assert contract_receipt.check(used.model_dump()) == []
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"
    ]  # fmt: skip
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"
    ]  # fmt: skip


@pytest.mark.parametrize("streams", [False, True])
def test_tools_of_every_kind_are_called_and_come_back_warm(client: openai.OpenAI, streams: bool) -> None:
    items: list[Any] = [{"role": "user", "content": f"Read a.txt. {streams} " + "Look closely. " * 200}]
    calls = [
        {"name": "read", "arguments": {"path": "a.txt"}},
        {"name": "apply_patch", "arguments": {"input": 'say "hi"\n'}},
        {"name": "agents__close", "arguments": {}},
    ]
    says = script({"tool_calls": calls}, {"text": "Done."})
    asked: Any = {"model": MODEL, "tools": [READ, PATCH, AGENTS, {"type": "web_search"}], "metadata": says}
    called = turn(client, streams, input=items, **asked)
    shown = [(item.type, item.name, getattr(item, "namespace", None)) for item in called.output]
    assert shown == [
        ("function_call", "read", None), ("custom_tool_call", "apply_patch", None), ("function_call", "close", "agents")
    ]  # fmt: skip
    assert json.loads(called.output[0].arguments) == {"path": "a.txt"}
    assert called.output[1].input == 'say "hi"\n'
    assert called.usage.warmroute["dropped_fields"] == ["tools.format.grammar", "web_search"]
    items += [item.to_dict() for item in called.output]
    for item, text in zip(called.output, ("no", "changed", [{"type": "input_text", "text": "closed"}]), strict=True):
        kind = "custom_tool_call_output" if item.type == "custom_tool_call" else "function_call_output"
        items.append({"type": kind, "call_id": item.call_id, "output": text})
    done = turn(client, streams, input=items, **asked)
    assert done.output_text == "Done."
    assert done.usage.input_tokens_details.cached_tokens > 500
    assert done.usage.warmroute["turn"] == called.usage.warmroute["turn"] + 1


class _Point(BaseModel):
    x: int


def test_a_format_is_parsed(client: openai.OpenAI) -> None:
    answer = client.responses.parse(
        model=MODEL, input="a point", text_format=_Point, metadata=script({"text": '{"x": 3}'})
    )
    assert answer.output_parsed == _Point(x=3)


@pytest.mark.parametrize("summary", [None, "auto"])
@pytest.mark.parametrize("streams", [False, True])
def test_reasoning_comes_back_sealed(client: openai.OpenAI, summary: str | None, streams: bool) -> None:
    items: list[Any] = [{"role": "user", "content": f"Think. {summary} {streams} " + "Look closely. " * 200}]
    asked: Any = {"model": MODEL, "reasoning": {"effort": "high", "summary": summary}}
    thought = turn(client, streams, input=items, **asked)
    reasoning, message = thought.output
    assert (reasoning.type, message.type) == ("reasoning", "message")
    shown = reasoning.summary if summary else reasoning.content
    assert len(shown) == 1
    assert shown[0].text not in reasoning.encrypted_content
    assert thought.usage.output_tokens_details.reasoning_tokens > 0
    items += [item.to_dict() for item in thought.output] + [{"role": "user", "content": "Go on."}]
    again = turn(client, streams, input=items, **asked)
    assert again.usage.input_tokens_details.cached_tokens > thought.usage.input_tokens - 64
    assert "dropped_blocks" not in again.usage.warmroute
    items[1]["encrypted_content"] = "gAAAA" + reasoning.encrypted_content[5:]
    receipt = turn(client, streams, input=items, **asked).usage.warmroute
    assert receipt.get("dropped_blocks") == ({"reasoning": 1} if summary else None), "plain reasoning needs no seal"


def test_tokens_are_counted_and_not_billed(client: openai.OpenAI) -> None:
    text = "How many tokens is this? " * 50
    used = client.responses.create(model=MODEL, input=text).usage
    answer = client.responses.input_tokens.with_raw_response.count(model=MODEL, input=text)
    assert "x-warmroute-receipt" not in answer.headers
    assert used is not None
    assert answer.parse().input_tokens == used.input_tokens


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"input": None}, "input", "is required"),
    ({"input": ""}, "input", "is empty"),
    ({"input": []}, "input", "is empty"),
    ({"input": 3}, "input", "must be a text or a list"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "file:///etc/passwd"}]}]},
        "input[0].content[0].image_url",
        "must be an address or",
    ),
    ({"input": [{"type": "dance"}]}, "input", "holds nothing"),
    ({"model": None}, "model", "is required"),
    ({"store": "yes"}, "store", "must be true or false"),
    ({"tools": "all"}, "tools", "must be a list"),
    ({"tools": [{"type": "function"}]}, "tools[0].name", "is required"),
    ({"tools": [{"type": "function", "name": "f", "parameters": 3}]}, "tools[0].parameters", "must be a JSON object"),
    ({"tool_choice": "any"}, "tool_choice", "must be auto"),
    ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name", "no tool"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "must be one of"),
    ({"max_output_tokens": 0}, "max_output_tokens", "above 0"),
    ({"temperature": -1}, "temperature", "out of bounds"),
    ({"reasoning": {"summary": "long"}}, "reasoning.summary", "must be one of"),
]


@pytest.mark.parametrize(("more", "param", "problem"), BAD, ids=[f"{param} {problem}" for _, param, problem in BAD])
def test_bad_input_is_named_and_not_billed(raw: httpx.Client, more: dict[str, Any], param: str, problem: str) -> None:
    answer = raw.post(PATH, json={"model": MODEL, "input": "bad", **more})
    found = answer.json()["error"]
    assert (answer.status_code, found["type"], found["param"]) == (400, "invalid_request_error", param)
    assert problem in found["message"]
    assert "x-warmroute-receipt" not in answer.headers


def test_other_errors_have_their_types(raw: httpx.Client) -> None:
    def asked(sent: Any, **headers: str) -> tuple[int, str, str]:
        answer = raw.post(PATH, content=sent, headers=headers)
        found = answer.json()["error"]
        return answer.status_code, found["type"], found["code"]

    good = json.dumps({"model": MODEL, "input": "x"}).encode()
    assert asked(good, authorization="Bearer wrong") == (401, "authentication_error", "invalid_api_key")
    assert asked(good.replace(b"kimi", b"gpt-9"))[0::2] == (404, "model_not_found")
    assert asked(b"{")[0::2] == (400, "invalid_value")
    assert raw.get(PATH).status_code == 405


OFFER = {
    "connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}  # fmt: skip


def test_a_websocket_elsewhere_is_declined(raw: httpx.Client) -> None:
    answer = raw.get("/v1/chat/completions", headers=OFFER)
    assert (answer.status_code, answer.json()["error"]["code"]) == (426, "websocket_not_served")
    assert "POST" in answer.json()["error"]["message"]
