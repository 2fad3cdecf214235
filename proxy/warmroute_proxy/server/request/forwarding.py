"""Forwards a request to its session's home, the region whose engines have the KV; relays the answer as it comes.

The home region's proxy opens and settles the ledger entry; this proxy writes none. A request is forwarded at most once.
If the home fails, the request is served here under a new receipt id. The home fails if it cannot be reached, stops
answering probes before its first byte, does not accept the token that stands for the client's key, or answers that it
cannot serve.

If the client leaves, this proxy reports that to the home by a last message on the connection, a request to
`LEFT_TARGET`. If the connection ends without that message, because this proxy stops or gives up, the home charges
nothing.

If the answer does not reach the client whole, the home may have charged for it already. So this proxy orders the home
to void the ledger row (`ReceiptVoider`), and the client pays only for what is served instead. An order waits until the
home can be reached.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from warmroute.contract import headers as names
from warmroute.contract.identity import IDENTITY_HEADERS
from warmroute_proxy.core.accounting.usage_fields import ForwardedAnswer
from warmroute_proxy.core.load.blame import Cause
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.fleet import peer_id
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.queue.quota import NO_TOKENS, UsedTokens
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.errors import Refusal, error_event, shutting_down
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.engines.engine_headers import engine_headers
from warmroute_proxy.server.engines.leg import Leg, in_parts
from warmroute_proxy.server.http.exchange import LEFT_TARGET, Exchange, Problem, Request
from warmroute_proxy.server.http.header_lines import Line
from warmroute_proxy.server.intake.parsed_request import ParsedRequest
from warmroute_proxy.server.regions.forward_claim import Noted
from warmroute_proxy.server.regions.receipt_voider import ReceiptVoider
from warmroute_proxy.server.request.admission import Admission
from warmroute_proxy.server.request.failure import unreadable
from warmroute_proxy.server.request.open_requests import OpenRequests

_LEFT: Final = f"POST {LEFT_TARGET} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n".encode()
_DONE: Final = b"data: [DONE]\n\n"
_ERROR: Final = b'{"error":{'
_EVENT: Final = b"\n\ndata: "
_KEPT_BYTES: Final = 8192
"""How much of a stream's end is kept: at least its last event and `_DONE`."""

_PASSED_BACK: Final = ("content-type", "cache-control", "retry-after", names.RECEIPT, names.HOME)

Ended = Callable[[UsedTokens | None], None]
"""Takes the tokens that a forwarded request has used; None if the home has not told them."""

_USAGE_OF: Final = msgspec.json.Decoder(ForwardedAnswer).decode


