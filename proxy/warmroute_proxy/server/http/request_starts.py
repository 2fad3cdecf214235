"""Requests begin for `SLICE_S` at most in one iteration of the event loop, those of one tenant in their order.

A fan-out of agents brings hundreds of requests in one read of all sockets. If all of them began at once, the chunks of
streams that are under way would wait for all: 256 requests are 60 ms. So an iteration begins some of them, and the
others wait in line. With slices of 6 ms, chunks beside 256 new connections were late by 20 ms at p99; with 4 and
one copy of each body less, by 14, and requests wait no longer (`python -m bench --workloads w6s,w6-256`).

Each tenant has a line of its own. Whose turn it is follows from the time that the beginnings of its requests have
taken: start-time fair queueing (P. Goyal, H. Vin, H. Cheng, 1996). So a request waits for one of another tenant, not
for all that another tenant has sent before.

What engines send is handled before the lines go on, for it frees places and readers wait for it. The lines are bounded
by the connections of the listener: each has one request that begins.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from warmroute_proxy.server.base.loop_lag import LoopLag
from warmroute_proxy.server.base.metrics import HeldBy
from warmroute_proxy.server.http.exchange import Endpoint, Exchange, Request

SLICE_S: Final = 0.004


class RequestStarts:
    """The lines in front of one endpoint."""

    def __init__(
        self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], lag: LoopLag
    ) -> None:
        self._endpoint = endpoint
        self._loop = loop
        self._clock = clock
        self._lag = lag
        self._lines: dict[str, deque[tuple[Request, Exchange]]] = {}  # by tenant, none of them empty
        self._turns: list[tuple[float, int, str]] = []  # a heap: of each line its time, its number and its tenant
        self._turn_s = 0.0  # time of the line that went on last
        self._lined_up = 0
        self._began = False  # a request in this iteration
        self._end_s = 0.0  # of the slice

    def handle(self, request: Request, exchange: Exchange) -> None:
        """Begin to answer: now, if nobody waits and this iteration has time left."""
        if self._lines:
            self._line_up(request, exchange)
            return
        now_s = self._clock()
        if not self._began:
            self._began = True
            self._end_s = now_s + SLICE_S
            self._loop.call_soon(self._go_on)  # in the next iteration
        elif now_s >= self._end_s:
            self._line_up(request, exchange)
            return
        self._endpoint.handle(request, exchange)
        self._lag.ran(HeldBy.REQUEST, self._clock() - now_s)

    def _line_up(self, request: Request, exchange: Exchange) -> None:
        line = self._lines.get(request.tenant)
        if line is None:
            line = self._lines[request.tenant] = deque()
            self._await_turn(request.tenant, self._turn_s)
        line.append((request, exchange))

    def _await_turn(self, tenant: str, turn_s: float) -> None:
        self._lined_up += 1
        heappush(self._turns, (turn_s, self._lined_up, tenant))

    def _go_on(self) -> None:
        lines, now_s = self._lines, self._clock()
        end_s = now_s + SLICE_S
        while lines and now_s < end_s:
            self._turn_s, _, tenant = heappop(self._turns)
            line = lines[tenant]
            request, exchange = line.popleft()
            if not exchange.ended:  # else the client has left
                self._endpoint.handle(request, exchange)
            began_s, now_s = now_s, self._clock()
            self._lag.ran(HeldBy.REQUEST, now_s - began_s)
            if line:
                self._await_turn(tenant, self._turn_s + now_s - began_s)
            else:
                del lines[tenant]
        self._began = bool(lines)
        if lines:
            self._loop.call_soon(self._go_on)
