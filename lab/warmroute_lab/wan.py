"""A wide-area network between two regions, on one machine: a TCP relay that delays every byte by a fixed time.

Each link listens on its own port and passes connections to its targets in rotation, like a load balancer in front of a
region. A target that refuses a connection is skipped. The relay starts before its targets are known, since its address
is in the configuration of the proxies. A line `{"<link>": "http://host:port"}` on standard input names the target.
Later lines replace targets or delays: `{"<link>": {"targets": [...], "delays_ms": [there, back]}}`, with one or both
members. Bytes, half-closes and aborts arrive in order, after the delay of their direction. The process ends with its
standard input, so it never outlives its parent.

If more than `PENDING_BYTES_MAX` bytes wait in one direction, the relay stops reading from their sender until at most
half of this number wait.
"""

import argparse
import asyncio
import json
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit

PENDING_BYTES_MAX = 1 << 20


class Link:
    """One listening port: its delays, and its targets in the other region, once they are known."""

    def __init__(self, delay_s: float) -> None:
        self.there_s = self.back_s = delay_s
        self._targets: list[tuple[str, int]] = []
        self._known = asyncio.Event()
        self._next = 0
        self._connecting: set[asyncio.Task[None]] = set()

    def set(self, given: Any) -> None:
        """Set the targets or delays that a line of standard input has for this link."""
        if isinstance(given, str):
            given = {"targets": [given]}
        if "delays_ms" in given:
            self.there_s, self.back_s = (delay_ms / 1000 for delay_ms in given["delays_ms"])
        if "targets" in given:
            parts = [urlsplit(url) for url in given["targets"]]
            self._targets = [(each.hostname or "127.0.0.1", each.port or 80) for each in parts]
            self._known.set()

    def accept(self) -> "End":
        """The near end of a new connection. Starts to connect the far end."""
        near = End(lambda: self.there_s)
        task = asyncio.get_running_loop().create_task(self._connect(near))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return near

    async def _connect(self, near: "End") -> None:
        await self._known.wait()
        far = End(lambda: self.back_s)
        near.peer, far.peer = far, near
        self._next += 1
        for number in range(len(self._targets)):
            host, port = self._targets[(self._next + number) % len(self._targets)]
            try:
                await asyncio.get_running_loop().create_connection(lambda: far, host, port)
            except OSError:
                continue
            if near.lost:
                far.abort()
            near.flush()
            return
        near.abort()


class End(asyncio.Protocol):
    """One end of a relayed connection. `peer`, the other end, sends what this end receives, `delay_s()` later."""

    def __init__(self, delay_s: Callable[[], float]) -> None:
        self.delay_s = delay_s
        self.peer: End | None = None
        self.lost = False
        self._transport: asyncio.Transport | None = None
        self._pending: deque[tuple[float, bytes | None]] = deque()
        self._pending_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._reading_paused = self._full = self._read_ended = self._write_ended = False

    # From the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Deliver bytes at the peer after the delay."""
        self._send(data)

    def eof_received(self) -> bool:
        """End this direction at the peer after the delay; the other direction stays open."""
        self._read_ended = True
        self._send(None)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Abort the peer after the delay if this connection broke before both directions had ended."""
        self.lost = True
        if self.peer is not None and not (exc is None and self._read_ended and self._write_ended):
            asyncio.get_running_loop().call_later(self.delay_s(), self.peer.abort)

    def pause_writing(self) -> None:
        """Hold back the bytes that are on their way to this socket, since its buffer is full."""
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if self.peer is not None:
            self.peer.flush()

    # Delay

    def _send(self, data: bytes | None) -> None:
        self._pending.append((asyncio.get_running_loop().time() + self.delay_s(), data))
        self._pending_bytes += len(data or b"")
        if self._pending_bytes > PENDING_BYTES_MAX and self._transport is not None and not self._reading_paused:
            self._transport.pause_reading()
            self._reading_paused = True
        self.flush()

    def flush(self) -> None:
        """Deliver to the peer the bytes that are due, and set a timer for the next ones."""
        loop, peer = asyncio.get_running_loop(), self.peer
        if peer is None or peer._transport is None:
            return
        while self._pending and self._pending[0][0] <= loop.time() and not peer._full:
            _, data = self._pending.popleft()
            self._pending_bytes -= len(data or b"")
            peer._deliver(data)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pending and not peer._full:
            self._timer = loop.call_at(self._pending[0][0], self.flush)
        if self._reading_paused and self._pending_bytes <= PENDING_BYTES_MAX // 2 and self._transport is not None:
            self._reading_paused = False
            if not self.lost:
                self._transport.resume_reading()

    def _deliver(self, data: bytes | None) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if data is not None:
            transport.write(data)
            return
        self._write_ended = True
        if self._read_ended:
            transport.close()
        else:
            transport.write_eof()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def serve(names: list[str], delay_s: float) -> None:
    """Listen for every link until standard input ends."""
    loop = asyncio.get_running_loop()
    links = {name: Link(delay_s) for name in names}
    urls = {}
    servers = []
    for name, link in links.items():
        server = await loop.create_server(link.accept, "127.0.0.1", 0)
        servers.append(server)
        urls[name] = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    print(json.dumps({"event": "listening", "urls": urls}), flush=True)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        for name, given in json.loads(line).items():
            links[name].set(given)
    for server in servers:
        server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--delay-ms", type=float, required=True, help="one way")
    parser.add_argument("--link", action="append", required=True, help="name of a link; one port each")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.link, arguments.delay_ms / 1000))


if __name__ == "__main__":
    main()
