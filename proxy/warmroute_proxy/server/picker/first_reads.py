"""Streams without a key take turns to be read: gRPC holds what comes of a message from when it is read.

What is not read stays with the gateway, but for 64 KiB. So `AT_ONCE` messages at most are in memory before a key is
known. Where another stream waits, the one that was read longest is broken off after `PATIENCE_S`. Where more than
`MAX_WAITING` wait, the oldest is broken off.
"""

import asyncio
from collections import deque
from typing import Final

from warmroute_proxy.server.picker.answer import Outbox

AT_ONCE: Final = 8
PATIENCE_S: Final = 0.25
MAX_WAITING: Final = 1_024


class FirstReads:
    """The streams of one server."""

    def __init__(self) -> None:
        self._reading: dict[Outbox, float] = {}  # since when, the oldest first; at most AT_ONCE
        self._waiting: deque[tuple[Outbox, asyncio.Future[None]]] = deque()  # at most one for each stream
        self._looks = False

    async def enter(self, stream: Outbox) -> None:
        """Wait for a turn. It ends by `leave`."""
        loop = asyncio.get_running_loop()
        if len(self._reading) < AT_ONCE and not self._waiting:
            self._reading[stream] = loop.time()
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append((stream, turn))
        if len(self._waiting) > MAX_WAITING:
            oldest, its_turn = self._waiting.popleft()
            oldest.break_off()
            if not its_turn.done():
                its_turn.set_result(None)  # it finds itself broken off
        self._look_later(loop)
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting = deque(each for each in self._waiting if each[1] is not turn)
            self.leave(stream)
            raise

    def leave(self, stream: Outbox) -> None:
        if self._reading.pop(stream, None) is None:
            return
        while self._waiting and len(self._reading) < AT_ONCE:
            other, turn = self._waiting.popleft()
            if not turn.done():
                self._reading[other] = asyncio.get_running_loop().time()
                turn.set_result(None)

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._looks:
            self._looks = True
            loop.call_later(PATIENCE_S, self._look)

    def _look(self) -> None:
        self._looks = False
        loop = asyncio.get_running_loop()
        late = [each for each, since_s in self._reading.items() if since_s <= loop.time() - PATIENCE_S]
        for stream in late[: len(self._waiting)]:
            stream.break_off()
            self.leave(stream)
        if self._waiting:
            self._look_later(loop)
