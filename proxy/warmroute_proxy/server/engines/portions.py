"""Handles reads from an engine in portions, whenever it is the turn of the tenant that gets the answer (`base.turns`).

If a socket has much to read, uvloop (by libuv) reads it up to 32 times in one iteration, which is 8 MB. That happens
with a fast engine, and with an answer that piled up while its client read nothing. Translating 8 MB of events takes
seconds. So a read above `PORTION_BYTES` is divided, and the socket is not read while some of the read is left.

A small read can cost as much: a stream of empty comments takes 0.4 ms a kilobyte, a hundred times as long as events
that pass unread. An engine with 256 streams of comments would hold the loop for a second at a time. So a read of a
stream above `TURN_BYTES` waits for its turn, unless it is one event of a known shape. An event of a few tokens is
smaller than `TURN_BYTES`. All other reads are handled at once, without further cost.
"""

from collections.abc import Callable
from typing import Final, Protocol

from warmroute_proxy.server.base.turns import Turns

TURN_BYTES: Final = 1_024
PORTION_BYTES: Final = 16_384
PORTION_S: Final = 0.001
"""The time after which the rest waits for the next turn. A portion of chunks that pass unchanged takes a tenth of
`PORTION_S`, a portion of translated events three times `PORTION_S`.
"""


class Source(Protocol):
    def hold_reading(self, held: bool) -> None:
        """Stop (True) or resume reading from the socket."""

    def may_go_on(self) -> bool:
        """Whether the client can take more of its answer now."""

    def answers_for(self) -> str:
        """The tenant that gets the answer."""

    def count_waiting(self, size_bytes: int) -> None:
        """Reserve memory for bytes that were read but not handled yet, or end the answer."""

    def take_portion(self, data: bytes) -> None:
        """Handle some of a read, `PORTION_BYTES` at most."""


class Portions:
    """The unhandled bytes of one connection."""

    __slots__ = ("_at", "_clock", "_held", "_left", "_lined_up", "_source", "_turns")

    def __init__(self, source: Source, turns: Turns, clock: Callable[[], float]) -> None:
        self._source = source
        self._turns = turns
        self._clock = clock
        self._left = b""
        self._at = 0  # start of the rest of `_left`, since cutting `_left` each time would fragment the memory
        self._lined_up = self._held = False

    def add(self, data: bytes) -> None:
        self._left = self._left[self._at :] + data if self._left else data
        self._at = 0
        self.go_on()
        if self._left and not self._held:
            self._held = True
            self._source.hold_reading(True)
            self._source.count_waiting(len(self._left) - self._at)

    def go_on(self) -> None:
        if self._left and not self._lined_up:
            self._lined_up = True
            self._turns.take(self._source.answers_for(), self._step)

    def take_all(self) -> None:
        """Handle all bytes at once, because the connection ends and the bytes left are the end of the answer."""
        while self._left:
            self._take_one()

    def drop(self) -> None:
        self._left = b""

    def _take_one(self) -> None:
        begin = self._at
        portion = self._left[begin : begin + PORTION_BYTES]
        self._at += PORTION_BYTES
        if self._at >= len(self._left):
            self._left, self._at = b"", 0
        self._source.take_portion(portion)

    def _step(self) -> None:
        self._lined_up = False
        end_s = self._clock() + PORTION_S
        while self._left and self._source.may_go_on():
            self._take_one()
            if self._clock() >= end_s:
                break
        if not self._left:
            if self._held:
                self._held = False
                self._source.hold_reading(False)
        elif self._source.may_go_on():  # else `go_on` is called when the client takes more
            self._lined_up = True
            self._turns.line_up(self._source.answers_for(), self._step)
