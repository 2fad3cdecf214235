"""A conversation that Codex has summed up, and a search for tools that it runs, on real engines."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.subjects.processes import ProxyProcess
from tests.subjects.websockets import Socket

from .test_responses import MODEL, PATH, READ, events_of, script

SUMMARY = "The user wants a.txt read; it was."
LONG: list[Any] = [
    {"role": "user", "content": "Read a.txt. " + "Look closely. " * 200},
    {"type": "function_call", "call_id": "c1", "name": "read", "arguments": '{"path": "a.txt"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "hello"},
]
TRIGGER: Any = {"type": "compaction_trigger"}


def calling(name: str, arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


@pytest.fixture(scope="module")
def client(proxy: ProxyProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=proxy.keys[0], max_retries=0) as found:
        yield found


@pytest.mark.parametrize("streams", [False, True])
def test_a_summary_is_one_sealed_item_and_comes_back_as_what_a_user_says(client: openai.OpenAI, streams: bool) -> None:
    asked: Any = {"model": MODEL, "tools": [READ], "instructions": f"Be short. {streams}", "metadata": script()}
    before = client.responses.create(input=LONG, **asked)
    asked["metadata"] = script({"text": SUMMARY})
    if streams:
        with client.responses.stream(input=[*LONG, TRIGGER], **asked) as stream:
            done = [event for event in stream if event.type == "response.output_item.done"]
            answer = stream.get_final_response()
        assert len(done) == 1
    else:
        answer = client.responses.parse(input=[*LONG, TRIGGER], **asked)
    assert [item.type for item in answer.output] == ["compaction"]
    assert answer.status == "completed"
    assert before.usage is not None
    assert answer.usage is not None
    assert answer.usage.input_tokens_details.cached_tokens > before.usage.input_tokens - 128
    item: Any = answer.output[0].to_dict()
    assert SUMMARY not in item["encrypted_content"]
    asked["metadata"] = script({"text": "ok"})
    onward = client.responses.create(input=[item, {"role": "user", "content": "go on"}], **asked)
    usage: Any = onward.usage
    assert usage.warmroute.get("dropped_blocks") is None
    alone = client.responses.create(input=[{"role": "user", "content": "go on"}], **asked).usage
    assert alone is not None
    assert usage.input_tokens > alone.input_tokens + len(SUMMARY) // 8


def test_compact_gives_users_messages_and_the_item(raw: httpx.Client) -> None:
    body = {"model": MODEL, "input": LONG, "instructions": "Be short.", "metadata": script({"text": SUMMARY})}
    found = raw.post(f"{PATH}/compact", json=body).json()
    assert found["object"] == "response.compaction"
    assert [(item["type"], item.get("role")) for item in found["output"]] == [("message", "user"), ("compaction", None)]
    assert found["usage"]["input_tokens"] > 100
    onward = raw.post(PATH, json={"model": MODEL, "input": [*found["output"], {"role": "user", "content": "go on"}]})
    assert "dropped_blocks" not in onward.json()["usage"]["warmroute"]


def test_a_summary_that_the_model_does_not_write_is_an_error(raw: httpx.Client) -> None:
    body = {"model": MODEL, "tools": [READ], "input": [*LONG, TRIGGER], "metadata": script({}, calling("read", {}))}
    whole = raw.post(PATH, json=body)
    assert (whole.status_code, whole.json()["error"]["code"]) == (502, "engine_error")
    failed = events_of(raw.post(PATH, json={**body, "stream": True}))[-1]
    assert failed["type"] == "response.failed"


@pytest.mark.parametrize("streams", [False, True])
def test_a_search_for_tools_is_called_as_one_and_what_it_finds_is_offered(raw: httpx.Client, streams: bool) -> None:
    search = {"type": "tool_search", "execution": "client", "description": "d", "parameters": {"type": "object"}}
    body: dict[str, Any] = {"model": MODEL, "tools": [READ, search], "stream": streams}
    items: list[Any] = [{"role": "user", "content": f"Plan it. {streams}"}]

    def output(metadata: Any) -> dict[str, Any]:
        answer = raw.post(PATH, json={**body, "input": items, "metadata": metadata})
        (found,) = (events_of(answer)[-1]["response"] if streams else answer.json())["output"]
        return dict(found)

    called = output(script(calling("tool_search", {"query": "calendar"})))
    shown = [called[name] for name in ("type", "execution", "arguments")]
    assert shown == ["tool_search_call", "client", {"query": "calendar"}]
    tools = [{"type": "namespace", "name": "calendar", "description": "d", "tools": [{**READ, "name": "create"}]}]
    found = {"type": "tool_search_output", "call_id": called["call_id"], "execution": "client", "tools": tools}
    items += [called, {**found, "status": "completed"}]
    second = output(script({}, calling("calendar__create", {"path": "x"})))
    shown = [second[name] for name in ("type", "name", "namespace", "arguments")]
    assert [*shown[:3], json.loads(shown[3])] == ["function_call", "create", "calendar", {"path": "x"}]


def test_over_a_websocket_a_summary_ends_what_the_connection_has(proxy: ProxyProcess) -> None:
    """Codex compacts there, and then sends what is left of its history."""
    with Socket(proxy) as socket:
        first = socket.answer(input=LONG, tools=[READ], metadata=script({}))
        asked: Any = {"tools": [READ], "metadata": script({"text": SUMMARY})}
        summed = socket.answer(previous_response_id=first["id"], input=[TRIGGER], **asked)
        assert [item["type"] for item in summed["output"]] == ["compaction"]
        assert socket.answer(input=[*summed["output"], {"role": "user", "content": "go on"}])["status"] == "completed"
        lost = socket.ask("and on", previous_response_id=summed["id"])
        assert lost["error"]["code"] == "previous_response_not_found"
