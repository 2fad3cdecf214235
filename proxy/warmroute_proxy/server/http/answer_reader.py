"""One client of an answer that is recorded: it reads at a place of its own, at its own pace."""

from typing import Final, Protocol

from warmroute_proxy.core.accounting.idempotency import AnswerCopy
from warmroute_proxy.server.http.exchange import Exchange

PARTS_AT_ONCE: Final = 64  # of a recording, in one write


class ReaderOwner(Protocol):
    """What a reader reads from: it learns what the reader does."""

    def paced(self) -> None:
        """A reader is full, or is so no more."""

    def left(self, reader: "AnswerReader") -> None:
        """A reader left, or has read all."""


class AnswerReader:
    """One client of an answer, at a place of its own in the recording."""

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
        """Write what is recorded and was not read yet, until the client is full."""
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
        """The exchange, without callbacks to this reader."""
        self.exchange.on_gone = self.exchange.on_pause = None
        return self.exchange

    def _pause(self, paused: bool) -> None:
        self.paused = paused
        if not paused:
            self.catch_up()
        self.owner.paced()

    def _gone(self) -> None:
        self.owner.left(self)
