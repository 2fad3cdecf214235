"""Responses and Gemini's requests above 2 MiB are translated in another process, and are served like any other."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.subjects.processes import ProxyProcess
from tests.subjects.scripted import Handler, ScriptedEngine, whole
from warmroute_proxy.server.http.shared_bytes import LARGE_BYTES

MODEL = "kimi-k2.5"
LARGE = "tell me about caf\u00e9s, " * (LARGE_BYTES // 14)  # 3 MB
IMAGE = base64.b64encode(bytes(range(256)) * 40_000).decode()  # 10 MB
URL = f"data:image/png;base64,{IMAGE}"
ANSWER = whole({"prompt_tokens": 5, "completion_tokens": 1})
GEMINI = f"/v1beta/models/{MODEL}:generateContent"
RESPONSES = "/v1/responses"
TOOLS = [{"type": "custom", "name": "patch"}, {"type": "web_search"}]


def answers(handler: Handler) -> None:
    handler.reply(200, ANSWER)


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine("east-e0", answers) as made:
        yield made


@pytest.fixture(scope="module")
def raw(engine: ScriptedEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with ProxyProcess(tmp_path_factory.mktemp("large") / "p", [engine.toml()]) as proxy, proxy.client() as client:
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
