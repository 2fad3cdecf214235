"""The shapes of `/v1/chat/completions`, `/v1/completions` and `/generate`, from a real process."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from tests.contract.subject import Subject
from tests.machine import seconds

Json = dict[str, Any]


def chat(content: str, **more: Any) -> Json:
    return {"model": "any", "messages": [{"role": "user", "content": content}], **more}


def events(engine: Any, path: str, body: Json) -> list[Json]:
    """The events of a stream; the last one must be [DONE]."""
    return Subject("embedded", engine.url, engine.client).events(path, body)


def content(chunks: list[Json], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_each_chunk_is_a_token(engine: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(engine, "/v1/chat/completions", chat("running", max_tokens=5, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks if "usage" in chunk]
    assert counts == [1, 2, 3, 4, 5, 5]


def test_n_choices_count_the_prompt_once_and_the_answers_together(engine: Any) -> None:
    asked = chat("several", n=3, max_tokens=6)
    body = engine.client.post("/v1/chat/completions", json=asked).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in body["choices"]}) == 3
    assert body["usage"]["completion_tokens"] == 18
    chunks = events(engine, "/v1/chat/completions", asked)
    for index, choice in enumerate(body["choices"]):
        assert content(chunks, index) == choice["message"]["content"]


@pytest.mark.parametrize("switch", [{"reasoning_effort": "low"}, {"chat_template_kwargs": {"enable_thinking": True}}])
def test_reasoning_comes_before_content(engine: Any, switch: Json) -> None:
    chunks = events(engine, "/v1/chat/completions", chat("think", stream_options={"include_usage": True}, **switch))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]][1:-1]
    kinds = ["reasoning" if delta.get("reasoning_content") else "content" for delta in deltas]
    assert kinds == sorted(kinds, reverse=True)
    usage = chunks[-1]["usage"]
    assert usage["reasoning_tokens"] == kinds.count("reasoning") > 0
    assert usage["completion_tokens_details"] == {"reasoning_tokens": usage["reasoning_tokens"]}


def test_tool_calls_are_streamed_in_pieces(engine: Any) -> None:
    script = {"text": "Let me see.", "tool_calls": [{"name": "read", "arguments": {"path": "x.py"}}, {"name": "ls"}]}
    chunks = events(engine, "/v1/chat/completions", chat("tools", metadata={"script": script}))
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for chunk in chunks:
        for call in chunk["choices"][0]["delta"].get("tool_calls") or ():
            if call["id"] is not None:
                names[call["index"]] = call["function"]["name"]
            arguments[call["index"]] = arguments.get(call["index"], "") + call["function"]["arguments"]
    assert (names, arguments) == ({0: "read", 1: "ls"}, {0: '{"path":"x.py"}', 1: "{}"})
    assert content(chunks) == "Let me see."
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_scripted_error_is_an_event_then_usage_then_done(engine: Any) -> None:
    asked = chat("boom", metadata={"script": {"error_after_tokens": 3}}, stream_options={"include_usage": True})
    *before, error, usage = events(engine, "/v1/chat/completions", asked)
    assert len(before) == 3
    assert (error["error"]["object"], error["error"]["code"]) == ("error", 500)
    assert usage["choices"] == []
    whole = engine.client.post("/v1/chat/completions", json=asked)
    assert (whole.status_code, whole.json()["object"]) == (500, "error")


def test_concurrent_streams_all_end_with_their_own_text(engine: Any) -> None:
    async def one(client: httpx.AsyncClient, number: int) -> tuple[int, str]:
        asked = chat(f"parallel {number}", stream=True, max_tokens=40, ignore_eos=True)
        response = await client.post("/v1/chat/completions", json=asked)
        lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
        assert lines[-1] == "[DONE]"
        return number, content([json.loads(line) for line in lines[:-1]])

    async def everyone() -> dict[int, str]:
        limits = httpx.Limits(max_connections=60)
        async with httpx.AsyncClient(base_url=engine.url, limits=limits, timeout=seconds(20)) as client:
            return dict(await asyncio.gather(*(one(client, number) for number in range(50))))

    texts = asyncio.run(everyone())
    assert len(set(texts.values())) == 50
    assert all(len(text) == 40 * 4 for text in texts.values())
