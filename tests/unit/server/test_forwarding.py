"""What the region where a request came in makes of its home's answer; the test is the home."""

from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from tests.subjects.proxy_messages import forwards
from tests.subjects.request_scene import CONTENT, DONE, EVENTS, LIMITS, Client, Upstream
from tests.subjects.request_scene import Scene as RequestScene

import warmroute_proxy
from warmroute_proxy.core.load.blame import Cause
from warmroute_proxy.core.placement.fleet import Peer
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.queue.quota import NO_TOKENS, UsedTokens
from warmroute_proxy.server.base.errors import error_event
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.engines.leg import Leg
from warmroute_proxy.server.request.forwarding import Forwarding
from warmroute_proxy.server.request.open_requests import OpenRequests

pytestmark = pytest.mark.skipif(warmroute_proxy.COMPILED, reason="compiled code takes no scripted neighbours")

ERROR: Final = error_event(502, "worker w0 broke off", "engine_error")
COUNTED: Final = b'{"choices":[],"usage":{"prompt_tokens":900,"completion_tokens":2000,"total_tokens":2900,%b}}'
CACHED: Final = b'"prompt_tokens_details":{"cached_tokens":800}'
ESTIMATED: Final = b'"warmroute":{"id":"wr-1","estimated":["completion_tokens"]}'
STREAM: Final = EVENTS | {"x-warmroute-receipt": "wr-1"}


class Home(Upstream):
    """A region that answers as the test does with its legs."""

    def send(self, _method: str, _path: str, _head: str, _body: object, leg: Leg) -> None:
        self.send_with(b"", b"", leg)


class Scene:
    """East, which forwards all to west."""

    def __init__(self) -> None:
        self.home = Home()
        self.voided: list[str] = []
        self.used: list[UsedTokens | None] = []
        self.router = Router("east", [], [Peer("west", 0.01)])
        self.parsed = cast("Any", RequestScene().request.parsed)
        self.parsed.conversation = None
        config, admission, voids = SimpleNamespace(limits=LIMITS), SimpleNamespace(), SimpleNamespace()
        admission.limits = SimpleNamespace(sent_headers=lambda _parsed: ())
        voids.peers = SimpleNamespace(upstreams={"west": self.home}, rtt_s={})
        voids.forwards, voids.order = forwards(), lambda _tenant, _region, receipt_id: self.voided.append(receipt_id)
        parts: Any = (config, voids, self.router, admission, OpenRequests(), Metrics(), lambda: 1.0)
        self._forwarding = Forwarding(*parts)

    def forward(self) -> Leg:
        """Forward a request. Returns the leg on which the home answers."""
        decision = self.router.place(self.parsed.routing, 1.0)
        self._forwarding.begin(Client(), self.parsed, "wr-1", decision, lambda _: None, lambda: None, self.used.append)
        return self.home.legs[-1]

    def breaks_streams(self, last: bytes, read_bytes: int = 1 << 20) -> None:
        """Three streams break off at home after `last`, which comes in pieces of `read_bytes`."""
        for _ in range(3):
            leg = self.forward()
            leg.head(200, STREAM)
            for at in range(0, len(last), read_bytes):
                leg.body(last[at : at + read_bytes])
            leg.fail(Cause.BROKEN, "the connection ended early")


@pytest.mark.parametrize("read_bytes", [1, 10, 1 << 20])
def test_an_engine_that_fails_at_home_is_no_fault_of_its_region(read_bytes: int) -> None:
    scene = Scene()
    scene.breaks_streams(CONTENT + ERROR, read_bytes)
    assert scene.voided == [], "home has charged nothing"
    assert scene.router.may_forward("m", 1.0)


@pytest.mark.parametrize("last", [CONTENT, CONTENT + ERROR[:-1], ERROR + CONTENT], ids=["text", "half", "goes on"])
def test_a_home_that_breaks_off_without_a_word_is_at_fault(last: bytes) -> None:
    scene = Scene()
    scene.breaks_streams(last)
    assert len(scene.voided) == 3
    assert not scene.router.may_forward("m", 1.0)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(
    ("counts", "used"),
    [
        (CACHED, UsedTokens(2900, 800)), (b'"warmroute":{"id":"wr-1"}', UsedTokens(2900)), (ESTIMATED, None),
        (b'"prompt_tokens_details":null', UsedTokens(2900)),
    ],
    ids=["cached", "not cached", "estimated", "null"],
)  # fmt: skip
def test_a_forwarded_turn_counts_with_the_tokens_that_its_home_counted(
    stream: bool, counts: bytes, used: UsedTokens | None
) -> None:
    scene, answer = Scene(), COUNTED % counts
    leg = scene.forward()
    leg.head(200, STREAM if stream else {"x-warmroute-receipt": "wr-1"})
    leg.body(CONTENT + b"data: " + answer + b"\n\n" + DONE if stream else answer)
    leg.end()
    assert scene.used == [used]


def test_a_stream_without_usage_counts_as_estimated() -> None:
    scene = Scene()
    leg = scene.forward()
    leg.head(200, STREAM)
    leg.body(CONTENT + DONE)
    leg.end()
    assert scene.used == [None]


def test_a_forwarded_turn_that_fails_returns_its_tokens() -> None:
    scene = Scene()
    leg = scene.forward()
    leg.head(400, {"x-warmroute-receipt": "wr-1"})
    leg.body(b"{}")
    leg.end()
    scene.breaks_streams(CONTENT)
    assert scene.used == [NO_TOKENS] * 4
