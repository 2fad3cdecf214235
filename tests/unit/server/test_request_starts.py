"""Requests that come at once begin in order, and not all in one iteration of the event loop."""

import asyncio

import uvloop

from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.loop_lag import LoopLag
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.http.request_starts import SLICE_S, RequestStarts

A_SLICE = 4  # requests


class Silent:
    """A connection that takes an answer."""

    def write(self, data: bytes) -> None:
        """Drop it."""

    def passthrough_target(self) -> None:
        """There is none."""

    def on_status(self, request: Request, status: int) -> None:
        """Count nothing."""

    def exchange_ended(self, exchange: Exchange) -> None:
        """Nothing follows."""

    def close_after_flush(self) -> None:
        """There is nothing to close."""


class Slow:
    """An endpoint that begins `A_SLICE` requests in a slice, on a clock of its own."""

    def __init__(self) -> None:
        self.steps = 0
        self.begun: list[str] = []

    def clock(self) -> float:
        return self.steps * SLICE_S / A_SLICE

    def on_head(self, request: Request) -> None:
        """Refuse nothing."""

    def handle(self, request: Request, exchange: Exchange) -> None:
        self.steps += 1
        self.begun.append(request.path)

    def in_shape(self, request: Request, refusal: Refusal) -> Refusal:
        return refusal

    def on_status(self, request: Request, status: int) -> None:
        """Count nothing."""


def _exchange(path: str) -> Exchange:
    return Exchange(Silent(), Request(0.0, path=path))


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
