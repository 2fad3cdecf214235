"""Proxies of different versions: each reads what the other sends, or says before any request that it cannot.

`golden/proxy_messages_N.json` has what a proxy of version N has sent, byte by byte.
"""

import asyncio
import base64
import json
import logging
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from tests.machine import seconds
from tests.subjects.http_answers import answering, listening, said
from tests.subjects.proxy_messages import BODY_SHA256, CHANGES, SIGNED_AT_S, announcements, forwards, tokens
from tests.subjects.routing import routing_of

from warmroute.contract.changes import NO_CHANGES, Changes
from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.fleet import Peer, Worker
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.regions import forward_claim
from warmroute_proxy.server.regions.announcements import Announcement
from warmroute_proxy.server.regions.peers import STARTS_S, Peers
from warmroute_proxy.server.regions.versions import MIXED_S, NEWEST, OLDEST, Spoken, Versions, misunderstood, spoken_by

GOLDEN: Final = Path(__file__).parent / "golden"
VERSIONS: Final = range(OLDEST, NEWEST + 1)


class ForwardOfVersion0(msgspec.Struct, frozen=True, omit_defaults=True):
    """The claim as a proxy before versions decodes it."""

    tenant: str
    share_group: str
    request_id: str
    region: str
    audience: str
    issued_s: float
    deadline_s: float
    nonce: str
    body_sha256: str
    route: str | None = None
    changes: Changes = NO_CHANGES
    key: str = ""


def golden(version: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / f"proxy_messages_{version}.json").read_text())
    return found


def test_what_is_sent_is_what_this_version_is_known_to_send() -> None:
    """Where this fails, what proxies send each other has changed: that is another version (`versions`)."""
    sent = {"tokens": tokens(), "announcements": msgspec.msgpack.encode(announcements()).hex()}
    assert sent == golden(NEWEST)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_tokens_of_each_version_are_read(version: int) -> None:
    sent = golden(version)["tokens"]
    claims = {name: forwards("west").check(token, BODY_SHA256) for name, token in sent.items()}
    assert {claim.v for claim in claims.values()} == {version}
    assert claims["request"].request_id == "wr-1"
    assert (claims["translated"].route, claims["translated"].changes) == ("/v1/messages", CHANGES)
    assert claims["translated"].key == "key-1"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_announcements_of_each_version_are_read(version: int) -> None:
    sent = bytes.fromhex(golden(version)["announcements"])
    assert msgspec.msgpack.decode(sent, type=list[Announcement]) == announcements(version)


def test_a_proxy_before_versions_reads_the_tokens_of_this_one() -> None:
    for token in tokens().values():
        claim = msgspec.json.decode(base64.urlsafe_b64decode(token.partition(".")[0]), type=ForwardOfVersion0)
        assert claim.audience == "west"


@pytest.mark.parametrize("version", [NEWEST + 1, 99])
def test_a_token_of_a_version_that_is_not_read_is_refused_by_its_name(version: int) -> None:
    newer = forwards()
    newer.versions = Versions()
    newer.versions.found("west", version, 0.0)
    token = newer.sign("first", "first", "wr-1", "west", BODY_SHA256, 60.0)
    with pytest.raises(Refusal, match=f"version {version}, this proxy reads {OLDEST} to {NEWEST}") as refused:
        forwards("west").check(token, BODY_SHA256)
    assert (refused.value.status, refused.value.code) == (401, "forward_version")


@pytest.mark.parametrize("apart_s", [-25.0, -5.0, 5.0, forward_claim.CLOCKS_APART_S])
def test_a_token_of_a_short_deadline_is_taken_where_the_clock_is_another(apart_s: float) -> None:
    token = forwards().sign("", "", "/v1/regions/announcements", "west", BODY_SHA256, 2.0)
    assert forwards("west", SIGNED_AT_S + apart_s).check(token, BODY_SHA256).region == "east"


def test_a_token_whose_deadline_is_long_past_is_refused() -> None:
    token = forwards().sign("", "", "/v1/regions/announcements", "west", BODY_SHA256, 2.0)
    at_s = SIGNED_AT_S + 2.1 + forward_claim.CLOCKS_APART_S
    with pytest.raises(Refusal, match="past its deadline"):
        forwards("west", at_s).check(token, BODY_SHA256)


