"""Responses and Gemini's requests whose session lives in another region: served there, with the client's route."""

import contextlib
import json
import socket
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.processes import EngineProcess, ProxyProcess
from tests.subjects.stopped import Several
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
        receipt = connection.answer("where it is told to go " * 100)["usage"]["warmroute"]
    row = regions[1].row(receipt["id"])
    assert (receipt["region"], row["route"], row["forwarded_from"]) == ("west", RESPONSES, "east")


class Link:
    """A relay to a region, which counts the forwards of each connection."""

    def __init__(self, url: str) -> None:
        self.forwards: Counter[int] = Counter()
        found = httpx.URL(url)
        self._target = (found.host, found.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        number = 0
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target, timeout=seconds(60))
            number += 1
            self._sockets += near, far
            for ends in ((near, far, number), (far, near, 0)):
                self._threads.append(threading.Thread(target=self._pass, args=ends))
                self._threads[-1].start()

    def _pass(self, source: socket.socket, target: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if number and data.startswith(b"POST /v1/chat/completions"):
                    self.forwards[number] += 1
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


def test_the_turns_of_a_websocket_stay_at_the_home_of_the_first_over_a_kept_link(tmp_path: Path) -> None:
    """Nothing in the offer names the home: an earlier request of the session has one."""
    session, turns = {"x-session-affinity": "roamer"}, 6
    with (
        Several([EngineProcess(tmp_path, f"{name}-a0", "aggregated") for name in ("east", "west")]) as engines,
        ProxyProcess(tmp_path / "p", [engines[1].toml("west")], region="west") as west,
        contextlib.closing(Link(west.url)) as link,
        ProxyProcess(tmp_path / "p", [engines[0].toml("east")], keys=west.keys, peer=("west", link.url)) as east,
    ):
        with east.sees("west").client() as client:
            asked = {"model": MODEL, "input": "where it begins " * 100}
            first = client.post(RESPONSES, json=asked, headers=session | {"x-warmroute-home": "west"})
            assert first.json()["usage"]["warmroute"]["region"] == "west"
        before = link.forwards.total()
        previous = None
        with Socket(east, headers=session) as connection:
            for turn in range(turns):
                answer = connection.answer(f"turn {turn} " * 100, previous_response_id=previous)
                receipt, previous = answer["usage"]["warmroute"], answer["id"]
                assert receipt["region"] == "west"
                assert receipt["cached"]["device"] >= 64 * turn
                assert west.row(receipt["id"])["forwarded_from"] == "east"
        assert link.forwards.total() == before + turns
        assert max(link.forwards.values()) > 1
