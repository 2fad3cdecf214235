"""Counts the buffers of TLS connections, which uvloop and OpenSSL never shrink after a large read or write.

A connection that has read or written much counts with `BUFFERS_BYTES` in the memory budget for bodies until it is
closed. Buffers may take a quarter of this budget, divided between tenants. A connection that finds no room is closed
after its answer, which frees its buffers.
"""

import asyncio
from typing import Final

from warmroute_proxy.core.queue.fair_budget import FairBudget
from warmroute_proxy.server.http.body_memory import BodyMemory, BodyReservation

BUFFERS_BYTES: Final = 720_000
"""The size of a connection's buffers after 1 MB was sent over it."""

SHARE: Final = 4
COUNTED_AS: Final = "buffers of TLS"
"""The name of these buffers in the memory budget for bodies. No tenant can have this name, because it has spaces."""


def is_tls(transport: asyncio.BaseTransport | None) -> bool:
    return transport is not None and transport.get_extra_info("sslcontext") is not None


class TlsBuffers:
    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._shares = FairBudget(memory.budget.total // SHARE)

    def reserve(self, tenant: str) -> "Buffers | None":
        """Count the buffers of one more connection; None if no room is left for them."""
        if not self._shares.reserve(tenant, BUFFERS_BYTES):
            return None
        buffers = Buffers(self._memory.reserve(COUNTED_AS, 0), self._shares, tenant)
        return buffers if buffers.reservation.grow(BUFFERS_BYTES) else None


class Buffers:
    """The reserved buffers of one connection, given back when the connection drops this object."""

    __slots__ = ("_shares", "_tenant", "reservation")

    def __init__(self, reservation: BodyReservation, shares: FairBudget, tenant: str) -> None:
        self.reservation = reservation
        self._shares = shares
        self._tenant = tenant

    def __del__(self) -> None:
        self._shares.release(self._tenant, BUFFERS_BYTES)
