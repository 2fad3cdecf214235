"""One request to one engine, as whoever makes it sees it: callbacks from the event loop, no task, no queue.

A leg ends exactly once: by `on_end`, `on_whole` or `on_fail`, or silently by `close`.
"""

import logging
from collections.abc import Callable
from typing import Final, Protocol

from warmroute_proxy.core.base.mypyc import mypyc_attr
from warmroute_proxy.server.engines.passthrough import Stream

log = logging.getLogger(__name__)


class Channel(Protocol):
    """The connection of a leg."""

    complete: bool
    """Whether the answer was read to its end."""

    def pause(self, paused: bool) -> None: ...
    def part(self, word: bytes) -> None: ...
    def see(self) -> None: ...
    def drop(self) -> None: ...


_NO_CHANNEL: Final[Channel | None] = None  # mypyc leaves a protocol's attribute undefined where the class says None


@mypyc_attr(allow_interpreted_subclasses=True)
class Leg:
    """One request to one engine. Whoever asks for something derives from it, and says what to do with what comes."""

    streamed = False
    """Whether the answer is to be a stream."""
    sent = False
    done = False
    head_seen = False
    paused = False
    connection: Channel | None = _NO_CHANNEL
    """Until all there is to tell was told."""

    def on_head(self, status: int, headers: dict[str, str]) -> None:
        """The head of the answer."""

    def on_body(self, data: bytes) -> None:
        """Some of its body."""

    def streams(self) -> Stream | None:
        """Whose stream it is that follows the head, if that may take a `Passage`."""
        return None

    def on_end(self) -> None:
        """The answer has ended in good order."""

    def on_whole(self, headers: dict[str, str], body: bytes, now_s: float) -> None:  # noqa: ARG002
        """All of a 200 at once."""
        self.on_head(200, headers)
        if body:
            self.on_body(body)
        self.on_end()

    def on_fail(self, reason: str) -> None:
        """There will be no answer, or no more of it."""

    def on_crash(self) -> None:
        """An error of ours in one of these."""

    @property
    def ends(self) -> bool:
        """Whether nothing more comes: it is done, or its end was read with what is being told."""
        return self.done or (self.connection is not None and self.connection.complete)

    def pause(self, paused: bool) -> None:
        """Back-pressure: stop or go on reading from the engine."""
        self.paused = paused
        if self.connection is not None:
            self.connection.pause(paused)

    def see(self) -> None:
        """All that comes is told from now on."""
        if self.connection is not None:
            self.connection.see()

    def close(self) -> None:
        """Give up: nothing more is told, and the connection is closed."""
        self.done = True
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.drop()

    def part(self, word: bytes) -> None:
        """Give up with a last word, if there was a first one."""
        self.done = True
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.part(word)

    def end(self) -> None:
        self.connection = None
        if not self.done:
            self.done = True
            self.on_end()

    def fail(self, reason: str) -> None:
        self.connection = None
        if not self.done:
            self.done = True
            self.on_fail(reason)

    def guard(self, step: Callable[[], None]) -> None:
        """Run a step of a leg. An error of ours in it must not end in the loop's log and a silent client."""
        try:
            step()
        except Exception as error:
            self.crash(error)

    def crash(self, error: Exception) -> None:
        """An error of ours in a step: the type is logged, never its text, and who asked is told to end."""
        log.error("a callback of an upstream answer failed: %s", type(error).__name__)
        self.close()
        self.on_crash()
