"""Requests of other APIs whose session lives in another region: served there, with the client's route."""

import json
from typing import Any

import httpx
import pytest

from tests.subjects.processes import ProxyProcess
from tests.subjects.websockets import Socket

pytestmark = pytest.mark.full

HEADERS = {"x-session-affinity": "roamer", "x-warmroute-home": "west"}
MODEL = "kimi-k2.5"
RESPONSES = "/v1/responses"
GEMINI = f"/v1beta/models/{MODEL}:generateContent"
MESSAGES = "/v1/messages"
LINE = "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch={};"
STREAM = f"/v1beta/models/{MODEL}:streamGenerateContent?alt=sse"


def asked_of(path: str, streams: bool) -> dict[str, Any]:
    text = f"region {path} {streams} " * 40
    if path == RESPONSES:
        return {"model": MODEL, "input": text, "stream": streams, "tools": [{"type": "web_search"}]}
    return {"contents": [{"parts": [{"text": text}]}], "tools": [{"googleSearch": {}}]}


def usage_of(answer: httpx.Response, path: str, streams: bool) -> Any:
    assert answer.status_code == 200, answer.text
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    found = events[-1] if streams else answer.json()
    if path == MESSAGES and streams:
        assert found["type"] == "message_stop"
        first = events[0]["message"]["usage"]
        assert first["input_tokens"] + first.get("cache_read_input_tokens", 0) > 0
        return next(event["usage"] for event in events if event["type"] == "message_delta")
    return found["usageMetadata"] if path == GEMINI else (found["response"] if streams else found)["usage"]


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", [RESPONSES, GEMINI], ids=["responses", "gemini"])
def test_a_turn_that_another_region_serves(
    regions: tuple[ProxyProcess, ProxyProcess], path: str, streams: bool
) -> None:
    east, west = regions
    with east.client() as client:
        for _ in range(2):
            asked = STREAM if streams and path == GEMINI else path
            answer = client.post(asked, json=asked_of(path, streams), headers=HEADERS)
            usage = usage_of(answer, path, streams)
            assert answer.headers["x-warmroute-home"] == "west"
    receipt = usage["warmroute"]
    assert receipt["region"] == "west"
    assert receipt["dropped_fields"] == ["web_search" if path == RESPONSES else "googleSearch"]
    assert receipt["cached"]["device"] > 64
    row = west.row(receipt["id"])
    route = RESPONSES if path == RESPONSES else "/v1beta/models/{model}:generateContent"
    assert (row["route"], row["forwarded_from"]) == (route, "east")


def test_a_websocket_whose_offer_names_another_region(regions: tuple[ProxyProcess, ProxyProcess]) -> None:
    with Socket(regions[0], headers={**HEADERS, "x-session-affinity": "new"}) as connection:
        answer = connection.answer("where it is told to go " * 100)
    assert answer["usage"]["warmroute"]["region"] == "west"


def test_the_turns_of_a_websocket_stay_at_the_home_of_the_first(regions: tuple[ProxyProcess, ProxyProcess]) -> None:
    """Nothing in the offer names the home: an earlier request of the session has one."""
    east, west = regions
    session = {"x-session-affinity": "goes on"}
    with east.client() as client:
        asked = {"model": MODEL, "input": "where it begins " * 100}
        first = client.post(RESPONSES, json=asked, headers=session | {"x-warmroute-home": "west"})
        assert first.json()["usage"]["warmroute"]["region"] == "west"
    previous = None
    with Socket(east, headers=session) as connection:
        for turn in range(6):
            answer = connection.answer(f"turn {turn} " * 100, previous_response_id=previous)
            receipt, previous = answer["usage"]["warmroute"], answer["id"]
            assert receipt["region"] == "west"
            assert receipt["cached"]["device"] >= 64 * turn
            row = west.row(receipt["id"])
            assert (row["route"], row["forwarded_from"]) == (RESPONSES, "east")


def messages(text: str, turns: int, **more: Any) -> dict[str, Any]:
    said: list[dict[str, Any]] = [
        {"role": "user" if at % 2 == 0 else "assistant", "content": f"{text} {at} " * 40} for at in range(2 * turns - 1)
    ]
    system = [{"type": "text", "text": LINE.format(turns)}, {"type": "text", "text": "Be careful. " * 60}]
    system[1]["cache_control"] = {"type": "ephemeral"}  # type: ignore[assignment]
    return {"model": MODEL, "max_tokens": 8, "system": system, "messages": said, **more}


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_a_turn_of_messages_that_another_region_serves(
    regions: tuple[ProxyProcess, ProxyProcess], streams: bool
) -> None:
    east, west = regions
    text = f"region {streams}"
    with east.client() as client:
        for turns in (1, 2, 3):
            answer = client.post(MESSAGES, json=messages(text, turns, stream=streams), headers=HEADERS)
            usage = usage_of(answer, MESSAGES, streams)
            assert answer.headers["x-warmroute-home"] == "west"
    receipt = usage["warmroute"]
    assert receipt["region"] == "west"
    assert (receipt["normalised"], receipt["cache_control"]) == (["billing_line"], 1)
    assert usage["cache_read_input_tokens"] > usage["input_tokens"]
    row = west.row(receipt["id"])
    assert (row["route"], row["forwarded_from"]) == (MESSAGES, "east")
    assert json.loads(row["usage"])["warmroute"] == receipt


def test_a_body_of_messages_that_is_large(regions: tuple[ProxyProcess, ProxyProcess]) -> None:
    asked = messages("large", 1, context_management={"edits": "x" * 3_000_000})
    with regions[0].client() as client:
        usage = usage_of(client.post(MESSAGES, json=asked, headers=HEADERS), MESSAGES, streams=False)
    assert usage["warmroute"]["region"] == "west"
    assert usage["warmroute"]["normalised"] == ["billing_line"]
    assert usage["warmroute"]["dropped_fields"] == ["context_management"]


def test_a_count_of_messages_is_not_forwarded(regions: tuple[ProxyProcess, ProxyProcess]) -> None:
    with regions[0].client() as client:
        answer = client.post(f"{MESSAGES}/count_tokens", json=messages("count", 1), headers=HEADERS)
    assert answer.status_code == 200
    assert answer.json()["input_tokens"] > 100
