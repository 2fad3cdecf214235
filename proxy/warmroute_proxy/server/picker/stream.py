"""Serves one client's request that comes in a gateway's messages, and reads the engine's answer from later messages.

The request goes to the endpoint and is placed like any request of a proxy. Only the last step differs: a proxy would
send the body to an engine, but the stream sends the body and the engine's address to the gateway (`send_with`). The
gateway passes the engine's answer to the stream, and the stream passes it to the leg, which in a proxy reads it from
the connection to the engine. So usage, receipts and ledger rows are made as in a proxy.

`take` is called with each message, and `outbox` holds the messages to send; nothing here waits.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from warmroute.contract import headers as names
from warmroute_proxy.core.load.blame import Cause
from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.queue.fair_budget import FairBudget
from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.repeated_line import RepeatedLine
from warmroute_proxy.server.engines.carrier import Carrier
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.engines.leg import Leg
from warmroute_proxy.server.engines.upstream import Parts
from warmroute_proxy.server.http.body_memory import UNCOUNTED_BYTES, BodyMemory
from warmroute_proxy.server.http.exchange import Endpoint, Exchange, Request
from warmroute_proxy.server.http.incoming_body import IncomingBody
from warmroute_proxy.server.http.open_connections import TENANT_WEIGHT, too_many
from warmroute_proxy.server.http.request_reader import BYTES_PER_CHUNK, MAX_CHUNKS, chunks_too_small
from warmroute_proxy.server.http.shared_bytes import SharedBytes
from warmroute_proxy.server.picker import wire
from warmroute_proxy.server.picker.addresses import Addresses
from warmroute_proxy.server.picker.answer import GatewayAnswer, Outbox
from warmroute_proxy.server.picker.exchange import GatewayExchange, header_pairs
from warmroute_proxy.server.picker.heads import length_of, parsed, path_of, read_head
from warmroute_proxy.server.picker.picks import all_but, named
from warmroute_proxy.server.request.idempotency import SharedExchange, left_gateway
from warmroute_proxy.server.request.inference_request import InferenceRequest
from warmroute_proxy.server.request.placing import Placing

log = logging.getLogger(__name__)

MORE_OF_HEADERS: Final = 1_048_576  # what a message may have in addition to headers: attributes and framing

KEPT_HEADERS: Final = frozenset({"host", "content-type", "transfer-encoding", "te", wire.DESTINATION})
"""Headers that are never removed from a request, since they belong to the gateway."""


@dataclass(slots=True)
class Gateway:
    """The objects that all streams share."""

    endpoint: Endpoint
    handle: Callable[[Request, Exchange], None]
    limits: Limits
    clock: Callable[[], float]
    memory: BodyMemory
    engines: Engines
    addresses: Addresses
    placing: Placing
    in_use: FairBudget
    """How many streams each tenant has open, counted like an HTTP listener's connections."""

    picker_addresses: int
    """How many engines' addresses the gateway gets for a request."""

    failures: RepeatedLine
    """The log line for messages that cannot be processed."""


