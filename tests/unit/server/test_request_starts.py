"""Requests that come at once begin in order, tenants by turns, and not all in one iteration of the event loop."""

import asyncio
from collections.abc import Callable
from itertools import chain
from typing import Any

import uvloop

from warmroute_proxy.server.base.loop_lag import LoopLag
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.base.turns import SLICE_S
from warmroute_proxy.server.http.exchange import Exchange, NextProtocol, Request
from warmroute_proxy.server.http.request_starts import RequestStarts

from .test_arrival import Endpoint

A_SLICE = 4  # requests


class Silent:
    """A connection that takes an answer."""

    def write(self, data: bytes) -> None: ...
    def passthrough_target(self) -> None: ...
    def on_status(self, request: Request, status: int) -> None: ...
    def switch(self, head: bytes, protocol_of: Callable[[Any], NextProtocol]) -> None: ...
    def exchange_ended(self, exchange: Exchange) -> None: ...
    def close_after_flush(self) -> None: ...


class Slow(Endpoint):
    """An endpoint that begins `A_SLICE` requests in a slice, on a clock of its own."""

    def __init__(self) -> None:
        self.steps = 0
        self.begun: list[str] = []

    def clock(self) -> float:
        return self.steps * SLICE_S / A_SLICE

    def handle(self, request: Request, exchange: Exchange) -> None:
        self.steps += request.length or 1
        self.begun.append(request.path)


def _exchange(path: str) -> Exchange:
    """`path`: a tenant, a number, and of `dear` ones a third part: it takes a slice and a half."""
    exchange = Exchange(Silent(), Request(0.0, path=path))
    exchange.request.tenant = path.partition("/")[0]
    exchange.request.length = A_SLICE * 3 // 2 if path.endswith("/dear") else 1
    return exchange


def _begun_by_iteration(paths: list[str], gone: frozenset[str] = frozenset()) -> list[list[str]]:
    """What begins in each iteration, where all requests came in the first one. `gone`: whose clients have left."""

    async def run() -> list[list[str]]:
        slow = Slow()
        starts = RequestStarts(slow, asyncio.get_running_loop(), slow.clock, LoopLag(Metrics(), slow.clock))
        exchanges = [_exchange(path) for path in paths]
        for exchange in exchanges:
            starts.handle(exchange.request, exchange)
        for exchange in exchanges:
            exchange.ended = exchange.request.path in gone
        found, before = [list(slow.begun)], len(slow.begun)
        for _ in paths:
            await asyncio.sleep(0)
            found.append(slow.begun[before:])
            before = len(slow.begun)
        return [each for each in found if each]

    return uvloop.run(run())


def test_an_iteration_begins_some_of_many_requests_and_the_next_one_goes_on_in_order() -> None:
    paths = [f"/{number}" for number in range(10)]
    assert _begun_by_iteration(paths) == [paths[:4], paths[4:8], paths[8:]]


def test_a_few_requests_begin_at_once() -> None:
    assert _begun_by_iteration(["/a", "/b"]) == [["/a", "/b"]]


def test_a_request_whose_client_has_left_does_not_begin() -> None:
    paths = [f"/{number}" for number in range(6)]
    assert _begun_by_iteration(paths, frozenset({"/4"})) == [paths[:4], ["/5"]]


def test_a_request_waits_for_one_of_another_tenant_and_not_for_all_that_came_before() -> None:
    many = [f"hostile/{number}" for number in range(9)]
    begun = list(chain.from_iterable(_begun_by_iteration([*many, "innocent/0", "innocent/1"])))
    assert begun[:4] == many[:4]
    assert begun[4:8] == ["hostile/4", "innocent/0", "hostile/5", "innocent/1"]
    assert begun[8:] == many[6:]


def test_turns_follow_the_time_that_requests_take_to_begin() -> None:
    first = ["hostile/0/dear"]
    dear = [f"hostile/{number}/dear" for number in range(1, 4)]
    light = [f"innocent/{number}" for number in range(12)]
    begun = _begun_by_iteration([*first, *dear, *light])
    assert begun[:2] == [first, dear[:1]]
    after_dear = list(chain.from_iterable(begun[2:]))
    assert after_dear[:6] == light[:6]
    assert after_dear.index(dear[2]) > 6
    assert sorted(after_dear) == sorted([*dear[1:], *light])
