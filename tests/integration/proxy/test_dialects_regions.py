"""Responses and Gemini's requests whose session lives in another region: served there, with the client's route."""

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
    return (found["response"] if streams else found)["usage"] if path == RESPONSES else found["usageMetadata"]


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