class Stream(Carrier):
    def __init__(self, gateway: Gateway, wake: Callable[[], None]) -> None:
        """`wake`: called if there is a message to send outside of `take`."""
        self.outbox = outbox = Outbox(wake)
        self.answer = GatewayAnswer(outbox, gateway.endpoint.on_status)
        self.deadline_s = gateway.clock() + gateway.limits.head_timeout_s
        self.served: InferenceRequest | None = None
        self.gone = False
        """Whether the gateway has ended the stream."""

        self.has_key = False
        """Whether the request has a valid API key."""

        self._shared: SharedExchange | None = None  # for a request with an Idempotency-Key
        self._tenant = ""  # the tenant for whom this stream is counted
        self._gateway = gateway
        self._exchange: GatewayExchange | None = None
        self._body = IncomingBody()
        self._body_bytes = 0
        self._messages = 0  # not counting those of an expected answer's body
        self._whole = False  # whether the whole request has come
        self._buffered = False
        self._reads_answers = True
        self._passes = False  # whether the gateway has answered by itself, before an engine was picked
        self._allowed: frozenset[str] | None = None
        self._names: list[str] = []  # the request's header names
        self._leg: Leg | None = None
        self._decision: Decision | None = None
        self._sent_trailers = False  # whether the gateway has sent trailers of the request
        self.complete = False  # whether the engine's answer has ended; read by the leg

    # -- the gateway's side

    def take(self, data: bytes) -> None:
        """Process a message of the gateway. The client gets an answer even if the message is wrong."""
        if not self.has_key and len(data) > self._gateway.limits.header_bytes + MORE_OF_HEADERS:
            if self._exchange is None:
                self.outbox.break_off()  # too long for headers, which come first
            return
        self.outbox.taking = True
        try:
            message = wire.parse(data)
            if message.WhichOneof("request") != "response_body":
                self._count_message()
                self._take_other(message)
                return
            if self._leg is None and not self._passes:
                self._count_message()  # no answer is expected
            body = message.response_body
            self._take_answer(body.body, ends=body.end_of_stream)
        except Refusal as refusal:
            self._refuse(refusal)
        except Exception as error:
            self._gateway.failures.write("a message of the gateway could not be taken: %s", type(error).__name__)
            if self.served is not None:
                self.served.crashed()
            elif self._exchange is not None:
                self._exchange.fail()
            else:
                self.outbox.broken = True
        finally:
            self.outbox.taking = False

    def _take_other(self, message: Any) -> None:
        kind = message.WhichOneof("request")
        if kind == "request_body":
            self._take_body(message.request_body.body, ends=message.request_body.end_of_stream)
        elif kind == "request_headers":
            self._take_headers(message)
        elif kind == "response_headers":
            self._take_answer_headers(message)
        elif kind == "request_trailers":
            self._sent_trailers = True
            self._take_body(b"", ends=True)
        elif kind == "response_trailers":
            self.answer.has_trailers = True
            self._take_answer(b"", ends=True)

    def _count_message(self) -> None:
        """Count a message. Raises: Refusal, if there are too many small ones, which cost as much as large ones."""
        self._messages += 1
        if self._messages - MAX_CHUNKS <= self._body_bytes // BYTES_PER_CHUNK:
            return
        if self._exchange is None or self._exchange.ended:
            self.outbox.break_off()
        raise chunks_too_small()

    def lost(self) -> None:
        self.deadline_s = float("inf")
        self._body.drop()
        self.answer.lost()
        exchange, served, leg = self._exchange, self.served, self._leg
        if self._tenant:
            self._gateway.in_use.release(self._tenant, 1)
            self._tenant = ""
        # These refer back to the stream. Such cycles would keep the body in memory until a garbage collection.
        shared = self._shared
        self._exchange = self.served = self._leg = self._decision = self._shared = None
        self.gone = True
        self.outbox.wake = _nothing
        if exchange is None:
            return
        exchange.request.carrier = None
        if served is None:
            exchange.request.release()
        if leg is not None and not self._reads_answers and served is not None and not exchange.ended:
            exchange.ended = True
            self._gateway.endpoint.on_status(exchange.request, 200)  # the real status is not known here
            served.unread(self._gateway.limits.first_token_timeout_s)
            return
        _leave(exchange, shared)
        if served is not None:
            served.give_up_usage()  # the usage would have come through this stream

    def on_deadline(self) -> None:
        """End the stream, since the headers or the body are late, or the gateway has not ended a refused stream."""
        if self._exchange is None or self._exchange.ended:
            self.outbox.break_off()
        elif not self._whole:
            self._refuse(Refusal(408, "the request body did not arrive in time", code="request_timeout"))

    def _take_headers(self, message: Any) -> None:
        gateway, headers = self._gateway, message.request_headers
        if self._exchange is not None:
            return
        pairs = wire.pairs(headers)
        request = Request(gateway.clock())
        request.path = path_of(pairs)  # set first: a refusal has the error format of the path's API
        request.carrier = self
        self._exchange = GatewayExchange(self.answer, request)
        self.deadline_s = gateway.clock() + gateway.limits.body_timeout_s
        if message.HasField("protocol_config"):
            self._take_modes(message.protocol_config)
        self._allowed = wire.subset(message)
        read_head(request, pairs, gateway.limits)
        self._names = [name for name in request.headers if not name.startswith(":")]
        request.length = 0 if headers.end_of_stream else length_of(request, gateway.limits)
        if gateway.in_use.used >= gateway.in_use.total:
            raise Refusal(503, "too many requests are open; try again in 1 s", code="overloaded", retry_after_s=1)
        gateway.endpoint.on_head(request)
        self._count_for(request.tenant)
        self.has_key = bool(request.tenant)
        if request.length != 0:
            request.body_reservation = gateway.memory.reserve(request.tenant, request.length or 0)
        if headers.end_of_stream:
            self._begin(request, self._exchange)
        elif self._buffered:
            self.outbox.send(wire.GO_ON)

    def _count_for(self, tenant: str) -> None:
        """Count this stream for a tenant. Raises: Refusal, if the tenant has too many."""
        if not tenant:
            return
        if not self._gateway.in_use.reserve(tenant, 1, TENANT_WEIGHT):
            raise too_many()
        self._tenant = tenant

    def _take_modes(self, modes: Any) -> None:
        """Note which bodies the gateway sends here, and how. Raises: Refusal, if a mode is not supported."""
        if modes.request_body_mode not in {wire.BUFFERED, wire.FULL_DUPLEX}:
            raise _wrong_mode("request_body_mode must be FULL_DUPLEX_STREAMED, or BUFFERED")
        if modes.response_body_mode not in {wire.NONE, wire.FULL_DUPLEX}:
            raise _wrong_mode("response_body_mode must be FULL_DUPLEX_STREAMED, or NONE")
        self._buffered = modes.request_body_mode == wire.BUFFERED
        self._reads_answers = modes.response_body_mode == wire.FULL_DUPLEX

    def _take_body(self, data: bytes, *, ends: bool) -> None:
        exchange = self._exchange
        if exchange is None or exchange.ended or self._whole:
            return
        request, limits = exchange.request, self._gateway.limits
        if data:
            self._body_bytes += len(data)
            if self._body_bytes > limits.body_bytes:
                raise Refusal(413, f"the request body exceeds {limits.body_bytes} bytes", code="request_too_large")
            reservation = request.body_reservation
            if reservation is not None and reservation.body_bytes < self._body_bytes:
                reservation.add_body(self._body_bytes - reservation.body_bytes)
            self._body.add(data, request.tenant)
        if ends:
            body = self._body.take()
            if isinstance(body, SharedBytes):
                request.shared, request.body = body, body.view()
            else:
                request.body = body
            self._begin(request, exchange)

    def _begin(self, request: Request, exchange: GatewayExchange) -> None:
        self._whole = True
        self.deadline_s = float("inf")
        self._gateway.handle(request, exchange)
        if self._buffered and self._leg is None and not exchange.ended:
            limits = self._gateway.limits
            self.outbox.send(wire.wait_longer(limits.queue_timeout_s + limits.working_set_wait_s))

    def _take_answer_headers(self, message: Any) -> None:
        headers, leg = message.response_headers, self._leg
        if leg is None:  # the gateway has answered by itself, before an engine was picked
            self._passes = True
            self.deadline_s = float("inf")
            self.outbox.send(wire.UNREAD_HEADERS)
            if self._exchange is not None:
                _leave(self._exchange, self._shared)
            return
        pairs = dict(wire.pairs(headers))
        if not headers.end_of_stream:  # the gateway takes no body for an answer without one, only a whole answer
            self.answer.names = [name for name in pairs if not name.startswith(":")]
        if leg.done:
            return
        self._note_served(wire.served(message))
        broke_off = wire.broke_off(message)
        if broke_off:
            if not self._reads_answers:
                self.answer.names = None  # the body cannot be changed, so replace the whole answer
            if wire.is_engines(broke_off):
                leg.fail(Cause.ERROR, f"the gateway got no answer from it ({broke_off[:100]})")
            else:
                leg.fail(Cause.OURS, f"the gateway has answered itself ({broke_off[:100]})")
            return
        if not self._reads_answers:
            self._pass_by(leg, pairs)
            return
        leg.head(int(pairs.get(":status", "0")), pairs)
        if headers.end_of_stream:
            self._take_answer(b"", ends=True)

    def _pass_by(self, leg: Leg, pairs: dict[str, str]) -> None:
        """Let an answer pass whose body the gateway does not show. If it is an error, the leg gets its head."""
        served, exchange = self.served, self._exchange
        if served is None or exchange is None:
            return
        status = int(pairs.get(":status", "0"))
        exchange.ended = True
        self._gateway.endpoint.on_status(exchange.request, status)
        headers = ((names.RECEIPT, served.id), *header_pairs(exchange.request.more_lines))
        self.outbox.send(wire.answer_headers(status, headers, ()))
        if status == 200:
            served.unread(self._gateway.limits.first_token_timeout_s)
        else:
            leg.head(status, pairs)
            leg.end()

    def _note_served(self, address: str) -> None:
        """Move the request to the engine that has answered, if that is not the picked engine."""
        served, decision = self.served, self._decision
        if not address or served is None or decision is None:
            return
        gateway = self._gateway
        if gateway.addresses.engine_at(address) is None:
            gateway.addresses.log_unknown(address)
            served.moved(None)
            return
        others = all_but(address, decision, gateway.engines, gateway.addresses)
        if others is None:
            return
        try:
            moved = gateway.placing.router.place(served.routing, gateway.clock(), others)
        except NoWorker:
            log.warning("an engine has answered at %s that could not have been picked", address)
            served.moved(None)
            return
        served.moved(moved)
        self._decision = moved

    def _take_answer(self, data: bytes, *, ends: bool) -> None:
        leg = self._leg
        if self._passes:
            self.outbox.send(wire.ANSWER_TRAILERS if self.answer.has_trailers else wire.answer_body(data, ends=ends))
        elif leg is not None and not leg.done:
            if ends:
                self.complete = True
            if len(data) > UNCOUNTED_BYTES:
                leg.holds(len(data))  # until the gateway has taken what the client gets of them
            if data:
                leg.body(data)
            if ends:
                leg.end()
        if ends:
            self.answer.engine_ended()

    # -- the request's side

    def send_with(self, decision: Decision, head: bytes, body: Parts, leg: Leg) -> None:
        """Send the engine's address to the gateway, and the head and body that the engine shall get."""
        gateway = self._gateway
        where = ",".join(named(decision, gateway.engines, gateway.addresses, gateway.picker_addresses))
        path, headers = parsed(head)
        names = {name for name, _ in headers}
        removed = [name for name in self._names if name not in names and name not in KEPT_HEADERS]
        self._leg, self._decision = leg, decision
        leg.sent, leg.connection = True, self
        whole = b"".join(body)
        if self._buffered:
            self.outbox.send(wire.buffered_destination(where, path, headers, removed, whole))
            return
        self.outbox.send(wire.destination(where, path, headers, removed, len(whole)))
        self.outbox.send_body(wire.request_body, whole, ends=not self._sent_trailers)
        if self._sent_trailers:
            self.outbox.send(wire.REQUEST_TRAILERS)

    def check(self, exchange: Exchange, model: str) -> None:
        """Check whether a request can be served. Raises: Refusal, if the gateway has left, has named no engine of the
        model, or does not send answers here although the request needs that.
        """
        if self.gone:
            raise left_gateway()
        if self._allowed is not None and not self._gateway.addresses.has_eligible(self._allowed, model):
            raise Refusal(503, "the subset has no eligible engine", code="no_worker", retry_after_s=1)
        if self._reads_answers:
            return
        if exchange.translates:
            raise _wrong_mode("this API is translated, so response_body_mode must be FULL_DUPLEX_STREAMED")
        if isinstance(exchange, SharedExchange):
            raise _wrong_mode("no answer is kept for an Idempotency-Key, unless response_body_mode is "
                              "FULL_DUPLEX_STREAMED; send none")  # fmt: skip

    def allow(self, served: InferenceRequest, exchange: Exchange) -> None:
        """Note the request. Exclude other regions from its placement, and engines that the gateway has not named."""
        self.served = served
        served.routing = served.routing.stay()
        self._shared = exchange if isinstance(exchange, SharedExchange) else None
        served.exclude(self._gateway.addresses.excluded(self._allowed))

    # -- the connection of a leg

    def pause(self, paused: bool) -> None:
        """Do nothing, since the gateway itself pauses the engine."""

    def parse_all(self) -> None:
        """Do nothing, since the whole answer is parsed anyway."""

    def drop(self) -> None:
        self.answer.engine_ended()

    def close_with(self, last_bytes: bytes) -> None:  # noqa: ARG002
        self.drop()

    def _refuse(self, refusal: Refusal) -> None:
        exchange = self._exchange
        if exchange is None:
            self.outbox.broken = True
            return
        self._whole = True
        self.deadline_s = self._gateway.clock() + self._gateway.limits.head_timeout_s
        self._body.drop()
        exchange.refuse(self._gateway.endpoint.in_shape(exchange.request, refusal))


def _nothing() -> None:
    """Do nothing, since the stream has ended."""


def _leave(exchange: GatewayExchange, shared: SharedExchange | None) -> None:
    """Note that the client has left. Neither it nor other requests with its Idempotency-Key will get the answer."""
    exchange.leave()
    if shared is not None:
        shared.lost()


def _wrong_mode(text: str) -> Refusal:
    return Refusal(500, f"the gateway's ext_proc filter is set up wrongly: {text}", code="gateway_config")
