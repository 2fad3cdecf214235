"""A leg: one request to one engine, as callbacks from the event loop, without a task or queue.

The sender makes a leg with a receiver, and passes the leg to the `Upstream`. A leg ends exactly once: by `on_end`,
`on_whole` or `on_fail` of its receiver, or silently by `close`. The leg then forgets its receiver, so that memory of
leg and receiver is freed without the garbage collector.
"""

import logging
from typing import Protocol

from warmroute_proxy.core.load.blame import Cause
from warmroute_proxy.server.engines.passthrough import Stream
from warmroute_proxy.server.http.header_lines import Line, decode

log = logging.getLogger(__name__)


class Channel(Protocol):
    complete: bool
    """Whether the answer was read to its end."""

    def pause(self, paused: bool) -> None: ...
    def close_with(self, last_bytes: bytes) -> None: ...
    def parse_all(self) -> None: ...
    def drop(self) -> None: ...


class Receiver(Protocol):
    def on_head(self, status: int, headers: dict[str, str]) -> None:
        """Take the head of the answer."""

    def on_body(self, data: bytes) -> None:
        """Take some of the answer's body."""

    def holds(self, size_bytes: int) -> object:
        """Reserve memory for bytes of the answer that were read but not handled yet, or give up."""

    def streams(self) -> Stream | None:
        """The stream, if its bytes after the head may pass unparsed (`passthrough`). Called for streamed legs only."""

    def on_end(self) -> None:
        """The answer is complete."""

    def on_whole(self, lines: list[Line], body: bytes, now_s: float) -> None:
        """Take a whole answer with status 200 that came in one piece. `in_parts` divides it. `lines`: its headers."""

    def on_fail(self, cause: Cause, reason: str) -> None:
        """There will be no answer, or no more of it."""

    def on_crash(self) -> None:
        """One of these callbacks has failed by an error of the proxy's own."""


def in_parts(receiver: Receiver, lines: list[Line], body: bytes) -> None:
    """Give a receiver a whole answer with status 200 as head, body and end."""
    receiver.on_head(200, decode(lines))
    if body:
        receiver.on_body(body)
    receiver.on_end()


class Leg:
    def __init__(self, receiver: Receiver, *, streamed: bool = False) -> None:
        """`streamed`: whether the request asks for a stream."""
        self.streamed = streamed
        self.sent = False
        self.done = False
        self.head_seen = False
        self.paused = False
        self.connection: Channel | None = None
        """The connection, while more of the answer may come."""
        self._receiver: Receiver | None = receiver

    @property
    def ends(self) -> bool:
        """Whether nothing more comes: the leg is done, or the bytes being delivered include the answer's end."""
        return self.done or (self.connection is not None and self.connection.complete)

    # -- the receiver's side

    def pause(self, paused: bool) -> None:
        """Stop or resume reading from the engine, to keep pace with a slow client."""
        self.paused = paused
        if self.connection is not None:
            self.connection.pause(paused)

    def parse_all(self) -> None:
        if self.connection is not None:
            self.connection.parse_all()

    def close(self) -> None:
        """Give up: the receiver gets nothing more, and the connection is closed."""
        self.done = True
        self._receiver = None
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.drop()

    def close_with(self, last_bytes: bytes) -> None:
        """Give up, and write last bytes to the engine before the connection is closed."""
        self.done = True
        self._receiver = None
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close_with(last_bytes)

    # -- the connection's side

    def head(self, status: int, headers: dict[str, str]) -> None:
        self.head_seen = True
        receiver = self._receiver
        if receiver is not None:
            try:
                receiver.on_head(status, headers)
            except Exception as error:
                self._crash(receiver, error)

    def body(self, data: bytes) -> None:
        receiver = self._receiver
        if receiver is not None:
            try:
                receiver.on_body(data)
            except Exception as error:
                self._crash(receiver, error)

    def tenant(self) -> str:
        """The tenant that gets the answer, as the receiver states; empty if the receiver names no tenant."""
        return str(getattr(self._receiver, "tenant", ""))

    def holds(self, size_bytes: int) -> None:
        receiver = self._receiver
        if receiver is not None:
            try:
                receiver.holds(size_bytes)
            except Exception as error:
                self._crash(receiver, error)

    def streams(self) -> Stream | None:
        return self._receiver.streams() if self._receiver is not None else None

    def whole(self, lines: list[Line], body: bytes, now_s: float) -> None:
        """Give the receiver a whole answer with status 200 that was read at once."""
        self.connection = None
        receiver = self._receiver
        if self.done or receiver is None:
            return
        self.done = True
        try:
            receiver.on_whole(lines, body, now_s)
        except Exception as error:
            self._crash(receiver, error)
        self._receiver = None

    def end(self) -> None:
        self.connection = None
        receiver = self._receiver
        if self.done or receiver is None:
            return
        self.done = True
        try:
            receiver.on_end()
        except Exception as error:
            self._crash(receiver, error)
        self._receiver = None

    def fail(self, cause: Cause, reason: str) -> None:
        """End the leg: there will be no answer, or no more of it."""
        self.connection = None
        receiver = self._receiver
        if self.done or receiver is None:
            return
        self.done = True
        try:
            receiver.on_fail(cause, reason)
        except Exception as error:
            self._crash(receiver, error)
        self._receiver = None

    def crash(self, error: Exception) -> None:
        """End the leg after the proxy itself has failed at the connection, and tell the receiver."""
        if self._receiver is not None:
            self._crash(self._receiver, error)

    def _crash(self, receiver: Receiver, error: Exception) -> None:
        """End the leg after an error; a failed callback may have closed it already.

        Logs the error's type, never its text.
        """
        log.error("a callback of an upstream answer failed: %s", type(error).__name__)
        self.close()
        receiver.on_crash()
