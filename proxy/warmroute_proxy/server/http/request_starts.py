"""Begins requests within a time slice per iteration of the event loop, each tenant's requests in order (`turns`).

A fan-out of agents brings hundreds of requests in one iteration. If all requests began at once, chunks of running
streams would wait for all of them: 256 requests take 60 ms. So an iteration begins some requests, and the rest wait in
line. With slices of 6 ms, chunks were 20 ms late at p99 while 256 connections were new. With slices of 4 ms and one
copy fewer of each body, chunks were 14 ms late, and requests did not wait longer (`python -m bench --workloads
w6s,w6-256`).

Bytes from engines are handled before the waiting requests, because they free capacity and clients wait for them.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from warmroute_proxy.server.base.loop_lag import LoopLag
from warmroute_proxy.server.base.metrics import HeldBy
from warmroute_proxy.server.base.turns import SLICE_S
from warmroute_proxy.server.http.exchange import Endpoint, Exchange, Request

_REQUEST: Final = HeldBy.REQUEST  # looked up once, since a look-up in an enum is slow
READING_S: Final = 0.000_5
"""A generous time for reading a refused request and writing its answer, with which its tenant is charged. The step that
refuses takes a tenth of this time.
"""


class RequestStarts:
    """Begins the requests of one endpoint. All endpoints share the lines of waiting steps in `lag.turns`."""

    def __init__(
        self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], lag: LoopLag
    ) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._ran = lag.ran
        self._turns = lag.turns
        self._turns.loop = loop
        self._call_soon = loop.call_soon

    def handle(self, request: Request, exchange: Exchange) -> None:
        """Begin to answer: now if no request waits and this iteration has time left, else in the tenant's turn."""
        turns = self._turns
        if turns.lines:
            turns.line_up(request.tenant, partial(self._begin, request, exchange))
            return
        now_s = self._clock()
        if not turns.began:
            turns.began = True
            turns.end_s = now_s + SLICE_S
            self._call_soon(turns.go_on)
        elif now_s >= turns.end_s:
            turns.line_up(request.tenant, partial(self._begin, request, exchange))
            return
        self._endpoint.handle(request, exchange)
        self._ran(_REQUEST, self._clock() - now_s)

    def refuse(self, request: Request, exchange: Exchange) -> None:
        self._turns.take(request.tenant, partial(self._refuse, request, exchange))

    def _begin(self, request: Request, exchange: Exchange) -> None:
        if not exchange.ended:  # it has ended if the client has left
            self._endpoint.handle(request, exchange)

    def _refuse(self, request: Request, exchange: Exchange) -> None:
        refusal = request.refusal
        if refusal is not None and not exchange.ended:
            exchange.refuse(self._endpoint.in_shape(request, refusal))
            self._turns.charge(request.tenant, READING_S)
