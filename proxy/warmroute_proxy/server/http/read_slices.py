"""Reads large bodies in slices, so that other sockets are read between the slices.

When a socket has much to read, uvloop (by libuv) reads it up to 32 times in one iteration, which is 8 MB. Over TLS this
holds the event loop for 20 ms.

A slice is small, because the work after a read costs more than the read. For example, a body for another process is
written to shared memory, which takes 1 to 2 ms per MB. Once an iteration has read a slice, connections that bring more
are paused. In each iteration a few paused connections go on, tenant by tenant, so a tenant with many connections gets
no more time than a tenant with one.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from warmroute_proxy.server.http.exchange import Exchange, Request

COUNTED_BYTES: Final = 65_536
"""Smaller reads are not counted, since they have emptied their sockets."""

SLICE_BYTES: Final = 524_288
GO_ON: Final = 2
"""How many paused connections go on in one iteration."""


class SlicedConnection(Protocol):
    def pause_reading(self) -> None:
        """Read no more."""

    def resume_reading(self) -> None:
        """Read on."""


class ReadSlices:
    """Limits the bytes that all connections of a listener read in an iteration of the loop."""

    def __init__(self) -> None:
        self.refuse: Callable[[Request, Exchange], None] | None = None
        """The function that writes a refusal when it is the tenant's turn; None: refusals are written at once."""

        self._bytes = 0
        self._goes_on = False  # whether `_go_on` runs in the next iteration
        self._paused: dict[str, deque[SlicedConnection]] = {}
        """Tenant -> its paused connections, if it has any. The order is that of the tenants' turns."""

    def read(self, connection: SlicedConnection, size_bytes: int, tenant: str) -> None:
        """Count a read for a tenant. Pauses the connection if this iteration has read more than `SLICE_BYTES`."""
        self._go_on_later()
        self._bytes += size_bytes
        if self._bytes > SLICE_BYTES:
            self.wait(connection, tenant)

    def wait(self, connection: SlicedConnection, tenant: str) -> None:
        """Pause a connection until its turn in a later iteration."""
        self._go_on_later()
        connection.pause_reading()
        self._paused.setdefault(tenant, deque()).append(connection)

    def waits(self, tenant: str) -> bool:
        """Whether connections of a tenant are paused until their turn."""
        return tenant in self._paused

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
                paused[tenant] = connections  # after the other tenants
            connection.resume_reading()
        self._goes_on = bool(paused)
        if paused:
            asyncio.get_running_loop().call_soon(self._go_on)
