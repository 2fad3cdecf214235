"""One epoll loop and one heap of timers, for the mock engines and the load together.

Both ends of the proxy live in this one loop, on a core of their own: no control protocol between them, one clock, and
no scheduler that lets one of them wait for the other. asyncio is not used because its timers (uvloop's too) have whole
milliseconds: 5,000 chunks a second would leave in groups of five, and a group costs a proxy less than five chunks do.
"""

import heapq
import itertools
import select
import socket
from collections.abc import Callable
from time import monotonic_ns
from typing import Final

READ_BYTES: Final = 65536
BACKLOG: Final = 4096
_NS_PER_S: Final = 1_000_000_000


class Loop:
    """Calls wires when they can be read or written, and timers when they are due."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._ready: dict[int, Callable[[int], None]] = {}
        self._socks: dict[int, socket.socket] = {}
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()  # timers that are due at the same time fire in the order they were set

    def watch(self, sock: socket.socket, ready: Callable[[int], None]) -> None:
        """Call `ready` with the events of a socket; it is watched for reading."""
        self._ready[sock.fileno()] = ready
        self._socks[sock.fileno()] = sock
        self._epoll.register(sock, select.EPOLLIN)

    def watch_writing(self, sock: socket.socket, writing: bool) -> None:
        """Also, or no longer, call when it can be written."""
        self._epoll.modify(sock, select.EPOLLIN | (select.EPOLLOUT if writing else 0))

    def forget(self, sock: socket.socket) -> None:
        """Watch it no more."""
        del self._ready[sock.fileno()], self._socks[sock.fileno()]
        self._epoll.unregister(sock)

    def close(self) -> None:
        """Close all that is watched."""
        for sock in self._socks.values():
            sock.close()
        self._epoll.close()

    def at(self, due_ns: int, call: Callable[[], None]) -> None:
        """Call once, when the monotonic clock has reached `due_ns`."""
        heapq.heappush(self._timers, (due_ns, next(self._order), call))

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call once, in `delay_s` from now."""
        self.at(monotonic_ns() + int(delay_s * _NS_PER_S), call)

    def run(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Run until `done`, which is asked after each round of events; False when time was up before."""
        end_ns = monotonic_ns() + int(timeout_s * _NS_PER_S)
        while not done():
            now_ns = monotonic_ns()
            if now_ns >= end_ns:
                return False
            while self._timers and self._timers[0][0] <= now_ns:
                heapq.heappop(self._timers)[2]()
            self._wait((min(self._timers[0][0], end_ns) if self._timers else end_ns) - monotonic_ns())
        return True

    def _wait(self, wait_ns: int) -> None:
        if wait_ns > 0:  # select has microseconds where epoll has milliseconds
            select.select([self._epoll], [], [], wait_ns / _NS_PER_S)
        for number, events in self._epoll.poll(0, 256):
            ready = self._ready.get(number)
            if ready is not None:  # else closed by an event before this one
                ready(events)


class Wire:
    """One connection, from `begin` on: bytes in to `received`, bytes out by `send`; `lost` once, when it is gone."""

    def __init__(self, loop: Loop, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.loop = loop
        self.open = False
        self._sock = sock
        self._unsent = memoryview(b"")

    def begin(self) -> None:
        """The socket is connected."""
        self._sock.setblocking(False)
        self.open = True
        self.loop.watch(self._sock, self._ready)

    def received(self, data: bytes) -> None:
        """Bytes came."""
        raise NotImplementedError

    def lost(self) -> None:
        """The other side closed, or the connection broke."""

    def send(self, data: bytes) -> None:
        """Write now what the socket takes, and the rest when it can."""
        if self._unsent:
            self._unsent = memoryview(bytes(self._unsent) + data)
            return
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._gone()
            return
        if sent < len(data):
            self._unsent = memoryview(data)[sent:]
            self.loop.watch_writing(self._sock, True)

    def close(self) -> None:
        """Close, without being told of it."""
        if self.open:
            self.open = False
            self.loop.forget(self._sock)
            self._sock.close()

    def _gone(self) -> None:
        if self.open:
            self.close()
            self.lost()

    def _ready(self, events: int) -> None:
        try:
            if events & select.EPOLLOUT:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
                if not self._unsent:
                    self.loop.watch_writing(self._sock, False)
            if events & ~select.EPOLLOUT:
                data = self._sock.recv(READ_BYTES)
                if data:
                    self.received(data)
                else:
                    self._gone()
        except BlockingIOError:
            pass
        except OSError:
            self._gone()


def listen(loop: Loop, accepted: Callable[[socket.socket], object]) -> socket.socket:
    """A listening socket on a port that the system assigns."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    listener.setblocking(False)

    def ready(_events: int) -> None:
        try:
            while True:
                accepted(listener.accept()[0])
        except BlockingIOError:
            pass

    loop.watch(listener, ready)
    return listener
