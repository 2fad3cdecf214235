"""One request to one engine, as callbacks from the event loop: no task, no queue.

Whoever makes the request gives the leg a receiver, and the leg to the `Upstream`. A leg ends exactly once: by `on_end`,
`on_whole` or `on_fail` of its receiver, or silently by `close`. It forgets its receiver then, so that neither waits for
the garbage collector.
"""

import logging
from typing import Protocol

from warmroute_proxy.core.load.blame import Cause
from warmroute_proxy.server.engines.passthrough import Stream
from warmroute_proxy.server.http.header_lines import Line, decode

log = logging.getLogger(__name__)


class Channel(Protocol):
    """The connection of a leg."""

    complete: bool
    """Whether the answer was read to its end."""

    def pause(self, paused: bool) -> None: ...
    def close_with(self, last_bytes: bytes) -> None: ...
    def parse_all(self) -> None: ...
    def drop(self) -> None: ...


class Receiver(Protocol):
    """Takes what comes back of one request."""

    def on_head(self, status: int, headers: dict[str, str]) -> None:
        """The head of the answer."""

    def on_body(self, data: bytes) -> None:
        """Some of its body."""

    def streams(self) -> Stream | None:
        """The stream that follows the head, where it may pass unparsed (`passthrough`). Asked of streamed legs only."""

    def on_end(self) -> None:
        """The answer has ended in good order."""

    def on_whole(self, lines: list[Line], body: bytes, now_s: float) -> None:
        """All of a 200 at once; `in_parts` makes a head, a body and an end of it. `lines`: its headers, as read."""

    def on_fail(self, cause: Cause, reason: str) -> None:
        """There will be no answer, or no more of it."""

    def on_crash(self) -> None:
        """An error of the proxy's own in one of these."""


def in_parts(receiver: Receiver, lines: list[Line], body: bytes) -> None:
    """Give a receiver a whole 200 as head, body and end."""
    receiver.on_head(200, decode(lines))
    if body:
        receiver.on_body(body)
    receiver.on_end()


class Leg:
    """One request to one engine."""

    def __init__(self, receiver: Receiver, *, streamed: bool = False) -> None:
        """`streamed`: whether the answer is to be a stream."""
        self.streamed = streamed
        self.sent = False
        self.done = False
        self.head_seen = False
        self.paused = False
        self.connection: Channel | None = None
        """While something may still come."""
        self._receiver: Receiver | None = receiver

    @property
    def ends(self) -> bool:
        """Whether nothing more comes: it is done, or its end was read with what is being delivered."""
        return self.done or (self.connection is not None and self.connection.complete)

    # -- the receiver's side

    def pause(self, paused: bool) -> None:
        """Back-pressure: stop or go on reading from the engine."""
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
        """Give up with a last word, if there was a first one."""
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
        """Whose answer it is; empty if there are not several, and of what is nobody's."""
        return str(getattr(self._receiver, "tenant", ""))

    def streams(self) -> Stream | None:
        """The stream that follows the head, where it may pass unparsed."""
        return self._receiver.streams() if self._receiver is not None else None

    def whole(self, lines: list[Line], body: bytes, now_s: float) -> None:
        """All of a 200 was read at once."""
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
        """There will be no answer, or no more of it."""
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
        """An error of the proxy's own at the connection: the receiver ends."""
        if self._receiver is not None:
            self._crash(self._receiver, error)

    def _crash(self, receiver: Receiver, error: Exception) -> None:
        """An error in a callback, which may have closed the leg. The type is logged, never the text."""
        log.error("a callback of an upstream answer failed: %s", type(error).__name__)
        self.close()
        receiver.on_crash()