@pytest.mark.parametrize(
    ("ready", "spoken", "common"),
    [
        ({}, Spoken(0, 0), 0),
        ({"forward_versions": [0, 1]}, Spoken(0, 1), 1),
        ({"forward_versions": [1, 7]}, Spoken(1, 7), NEWEST),
        ({"forward_versions": [NEWEST + 1, 7]}, Spoken(NEWEST + 1, 7), None),
        ({"forward_versions": "new"}, Spoken(0, 0), 0),
        ({"forward_versions": [1, "2"]}, Spoken(0, 0), 0),
    ],
)
def test_the_newest_version_that_both_read_is_spoken(ready: dict[str, Any], spoken: Spoken, common: int | None) -> None:
    assert spoken_by(ready) == spoken
    assert spoken.common() == common


def test_who_is_behind_is_named() -> None:
    assert misunderstood("west", Spoken(NEWEST + 1, NEWEST + 2)).endswith("update this one")
    assert misunderstood("west", Spoken(-2, OLDEST - 1)).endswith("update that region")


async def test_a_region_of_other_versions_is_found_out_by_its_probe(caplog: pytest.LogCaptureFixture) -> None:
    ready = {"status": "ready", "region": "west", "forward_versions": [NEWEST + 1, NEWEST + 1]}
    signs = forwards()
    async with listening(answering(lambda _: said(json.dumps(ready).encode()))) as url:
        peers = Peers({"west": url}, 2.0, asyncio.get_running_loop().time, signs)
        router = Router("east", [], [Peer("west", 0.03)])
        with caplog.at_level(logging.ERROR):
            await peers.probe("west", router)
            await peers.probe("west", router)
        assert peers.down == {"west"}
        assert [record.message for record in caplog.records] == [misunderstood("west", Spoken(NEWEST + 1, NEWEST + 1))]
        ready["forward_versions"] = [OLDEST, OLDEST]
        await peers.probe("west", router)
        assert peers.down == set()
        assert signs.versions.of("west") == OLDEST
        peers.close()


