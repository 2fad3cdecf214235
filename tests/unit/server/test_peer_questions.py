"""A question names its tenant: it goes where that may be served, and to regions whose proxies answer."""

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

import pytest
from tests.subjects.http_answers import Answer, answering, listening, said
from tests.subjects.proxy_messages import forwards

from warmroute_proxy.core.placement.fleet import Peer
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.base.config import TenantConfig
from warmroute_proxy.server.regions.peers import PeerQuestions, Peers

REGIONS: Final = ("west", "north", "south")
TENANT: Final = TenantConfig("first", (), "first", frozenset(), frozenset({"*"}), 0)


@pytest.mark.parametrize(
    ("allowed", "of_all", "asked"),
    [
        ({"*"}, False, {"west", "north"}),
        ({"west", "south"}, False, {"west"}),
        ({"east"}, False, set()),
        ({"south"}, False, set()),
        ({"east"}, True, {"west", "north"}),
    ],
)
async def test_who_is_asked(allowed: set[str], of_all: bool, asked: set[str]) -> None:
    """West is ready, north has no engine, but answers; at the address of south another region's proxy is found."""
    heard: set[str] = set()

    def server(region: str) -> Answer:
        def say(head: str) -> bytes:
            is_probe = head.split(" ")[1] == "/ready"
            if not is_probe:
                heard.add(region)
            body = json.dumps({"region": region if region != "south" else "north"})
            return said(body.encode(), 503 if is_probe and region == "north" else 200)

        return answering(say)

    async with AsyncExitStack() as stack:
        urls = {region: await stack.enter_async_context(listening(server(region))) for region in REGIONS}
        peers = Peers(urls, 2.0, asyncio.get_running_loop().time, forwards())
        router = Router("east", [], [Peer(region, 0.03) for region in REGIONS])
        for region in REGIONS:
            await peers.probe(region, router)
        assert peers.down == {"north", "south"}
        questions, tenant = PeerQuestions(peers, forwards(), 2.0), replace(TENANT, regions=frozenset(allowed))
        found = await questions.ask_all(tenant, "/v1/usage", None, 2.0, of_all=of_all)
        assert heard == asked == {region for region, body in found.items() if body is not None}
        assert found.keys() == {region for region in REGIONS if of_all or tenant.may_be_served(region)}
        heard.clear()
        if not of_all:
            status, _ = await questions.ask(tenant, "/v1/usage/receipts/wr-1")
            assert status == (200 if asked else 503 if "south" in allowed else 404), "a silent region may have it"
            assert heard <= asked
            assert bool(heard) == bool(asked)
        peers.close()
