"""A turn whose session lives in another region: its request goes there once, and the answer is relayed as it comes.

The home opens and settles the ledger entry; this side writes none and changes nothing. The turn is served here, under a
new receipt id, if the home cannot be reached, stops answering its probes before its first byte, does not trust our
word, or says that it cannot serve. A client that leaves is passed on by a last word on the connection, a request to
`LEFT_TARGET`. Where the connection ends without it, as it does when we go or give up, the home knows that it was not
the client who left, and charges nothing.
"""

from collections.abc import Callable
from typing import Final

from warmroute.contract import headers as names
from warmroute.contract.identity import IDENTITY_HEADERS
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.fleet import peer_id
from warmroute_proxy.server.base.config import TenantConfig
from warmroute_proxy.server.base.errors import Refusal, error_event
from warmroute_proxy.server.engines.engine_headers import engine_headers
from warmroute_proxy.server.engines.leg import Leg
from warmroute_proxy.server.engines.small_get import get
from warmroute_proxy.server.http.exchange import Exchange
from warmroute_proxy.server.http.http1 import LEFT_TARGET
from warmroute_proxy.server.intake.parsed_request import Intake
from warmroute_proxy.server.request.services import Services

_LEFT: Final = f"POST {LEFT_TARGET} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n".encode()
_PASSED_BACK: Final = ("content-type", "cache-control", "retry-after", names.RECEIPT, names.HOME)


