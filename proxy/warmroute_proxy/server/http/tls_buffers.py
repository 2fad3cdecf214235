"""The buffers of TLS connections, which keep the size of the largest read and write: uvloop and OpenSSL shrink none.

A connection that has read or written much counts with `BUFFERS_BYTES` in the memory of bodies until it is closed. So
may all of them with a quarter of that memory, divided between tenants. One that finds no place is closed behind its
answer, which frees its buffers.
"""

import asyncio
from typing import Final

from warmroute_proxy.core.queue.fair_budget import FairBudget
from warmroute_proxy.server.http.body_memory import BodyMemory, BodyReservation

BUFFERS_BYTES: Final = 720_000
"""What 1 MB over a connection leaves there."""

SHARE: Final = 4
COUNTED_AS: Final = "buffers of TLS"
"""In the memory of bodies; no tenant has a space in its name."""


def is_tls(transport: asyncio.BaseTransport | None) -> bool:
    return transport is not None and transport.get_extra_info("sslcontext") is not None


class TlsBuffers:
    """Those of one listener's connections."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._shares = FairBudget(memory.budget.total // SHARE)

    def reserve(self, tenant: str) -> "Buffers | None":
        """Count the buffers of one more connection; None if there is no place for them."""
        if not self._shares.reserve(tenant, BUFFERS_BYTES):
            return None
        buffers = Buffers(self._memory.reserve(COUNTED_AS, 0), self._shares, tenant)
        return buffers if buffers.reservation.grow(BUFFERS_BYTES) else None


class Buffers:
    """What one connection has reserved, as long as it refers to it."""

    __slots__ = ("_shares", "_tenant", "reservation")

    def __init__(self, reservation: BodyReservation, shares: FairBudget, tenant: str) -> None:
        self.reservation = reservation
        self._shares = shares
        self._tenant = tenant

    def __del__(self) -> None:
        self._shares.release(self._tenant, BUFFERS_BYTES)
