"""A network that can be cut: a TCP relay between the proxy and one port of an engine.

The proxy knows this address alone, so the engine behind may come back at another. While it is silent nothing is read
on either side, so that neither bytes nor closes pass, and both arrive when it ends, as after a partition. While it
refuses, the port stays ours by a socket that is bound and does not listen.
"""

import asyncio
import socket
import struct
from typing import Final, cast

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_BACKLOG: Final = 4096


class Cutter:
    """The relay of one port. `target` is where the engine listens now, None while it does not."""

    def __init__(self) -> None:
        self.target: int | None = None
        self.silent = False
        self.links: set[Link] = set()
        self._anchor = _bound(0)
        self.port = int(self._anchor.getsockname()[1])
        self._server: asyncio.Server | None = None

    async def accept(self) -> None:
        """Take connections from now on."""
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(lambda: _Near(self), sock=_bound(self.port), backlog=_BACKLOG)

    def refuse(self) -> None:
        """Take none, and reset those that are there."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.drop(reset=True)

    def drop(self, *, reset: bool) -> None:
        """End all connections on both sides."""
        for link in list(self.links):
            link.end(reset=reset)

    def hush(self, silent: bool) -> None:
        """Begin or end a silence."""
        self.silent = silent
        for link in list(self.links):
            link.pause(silent)

    def close(self) -> None:
        """End everything."""
        self.refuse()
        self._anchor.close()


class Link:
    """One connection of the proxy and the one behind it to the engine."""

    def __init__(self, cutter: Cutter, near: asyncio.Transport) -> None:
        self._cutter = cutter
        self.near = near
        self.far: asyncio.Transport | None = None
        self._early = bytearray()
        self._task: asyncio.Task[None] | None = None
        cutter.links.add(self)
        self.pause(cutter.silent)
        self._task = asyncio.get_running_loop().create_task(self._reach())

    def pause(self, paused: bool) -> None:
        for transport in (self.near, self.far):
            if transport is not None and not transport.is_closing():
                transport.pause_reading() if paused else transport.resume_reading()

    def end(self, *, reset: bool) -> None:
        """Close both sides; what was relayed still goes out unless it is a reset."""
        self._cutter.links.discard(self)
        if self._task is not None:
            self._task.cancel()
        for transport in (self.near, self.far):
            if transport is not None and not transport.is_closing():
                if reset:
                    raw = transport.get_extra_info("socket")
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                    transport.abort()
                else:
                    transport.close()

    def from_near(self, data: bytes) -> None:
        if self.far is None:
            self._early += data
        else:
            self.far.write(data)

    async def _reach(self) -> None:
        """Connect to the engine, once nothing is silent."""
        while self._cutter.silent:
            await asyncio.sleep(0.05)
        try:
            loop = asyncio.get_running_loop()
            far, _ = await loop.create_connection(lambda: _Far(self), "127.0.0.1", self._cutter.target or 1)
        except OSError:
            self.end(reset=True)
            return
        self.far = far
        far.write(bytes(self._early))
        self.pause(self._cutter.silent)


class _Near(asyncio.Protocol):
    """The proxy's side."""

    def __init__(self, cutter: Cutter) -> None:
        self._cutter = cutter
        self._link: Link | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._link = Link(self._cutter, cast("asyncio.Transport", transport))

    def data_received(self, data: bytes) -> None:
        if self._link is not None:
            self._link.from_near(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._link is not None:
            self._link.end(reset=exc is not None)


class _Far(asyncio.Protocol):
    """The engine's side."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def data_received(self, data: bytes) -> None:
        if not self._link.near.is_closing():
            self._link.near.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.end(reset=exc is not None)


def _bound(port: int) -> socket.socket:
    """A socket that is bound, and does not listen."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    found.bind(("127.0.0.1", port))
    found.setblocking(False)
    return found