@pytest.mark.parametrize(
    ("status", "region", "logged"),
    [
        (503, "west", "the proxy of region west is not ready (status 503)"),
        (404, None, "no proxy of Warmroute answers at the url of region 'west' (status 404)"),
        (503, "north", "the proxy of region 'north' answers at the url of region 'west' (status 503)"),
        (None, None, "region west does not answer at its url"),
    ],
)
async def test_why_a_region_is_down_is_logged_once_and_when_it_is_back(
    status: int | None, region: str | None, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    loop, later_s = asyncio.get_running_loop(), 0.0
    answer: dict[str, Any] = {"status": status, "body": {"region": region} if region else {}}

    def say(_: str) -> bytes:
        return said(json.dumps(answer["body"]).encode(), answer["status"]) if answer["status"] else b""

    async with listening(answering(say)) as url:
        peers = Peers({"west": url}, 2.0, lambda: loop.time() + later_s, forwards())
        later_s = STARTS_S
        router = Router("east", [], [Peer("west", 0.03)])
        for _ in range(3):
            await peers.probe("west", router)
        answer.update(status=200, body={"region": "west"})
        await peers.probe("west", router)
        peers.close()
    found = [record.message for record in caplog.records if "region" in record.message]
    assert found == [f"{logged}: {found[0].partition(': ')[2]}", "region west is ready again"]


@pytest.mark.parametrize("later", [{"status": None}, {"status": 503, "body": {"region": "west"}}])
async def test_a_region_that_starts_is_not_logged_as_ready_while_it_is_down(
    later: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    answer: dict[str, Any] = {"status": 404, "body": {}}

    def say(_: str) -> bytes:
        return said(json.dumps(answer["body"]).encode(), answer["status"]) if answer["status"] else b""

    async with listening(answering(say)) as url:
        peers = Peers({"west": url}, 2.0, lambda: 0.0, forwards())
        for changed in (answer, answer, later, later):
            answer.update(changed)
            await peers.probe("west", Router("east", [], [Peer("west", 0.03)]))
        peers.close()
    assert [record.message.partition(":")[0] for record in caplog.records if "region" in record.message] == [
        "no proxy of Warmroute answers at the url of region 'west' (status 404)"
    ]


def test_a_region_of_two_releases_is_written_to_in_the_older_ones_version() -> None:
    versions = Versions()
    assert versions.of("west") == OLDEST, "nothing is known"
    versions.found("west", NEWEST, 0.0)
    assert versions.of("west") == NEWEST
    versions.found("west", OLDEST, 1.0)
    versions.found("west", NEWEST, 1.0 + MIXED_S)
    assert versions.of("west") == OLDEST, "a balancer may lead there again"
    versions.found("west", NEWEST, 2.0 + MIXED_S)
    assert versions.of("west") == NEWEST


@pytest.mark.parametrize("ready", ["<html>ok</html>", '{"status": "ready"}', '{"status": "ready", "region": "north"}'])
async def test_what_is_not_that_regions_proxy_is_down(ready: str, caplog: pytest.LogCaptureFixture) -> None:
    async with listening(answering(lambda _: said(ready.encode()))) as url:
        peers = Peers({"west": url}, 2.0, asyncio.get_running_loop().time, forwards())
        router = Router("east", [], [Peer("west", 0.03)])
        with caplog.at_level(logging.ERROR):
            await peers.probe("west", router)
            await peers.probe("west", router)
        assert (peers.down, peers.silent) == ({"west"}, {"west"})
        assert len(caplog.records) == 1
        assert "correct its [[region]] url" in caplog.text
        peers.close()


async def test_a_region_that_says_nothing_slows_no_other_down() -> None:
    """One is connected to and never answers, the other is asked again meanwhile."""
    asked: list[str] = []
    often = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    def busy(head: str) -> bytes:
        asked.append(head)
        if len(asked) == 3:
            often.set()
        return said(status=503)

    async with listening(hang) as west, listening(answering(busy)) as north:
        clock = asyncio.get_running_loop().time
        peers = Peers({"west": west, "north": north}, 2.0, clock, forwards())
        watching = asyncio.create_task(peers.watch(Router("east", [], [Peer("west", 0.03), Peer("north", 0.03)])))
        async with asyncio.timeout(seconds(10)):
            await often.wait()
        assert not peers.gone("west"), "its first probe still waits"
        assert peers.gone("north"), "two have failed"
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        peers.close()


async def test_one_missed_probe_ends_nothing_that_is_under_way() -> None:
    status = 200
    async with listening(answering(lambda _: said(b'{"region": "west"}', status))) as url:
        peers = Peers({"west": url}, 2.0, asyncio.get_running_loop().time, forwards())
        seen = []
        for status in (200, 503, 200, 503, 503, 200):  # noqa: B007 - the server reads it
            await peers.probe("west", Router("east", [], [Peer("west", 0.03)]))
            seen.append(("west" in peers.down, peers.gone("west")))
        assert seen == [(False, False), (True, False), (False, False), (True, False), (True, True), (False, False)]
        assert peers.silent == set()
        peers.close()


async def test_one_probe_without_an_answer_refuses_nobody_whom_no_other_region_may_serve() -> None:
    """The second one does, and so does an answer of another proxy at that address."""
    answers, region = True, "west"

    def goes_to(router: Router, allowed: frozenset[str] | None) -> str:
        routing = routing_of(Chain([1], [4000]), allowed_regions=allowed)
        try:
            return router.place(routing, 0.0).region
        except NoWorker:
            return ""

    answer = answering(lambda _: said(json.dumps({"region": region}).encode()) if answers else b"")
    async with listening(answer) as url:
        peers = Peers({"west": url}, 2.0, asyncio.get_running_loop().time, forwards())
        router = Router("east", [Worker("a", "a", 0, "aggregated")], [Peer("west", 0.0)])
        router.set_peer_up("west", up=False)  # as a proxy begins
        seen = []
        for answers, region in ((False, "west"), (True, "west"), (False, "west"), (False, "west"),  # noqa: B007
                                (True, "west"), (True, "north")):  # fmt: skip
            await peers.probe("west", router)
            seen.append(goes_to(router, frozenset({"west"})))
            assert goes_to(router, frozenset({"west", "east"})) == "east"
        assert seen == ["", "west", "west", "", "west", ""]
        peers.close()
