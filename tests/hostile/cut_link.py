"""A link between two proxies that breaks after a given byte of a forwarded request, or of its answer."""

import contextlib
import socket
import threading
from typing import Literal, NamedTuple

from tests.machine import seconds

DRAIN_S = 0.3
_FORWARD = b"POST /v1/chat/completions "
_OTHERS = (b"GET ", b"POST /v1/usage/")  # probes and voids


class Cut(NamedTuple):
    """Where the link breaks: behind so many bytes of one side's."""

    side: Literal["request", "answer"]
    after: int


class CutLink:
    """Relays TCP connections to `target`. While it is not `up` it accepts none, and breaks those that there are."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.up = True
        self.request = b""  # the bytes of the last forward
        self.answer = b""
        self._target = target
        self._next: Cut | None = None
        self._server = socket.create_server(("127.0.0.1", 0))
        self._links: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.getsockname()[1]}"

    def break_next(self, cut: Cut) -> None:
        """Break the connection of the next request that is forwarded."""
        self._next = cut

    def go_down(self) -> None:
        self.up = False
        for near, far in self._links:
            _close(near)
            _close(far)

    def close(self) -> None:
        self.go_down()
        _close(self._server)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                if not self.up:
                    near.close()
                    continue
                far = socket.create_connection(self._target)
                for one in (near, far):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._links.append((near, far))
                link = _Link(self, near, far)
                threading.Thread(target=link.up, daemon=True).start()
                threading.Thread(target=link.down, daemon=True).start()

    @property
    def was_forwarded(self) -> bool:
        """Whether the request to break has come."""
        return self._next is None

    def taken(self) -> Cut | None:
        """The cut that was ordered, for the request that begins."""
        cut, self._next = self._next, None
        return cut


class _Link:
    """One connection. Of a request and its answer the bytes are counted from the first one of each."""

    def __init__(self, owner: CutLink, near: socket.socket, far: socket.socket) -> None:
        self._owner = owner
        self._near = near
        self._far = far
        self._cut: Cut | None = None
        self._forwards = False
        self._requested = 0
        self._answered = 0

    def up(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._near.recv(1 << 20):
                if data.startswith(_FORWARD):
                    self._forwards = True
                    self._cut, self._requested, self._answered = self._owner.taken(), 0, 0
                    self._owner.request = self._owner.answer = b""
                elif data.startswith(_OTHERS):
                    self._cut, self._forwards = None, False
                self._requested += len(data)
                if self._forwards:
                    self._owner.request += data
                cut = self._cut
                if cut is not None and cut.side == "request" and self._requested >= cut.after:
                    kept = len(data) - (self._requested - cut.after)
                    self._far.sendall(data[:kept])
                    break
                self._far.sendall(data)
        _close(self._near)
        if self._cut is None or self._cut.side == "request":
            _close(self._far)

    def down(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._far.recv(1 << 20):
                self._answered += len(data)
                if self._forwards:
                    self._owner.answer += data
                cut = self._cut
                if cut is not None and cut.side == "answer" and self._answered >= cut.after:
                    self._near.sendall(data[: len(data) - (self._answered - cut.after)])
                    _close(self._near)
                    self._drain()
                    break
                self._near.sendall(data)
        _close(self._near)
        _close(self._far)

    def _drain(self) -> None:
        """The home does not notice yet that the link is broken."""
        self._far.settimeout(seconds(DRAIN_S))
        while self._far.recv(1 << 20):
            pass


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
