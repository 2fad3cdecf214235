"""A link between regions that breaks at any byte: the answer that a client received is charged, and nothing else.

Cuts are at each byte around the ends of heads and events, and at every `STRIDE`th byte elsewhere.
"""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.hostile.cut_link import Cut, CutLink
from tests.subjects.processes import EngineProcess, ProxyProcess, events, until
from tests.subjects.stopped import Several
from warmroute_proxy.server.base.secrets import new_api_key

STRIDE = 96
AROUND = 2


class Regions:
    """A client of `east`, whose sessions live in `west`, at the other end of a link that can be cut."""

    def __init__(self, east: ProxyProcess, west: ProxyProcess, link: CutLink) -> None:
        self.east = east
        self.west = west
        self.link = link
        self.number = 0
        self.received = Counter[str]()  # the prices of all whole answers, by receipt id

    def ask(self, client: httpx.Client, *, stream: bool) -> dict[str, int]:
        """The price, by receipt id, of one request of a session of its own, that belongs to the other region; empty
        where no whole answer came.
        """
        self.number += 1
        session = f"session-{self.number}"
        messages = [  # a second turn, whose first one is worth the way to where it is cached
            {"role": "user", "content": f"{session} {'what was it? ' * 300}"},
            {"role": "assistant", "content": "This."},
            {"role": "user", "content": "what now?"},
        ]
        body: dict[str, Any] = {"model": "kimi", "messages": messages, "max_tokens": 3}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        headers = {"x-session-affinity": session, "x-warmroute-home": "west"}
        parts: list[str] = []
        try:
            with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
                parts.extend(answer.iter_text())
        except httpx.RemoteProtocolError:
            return {}
        text = "".join(parts)
        if stream:
            usage = events(text)[-1]["usage"] if text.endswith("data: [DONE]\n\n") else None
        else:
            usage = json.loads(text).get("usage")
        if usage is None:
            return {}
        price = {usage["warmroute"]["id"]: usage["warmroute"]["price_nanousd"]}
        self.received.update(price)
        return price

    def ask_broken(self, client: httpx.Client, cut: Cut, *, stream: bool) -> dict[str, int]:
        """As `ask`, with a link that breaks. The other region may be busy or down for a moment: then it asks again."""
        prices: list[dict[str, int]] = []

        def is_forwarded() -> bool:
            prices.append(self.ask(client, stream=stream))
            return self.link.was_forwarded

        self.link.break_next(cut)
        until(is_forwarded, f"a request is forwarded, to break at {cut}", 5.0)
        return prices[-1]

    def charged(self) -> Counter[str]:
        """What both ledgers charge, by receipt id; what a row voids is taken from the row that it names."""
        sums: Counter[str] = Counter()
        for row in (*self.east.rows(), *self.west.rows()):
            voided = json.loads(row["usage"])["warmroute"].get("voids")
            sums[voided or row["id"]] += row["price_nanousd"]
        return +sums


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Regions]:
    folder = tmp_path_factory.mktemp("twice")
    keys = (new_api_key()[0], new_api_key()[0])
    with Several(EngineProcess(folder, f"{name}-a0", "aggregated", speed=50.0) for name in ("east", "west")) as engines:
        west = ProxyProcess(folder / "p", [engines[1].toml("west")], region="west", keys=keys)
        with west, closing(CutLink(("127.0.0.1", urlsplit(west.url).port or 0))) as link:
            near = f'[[region]]\nname = "west"\nurl = "{link.url}"\nrtt_ms = 0.01'  # so that home is worth the way
            with ProxyProcess(folder / "p", [engines[0].toml("east"), near], keys=keys) as east:
                yield Regions(east, west, link)


def cuts(sent: bytes) -> list[int]:
    """The bytes behind which to cut what was sent."""
    edges = [at + 4 for at in range(len(sent)) if sent.startswith((b"\r\n\r\n", b"\n\n\r\n"), at)]
    near = {edge + offset for edge in edges for offset in range(-AROUND, AROUND + 1)}
    return sorted(at for at in {*range(1, len(sent), STRIDE), *near, len(sent) - 1, len(sent)} if 0 < at <= len(sent))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_link_that_breaks_at_any_byte_charges_what_was_received(regions: Regions, stream: bool) -> None:
    link, served = regions.link, Counter[str]()
    with regions.east.client() as client:
        until(lambda: regions.ask(client, stream=stream) and link.answer, "a sound request is forwarded")
        requests, answers = cuts(link.request), cuts(link.answer)
        for cut in [*(Cut("request", at) for at in requests), *(Cut("answer", at) for at in answers)]:
            price = regions.ask_broken(client, cut, stream=stream)
            served[f"{cut.side} {'whole' if price else 'broken'}"] += 1
            regions.ask(client, stream=stream)  # a sound one keeps the breaker closed
    assert served["request whole"] == len(requests) > 25
    assert served["answer whole"] > 0  # how many of each depends on the chunks that the answer comes in
    assert (served["answer broken"] > 0) == stream
    until(lambda: regions.charged() == +regions.received, "each client pays what it received")
    voids = [row for row in regions.west.rows() if row["outcome"] == "voided"]
    assert voids
    path = f"/v1/usage/receipts/{voids[0]['id'].removesuffix('-void')}"
    for proxy in (regions.east, regions.west):
        with proxy.client() as client:
            found = until(lambda: (got := client.get(path)).status_code != 503 and got.json(), "both regions answer")
            assert found.get("voided_by") == voids[0]["id"], found
    with regions.east.client() as client:  # it adds up both regions
        for question in ("", "?by=model"):
            assert client.get(f"/v1/usage{question}").json()["price_nanousd"] == sum(regions.received.values())


def test_what_is_to_be_voided_waits_for_the_link_and_outlives_a_kill(regions: Regions) -> None:
    def voided() -> int:
        return [row["outcome"] for row in regions.west.rows()].count("voided")

    before = voided()
    with regions.east.client() as client:
        assert regions.ask_broken(client, Cut("answer", 400), stream=False)
        regions.link.go_down()
    until(lambda: regions.charged().keys() > regions.received.keys(), "the home has charged it too")
    regions.east.kill()
    regions.east.start()
    assert voided() == before
    regions.link.up = True
    until(lambda: voided() == before + 1, "it is voided")
    assert regions.charged() == +regions.received
