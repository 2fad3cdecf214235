"""Requests of other APIs above 2 MiB are translated in another process, and are served like any other."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.subjects.processes import ProxyProcess
from tests.subjects.scripted import Handler, ScriptedEngine, whole
from warmroute_proxy.server.http.shared_bytes import LARGE_BYTES

pytestmark = pytest.mark.full

MODEL = "kimi-k2.5"
LARGE = "tell me about caf\u00e9s, " * (LARGE_BYTES // 14)  # 3 MB
IMAGE = base64.b64encode(bytes(range(255)) * 40_000).decode()  # 10 MB, without padding
URL = f"data:image/png;base64,{IMAGE}"
ANSWER = whole({"prompt_tokens": 5, "completion_tokens": 1})
GEMINI = f"/v1beta/models/{MODEL}:generateContent"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
TOOLS = [{"type": "custom", "name": "patch"}, {"type": "web_search"}]


def answers(handler: Handler) -> None:
    if handler.path == "/v1/tokenize":
        handler.reply(200, b'{"tokens":[1,2,3],"count":3,"max_model_len":9}')
    else:
        handler.reply(200, ANSWER)


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine("east-e0", answers) as made:
        yield made


@pytest.fixture(scope="module")
def raw(engine: ScriptedEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    # The estimate of 3 MB depends on what the engine has counted before: a count has to fit either way.
    limits = "counted_tokens_per_minute = 1_000_000_000"
    folder = tmp_path_factory.mktemp("large")
    with ProxyProcess(folder / "p", [engine.toml()], limits=limits) as proxy, proxy.client() as client:
        yield client


def asked_of(path: str, *, image: bool) -> dict[str, Any]:
    """A large request to a path."""
    if path == GEMINI:
        pieces = [{"inlineData": {"mimeType": "image/png", "data": IMAGE}}] if image else [{"text": LARGE}]
        return {"contents": [{"parts": pieces}], "tools": [{"googleSearch": {}}]}
    part = {"type": "input_image", "image_url": URL} if image else {"type": "input_text", "text": LARGE}
    return {"model": MODEL, "input": [{"role": "user", "content": [part]}], "tools": TOOLS, "temperature": 0.5}


def sent(client: httpx.Client, path: str, asked: dict[str, Any]) -> httpx.Response:
    content = json.dumps(asked, ensure_ascii=False).encode()
    assert len(content) > LARGE_BYTES
    return client.post(path, content=content)


@pytest.mark.parametrize("image", [False, True], ids=["text", "image"])
@pytest.mark.parametrize("path", [RESPONSES, GEMINI])
def test_a_large_request_is_served(raw: httpx.Client, engine: ScriptedEngine, path: str, image: bool) -> None:
    answer = sent(raw, path, asked_of(path, image=image))
    assert answer.status_code == 200, answer.text
    found = answer.json()
    usage = found["usageMetadata"] if path == GEMINI else found["usage"]
    assert usage["warmroute"]["dropped_fields"] == ["googleSearch" if path == GEMINI else "web_search"]
    assert found.get("temperature", 0.5) == 0.5
    got = engine.sent()["messages"][0]["content"]
    assert got == ([{"type": "image_url", "image_url": {"url": URL}}] if image else LARGE)


@pytest.mark.parametrize("path", [RESPONSES, GEMINI])
def test_what_is_wrong_is_said_in_their_shape(raw: httpx.Client, engine: ScriptedEngine, path: str) -> None:
    before = len(engine.bodies)
    asked = asked_of(path, image=False)
    wrong = {"generationConfig": {"candidateCount": 2}} if path == GEMINI else {"background": True}
    answer = sent(raw, path, asked | wrong)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, 400 if path == GEMINI else "invalid_value")
    assert next(iter(wrong)) in error["message"]
    assert len(engine.bodies) == before


def body(messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 5, "messages": messages, **more}


def block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}


def test_a_long_conversation_of_messages(raw: httpx.Client, engine: ScriptedEngine) -> None:
    said = [block(LARGE)]
    asked = body(
        [{"role": "user", "content": said}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    )
    answer = sent(raw, MESSAGES, asked)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["type"], answer.json()["usage"]["warmroute"]["cache_control"]) == ("message", 1)
    got = engine.sent()
    assert [message["role"] for message in got["messages"]] == ["user", "assistant", "user"]
    assert got["messages"][0]["content"] == LARGE
    assert got["cache_salt"]


def test_a_large_image_of_messages(raw: httpx.Client, engine: ScriptedEngine) -> None:
    data = IMAGE + IMAGE
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    answer = sent(raw, MESSAGES, body([{"role": "user", "content": [image, block("what is it?")]}]))
    assert answer.status_code == 200, answer.text
    got = engine.sent()["messages"][0]["content"]
    assert got[0]["image_url"]["url"] == f"data:image/png;base64,{data}"
    assert got[1]["text"] == "what is it?"


def test_a_body_that_grows_beyond_its_memory(raw: httpx.Client, engine: ScriptedEngine) -> None:
    """Calls are longer in chat than they were, and the client's body fills all that was taken for it."""
    numbers = range(14_000)
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": f"{at}", "name": "f", "input": {}} for at in numbers],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"{at}"} for at in numbers]},
        {"role": "user", "content": "x"},
    ]
    messages[-1]["content"] = "x" * (2 * LARGE_BYTES - len(json.dumps(body(messages))))
    answer = sent(raw, MESSAGES, body(messages))
    assert answer.status_code == 200, answer.text
    got = engine.sent()["messages"]
    assert [call["id"] for call in got[1]["tool_calls"]] == [message["tool_call_id"] for message in got[2:-1]]
    assert len(engine.bodies[-1]) > 2 * LARGE_BYTES + 100_000


def test_tokens_of_messages_are_counted(raw: httpx.Client, engine: ScriptedEngine) -> None:
    asked = body([{"role": "user", "content": LARGE}])
    answer = sent(raw, f"{MESSAGES}/count_tokens", asked)
    assert answer.json() == {"input_tokens": 3, "warmroute": {"estimated": []}}
    assert engine.sent()["messages"][0]["content"] == LARGE


@pytest.mark.parametrize(
    ("asked", "status", "kind", "text"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens: is required"),
        ({"model": "gpt-9"}, 404, "not_found_error", "gpt-9"),
        ({"temperature": "hot"}, 400, "invalid_request_error", "temperature"),
        ({"tools": [3]}, 400, "invalid_request_error", "tools.0"),
    ],
    ids=["missing", "model", "type", "tool"],
)  # fmt: skip
def test_what_is_wrong_with_messages_is_said_in_their_shape(
    raw: httpx.Client, engine: ScriptedEngine, asked: dict[str, Any], status: int, kind: str, text: str
) -> None:
    before = len(engine.bodies)
    answer = sent(raw, MESSAGES, body([{"role": "user", "content": LARGE}]) | asked)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (status, kind)
    assert text in error["message"]
    assert "x-warmroute-receipt" not in answer.headers
    assert len(engine.bodies) == before
