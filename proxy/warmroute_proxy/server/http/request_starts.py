"""Requests begin in the order in which they came, and for `SLICE_S` at most in one iteration of the event loop.

A fan-out of agents brings hundreds of requests in one read of all sockets. If all of them began at once, the chunks of
streams that are under way would wait for all: 256 requests are 60 ms. So an iteration begins some of them, and the
others wait in one line. What engines send is handled before the line goes on, for it frees places and readers wait for
it. The line is bounded by the connections of the listener: each has one request that begins.

A slice also ends in the middle of an iteration, or goes on in the next one: nothing tells where an iteration ends but a
callback, which would cost each request 3 % of its instructions. So a slice is a stretch of time in which requests begin
less than `SLICE_S` apart, and the line is where it has lasted that long.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from warmroute_proxy.server.base.loop_lag import LoopLag
from warmroute_proxy.server.base.metrics import HeldBy
from warmroute_proxy.server.http.exchange import Endpoint, Exchange, Request

SLICE_S: Final = 0.006


class RequestStarts:
    """The line in front of one endpoint."""

    def __init__(
        self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], lag: LoopLag
    ) -> None:
        self._endpoint = endpoint
        self._loop = loop
        self._clock = clock
        self._lag = lag
        self._line: deque[tuple[Request, Exchange]] = deque()
        self._last_s = 0.0  # when a request had begun
        self._end_s = 0.0  # of the slice

    def handle(self, request: Request, exchange: Exchange) -> None:
        """Begin to answer: now, if nobody waits and the slice has time left."""
        line, now_s = self._line, self._clock()
        if not line and now_s >= self._end_s and now_s >= self._last_s + SLICE_S:
            self._end_s = now_s + SLICE_S
        if line or now_s >= self._end_s:
            if not line:
                self._loop.call_soon(self._go_on)
            line.append((request, exchange))
            return
        self._begin(request, exchange, now_s)

    def _go_on(self) -> None:
        """A new slice, in the next iteration."""
        line, now_s = self._line, self._clock()
        end_s = self._end_s = now_s + SLICE_S
        while line and now_s < end_s:
            request, exchange = line.popleft()
            if not exchange.ended:  # else the client has left
                now_s = self._begin(request, exchange, now_s)
        if line:
            self._loop.call_soon(self._go_on)

    def _begin(self, request: Request, exchange: Exchange, now_s: float) -> float:
        self._endpoint.handle(request, exchange)
        last_s = self._last_s = self._clock()
        self._lag.ran(HeldBy.REQUEST, last_s - now_s)
        return last_s
