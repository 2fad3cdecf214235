"""A client of a shared answer: a mock of a connection with a small buffer, which tests fill, empty and break."""

from collections.abc import Iterable

from warmroute_proxy.server.http.exchange import Exchange, Request

FULL_BYTES = 100
HEAD = [("content-type", "text/event-stream")]


class SmallClient(Exchange):
    """What a client has been sent, behind a buffer that is full after `FULL_BYTES`."""

    __slots__ = ("buffered", "full_bytes", "got", "how", "left", "paused")

    def __init__(self, body: bytes = b"{}", full_bytes: int = FULL_BYTES) -> None:
        self.full_bytes = full_bytes
        self.request = Request(0.0)
        self.request.path = "/v1/chat/completions"
        self.request.body = body
        self.started = self.ended = False
        self.on_gone = self.on_pause = None
        self.got = b""
        self.how = ""
        self.buffered = 0
        self.paused = self.left = False

    def respond(self, status: int, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        assert not self.ended
        assert not self.started
        self.started = self.ended = True
        self.got, self.how = body, f"respond {status}"

    def start(self, status: int, headers: Iterable[tuple[str, str]], data: bytes = b"") -> None:
        assert not self.started
        assert (status, list(headers)) == (200, HEAD)
        self.started = True
        self.write(data)

    def write(self, data: bytes) -> None:
        assert self.started
        assert not self.ended
        assert not self.left
        self.got += data
        self.buffered += len(data)
        if self.buffered > self.full_bytes and not self.paused:
            self.paused = True
            if self.on_pause is not None:
                self.on_pause(True)

    def end(self, data: bytes = b"") -> None:
        assert not self.ended
        if data:
            self.write(data)
        self.ended, self.how = True, "end"

    def abort(self, data: bytes = b"") -> None:
        assert not self.ended
        self.got += data
        self.ended, self.how = True, "abort"

    def reads(self) -> None:
        """The client has taken what was buffered."""
        self.buffered = 0
        if self.paused and not self.left:
            self.paused = False
            if self.on_pause is not None:
                self.on_pause(False)

    def leaves(self) -> None:
        self.left = True
        if not self.ended:
            self.ended = True
            if self.on_gone is not None:
                self.on_gone()


def uncounted() -> None:
    """It has no limit of requests."""
