"""A client that gets a recorded answer, which several clients may read, each at its own position and pace."""

from typing import Final, Protocol

from warmroute_proxy.core.accounting.idempotency import AnswerCopy
from warmroute_proxy.server.http.exchange import Exchange

PARTS_AT_ONCE: Final = 64  # parts of a recording that go into one write


class ReaderOwner(Protocol):
    """The owner of a reader, which learns when the reader pauses or ends."""

    def paced(self) -> None:
        """Handle that a reader was paused because its client is slow, or that it goes on."""

    def left(self, reader: "AnswerReader") -> None:
        """Handle that a reader's client has left, or has got the whole answer."""


class AnswerReader:
    """One client of a recorded answer. `at`: how many parts of the recording it has got."""

    __slots__ = ("at", "exchange", "owner", "paused", "recording")

    def __init__(self, exchange: Exchange, recording: AnswerCopy | None, owner: ReaderOwner) -> None:
        self.exchange = exchange
        self.recording = recording
        self.owner = owner
        self.at = 0
        self.paused = False
        exchange.on_gone = self._gone
        exchange.on_pause = self._pause

    def catch_up(self) -> None:
        """Write what the client has not got of the recording, until the client cannot take more."""
        exchange, recording = self.exchange, self.recording
        if recording is None or not recording.status:
            return
        parts = recording.chunks
        if not recording.streamed:
            self.let_go()
            exchange.respond(recording.status, recording.headers, parts[0])
            self.owner.left(self)
            return
        if not exchange.started:
            exchange.start(recording.status, recording.headers)
        while self.at < len(parts) and not self.paused:
            some = parts[self.at : self.at + PARTS_AT_ONCE]
            self.at += len(some)
            exchange.write(b"".join(some))
        if recording.whole and self.at == len(parts):
            self.let_go()
            exchange.end()
            self.owner.left(self)

    def let_go(self) -> Exchange:
        """Remove this reader's callbacks from the exchange, and return the exchange."""
        self.exchange.on_gone = self.exchange.on_pause = None
        return self.exchange

    def _pause(self, paused: bool) -> None:
        self.paused = paused
        if not paused:
            self.catch_up()
        self.owner.paced()

    def _gone(self) -> None:
        self.owner.left(self)
