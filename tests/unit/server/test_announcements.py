"""Announcements go where their tenant may be served, and nowhere else."""

import asyncio
import itertools
from collections.abc import Collection
from contextlib import AsyncExitStack
from typing import Final

import msgspec
import pytest
from tests.machine import seconds
from tests.subjects.http_answers import Answer, listening, said
from tests.subjects.proxy_messages import SECRETS
from tests.subjects.small_client import SmallClient

from warmroute.contract.conversations import Conversations, Newest
from warmroute_proxy.core.cache.settled_turn import RegionalTurn, SettledTurn
from warmroute_proxy.core.placement.fleet import Peer
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.processes.peer_processes import Continued
from warmroute_proxy.server.regions.announcements import Announcement, Announcements
from warmroute_proxy.server.regions.forward_claim import Forwards
from warmroute_proxy.server.regions.other_proxies import OtherProxies
from warmroute_proxy.server.regions.peers import Peers
from warmroute_proxy.server.regions.versions import ANNOUNCEMENTS

REGIONS: Final = ("west", "north", "south")
TURN: Final = RegionalTurn(1, 7, None, 3, 0, SettledTurn((), "east", 900, 300, 1, 0, 1, 0, 5))
NEWEST: Final = Newest("d-0-1", "first", 1, 2, b"a word that stays where it may be served")


class Posts:
    """What each other region, and another proxy of this one, was told."""

    def __init__(self) -> None:
        self.told: dict[str, list[Announcement]] = {}
        self.came = asyncio.Condition()

    def of(self, name: str) -> Answer:
        self.told[name] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if head.startswith(b"get /ready"):
                writer.write(said(b'{"region": "east", "forward_versions": [0, 1]}'))
                return
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            body = await reader.readexactly(length)
            writer.write(said())
            async with self.came:
                self.told[name] += msgspec.msgpack.decode(body, type=list[Announcement])
                self.came.notify_all()

        return answer

    async def all_of(self, names: Collection[str], count: int) -> None:
        """Wait until each of these was told so much."""
        async with asyncio.timeout(seconds(10)), self.came:
            await self.came.wait_for(lambda: all(len(self.told[name]) >= count for name in names))


@pytest.mark.parametrize("allowed", [None, ("west",), ("north", "south"), ("east",)])
async def test_a_tenant_is_announced_where_it_may_be_served(allowed: tuple[str, ...] | None) -> None:
    posts, clock = Posts(), asyncio.get_running_loop().time
    urls: dict[str, str] = {}
    forwards = Forwards(SECRETS, "east", clock, lambda size: "ab" * size)
    async with AsyncExitStack() as stack:
        for region in REGIONS:
            urls[region] = await stack.enter_async_context(listening(posts.of(region)))
        here = await stack.enter_async_context(listening(posts.of("here")))
        metrics = Metrics()
        peers = Peers(urls, 2.0, clock, forwards)
        peers.down.clear()  # each has been probed
        others = OtherProxies([here], "east", ANNOUNCEMENTS, forwards, metrics, clock, 2.0, 1)
        announcements = Announcements("east", peers, forwards, metrics, clock, 2.0, others)
        announcements.announce(TURN, allowed)
        announcements.newest(NEWEST, allowed)
        told = [region for region in REGIONS if allowed is None or region in allowed]
        await posts.all_of(told, 2)
        if allowed is None or "east" in allowed:
            await posts.all_of(["here"], 1)
        announcements.announce(TURN, None)  # the last that anybody is told
        await posts.all_of([region for region in REGIONS if region not in told], 1)
        await posts.all_of(told, 3)
        assert all(posts.told[region][:2] == [TURN, Continued(NEWEST)] for region in told)
        assert all(posts.told[region] == [TURN] for region in REGIONS if region not in told)
        here_too = [Continued(NEWEST)] if allowed is None or "east" in allowed else []
        assert [each for each in posts.told["here"] if isinstance(each, Continued)] == here_too
        peers.close()
        others.close()


async def test_text_of_a_tenant_that_may_not_be_served_here_is_dropped_whoever_sends_it() -> None:
    clock = asyncio.get_running_loop().time
    numbers = itertools.count()
    forwards = [Forwards(SECRETS, region, clock, lambda _: str(next(numbers))) for region in ("west", "east")]
    peers = Peers({"west": "http://127.0.0.1:9"}, 2.0, clock, forwards[1])
    others = OtherProxies([], "east", ANNOUNCEMENTS, forwards[1], Metrics(), clock, 2.0, 1)
    announcements = Announcements("east", peers, forwards[1], Metrics(), clock, 2.0, others)
    conversations, router = Conversations("x"), Router("east", [], [Peer("west", 0.03)])
    for tenant in ("first", "second"):
        request = Request(0.0, "POST", ANNOUNCEMENTS)
        request.body = msgspec.msgpack.encode([Continued(NEWEST._replace(key=tenant, tenant=tenant))])
        token = forwards[0].sign("", "", ANNOUNCEMENTS, "east", request.body_sha256(), 2.0)
        request.headers = {"x-warmroute-forward": token}
        client = SmallClient()
        announcements.receive(request, client, router, conversations, lambda tenant: tenant == "second")
        assert client.how == "respond 200"
    assert [newest.tenant for newest in conversations.newest()] == ["second"]
    peers.close()
