"""What goes to another proxy of the region: in a version that it reads, and never more than it will get."""

import asyncio
import base64
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import pytest
from tests.machine import seconds
from tests.subjects.http_answers import listening, said
from tests.subjects.proxy_messages import SECRETS

from warmroute.contract.conversations import Newest
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.processes.peer_processes import Continued
from warmroute_proxy.server.regions.forward_claim import Forwards
from warmroute_proxy.server.regions.other_proxies import MAX_BESIDE_BYTES, RETRY_S, OtherProxies
from warmroute_proxy.server.regions.versions import NEWEST, OLDEST

NEWEST_REQUEST: Final = Continued(Newest("d-0-1", "first", 1, 2, b"x" * 16_000))


class Sibling:
    """Another proxy: what it reads, what it answers to a post, and what was posted to it."""

    def __init__(self) -> None:
        self.reads: list[int] | None = [OLDEST, NEWEST]
        self.status = 200
        self.versions: list[int] = []
        self.came = asyncio.Condition()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        status, body = 200, b"{}"
        if head.startswith("GET /ready"):
            body = json.dumps({"region": "east", "forward_versions": self.reads}).encode()
        else:
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head.split("\r\n"))}
            await reader.readexactly(int(headers["content-length"]))
            token = headers["x-warmroute-forward"].partition(".")[0]
            claim: dict[str, Any] = json.loads(base64.urlsafe_b64decode(token))
            version, status = claim.get("v", 0), self.status
            if self.reads is not None and not self.reads[0] <= version <= self.reads[1]:
                status = 401
            async with self.came:
                self.versions.append(version)
                self.came.notify_all()
        writer.write(said(body, status))

    async def until_posted(self, count: int) -> None:
        async with asyncio.timeout(seconds(10)), self.came:
            await self.came.wait_for(lambda: len(self.versions) >= count)


class Scene:
    """The proxies of a region as one of them sees them; `now_s` is set by hand."""

    def __init__(self, url: str) -> None:
        self.now_s = 100.0
        numbers = itertools.count()
        self.metrics = Metrics()
        clock: Callable[[], float] = lambda: self.now_s  # noqa: E731
        forwards = Forwards(SECRETS, "east", clock, lambda _: str(next(numbers)))
        self.others = OtherProxies([url], "east", "/v1/regions/announcements", forwards, self.metrics, clock, 2.0, 1)

    def counted(self, result: str) -> int:
        return int(self.metrics.counter(declared.SHARED_EVENTS_TOTAL, (("result", result),))[0])

    async def sends_again(self, sibling: Sibling, posts: int) -> None:
        """Let the time pass after which it tries again, as often as it is not ready to."""
        async with asyncio.timeout(seconds(10)):
            while len(sibling.versions) < posts:
                self.now_s += RETRY_S
                self.others.sweep()
                await asyncio.sleep(0)

    async def until_counted(self, result: str, count: int) -> None:
        async with asyncio.timeout(seconds(10)):
            while self.counted(result) < count:
                await asyncio.sleep(0)
        assert self.counted(result) == count


@pytest.mark.parametrize("reads", [[OLDEST, OLDEST], [OLDEST, NEWEST], [NEWEST, NEWEST + 1]])
async def test_each_is_written_to_in_a_version_that_it_reads(reads: list[int]) -> None:
    sibling = Sibling()
    async with listening(sibling.answer) as url:
        scene = Scene(url)
        sibling.reads = reads
        scene.others.send_beside(NEWEST_REQUEST)
        await sibling.until_posted(1)
        await scene.until_counted("sent", 1)
        assert sibling.versions == [min(reads[1], NEWEST)]
        sibling.reads = [OLDEST, OLDEST]  # it was put back to an older release
        scene.others.send_beside(NEWEST_REQUEST)
        await sibling.until_posted(2)
        if reads[1] > OLDEST:
            await scene.sends_again(sibling, 3)
        assert sibling.versions[-1] == OLDEST
        scene.others.close()


async def test_nothing_is_sent_once_it_is_closed() -> None:
    async with listening(Sibling().answer) as url:
        scene = Scene(url)
        scene.others.send_beside(NEWEST_REQUEST)
        scene.others.close()
        scene.others.sweep()
        assert asyncio.all_tasks() == {asyncio.current_task()}


@asynccontextmanager
async def ten_refused(sibling: Sibling) -> AsyncIterator[Scene]:
    """Ten messages were sent, and not taken."""
    async with listening(sibling.answer) as url:
        scene = Scene(url)
        sibling.status = 503
        for _ in range(10):
            scene.others.send_beside(NEWEST_REQUEST)
        await sibling.until_posted(1)
        yield scene
        scene.others.close()


async def test_what_is_not_confirmed_is_sent_once_more() -> None:
    sibling = Sibling()
    async with ten_refused(sibling) as scene:
        sibling.status = 200
        await scene.sends_again(sibling, 2)
        await scene.until_counted("sent", 10)
        assert scene.counted("lost") == 0


async def test_what_is_not_confirmed_twice_counts_as_lost() -> None:
    sibling = Sibling()
    async with ten_refused(sibling) as scene:
        await scene.sends_again(sibling, 2)
        await scene.until_counted("lost", 10)
        assert scene.counted("sent") == 0
        sibling.status = 200
        scene.others.send_beside(NEWEST_REQUEST)
        await scene.sends_again(sibling, 3)
        await scene.until_counted("sent", 1)
        assert scene.counted("lost") == 10


async def test_what_waits_is_bounded_in_bytes() -> None:
    """The proxy says nothing while there come more."""

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listening(hang) as url:
        scene = Scene(url)
        size = len(msgspec.msgpack.encode(NEWEST_REQUEST))
        fit = MAX_BESIDE_BYTES // size
        for _ in range(fit + 5):
            scene.others.send_beside(NEWEST_REQUEST)
        assert scene.counted("lost") == 5
        scene.others.close()
