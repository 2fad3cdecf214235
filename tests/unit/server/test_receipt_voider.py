"""Rows of other regions are voided one by one: what one order meets holds up no other, and none waits for ever."""

import asyncio
import logging
import socket
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from tests.machine import seconds
from tests.subjects.http_answers import listening, said
from tests.subjects.patience import FAR_S
from tests.subjects.proxy_messages import forwards

from warmroute_proxy.server.base.config import TenantConfig
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.ledger.void_orders import VoidOrders
from warmroute_proxy.server.regions.other_proxies import OtherProxies
from warmroute_proxy.server.regions.peers import Peers
from warmroute_proxy.server.regions.receipt_voider import FIRST_WAIT_S, MAX_AGE_S, MAX_WAIT_S, ReceiptVoider

TENANT: Final = TenantConfig("first", (), "first", frozenset(), frozenset(), 0)
SILENT: Final = 0


class Home:
    """A region, by receipt id the status that it answers; it says nothing where that is 0."""

    def __init__(self) -> None:
        self.statuses: dict[str, int] = {}
        self.asked: list[str] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        receipt = head.split(" ")[1].split("/")[4]
        self.asked.append(receipt)
        status = self.statuses.get(receipt, 200)
        if status == SILENT:
            await reader.read()
        else:
            writer.write(said(b"", status))


class Scene:
    """A voider whose clocks are set by hand."""

    def __init__(self, url: str, folder: Path, timeout_s: float = FAR_S) -> None:
        self.now_s = 1_000.0
        peers = Peers({"west": url}, FAR_S, asyncio.get_running_loop().time, forwards())
        peers.down.clear()
        self.orders = VoidOrders(folder, 0, 1)
        clock = lambda: self.now_s  # noqa: E731
        self.voider = ReceiptVoider(peers, forwards(), self.orders, Metrics(), clock, clock, timeout_s)


async def test_an_order_that_is_not_answered_holds_up_no_other(tmp_path: Path) -> None:
    home = Home()
    async with listening(home.answer) as url:
        scene = Scene(url, tmp_path, timeout_s=0.2)
        home.statuses["wr-1"] = SILENT
        for receipt in ("wr-1", "wr-2"):
            scene.voider.order(TENANT, "west", receipt)
        while scene.orders.waiting == 2:  # a slow machine may not answer within the time either
            await scene.voider.send()
            scene.now_s += MAX_WAIT_S
        assert [order.id for order in scene.orders.of_region("west")] == ["wr-1"]
        scene.voider.peers.close()


async def test_an_order_waits_longer_each_time(tmp_path: Path) -> None:
    home = Home()
    async with listening(home.answer) as url:
        scene = Scene(url, tmp_path)
        home.statuses["wr-1"] = 503
        scene.voider.order(TENANT, "west", "wr-1")
        asked_at_s = []
        for _ in range(1_200):
            before = len(home.asked)
            await scene.voider.send()
            if len(home.asked) > before:
                asked_at_s.append(scene.now_s)
            scene.now_s += 1.0
        waits = [after - before for before, after in pairwise(asked_at_s)]
        assert waits[:9] == [FIRST_WAIT_S * 2**number for number in range(9)]
        assert set(waits[9:]) == {MAX_WAIT_S}
        scene.voider.peers.close()


async def test_an_order_that_is_never_carried_out_is_given_up_with_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = Home()
    async with listening(home.answer) as url:
        scene = Scene(url, tmp_path)
        home.statuses["wr-1"] = 503
        scene.voider.order(TENANT, "west", "wr-1")
        scene.voider.order(TENANT, "gone", "wr-2")  # a region that the config no longer names
        scene.now_s += MAX_AGE_S
        await scene.voider.send()
        assert scene.orders.waiting == 2
        scene.now_s += 1.0
        with caplog.at_level(logging.ERROR):
            await scene.voider.send()
        assert scene.orders.waiting == 0
        assert {record.message.split(" was ")[0] for record in caplog.records} == {
            "the row wr-1 in region west",
            "the row wr-2 in region gone",
        }
        scene.voider.peers.close()


async def test_proxies_of_the_region_are_asked_at_once_and_within_half_the_time() -> None:
    """Each says nothing until both were asked. Then one has the row, and the other never answers."""
    asked: list[int] = []
    both = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.append(len(asked))
        first = len(asked) == 1
        if len(asked) == 2:
            both.set()
        await both.wait()
        if first:
            await reader.read()
        else:
            writer.write(said())

    timeout_s, loop = seconds(4.0), asyncio.get_running_loop()
    async with listening(answer) as url:
        others = OtherProxies([url, url], "east", "/x", forwards(), Metrics(), loop.time, timeout_s, 1)
        async with asyncio.timeout(timeout_s):
            assert await others.ask("/v1/usage/receipts/wr-1/void", ("first", "first")) == 200
        others.close()


async def test_a_proxy_whose_name_has_no_address_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said(status=404))

    loop = asyncio.get_running_loop()
    resolved, lacks = loop.getaddrinfo, socket.EAI_NONAME

    async def resolve(host: str, *options: Any, **named: Any) -> Any:
        if host == "gone":
            raise socket.gaierror(lacks, "as a resolver says it")
        return await resolved(host, *options, **named)

    monkeypatch.setattr(loop, "getaddrinfo", resolve)
    path, tenant = "/v1/usage/receipts/wr-1/void", ("first", "first")
    async with listening(answer) as url:
        others = OtherProxies([url, "http://gone:8000"], "east", "/x", forwards(), Metrics(), loop.time, seconds(4), 1)
        assert await others.ask(path, tenant) == 410
        lacks = socket.EAI_AGAIN  # the resolver is away
        assert await others.ask(path, tenant) == 503
        others.close()