class ForwardedRequest(Leg):
    """One request on its way through another proxy, and the leg that it is to us."""

    def __init__(
        self,
        services: Services,
        exchange: Exchange,
        intake: Intake,
        request_id: str,
        decision: Decision,
        serve_here: Callable[[str], None],
        ended: Callable[[], None],
    ) -> None:
        """`serve_here(peer id)` is called when the home could not take the request, `ended` at any other end."""
        self._services = services
        self._exchange = exchange
        self._intake = intake
        self._id = request_id
        self._decision = decision
        self._serve_here = serve_here
        self._tell_ended = ended
        self._ticket = services.router.dispatched(intake.facts, decision, services.clock())
        self._ended = False
        self._heard_s = services.clock()
        self._status = 0
        self._headers: list[tuple[str, str]] = []
        self._is_stream = False
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._said_why = False  # whether the last bytes held the home's own error event

    def begin(self) -> None:
        """Send the request as it came, with our word for who is asking in the place of the client's key."""
        self.guard(self._send)

    def _send(self) -> None:
        services, intake, request = self._services, self._intake, self._exchange.request
        self._exchange.on_gone = self._client_left
        self._exchange.on_pause = self._pause
        token = services.forwards.sign(
            intake.tenant.name,
            intake.tenant.share_group,
            self._id,
            services.config.proxy.region,
            request.body,
            services.config.limits.first_token_timeout_s,
        )
        identity = "".join(
            f"{name}: {value}\r\n"
            for name, value in request.headers.items()
            if name in IDENTITY_HEADERS and name != names.HOME
        )
        block = f"{engine_headers(request.headers)}{identity}{names.FORWARD}: {token}\r\n"
        services.metrics.add("warmroute_forwards_total")
        services.live.add(self)
        services.peers[self._decision.region].send("POST", request.path, block, [request.body], self)

    def sweep(self, now_s: float) -> None:
        """Give up on a home that no longer answers, or says nothing for too long."""
        limits = self._services.config.limits
        if not self.head_seen and self._decision.region in self._services.peers_down:
            self._give_up("it stopped answering")
        elif not self.paused and now_s - self._heard_s > (
            limits.idle_timeout_s if self._exchange.started else limits.first_token_timeout_s
        ):
            self._give_up("it said nothing for too long")

    def _pause(self, paused: bool) -> None:
        """A home that is not listened to cannot be late."""
        self._heard_s = self._services.clock()
        self.pause(paused)

    def shut_down(self) -> None:
        """The proxy is going: what has not begun cannot be served here any more either."""
        self.close()
        if self._finish():
            self._services.router.failed(self._ticket, self._services.clock(), ())
            refusal = Refusal(503, "the proxy is shutting down", code="draining", retry_after_s=1)
            if self._exchange.started:
                self._exchange.abort(error_event(refusal.status, refusal.message, refusal.code))
            else:
                self._exchange.refuse(refusal)

    def on_head(self, status: int, headers: dict[str, str]) -> None:
        self._heard_s = self._services.clock()
        self._status = status
        self._headers = [(name, headers[name]) for name in _PASSED_BACK if name in headers]
        self._headers += self._services.admission.headers(self._intake.tenant.name)
        self._is_stream = headers.get("content-type", "").startswith("text/event-stream")
        if self._is_stream:
            self._services.router.first_token(self._ticket, self._heard_s)
            self._exchange.start(status, self._headers)

    def on_body(self, data: bytes) -> None:
        self._heard_s = self._services.clock()
        if self._is_stream:
            self._said_why = b'"error":' in data
            self._exchange.write(data)
            return
        self._held_bytes += len(data)
        if self._held_bytes > self._services.config.limits.response_bytes:
            self._give_up("its answer is too large")
            return
        self._held.append(data)

    def on_end(self) -> None:
        services = self._services
        dispatched_there = any(name == names.RECEIPT for name, _ in self._headers)
        if self._status >= 400 and not dispatched_there and not self._exchange.started:
            self.on_fail(f"it answered {self._status}")
            return
        if not self._finish():
            return
        if self._status < 400:
            services.router.settled(self._ticket, self._intake.facts, services.clock(), None, None, None)
        else:
            services.router.failed(self._ticket, services.clock(), ())  # nobody's home by a refusal
        if self._is_stream:
            self._exchange.end()
        else:
            self._exchange.respond(self._status, self._headers, b"".join(self._held))

    def _give_up(self, reason: str) -> None:
        self.close()
        self.on_fail(reason)

    def on_fail(self, reason: str) -> None:
        services, peer = self._services, peer_id(self._decision.region)
        elsewhere = not self._exchange.started
        if not self._finish(elsewhere=elsewhere):
            return
        busy = self._status == 429  # no fault of the region's: it has no room
        services.router.failed(self._ticket, services.clock(), () if busy else (peer,))
        if elsewhere:
            services.metrics.add("warmroute_forward_failures_total")
            self._serve_here(peer)
        else:
            message = f"the stream from region {self._decision.region} broke: {reason}"
            self._exchange.abort(b"" if self._said_why else error_event(502, message, "engine_error"))

    def _client_left(self) -> None:
        self.part(_LEFT)
        if self._finish():
            self._services.router.failed(self._ticket, self._services.clock(), ())

    def on_crash(self) -> None:
        self.crashed()

    def crashed(self) -> None:
        """An error of ours: the client is told."""
        if self._finish():
            self._services.router.failed(self._ticket, self._services.clock(), ())
        self._exchange.fail()

    def _finish(self, *, elsewhere: bool = False) -> bool:
        """Whether this is the end; it comes once. `elsewhere`: the turn goes on in another way."""
        first, self._ended = not self._ended, True
        if first and not elsewhere:
            self._tell_ended()
        self._services.live.discard(self)
        return first


async def ask_peers(services: Services, tenant: TenantConfig, path: str) -> tuple[int, bytes] | None:
    """The first found answer of the other regions to a small GET of a tenant's; None where nobody has one."""
    limits, region = services.config.limits, services.config.proxy.region
    for peer in services.peers.values():
        token = services.forwards.sign(tenant.name, tenant.share_group, path, region, b"", limits.connect_timeout_s)
        status, body = await get(peer, path, f"{names.FORWARD}: {token}\r\n")
        if status in {200, 202}:
            return status, body
    return None
