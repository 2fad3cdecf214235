"""The gRPC server of the picker: external processing and health. It has the methods of `http.listener.Listener`.

A stream carries one request. Each stream has one task that reads messages and sends the replies to them, and a second
task that sends all other messages. Messages are not decoded here.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import grpc

from warmroute_proxy.core.queue.fair_budget import FairBudget
from warmroute_proxy.server.base.config import Limits, authority
from warmroute_proxy.server.base.repeated_line import RepeatedLine
from warmroute_proxy.server.build import Proxy
from warmroute_proxy.server.endpoint import PublicEndpoint
from warmroute_proxy.server.http.body_memory import BodyReservation
from warmroute_proxy.server.http.exchange import Exchange
from warmroute_proxy.server.http.request_starts import RequestStarts
from warmroute_proxy.server.http.tls import Tls
from warmroute_proxy.server.intake.parsed_request import ReadRequest
from warmroute_proxy.server.picker import wire
from warmroute_proxy.server.picker.addresses import Addresses
from warmroute_proxy.server.picker.answer import Outbox
from warmroute_proxy.server.picker.stream import Gateway, Stream
from warmroute_proxy.server.request.idempotency import left_gateway
from warmroute_proxy.server.request.inference_request import InferenceRequest, NewRequest
from warmroute_proxy.server.request.request_path import RequestPath

# Streams whose API key is not checked yet are read only a few at a time, since gRPC buffers a message while it is read.
#
# Of an unread message, only 64 KiB are buffered here; the rest stays with the gateway. So at most `AT_ONCE` messages
# are in memory before their keys are known. Memory for a message of the largest size is reserved before a second stream
# is read. Without memory, streams are read one after the other. If other streams wait, a stream that has been read for
# `PATIENCE_S` is broken off. If more than `MAX_WAITING` wait, the oldest waiting stream is broken off.

AT_ONCE: Final = 8
PATIENCE_S: Final = 0.25
MAX_WAITING: Final = 1_024


class FirstReads:
    """The turns in which a server reads streams whose key is not checked yet."""

    def __init__(self, memory: BodyReservation, message_bytes: int) -> None:
        """`memory`: counts the messages of all streams but one. `message_bytes`: the largest size of a message."""
        self._memory = memory
        self._message_bytes = message_bytes
        self._covered = 1  # how many streams may be read without reserving more memory
        self._reading: dict[Outbox, float] = {}  # when each stream's turn began, oldest first; at most AT_ONCE
        self._waiting: deque[tuple[Outbox, asyncio.Future[None]]] = deque()  # at most one for each stream
        self._looks = False

    async def enter(self, stream: Outbox) -> None:
        """Wait for a turn. `leave` ends the turn."""
        loop = asyncio.get_running_loop()
        if not self._waiting and self._may_read():
            self._reading[stream] = loop.time()
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append((stream, turn))
        if len(self._waiting) > MAX_WAITING:
            oldest, its_turn = self._waiting.popleft()
            oldest.break_off()
            if not its_turn.done():
                its_turn.set_result(None)  # its task then finds that the stream is broken off
        self._look_later(loop)
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting = deque(each for each in self._waiting if each[1] is not turn)
            self.leave(stream)
            raise

    def leave(self, stream: Outbox) -> None:
        if self._reading.pop(stream, None) is None:
            return
        while self._waiting and self._may_read():
            other, turn = self._waiting.popleft()
            if not turn.done():
                self._reading[other] = asyncio.get_running_loop().time()
                turn.set_result(None)

    def _may_read(self) -> bool:
        """Whether one more stream may be read. Reserves memory for its message."""
        count = len(self._reading)
        if count < self._covered:
            return True
        if count >= AT_ONCE or not self._memory.grow_by_own(self._message_bytes):
            return False
        self._covered += 1
        return True

    def sweep(self) -> None:
        """Give the memory back that the streams which are read now do not need."""
        more = max(0, len(self._reading) - 1)
        if self._covered > 1 + more:
            self._memory.close()
            self._covered = 1
            if more and self._memory.grow_by_own(more * self._message_bytes):
                self._covered += more

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._looks:
            self._looks = True
            loop.call_later(PATIENCE_S, self._look)

    def _look(self) -> None:
        """Break off streams that have been read for `PATIENCE_S`, but not more than there are streams that wait."""
        self._looks = False
        loop = asyncio.get_running_loop()
        late = [each for each, since_s in self._reading.items() if since_s <= loop.time() - PATIENCE_S]
        for stream in late[: len(self._waiting)]:
            stream.break_off()
            self.leave(stream)
        if self._waiting:
            self._look_later(loop)


log = logging.getLogger(__name__)

MORE_BYTES: Final = 1_048_576  # what a message may have in addition to a whole body
LEAST_BYTES: Final = 16_777_216
"""The smallest limit on the size of a message, even if `body_bytes` is smaller. So a body that is too long gets a 413
instead of a broken stream.
"""

UNBOUNDED: Final = 2**31 - 1
"""Turns off limits of gRPC, which would end streams with an error: an Envoy that fails open would bypass the picker."""

SERVING: Final = b"\x08\x01"
NOT_SERVING: Final = b"\x08\x02"
"""`SERVING` and `NOT_SERVING` are answers of grpc.health.v1.Health, as bytes."""

LIVENESS: Final = "liveness"
READINESS: Final = frozenset({"", "readiness", wire.SERVICE})


class Streams:
    """The open streams, with the interface of an HTTP listener's connections."""

    def __init__(self) -> None:
        self.members: set[Stream] = set()


