"""One epoll loop and one heap of timers, for the mock engines and the load together.

Both ends of the measured proxy run in this single loop, on a separate core. So they need no protocol between them,
have one clock, and never wait for each other because of the scheduler. asyncio is not used because its timers (and
uvloop's) are in whole milliseconds: 5,000 chunks a second would leave in groups of five, and a group costs a proxy less
than five single chunks.
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
        self._order = itertools.count()  # so that timers due at the same time fire in the order in which they were set

    def watch(self, sock: socket.socket, ready: Callable[[int], None]) -> None:
        """Watch a socket for reading, and call `ready` with its events."""
        self._ready[sock.fileno()] = ready
        self._socks[sock.fileno()] = sock
        self._epoll.register(sock, select.EPOLLIN)

    def watch_writing(self, sock: socket.socket, writing: bool) -> None:
        """Set whether a socket is also watched for writing."""
        self._epoll.modify(sock, select.EPOLLIN | (select.EPOLLOUT if writing else 0))

    def forget(self, sock: socket.socket) -> None:
        """Stop watching a socket."""
        del self._ready[sock.fileno()], self._socks[sock.fileno()]
        self._epoll.unregister(sock)

    def close(self) -> None:
        """Close all sockets that are watched."""
        for sock in self._socks.values():
            sock.close()
        self._epoll.close()

    def at(self, due_ns: int, call: Callable[[], None]) -> None:
        """Call `call` once, when the monotonic clock has reached `due_ns`."""
        heapq.heappush(self._timers, (due_ns, next(self._order), call))

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call `call` once, in `delay_s` from now."""
        self.at(monotonic_ns() + int(delay_s * _NS_PER_S), call)

    def run(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Run until `done()` is true, which is checked after each round of events. False if time was up before."""
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
        if wait_ns > 0:  # select waits in microseconds, epoll only in milliseconds
            select.select([self._epoll], [], [], wait_ns / _NS_PER_S)
        for number, events in self._epoll.poll(0, 256):
            ready = self._ready.get(number)
            if ready is not None:  # otherwise an earlier event has closed the socket
                ready(events)


class Wire:
    """One connection, opened by `begin`. `received` gets its bytes, `send` writes, and `lost` is called at its end."""

    def __init__(self, loop: Loop, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.loop = loop
        self.open = False
        self._sock = sock
        self._unsent = memoryview(b"")

    def begin(self) -> None:
        """Watch the socket, which is connected."""
        self._sock.setblocking(False)
        self.open = True
        self.loop.watch(self._sock, self._ready)

    def received(self, data: bytes) -> None:
        """Called with bytes that came."""
        raise NotImplementedError

    def lost(self) -> None:
        """Called once, when the other side has closed or the connection is broken."""

    def send(self, data: bytes) -> None:
        """Write now what the socket accepts, and the rest later."""
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
        """Close the connection. `lost` is not called."""
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
