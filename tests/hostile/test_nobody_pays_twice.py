"""A link between regions that breaks at any byte: the answer that a client received is charged, and nothing else.

Cuts are at each byte around the ends of heads and events, and at every `STRIDE`th byte elsewhere.
"""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.hostile.cut_link import Cut, CutLink
from tests.integration.proxy.harness import EngineProcess, ProxyProcess, events, until
from tests.machine import seconds
from warmroute_cli.processes import stop_all
from warmroute_proxy.server.base.secrets import new_api_key

STRIDE = 16
AROUND = 3
SOUND_AFTER = 2  # broken ones a sound request keeps the breaker of the region closed


class Regions:
    """A client of `east`, whose sessions live in `west`, at the other end of a link that can be cut."""

    def __init__(self, east: ProxyProcess, west: ProxyProcess, link: CutLink) -> None:
        self.east = east
        self.west = west
        self.link = link
        self.number = 0

    def ask(self, client: httpx.Client, *, stream: bool) -> "Received":
        """One request of a session of its own, that belongs to the other region."""
        self.number += 1
        session = f"session-{self.number}"
        messages = [{"role": "user", "content": f"{session} {'what now? ' * 5}"}]
        body: dict[str, Any] = {"model": "kimi", "messages": messages, "max_tokens": 3}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        headers = {"x-session-affinity": session, "x-warmroute-home": "west"}
        parts: list[str] = []
        try:
            with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
                parts.extend(answer.iter_text())
        except httpx.RemoteProtocolError:
            return Received("".join(parts), None)
        text = "".join(parts)
        if stream:
            return Received(text, events(text)[-1]["usage"] if text.endswith("data: [DONE]\n\n") else None)
        return Received(text, json.loads(text).get("usage"))

    def charged(self) -> Counter[str]:
        """What both ledgers charge, by receipt id; what a row voids is taken from the row that it names."""
        sums: Counter[str] = Counter()
        for row in (*self.east.rows(), *self.west.rows()):
            voided = json.loads(row["usage"])["warmroute"].get("voids")
            sums[voided or row["id"]] += row["price_nanousd"]
        return +sums


class Received:
    """What a client got: a text, and the usage of an answer that is whole."""

    def __init__(self, text: str, usage: dict[str, Any] | None) -> None:
        self.text = text
        self.price = {} if usage is None else {usage["warmroute"]["id"]: usage["warmroute"]["price_nanousd"]}


@pytest.fixture
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Regions]:
    folder = tmp_path_factory.mktemp("twice")
    engines = [EngineProcess(folder, name, "aggregated", speed=1000.0) for name in ("east-a0", "west-a0")]
    keys = (new_api_key()[0], new_api_key()[0])
    stops = []
    try:
        for engine in engines:
            engine.listening()
        west = ProxyProcess(folder / "p", [engines[1].toml("west")], region="west", keys=keys).start()
        stops.append(west.stop)
        url = urlsplit(west.url)
        link = CutLink((url.hostname or "", url.port or 0))
        stops.append(link.close)
        east = ProxyProcess(folder / "p", [engines[0].toml("east")], keys=keys, peer=("west", link.url)).start()
        stops.append(east.stop)
        yield Regions(east, west, link)
    finally:
        for stop in reversed(stops):
            stop()
        stop_all([engine.child for engine in engines], seconds(5.0))


def cuts(sent: bytes) -> list[int]:
    """The bytes behind which to cut what was sent."""
    edges = [at + 4 for at in range(len(sent)) if sent.startswith((b"\r\n\r\n", b"\n\n\r\n"), at)]
    near = {edge + offset for edge in edges for offset in range(-AROUND, AROUND + 1)}
    return sorted(at for at in {*range(1, len(sent), STRIDE), *near, len(sent) - 1, len(sent)} if 0 < at <= len(sent))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_link_that_breaks_at_any_byte_charges_what_was_received(regions: Regions, stream: bool) -> None:
    link, expected = regions.link, Counter[str]()
    served = Counter[str]()
    with regions.east.client() as client:
        first = regions.ask(client, stream=stream)
        expected.update(first.price)
        places = [Cut("request", at) for at in cuts(link.request)]
        requests = len(places)
        for cut in places + [Cut("answer", at) for at in cuts(link.answer)]:
            link.break_next(cut)
            received = regions.ask(client, stream=stream)
            expected.update(received.price)
            served[f"{cut.side} {'whole' if received.price else 'broken'}"] += 1
            if sum(served.values()) % SOUND_AFTER == 0:
                expected.update(regions.ask(client, stream=stream).price)
    assert served["request whole"] == requests > 50
    assert served["answer whole"] > 10
    assert (served["answer broken"] > 10) == stream
    until(lambda: regions.charged() == +expected, "each client pays what it received")
    voids = [row for row in regions.west.rows() if row["outcome"] == "voided"]
    assert voids
    with regions.east.client() as client:
        found = client.get(f"/v1/usage/receipts/{voids[0]['id'].removesuffix('-void')}").json()
        assert found["voided_by"] == voids[0]["id"]
    totals = []
    for proxy in (regions.east, regions.west):
        with proxy.client() as client:
            totals.append(client.get("/v1/usage").json()["price_nanousd"])
    assert sum(totals) == sum(expected.values())


def test_what_is_to_be_voided_waits_for_the_link_and_outlives_a_kill(regions: Regions) -> None:
    with regions.east.client() as client:
        regions.ask(client, stream=False)
        regions.link.break_next(Cut("answer", 400))
        received = regions.ask(client, stream=False)
        regions.link.go_down()
    assert received.price
    until(lambda: len(regions.west.rows()) >= 2, "the home has charged it too")
    assert sum(regions.charged().values()) > sum(received.price.values())
    regions.east.kill()
    regions.east.start()
    assert [row["outcome"] for row in regions.west.rows()] == ["completed", "completed"]
    regions.link.up = True
    until(lambda: [row["outcome"] for row in regions.west.rows()][2:] == ["voided"], "it is voided")
    ids = {row["id"] for row in regions.east.rows(expected=1)}
    assert ids == set(received.price)