class Forwarding:
    def __init__(
        self,
        config: Config,
        voids: ReceiptVoider,
        router: Router,
        admission: Admission,
        open_requests: OpenRequests,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self.limits = config.limits
        self.peers = voids.peers
        self.voids = voids
        self.router = router
        self.admission = admission
        self.open_requests = open_requests
        self.metrics = metrics
        self.clock = clock
        self._forwards = voids.forwards

    def replace(self, config: Config) -> None:
        self.limits = config.limits

    def begin(
        self,
        exchange: Exchange,
        parsed: ParsedRequest,
        request_id: str,
        decision: Decision,
        serve_here: Callable[[str], None],
        begun: Callable[[], None],
        ended: Ended,
    ) -> None:
        ForwardedRequest(self, exchange, parsed, decision, serve_here, begun, ended).begin(request_id)

    def sign(self, parsed: ParsedRequest, request_id: str, region: str, request: Request) -> str:
        """The token by which another region accepts a request of this tenant without the tenant's key."""
        tenant = parsed.tenant
        timeout_s, sha256 = self.limits.first_token_timeout_s, request.body_sha256()
        rtt_ms = round(self.peers.rtt_s.get(region, 0.0) * 1000, 3)
        noted = Noted(parsed.route if parsed.route != request.path else None, parsed.changes, parsed.key_id, rtt_ms)
        return self._forwards.sign(tenant.name, tenant.share_group, request_id, region, sha256, timeout_s, noted)


class ForwardedRequest:
    """One request that was forwarded to its home region; receives the answer."""

    def __init__(
        self,
        forwarding: Forwarding,
        exchange: Exchange,
        parsed: ParsedRequest,
        decision: Decision,
        serve_here: Callable[[str], None],
        begun: Callable[[], None],
        ended: Ended,
    ) -> None:
        self._path = forwarding
        self._exchange = exchange
        self.parsed = parsed
        self._decision = decision
        self._serve_here = serve_here
        self._report_begin = begun
        self._report_end = ended
        self._ticket = forwarding.router.dispatched(parsed.routing, decision, forwarding.clock())
        self._leg = Leg(self)
        self._ended = False
        self._last_data_s = forwarding.clock()
        self._status = 0
        self._headers: list[tuple[str, str]] = []
        self._is_stream = False
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._waiting_bytes = 0  # bytes of a read that waits, for which memory is reserved
        self._request_id = ""
        self._stream_end = b"\n\n"  # the last bytes of the stream

    def begin(self, request_id: str) -> None:
        """Send the request as it came, with a token for its tenant in place of the client's key."""
        try:
            self._send(request_id)
        except Exception as error:
            self._leg.crash(error)

    def _send(self, request_id: str) -> None:
        self._request_id = request_id
        path, request = self._path, self._exchange.request
        self._exchange.on_gone = self._client_left
        self._exchange.on_pause = self._pause
        if self._exchange.translates:
            self._exchange.on_unreadable = self._unreadable
        token = path.sign(self.parsed, request_id, self._decision.region, request)
        identity = "".join(
            f"{name}: {value}\r\n"
            for name, value in request.headers.items()
            if name in IDENTITY_HEADERS and name != names.HOME
        )
        if self.parsed.conversation is not None:  # the home may not recognise the conversation: send its key
            identity += f"{names.AFFINITY}: {self.parsed.conversation.key}\r\n{names.DERIVED}: 1\r\n"
        block = f"{engine_headers(request.headers)}{identity}{names.FORWARD}: {token}\r\n"
        path.metrics.add(declared.FORWARDS_TOTAL)
        path.open_requests.live.add(self)
        upstream = path.peers.upstreams[self._decision.region]
        upstream.send("POST", request.path, block, [request.body], self._leg)

    def tokens(self) -> int:
        return self._ticket.resident

    def sweep(self, now_s: float) -> None:
        """Give up on a home that no longer answers probes, or sends nothing for too long."""
        limits = self._path.limits
        if not self._leg.head_seen and self._path.peers.gone(self._decision.region):
            self._give_up("it stopped answering")
        elif not self._leg.paused and now_s - self._last_data_s > (
            limits.idle_timeout_s if self._exchange.started else limits.first_token_timeout_s
        ):
            self._give_up("it was silent for too long")

    def _pause(self, paused: bool) -> None:
        self._last_data_s = self._path.clock()
        self._leg.pause(paused)

    def shut_down(self) -> None:
        """End with an error, because the proxy stops and so cannot serve the request itself either."""
        self._end_with(shutting_down())

    # -- the home's answer

    def on_head(self, status: int, headers: dict[str, str]) -> None:
        self._last_data_s = self._path.clock()
        self._status = status
        self._headers = [(name, headers[name]) for name in _PASSED_BACK if name in headers]
        self._is_stream = headers.get("content-type", "").startswith("text/event-stream")
        if self._is_stream:
            self._path.router.first_token(self._ticket, self._last_data_s)
            self._exchange.start(status, self._sent_headers())
            self._report_begin()

    def on_body(self, data: bytes) -> None:
        self._last_data_s = self._path.clock()
        if self._is_stream:
            self._stream_end = (self._stream_end + data[-_KEPT_BYTES:])[-_KEPT_BYTES:]
            self._exchange.write(data)
            return
        self._held_bytes += len(data)
        if self._held_bytes > self._path.limits.response_bytes:
            self._give_up("its answer is too large")
            return
        if self._reserves(len(data)):
            self._held.append(data)

    def holds(self, size_bytes: int) -> None:
        """Reserve memory for `size_bytes` of a read that wait, until the request ends."""
        if size_bytes > self._waiting_bytes and self._reserves(size_bytes - self._waiting_bytes):
            self._waiting_bytes = size_bytes

    def _reserves(self, size_bytes: int) -> bool:
        """Reserve memory for a part of the answer. Returns whether there was enough; if not, the request has ended."""
        reservation = self._exchange.request.body_reservation
        if reservation is None or reservation.add_answer(size_bytes):
            return True
        self._end_with(reservation.refusal())
        return False

    def streams(self) -> None:
        """Always None, since this object reads all of the answer."""

    def on_end(self) -> None:
        path = self._path
        dispatched_there = any(name == names.RECEIPT for name, _ in self._headers)
        if self._status >= 400 and not dispatched_there and not self._exchange.started:
            self._failed(f"it answered {self._status}")
            return
        body = b"".join(self._held)
        if self._status == 200 and self._exchange.translates:
            problem = self._exchange.unreadable(None if self._is_stream else body)
            if problem is not None:
                self._unreadable(problem)
                return
        has_answered = self._status < 400
        if not self._finish(_used_in(self._last_event() if self._is_stream else body) if has_answered else NO_TOKENS):
            return
        if has_answered:
            path.router.settled(self._ticket, self.parsed.routing, path.clock(), None, None, None)
        else:
            self._release(())  # the home has refused: that does not make it the session's home
        if self._is_stream:
            self._exchange.end()
        else:
            self._exchange.respond(self._status, self._sent_headers(), body)

    def _sent_headers(self) -> list[tuple[str, str]]:
        """The home's headers, and headers with what is left of the tenant's limits in this region."""
        return [*self._headers, *self._path.admission.limits.sent_headers(self.parsed)]

    def _unreadable(self, problem: Problem) -> None:
        """End with an error, because the home's answer cannot be expressed in the client's API."""
        self._end_with(unreadable(f"region {self._decision.region}", self._request_id, problem).refusal)

    def on_whole(self, lines: list[Line], body: bytes, now_s: float) -> None:  # noqa: ARG002
        in_parts(self, lines, body)

    def on_fail(self, cause: Cause, reason: str) -> None:
        if self._stream_end.endswith(_DONE):  # the answer is complete; only the end of the HTTP framing is lost
            self.on_end()
        else:
            self._failed(reason, ours=cause is Cause.OURS)

    def _failed(self, reason: str, *, ours: bool = False) -> None:
        """Serve the request here, or break off a stream that has begun. `ours`: the home is not at fault.

        A stream that the home has ended with an error event is not charged, and does not count against the region.
        """
        peer = peer_id(self._decision.region)
        elsewhere = not self._exchange.started
        if not self._finish(NO_TOKENS, elsewhere=elsewhere):
            return
        has_error = self._last_event().startswith(_ERROR)
        if not has_error:
            self._void()
        busy = self._status == 429  # the region has no capacity, which is not a fault
        self._release(() if busy or ours or has_error else (peer,))
        if elsewhere:
            self._path.metrics.add(declared.FORWARD_FAILURES_TOTAL)
            self._serve_here(peer)
        else:
            message = f"the stream from region {self._decision.region} broke: {reason}"
            self._exchange.abort(b"" if has_error else error_event(502, message, "engine_error"))

    def _last_event(self) -> bytes:
        """The data of the stream's last event before `_DONE`; empty if that event is not whole, or is too long."""
        event, end, _ = self._stream_end.removesuffix(_DONE).rpartition(b"\n\n")
        return event.rpartition(_EVENT)[2] if end and _EVENT in event else b""

    def on_crash(self) -> None:
        self.crashed()

    # -- the end

    def _end_with(self, refusal: Refusal) -> None:
        """End with an error. The home's answer does not reach the client, so its ledger row is voided."""
        self._leg.close()
        if self._finish(NO_TOKENS):
            self._void()
            self._release(())
            if self._exchange.started:
                self._exchange.abort(error_event(refusal.status, refusal.message, refusal.code))
            else:
                self._exchange.refuse(refusal)

    def _give_up(self, reason: str) -> None:
        self._leg.close()
        self._failed(reason)

    def _client_left(self) -> None:
        self._leg.close_with(_LEFT)
        self._exchange.request.release()
        if self._finish(None):
            self._release(())

    def crashed(self) -> None:
        """End with an error, because this proxy itself has failed."""
        if self._finish(NO_TOKENS):
            self._void()
            self._release(())
        self._exchange.fail()

    def _void(self) -> None:
        """Order the home to void the row, so that the client does not pay for an answer that it did not get."""
        refused = self._status >= 400 and not any(name == names.RECEIPT for name, _ in self._headers)
        if self._leg.sent and not refused:
            self._path.voids.order(self.parsed.tenant, self._decision.region, self._request_id)

    def _release(self, at_fault: tuple[str, ...]) -> None:
        self.parsed.left_unanswered()
        self._path.router.failed(self._ticket, self._path.clock(), at_fault)

    def _finish(self, used: UsedTokens | None, *, elsewhere: bool = False) -> bool:
        """Mark the forwarding as ended; True at the first call. `used`: as for `Ended`. `elsewhere`: the request is now
        served in this region, so its end is not reported yet.
        """
        first, self._ended = not self._ended, True
        if first and not elsewhere:
            self._report_end(used)
        self._path.open_requests.live.discard(self)
        return first


def _used_in(answer: bytes) -> UsedTokens | None:
    """The tokens that a whole answer, or the last event of a stream, says were used; None if it does not."""
    try:
        usage = _USAGE_OF(answer).usage
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    if "completion_tokens" in usage.warmroute.estimated:
        return None
    details = usage.prompt_tokens_details
    cached_tokens = 0 if details is None else details.cached_tokens or 0
    return UsedTokens(usage.prompt_tokens + usage.completion_tokens, cached_tokens)
