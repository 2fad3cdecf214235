"""OpenAI's Responses over a WebSocket: through a real proxy, by the official client, in front of a scripted engine."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.resources.responses.responses import ResponsesConnection

from tests.subjects.processes import ProxyProcess
from tests.subjects.scripted import Handler, ScriptedEngine
from warmroute.contract import receipt as contract_receipt

# The official client connects as `websockets` no longer recommends.
pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")

MODEL = "kimi-k2.5"
PATH = "/v1/responses"
READ: Any = {
    "type": "function",
    "name": "read",
    "description": "Reads a file.",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    "strict": False,
}
PATCH: Any = {"type": "custom", "name": "apply_patch", "description": "Changes files."}
_OWN = re.compile(rb'"(rid|cache_salt|extra_key)":"[^"]*"')
_USAGE = {"prompt_tokens": 40, "completion_tokens": 4, "total_tokens": 44}


def delta(**fields: Any) -> dict[str, Any]:
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [
        {"index": 0, "delta": fields, "finish_reason": None}]}  # fmt: skip


def ending(reason: str) -> list[Any]:
    done = {**delta(), "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    return [done, {**delta(), "choices": [], "usage": _USAGE}, "[DONE]"]


def call(number: int, name: str, arguments: str) -> dict[str, Any]:
    return {"index": number, "id": f"call_{number}", "type": "function", "function": {
        "name": name, "arguments": arguments}}  # fmt: skip


def agent(handler: Handler) -> None:
    """Thinks, speaks and calls, by what it was asked last."""
    asked = handler.engine.sent()["messages"]
    last = asked[-1]
    if last["role"] == "tool":
        handler.stream(delta(content=f"I have read it, after {len(asked)}."), *ending("stop"))
    elif "fail" in json.dumps(last["content"]):
        handler.reply(400, b'{"message":"the engine does not like it"}')
    else:
        calls = [call(0, "read", '{"path":"a.txt"}'), call(1, "apply_patch", '{"input":"+a"}')]
        handler.stream(
            delta(reasoning_content="Let me "), delta(reasoning_content="see."), delta(content="Reading é."),
            delta(tool_calls=calls), *ending("tool_calls"),
        )  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    started = ScriptedEngine("a0", agent)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def proxy(engine: ScriptedEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    started = ProxyProcess(tmp_path_factory.mktemp("proxy") / "p", [engine.toml()])
    try:
        yield started.start()
    finally:
        started.stop()


@pytest.fixture(scope="module")
def client(proxy: ProxyProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=proxy.keys[0], max_retries=0) as found:
        yield found


@pytest.fixture(scope="module")
def raw(proxy: ProxyProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=proxy.url, headers={"authorization": f"Bearer {proxy.keys[0]}"}) as found:
        yield found


def answer_of(connection: ResponsesConnection) -> Any:
    """The events up to a last one; that one."""
    for event in connection:
        if event.type in ("response.completed", "response.incomplete", "response.failed", "error"):
            return event
    raise AssertionError("the connection has closed")


def sent(engine: ScriptedEngine) -> bytes:
    """The last body without what belongs to one request."""
    return _OWN.sub(b"", engine.bodies[-1])


def test_a_turn_that_sends_what_is_new_reaches_the_engine_as_the_whole_over_http(
    client: openai.OpenAI, raw: httpx.Client, engine: ScriptedEngine, proxy: ProxyProcess
) -> None:
    more: Any = {"model": MODEL, "instructions": "Be short.", "tools": [READ, PATCH], "temperature": 0.5}
    whole: list[Any] = []
    previous: str | None = None
    turns: list[list[Any]] = [[{"role": "user", "content": "Read a.txt."}]]
    turns.append([{"type": "function_call_output", "call_id": "call_0", "output": "a"},
                  {"type": "custom_tool_call_output", "call_id": "call_1", "output": "done"}])  # fmt: skip
    turns.append([{"role": "user", "content": [{"type": "input_text", "text": "And b.txt?"}]}])
    with client.responses.connect() as connection:
        for items in turns:
            connection.response.create(**more, store=False, previous_response_id=previous, input=items)
            done = answer_of(connection)
            assert done.type == "response.completed", done
            over_websocket = sent(engine)
            assert contract_receipt.check(_chat_usage(done.response.usage)) == []
            assert proxy.row(done.response.usage.warmroute["id"])["route"] == PATH
            whole += items
            body = json.dumps({**more, "store": False, "input": whole, "stream": True}, ensure_ascii=False)
            assert raw.post(PATH, content=body).status_code == 200
            assert over_websocket == sent(engine)
            previous = done.response.id
            whole += [item.to_dict() for item in done.response.output]


def _chat_usage(usage: Any) -> dict[str, Any]:
    found = usage.model_dump()
    return {
        "prompt_tokens": found["input_tokens"],
        "completion_tokens": found["output_tokens"],
        "total_tokens": found["total_tokens"],
        "prompt_tokens_details": {"cached_tokens": found["input_tokens_details"]["cached_tokens"]},
        "cost": found["cost"],
        "warmroute": found["warmroute"],
    }


_ = httpx, Path
