"""Large bodies are read in slices, so that other sockets come to their turn between them.

When a socket has much to read, uvloop reads it up to 32 times in one iteration (libuv does), which is 8 MB. Over TLS
that holds the event loop for 20 ms.
"""

import asyncio
from typing import Final, Protocol

COUNTED_BYTES: Final = 65_536
"""Smaller reads are not counted: their socket is empty."""

SLICE_BYTES: Final = 2_097_152


class Reading(Protocol):
    """A connection that is read."""

    def pause_reading(self) -> None:
        """Read no more."""

    def resume_reading(self) -> None:
        """Read on."""


class ReadSlices:
    """What was read in this iteration of the loop, by all connections of a listener."""

    def __init__(self) -> None:
        self._bytes = 0
        self._paused: list[Reading] = []  # at most all connections, until the next iteration

    def read(self, connection: Reading, size_bytes: int) -> None:
        """Count a read; the connection is paused where it was too much."""
        if not self._bytes:
            asyncio.get_running_loop().call_soon(self._go_on)
        self._bytes += size_bytes
        if self._bytes > SLICE_BYTES:
            connection.pause_reading()
            self._paused.append(connection)

    def _go_on(self) -> None:
        self._bytes = 0
        paused, self._paused = self._paused, []
        for connection in paused:
            connection.resume_reading()
