"""The load: connections that send a request, read the whole answer, and send the next request.

Every answer is checked: its status, and in a stream each chunk, the usage and `[DONE]`. An answer that lacks any of
these counts as bad, for whatever reason.
"""

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Final

import httptools
from tests.machine import seconds

from bench.loop import Loop, Wire

API_KEY: Final = "sk-perf"
CHAT: Final = "/v1/chat/completions"
MESSAGES: Final = "/v1/messages"
_MARK: Final = b" t="
_MARKED: Final = len(_MARK) + 19
_COUNTS: Final = (b'"prompt_tokens"', b'"input_tokens"')  # in OpenAI's chats, in Anthropic's messages
_CONNECT_TIMEOUT_S: Final = 10.0


def request(port: int, body: bytes, session: str, api_key: str = API_KEY, more: str = "", path: str = CHAT) -> bytes:
    """A request, as bytes to send, with `more` header lines."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: */*\r\nUser-Agent: perf\r\n"
        f"Authorization: Bearer {api_key}\r\n{more}x-session-affinity: {session}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def offer(port: int, session: str, path: str) -> bytes:
    """The request that opens a WebSocket."""
    return (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {API_KEY}\r\n"
        f"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nx-session-affinity: {session}\r\n\r\n"
    ).encode()


@dataclass
class Tally:
    """Counts and times of answers. Times are nanoseconds of wall clock."""

    chunks_each: int | None = None  # the chunks that a stream must have; None: whole answers
    stamped: bool = False  # whether chunks have the time of their sending
    answers: int = 0
    chunks: int = 0
    bad: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    took_ns: list[int] = field(default_factory=list)
    delays_ns: list[int] = field(default_factory=list)

    def failed(self, reason: str) -> None:
        """Count a bad answer."""
        self.bad += 1
        self.reasons[reason] = self.reasons.get(reason, 0) + 1


class Client(Wire):
    """One connection, opened by `begin`. It sends `requests` one by one, until they end or `stopping` is set."""

    def __init__(
        self,
        loop: Loop,
        port: int,
        requests: Iterator[bytes],
        tally: Tally,
        ended: Callable[[], None],
        pause_s: float = 0.0,
    ) -> None:
        super().__init__(loop, socket.socket())
        self.stopping = False
        self._port = port
        self._requests = requests
        self._first = next(requests, None)  # made now, so that many connections can begin at once
        self.tally = tally
        self._ended = ended
        self._pause_s = pause_s  # between an answer and the next request
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # the parser, when it is made, looks for this method
        self._parser = httptools.HttpResponseParser(self)

    def begin(self) -> None:
        """Connect and send the first request. Raises OSError if nobody listens."""
        self._sock.settimeout(seconds(_CONNECT_TIMEOUT_S))
        try:
            self._sock.connect(("127.0.0.1", self._port))
        except OSError:
            self._sock.close()
            raise
        super().begin()
        self._ask(self._first)

    def on_message_complete(self) -> None:
        self._complete = True
        self._keep = self._parser.should_keep_alive()  # the parser knows it only now

    def received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail("not HTTP")
            return
        if self._pieces:
            body = b"".join(self._pieces)
            self._pieces.clear()
            if self.tally.chunks_each is None:
                self._tail += body
            else:
                self._read(self._tail + body)
        if self._complete:
            self._answered()

    def lost(self) -> None:
        self._fail("connection lost")

    def _next(self) -> None:
        if not self.open:
            return
        self._ask(None if self.stopping else next(self._requests, None))

    def _ask(self, asked: bytes | None) -> None:
        if asked is None:
            self.close()
            self._ended()
            return
        self._complete = self._usage = self._done = False
        self._tail = b""
        self._chunks = 0
        self._began_ns = monotonic_ns()
        self.send(asked)

    def _read(self, text: bytes) -> None:
        """Count the chunks of a stream by their mark. A mark may be divided, so the end is kept for the next read."""
        if self.tally.stamped:
            now_ns, at = monotonic_ns(), 0
            while 0 <= (found := text.find(_MARK, at)) <= len(text) - _MARKED:
                at = found + _MARKED
                self._chunks += 1
                self.tally.delays_ns.append(now_ns - int(text[found + len(_MARK) : at]))
        else:
            self._chunks += text.count(_MARK)
            found = text.rfind(_MARK)
            at = found + len(_MARK) if found >= 0 else 0
        self._usage = self._usage or b'"prompt_tokens"' in text
        self._done = self._done or b"[DONE]" in text
        self._tail = text[max(at, len(text) - _MARKED + 1) :]

    def _answered(self) -> None:
        tally = self.tally
        status, wrong = self._parser.get_status_code(), ""
        if status != 200:
            wrong = f"status {status}"
        elif tally.chunks_each is None:
            if not self._tail.endswith(b"}") or not any(name in self._tail for name in _COUNTS):
                wrong = "incomplete"
        elif self._chunks != tally.chunks_each or not self._usage or not self._done:
            wrong = "incomplete"
        tally.chunks += self._chunks
        tally.answers += 1
        tally.took_ns.append(monotonic_ns() - self._began_ns)
        if wrong:
            tally.failed(wrong)
        if not self._keep:
            self._fail("connection closed")
        elif self._pause_s:
            self.loop.after(self._pause_s, self._next)
        else:
            self._next()

    def _fail(self, reason: str) -> None:
        self.tally.failed(reason)
        self.close()
        self._ended()
