"""Large bodies are read in slices, so that other sockets come to their turn between them.

When a socket has much to read, uvloop reads it up to 32 times in one iteration (libuv does), which is 8 MB. Over TLS
that holds the event loop for 20 ms.

A slice is small, since what follows a read costs more than the read: a body that another process is to read is written
to memory, in 1 to 2 ms a MB. Connections that have brought too much go on by turns, tenant by tenant and a few in each
iteration, so that many of one tenant's take no more of it than one.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from warmroute_proxy.server.http.exchange import Exchange, Request

COUNTED_BYTES: Final = 65_536
"""Smaller reads are not counted: their socket is empty."""

SLICE_BYTES: Final = 524_288
GO_ON: Final = 2
"""Connections that are read on in one iteration."""


class SlicedConnection(Protocol):
    """A connection that is read."""

    def pause_reading(self) -> None:
        """Read no more."""

    def resume_reading(self) -> None:
        """Read on."""


class ReadSlices:
    """What was read in this iteration of the loop, by all connections of a listener."""

    def __init__(self) -> None:
        self.refuse: Callable[[Request, Exchange], None] | None = None
        """Answers with refusals in the turns of tenants; None: they are written at once."""

        self._bytes = 0
        self._goes_on = False  # in the next iteration
        self._paused: dict[str, deque[SlicedConnection]] = {}
        """By tenant, none of them empty, in the order of their turns; at most all connections."""

    def read(self, connection: SlicedConnection, size_bytes: int, tenant: str) -> None:
        """Count a read of a tenant's bytes; the connection is paused if it was too much."""
        self._go_on_later()
        self._bytes += size_bytes
        if self._bytes > SLICE_BYTES:
            self.wait(connection, tenant)

    def wait(self, connection: SlicedConnection, tenant: str) -> None:
        """Pause a connection, and have it go on when its turn comes, in another iteration."""
        self._go_on_later()
        connection.pause_reading()
        self._paused.setdefault(tenant, deque()).append(connection)

    def _go_on_later(self) -> None:
        if not self._goes_on:
            self._goes_on = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._bytes = 0
        paused = self._paused
        for _ in range(GO_ON):
            if not paused:
                break
            tenant = next(iter(paused))
            connections = paused.pop(tenant)
            connection = connections.popleft()
            if connections:
                paused[tenant] = connections  # behind the others
            connection.resume_reading()
        self._goes_on = bool(paused)
        if paused:
            asyncio.get_running_loop().call_soon(self._go_on)
