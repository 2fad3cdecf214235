"""Gemini's API through a real proxy and real engines, by the official client."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from google import genai
from google.genai import errors, types

from tests.subjects.processes import ProxyProcess
from warmroute.contract import receipt as contract_receipt
from warmroute_proxy.dialects.gemini.errors import error

MODEL = "kimi-k2.5"
PATH = f"/v1beta/models/{MODEL}:generateContent"
STREAM = f"/v1beta/models/{MODEL}:streamGenerateContent"
READ: Any = {
    "name": "read",
    "description": "Reads a file.",
    "parameters": {"type": "OBJECT", "properties": {"path": {"type": "STRING", "nullable": True}}},
}


@pytest.fixture(scope="module")
def client(proxy: ProxyProcess) -> Iterator[genai.Client]:
    found = genai.Client(api_key=proxy.keys[0], http_options=types.HttpOptions(base_url=proxy.url))
    yield found
    found.close()


@pytest.fixture(scope="module")
def raw(proxy: ProxyProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=proxy.url, headers={"x-goog-api-key": proxy.keys[0]}) as found:
        yield found


def body(text: str, **more: Any) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [{"text": text}]}], **more}


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line]


def text_of(answers: list[dict[str, Any]]) -> str:
    pieces = [piece for answer in answers for piece in answer["candidates"][0]["content"]["parts"]]
    return "".join(piece["text"] for piece in pieces if "text" in piece and not piece.get("thought"))


def test_a_whole_answer_has_usage_and_a_sound_receipt(raw: httpx.Client, proxy: ProxyProcess) -> None:
    asked = body("whole", systemInstruction={"parts": [{"text": "Be short."}]})
    answer = raw.post(PATH, json=asked)
    found = answer.json()
    assert found["candidates"][0]["finishReason"] == "STOP"
    assert found["modelVersion"] == MODEL
    usage = found["usageMetadata"]
    assert contract_receipt.check(usage) == []
    receipt_id = answer.headers["x-warmroute-receipt"]
    assert usage["warmroute"]["id"] == receipt_id == f"wr-{found['responseId']}"
    row = proxy.row(receipt_id)
    assert (row["route"], row["outcome"]) == ("/v1beta/models/{model}:generateContent", "completed")


def test_a_stream_is_the_same_answer_as_events_and_as_an_array(raw: httpx.Client) -> None:
    whole = raw.post(PATH, json=body("streamed")).json()
    as_events = raw.post(f"{STREAM}?alt=sse", json=body("streamed"))
    as_array = raw.post(STREAM, json=body("streamed"))
    assert as_events.headers["content-type"].startswith("text/event-stream")
    assert as_array.headers["content-type"] == "application/json"
    for answers in (events_of(as_events), as_array.json()):
        assert len(answers) > 5
        assert text_of(answers) == text_of([whole])
        assert [answer["candidates"][0].get("finishReason") for answer in answers][-2:] == [None, "STOP"]
        assert contract_receipt.check(answers[-1]["usageMetadata"]) == []


def test_the_official_client_reads_whole_answers_and_streams(client: genai.Client) -> None:
    whole = client.models.generate_content(model=MODEL, contents="clients")
    streamed = list(client.models.generate_content_stream(model=MODEL, contents="clients"))
    assert whole.text
    assert "".join(chunk.text or "" for chunk in streamed) == whole.text
    used = streamed[-1].usage_metadata
    assert used is not None
    assert used.total_token_count == (used.prompt_token_count or 0) + (used.candidates_token_count or 0)
    assert whole.sdk_http_response is not None
    assert (whole.sdk_http_response.headers or {})["x-warmroute-receipt"].startswith("wr-")


@pytest.mark.parametrize("streams", [False, True])
def test_tools_are_called_and_their_results_come_back_warm(raw: httpx.Client, streams: bool) -> None:
    asked = body(f"Read a.txt. {streams} " + "Look closely. " * 200)
    asked["tools"] = [{"functionDeclarations": [READ]}, {"googleSearch": {}}]

    def turn() -> tuple[list[Any], dict[str, Any]]:
        answer = raw.post(f"{STREAM}?alt=sse" if streams else PATH, json=asked)
        answers = events_of(answer) if streams else [answer.json()]
        pieces = [piece for answer in answers for piece in answer["candidates"][0]["content"]["parts"]]
        return pieces, answers[-1]["usageMetadata"]

    first, usage = turn()
    assert usage["warmroute"]["dropped_fields"] == ["googleSearch"]
    calls = [{"functionCall": {"name": "read", "args": {"path": name}}} for name in "ab"]
    results = [{"functionResponse": {"name": "read", "response": {"output": "no"}}} for _ in calls]
    asked["contents"] += [{"role": "model", "parts": [*first, *calls]}, {"role": "user", "parts": results}]
    _, next_usage = turn()
    assert next_usage["cachedContentTokenCount"] > 500
    assert next_usage["warmroute"]["turn"] == usage["warmroute"]["turn"] + 1


def test_the_official_client_calls_functions(client: genai.Client) -> None:
    def read(path: str) -> str:
        """Reads a file."""
        return f"nothing in {path}"

    config = types.GenerateContentConfig(tools=[read], system_instruction="Be short.", temperature=0.5, top_k=3)
    assert client.models.generate_content(model=MODEL, contents="call", config=config).text


def test_thoughts_are_shown_where_they_are_asked_for(client: genai.Client) -> None:
    config = types.GenerateContentConfig(thinking_config=types.ThinkingConfig(include_thoughts=True, thinking_budget=9))
    answer = client.models.generate_content(model=MODEL, contents="think", config=config)
    assert answer.candidates is not None
    content = answer.candidates[0].content
    assert content is not None
    assert [bool(piece.thought) for piece in content.parts or ()] == [True, False]
    assert answer.usage_metadata is not None
    assert (answer.usage_metadata.thoughts_token_count or 0) > 0
    config = types.GenerateContentConfig(thinking_config=types.ThinkingConfig(thinking_budget=9))
    hidden = client.models.generate_content(model=MODEL, contents="think", config=config)
    assert hidden.candidates is not None
    assert len((hidden.candidates[0].content or types.Content()).parts or ()) == 1


def test_signatures_bring_thoughts_back(raw: httpx.Client) -> None:
    thinks = {"thinkingConfig": {"thinkingBudget": 64}}
    call = {"name": "read", "args": {}, "id": "c1"}

    def turn(signature: str) -> dict[str, Any]:
        model = {"role": "model", "parts": [{"functionCall": call, "thoughtSignature": signature}]}
        result = {"functionResponse": {"name": "read", "id": "c1", "response": {"output": "x"}}}
        asked = {**body("think"), "generationConfig": thinks}
        asked["contents"] += [model, {"role": "user", "parts": [result]}]
        found: dict[str, Any] = raw.post(PATH, json=asked).json()["usageMetadata"]["warmroute"]
        return found

    assert turn("AAAA")["dropped_blocks"] == {"thoughtSignature": 1}
    assert "dropped_blocks" not in turn("skip_thought_signature_validator")


def test_tokens_are_counted_and_not_billed(client: genai.Client, raw: httpx.Client) -> None:
    text = "How many tokens is this? " * 50
    used = client.models.generate_content(model=MODEL, contents=text).usage_metadata
    assert used is not None
    assert client.models.count_tokens(model=MODEL, contents=text).total_tokens == used.prompt_token_count
    inside = {"generateContentRequest": {"model": f"models/{MODEL}", **body(text)}}
    answer = raw.post(f"/v1beta/models/{MODEL}:countTokens", json=inside)
    assert answer.json() == {"totalTokens": used.prompt_token_count, "warmroute": {"estimated": []}}
    assert "x-warmroute-receipt" not in answer.headers


def test_models_in_their_shape(client: genai.Client, raw: httpx.Client) -> None:
    assert [model.name for model in client.models.list()] == [f"models/{MODEL}", "models/other"]
    assert raw.get("/v1beta/models").json() == raw.get("/v1/models").json()
    for name in (MODEL, "gemini-2.5-flash"):
        assert client.models.get(model=name).name == f"models/{MODEL}"
    with pytest.raises(errors.ClientError) as refused:
        client.models.get(model="gemini-9")
    assert refused.value.status == "NOT_FOUND"
    assert raw.get("/v1beta/files").json()["error"]["code"] in {404, "not_found"}


def test_a_key_in_the_query_is_cut(proxy: ProxyProcess, raw: httpx.Client) -> None:
    key = proxy.keys[0]
    answer = httpx.post(f"{proxy.url}{STREAM}?alt=sse&%6Bey={key}", json=body("key"))
    assert answer.status_code == 200
    wrong = httpx.post(f"{proxy.url}{PATH}?key=wrong-{key}", json=body("key"))
    assert (wrong.status_code, wrong.json()["error"]["status"]) == (401, "UNAUTHENTICATED")
    missed = httpx.post(f"{proxy.url}/v1beta/nothing?key={key}", json={})
    assert key not in answer.text + wrong.text + missed.text
    assert key not in proxy.written()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"contents": None}, "contents: is required"),
    ({"contents": []}, "contents: is empty"),
    ({"contents": "hi"}, "contents: must be a list"),
    ({"contents": [{"role": "user", "parts": []}]}, "contents: hold nothing"),
    ({"contents": [{"parts": [{"fileData": {"fileUri": "file:///etc"}}]}]}, "contents[0].parts[0].fileData: must"),
    ({"tools": [{"functionDeclarations": [{"description": "d"}]}]}, "tools[0].functionDeclarations[0].name"),
    ({"toolConfig": 3}, "toolConfig: must be a JSON object"),
    ({"generationConfig": {"temperature": -1}}, "temperature"),
    ({"generationConfig": {"candidateCount": 2}}, "generationConfig.candidateCount: must be 1"),
    ({"generationConfig": {"thinkingConfig": {"thinkingLevel": "SOME"}}}, "thinkingLevel: must be one of"),
]


@pytest.mark.parametrize(("more", "place"), BAD, ids=[place for _, place in BAD])
def test_bad_input_is_named_and_not_billed(raw: httpx.Client, more: dict[str, Any], place: str) -> None:
    answer = raw.post(PATH, json={**body("bad"), **more})
    said = answer.json()["error"]
    assert (answer.status_code, said["code"], said["status"]) == (400, 400, "INVALID_ARGUMENT")
    assert place in said["message"]
    assert "x-warmroute-receipt" not in answer.headers


def test_other_errors_have_their_statuses(raw: httpx.Client, client: genai.Client) -> None:
    assert raw.post(PATH, content=b"{").json()["error"]["status"] == "INVALID_ARGUMENT"
    assert raw.get(PATH).status_code == 405
    for stream in (False, True):
        with pytest.raises(errors.ClientError) as refused:
            ask: Any = client.models.generate_content_stream if stream else client.models.generate_content
            list(ask(model="gemini-9", contents="x"))
        assert (refused.value.code, refused.value.status) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("status", "theirs"), [(429, "RESOURCE_EXHAUSTED"), (500, "INTERNAL"), (502, "INTERNAL"), (503, "UNAVAILABLE")]
)
def test_an_error_of_an_engine_has_their_status(status: int, theirs: str) -> None:
    assert json.loads(error(status, "no", None))["error"]["status"] == theirs
