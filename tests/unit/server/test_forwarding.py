"""What the region where a request came in makes of its home's answer; the test is the home."""

from types import SimpleNamespace
from typing import Any, Final

import pytest
from tests.subjects.proxy_messages import forwards
from tests.subjects.request_scene import CONTENT, EVENTS, LIMITS, Client, Upstream
from tests.subjects.request_scene import Scene as RequestScene

from warmroute_proxy.core.load.blame import Cause
from warmroute_proxy.core.placement.fleet import Peer
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.base.errors import error_event
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.engines.leg import Leg
from warmroute_proxy.server.request.forwarding import Forwarding
from warmroute_proxy.server.request.open_requests import OpenRequests

ERROR: Final = error_event(502, "worker w0 broke off", "engine_error")
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
        self.router = Router("east", [], [Peer("west", 0.01)])
        self.parsed: Any = RequestScene().request.parsed
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
        self._forwarding.begin(Client(), self.parsed, "wr-1", decision, lambda _: None, lambda: None, lambda: None)
        return self.home.legs[-1]

    def breaks_streams(self, last: bytes, read_bytes: int = 1 << 20) -> None:
        """Three streams break off at home after `last`, which comes in so many bytes at a time."""
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
