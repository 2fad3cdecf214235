"""Connections to an engine: a request under which an idle one is closed is sent once more, and no other is."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from warmroute_proxy.core.load.blame import Cause
from warmroute_proxy.server.engines.leg import Leg
from warmroute_proxy.server.engines.upstream import Upstream
from warmroute_proxy.server.http.header_lines import Line

FAR_S = 900.0
IDLE_S, SINCE_S = 2.0, 5.0
"""How long a connection was idle when the request was sent, and when the engine closed it."""

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CLOSED = "BROKEN: the engine closed without an answer"


class Asked:
    """What comes of a request."""

    def __init__(self, engine: "Engine", *, anew: bool = True) -> None:
        self.ended = asyncio.Event()
        self.found = ""
        self.leg = Leg(self)
        head = engine.upstream.head("POST", "/v1/chat/completions", "")
        if anew:
            engine.upstream.send_with(head, [b"{}"], self.leg)
        else:
            engine.upstream.send("POST", "/v1/chat/completions", "", [b"{}"], self.leg)

    def on_head(self, status: int, headers: dict[str, str]) -> None: ...
    def on_body(self, data: bytes) -> None: ...
    def streams(self) -> None: ...
    def on_crash(self) -> None: ...

    def holds(self, size_bytes: int) -> None: ...

    def on_end(self) -> None:
        self.found = "answered"
        self.ended.set()

    def on_whole(self, lines: list[Line], body: bytes, now_s: float) -> None:
        del lines, body, now_s
        self.on_end()

    def on_fail(self, cause: Cause, reason: str) -> None:
        self.found = f"{cause.name}: {reason}"
        self.ended.set()

    async def end(self) -> str:
        """Wait for it."""
        await self.ended.wait()
        return self.found


class Engine:
    """It answers each request but those of `closes`, by number, under which it closes the connection."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.closes: set[int] = set()
        self.late_s = SINCE_S - IDLE_S
        self.connections = self.requests = 0
        self.serving: set[asyncio.Task[None] | None] = set()
        self.listener: asyncio.Server | None = None
        self.upstream = Upstream("http://127.0.0.1:1", FAR_S, lambda: self.now_s)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        self.serving.add(asyncio.current_task())
        while True:
            try:
                await reader.readuntil(b"{}")
            except asyncio.IncompleteReadError:
                break
            self.requests += 1
            if self.requests in self.closes:
                self.now_s += self.late_s
                break
            writer.write(ANSWER)
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def engine() -> AsyncIterator[Engine]:
    """One that has answered a request, whose connection has been idle for `IDLE_S` since."""
    made = Engine()
    made.listener = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    port = made.listener.sockets[0].getsockname()[1]
    made.upstream = Upstream(f"http://127.0.0.1:{port}", FAR_S, lambda: made.now_s)
    try:
        assert await Asked(made).end() == "answered"
        made.now_s += IDLE_S
        yield made
    finally:
        made.upstream.close()
        made.listener.close()
        await asyncio.gather(*filter(None, made.serving), return_exceptions=True)


@pytest.mark.parametrize(
    ("closes", "late_s", "anew", "found", "requests"),
    [
        ({2}, SINCE_S - IDLE_S, True, "answered", 3),
        ({2, 3}, SINCE_S - IDLE_S, True, CLOSED, 3),
        ({2}, 0.0, True, CLOSED, 2),
        ({2}, SINCE_S - IDLE_S, False, CLOSED, 2),
    ],
    ids=["it was idle", "a second time", "it was not idle for long", "it is no turn"],
)
async def test_a_turn_is_sent_anew_once_where_the_engine_closes_an_idle_connection_under_it(
    closes: set[int], late_s: float, anew: bool, found: str, requests: int
) -> None:
    async with engine() as it:
        it.closes, it.late_s = closes, late_s
        assert await Asked(it, anew=anew).end() == found
        assert (it.connections, it.requests) == (requests - 1, requests)


async def test_an_engine_that_has_ended_has_ended_under_the_request() -> None:
    async with engine() as it:
        assert it.listener is not None
        it.closes = {2}
        it.listener.close()
        assert await Asked(it).end() == CLOSED


async def test_nothing_is_sent_anew_for_a_client_that_has_left() -> None:
    async with engine() as it:
        it.closes = {2}
        asked = Asked(it)
        asked.leg.close()
        assert await Asked(it).end() == "answered"
        assert it.requests <= 3
