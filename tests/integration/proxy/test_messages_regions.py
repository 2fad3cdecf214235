"""Messages whose session lives in another region: served there, with the client's route and what was changed."""

import json
from typing import Any

import httpx
import pytest

from tests.subjects.processes import ProxyProcess

pytestmark = pytest.mark.full

HEADERS = {"x-session-affinity": "roamer", "x-warmroute-home": "west"}
LINE = "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch={};"


def body(text: str, turns: int, **more: Any) -> dict[str, Any]:
    said: list[dict[str, Any]] = [
        {"role": "user" if at % 2 == 0 else "assistant", "content": f"{text} {at} " * 40} for at in range(2 * turns - 1)
    ]
    system = [{"type": "text", "text": LINE.format(turns)}, {"type": "text", "text": "Be careful. " * 60}]
    system[1]["cache_control"] = {"type": "ephemeral"}  # type: ignore[assignment]
    return {"model": "kimi-k2.5", "max_tokens": 8, "system": system, "messages": said, **more}


def usage_of(answer: httpx.Response, *, streams: bool) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    if not streams:
        found: dict[str, Any] = answer.json()["usage"]
        return found
    events = [json.loads(block.partition("\ndata: ")[2]) for block in answer.text.split("\n\n")[:-1]]
    assert events[-1]["type"] == "message_stop"
    first = events[0]["message"]["usage"]
    assert first["input_tokens"] + first.get("cache_read_input_tokens", 0) > 0
    return next(event["usage"] for event in events if event["type"] == "message_delta")


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_a_turn_that_another_region_serves(regions: tuple[ProxyProcess, ProxyProcess], streams: bool) -> None:
    east, west = regions
    text = f"region {streams}"
    with east.client() as client:
        for turns in (1, 2, 3):
            answer = client.post("/v1/messages", json=body(text, turns, stream=streams), headers=HEADERS)
            usage = usage_of(answer, streams=streams)
            assert answer.headers["x-warmroute-home"] == "west"
    receipt = usage["warmroute"]
    assert receipt["region"] == "west"
    assert (receipt["normalised"], receipt["cache_control"]) == (["billing_line"], 1)
    assert usage["cache_read_input_tokens"] > usage["input_tokens"]
    row = west.row(receipt["id"])
    assert (row["route"], row["forwarded_from"]) == ("/v1/messages", "east")
    assert json.loads(row["usage"])["warmroute"] == receipt


def test_a_body_that_is_large(regions: tuple[ProxyProcess, ProxyProcess]) -> None:
    asked = body("large", 1, context_management={"edits": "x" * 3_000_000})
    with regions[0].client() as client:
        usage = usage_of(client.post("/v1/messages", json=asked, headers=HEADERS), streams=False)
    assert usage["warmroute"]["region"] == "west"
    assert usage["warmroute"]["normalised"] == ["billing_line"]
    assert usage["warmroute"]["dropped_fields"] == ["context_management"]


def test_a_count_is_not_forwarded(regions: tuple[ProxyProcess, ProxyProcess]) -> None:
    with regions[0].client() as client:
        answer = client.post("/v1/messages/count_tokens", json=body("count", 1), headers=HEADERS)
    assert answer.status_code == 200
    assert answer.json()["input_tokens"] > 100
