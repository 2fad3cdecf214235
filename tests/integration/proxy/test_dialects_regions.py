"""Responses and Gemini's requests whose session lives in another region: served there, with the client's route."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.machine import seconds
from warmroute_cli.processes import stop_all
from warmroute_proxy.server.base.secrets import new_api_key

from .harness import EngineProcess, ProxyProcess

HEADERS = {"x-session-affinity": "roamer", "x-warmroute-home": "west"}
MODEL = "kimi-k2.5"
RESPONSES = "/v1/responses"
GEMINI = f"/v1beta/models/{MODEL}:generateContent"
STREAM = f"/v1beta/models/{MODEL}:streamGenerateContent?alt=sse"


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ProxyProcess, ProxyProcess]]:
    """East, which clients reach, and west, where the session lives."""
    folder = tmp_path_factory.mktemp("regions")
    engines = [EngineProcess(folder, f"{name}-a0", "aggregated") for name in ("east", "west")]
    keys = (new_api_key()[0], new_api_key()[0])
    proxies: list[ProxyProcess] = []
    try:
        for engine in engines:
            engine.listening()
        west = ProxyProcess(folder / "p", [engines[1].toml("west")], region="west", keys=keys).start()
        proxies.append(west)
        east = ProxyProcess(folder / "p", [engines[0].toml("east")], region="east", keys=keys, peer=("west", west.url))
        proxies.append(east.start())
        yield east, west
    finally:
        for proxy in proxies:
            proxy.stop()
        stop_all([engine.child for engine in engines], seconds(5.0))


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
