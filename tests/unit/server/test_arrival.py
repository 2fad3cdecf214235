"""Connections that have just been accepted, when the proxy ends."""

import asyncio
import socket

import pytest
import uvloop
from tests.machine import seconds
from tests.subjects.body_memory import plenty

from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.http.arrival import ListeningSocket
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.http.open_connections import OpenConnections


class Endpoint:
    """Does nothing."""

    def on_head(self, request: Request) -> None: ...

    def handle(self, request: Request, exchange: Exchange) -> None: ...

    def in_shape(self, request: Request, refusal: Refusal) -> Refusal:
        return refusal

    def on_status(self, request: Request, status: int) -> None: ...


@pytest.mark.parametrize("steps", range(4), ids=lambda steps: f"{steps} iterations later")
def test_one_that_came_as_the_listener_closed_is_closed(steps: int) -> None:
    """In the same iteration of the loop its task has not begun: a task that is cancelled then runs no `finally`."""

    async def accept_and_stop() -> tuple[int, bytes]:
        loop = asyncio.get_running_loop()
        connections = OpenConnections(Endpoint(), Limits(), loop.time, plenty())
        listening = socket.create_server(("127.0.0.1", 0))
        listener = ListeningSocket(listening, connections, None)
        with socket.create_connection(listening.getsockname()) as client:
            client.setblocking(False)
            while not connections.members:
                await asyncio.sleep(0)
            for _ in range(steps):
                await asyncio.sleep(0)
            listener.close()
            connections.close_when_idle()
            connections.abort()
            async with asyncio.timeout(seconds(10)):
                read = await loop.sock_recv(client, 1)
            for _ in range(100):
                await asyncio.sleep(0)
            return len(connections.members), read

    assert uvloop.run(accept_and_stop()) == (0, b"")