class PickerListener:
    def __init__(self, proxy: Proxy, endpoint: PublicEndpoint, limits: Limits, can_answer: Callable[[], bool]) -> None:
        """`endpoint`: makes its requests by `for_gateway`. `can_answer`: whether gateways should ask here now."""
        self.connections = Streams()
        self._can_answer = can_answer
        addresses = Addresses(proxy.engines, proxy.clock)
        max_streams = proxy.config.limits.connections  # streams share a few connections, so they take no descriptors
        starts = RequestStarts(endpoint, asyncio.get_running_loop(), proxy.clock, proxy.loop_lag)
        self._gateway = Gateway(
            endpoint, starts.handle, limits, proxy.clock, proxy.body_memory, proxy.engines, addresses,
            proxy.path.placing, FairBudget(max_streams), proxy.config.proxy.picker_addresses,
            RepeatedLine(log, logging.ERROR, proxy.clock),
        )  # fmt: skip
        self._message_bytes = max(limits.body_bytes, LEAST_BYTES) + MORE_BYTES
        # A name that neither a tenant nor an engine has. Otherwise answers of `/ready` could find no memory.
        self._first_reads = FirstReads(proxy.body_memory.reserve("@ first reads", 0), self._message_bytes)
        self._server: Any = None

    async def listen(self, host: str, port: int, *, tls: Tls | None = None, shared: bool = False) -> int:
        """Listen, and return the port. `shared`: other processes listen there, too; `tls`: None for plain text."""
        await self._gateway.addresses.resolve()
        options = [
            ("grpc.so_reuseport", int(shared)),
            ("grpc.max_receive_message_length", self._message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.http2.bdp_probe", 0),  # with this probe, gRPC would buffer megabytes of each unread stream
            ("grpc.server.max_pending_requests", UNBOUNDED),
            ("grpc.server.max_pending_requests_hard_limit", UNBOUNDED),
        ]
        server = self._server = grpc.aio.server(options=options)
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    wire.SERVICE, {"Process": grpc.stream_stream_rpc_method_handler(self._process)}
                ),
                grpc.method_handlers_generic_handler(
                    "grpc.health.v1.Health", {"Check": grpc.unary_unary_rpc_method_handler(self._check)}
                ),
            )
        )
        address = authority(host, port)
        try:
            if tls is None:
                found = server.add_insecure_port(address)
            else:
                found = server.add_secure_port(address, _credentials(tls))
        except RuntimeError:
            raise OSError(
                f"port {port} on {host} is in use: end the process that listens there, or choose another port"
            ) from None
        await server.start()
        return int(found)

    def use_limits(self, limits: Limits) -> None:
        """Use new limits for streams that open from now on."""
        self._gateway.limits = replace(limits, connections=self._gateway.in_use.total)

    def sweep(self) -> None:
        """Check the deadlines of all streams; called a few times a second."""
        now_s = self._gateway.clock()
        for stream in [each for each in self.connections.members if each.deadline_s < now_s]:
            stream.deadline_s = float("inf")
            stream.on_deadline()
        self._first_reads.sweep()
        self._gateway.addresses.sweep()

    def stop(self) -> None:
        """Do nothing, since the endpoint refuses new requests."""

    async def close(self, grace_s: float) -> None:
        """Wait up to `grace_s` until the last stream has ended, then end the rest."""
        self._gateway.addresses.close()
        if self._server is not None:
            await self._server.stop(grace_s if self.connections.members else 0)

    # -- called by gRPC

    async def _process(self, _requests: Any, context: Any) -> None:
        await _Conversation(self._gateway, context, self.connections.members, self._first_reads).run()

    async def _check(self, request: bytes, context: Any) -> bytes:
        """Answer a health check. The only field of `request` is the name of a service."""
        service = request[2:].decode("utf-8", "replace") if len(request) < 128 else "?"
        if service == LIVENESS:
            return SERVING
        if service not in READINESS:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {service[:100]!r}")
        return SERVING if self._can_answer() else NOT_SERVING


class _Conversation:
    """Reads and writes the messages of one stream."""

    def __init__(self, gateway: Gateway, context: Any, members: set[Stream], first_reads: FirstReads) -> None:
        self._context = context
        self._first_reads = first_reads
        self._members = members
        self._stream = Stream(gateway, self._wake)
        self._writing = asyncio.Lock()  # gRPC accepts one message at a time, and the order matters
        self._writer: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Process messages until the gateway ends the stream, or the stream is broken off."""
        stream = self._stream
        self._members.add(stream)
        try:
            while not stream.outbox.broken and await self._take():
                if stream.outbox.out:
                    await self._flush()
            if stream.outbox.broken:
                await self._break_off()
        except Exception as error:
            if not stream.outbox.broken:
                log.debug("a stream has ended: %s", type(error).__name__)
            raise
        finally:
            self._members.discard(stream)
            stream.lost()
            if self._writer is not None and not stream.outbox.broken:
                self._writer.cancel()

    async def _take(self) -> bool:
        """Process the next message, and keep no reference to it. Returns False at the end of the stream."""
        message = await self._read()
        if message is grpc.aio.EOF:
            return False
        self._stream.take(message)
        return True

    async def _read(self) -> Any:
        """Read the next message. A stream whose key is not checked yet waits for its turn first."""
        stream = self._stream
        if stream.has_key:
            return await self._context.read()
        await self._first_reads.enter(stream.outbox)
        try:
            return grpc.aio.EOF if stream.outbox.broken else await self._context.read()
        finally:
            self._first_reads.leave(stream.outbox)

    def _wake(self) -> None:
        if not self._writing.locked() and (self._writer is None or self._writer.done()):
            self._writer = asyncio.get_running_loop().create_task(self._flush_alone())

    async def _flush_alone(self) -> None:
        try:
            await self._flush()
        except Exception as error:  # the gateway has left; the task that reads also notices that
            log.debug("a message could not be sent: %s", type(error).__name__)
        if self._stream.outbox.broken:
            with contextlib.suppress(Exception):  # gRPC's `abort` always raises
                await self._break_off()

    async def _break_off(self) -> None:
        """Send the waiting messages, then end the stream with an error."""
        await self._flush()
        await self._context.abort(grpc.StatusCode.INTERNAL, "the answer, or the request, has ended early")

    async def _flush(self) -> None:
        """Send all messages in the outbox. The task that reads awaits this, so a slow gateway slows it down."""
        outbox, write = self._stream.outbox, self._context.write
        async with self._writing:
            while outbox.out:
                message = outbox.out.popleft()
                await write(message if isinstance(message, bytes) else message())
            outbox.sent()


def _credentials(tls: Tls) -> Any:
    """Credentials by which each new connection uses the newest certificate and the newest CA for gateways."""

    def newest() -> Any:
        pem = tls.pem  # read only once, since a reload may replace `pem` while this runs in gRPC's thread
        return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.client_ca)

    return grpc.dynamic_ssl_server_credentials(newest(), newest, tls.pem.client_ca is not None)


def for_gateway(new_request: NewRequest) -> NewRequest:
    """Wrap `new_request` for requests that a gateway carries. They stay in this region, since the gateway does not
    reach another one.

    The wrapper raises a `Refusal` if the gateway has left, has named no engine of the model, or has a setup in which
    the request cannot be answered.
    """

    def make(path: RequestPath, exchange: Exchange, read: ReadRequest, receipt_id: str) -> InferenceRequest:
        carrier = exchange.request.carrier
        if not isinstance(carrier, Stream):
            raise left_gateway()
        carrier.check(exchange, read.parsed.model.name)
        made = new_request(path, exchange, read, receipt_id)
        carrier.allow(made, exchange)
        return made

    return make
