"""Makes the messages of one stream to the gateway, which put the proxy's answer in place of the engine's.

The proxy can replace the engine's head and body only after the engine's answer has begun, and can end the proxy's
answer only after the engine's answer has ended.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from warmroute_proxy.server.http.body_memory import BodyReservation
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.picker import wire

KEPT_OF_ANSWERS: Final = frozenset({"server", "date", "transfer-encoding"})


class Outbox:
    """Messages to send. `wake` is called if one is added when the stream is not processing a message of the gateway."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.out: deque[bytes | Callable[[], bytes]] = deque()
        """A piece of a body is a function that makes its message when it is sent, so no body is in memory twice."""

        self.broken = False
        """Whether the stream shall end with an error once all messages are sent."""

        self.taking = False
        """Whether the stream is processing a message of the gateway. After that, the outbox is sent without `wake`."""

        self.wake = wake
        self.memory: BodyReservation | None = None
        """The memory of a request whose whole answer is in the outbox. `sent` gives it back."""

    def sent(self) -> None:
        """Note that the gateway has taken all messages, or takes no more."""
        memory, self.memory = self.memory, None
        if memory is not None:
            memory.close()

    def send(self, message: bytes | Callable[[], bytes]) -> None:
        self.out.append(message)
        if not self.taking:
            self.wake()

    def send_body(self, message: Callable[..., bytes], data: bytes, *, ends: bool) -> None:
        """Send `data` in pieces of `CHUNK_BYTES`. Empty data is sent only if the body ends."""
        if len(data) <= wire.CHUNK_BYTES:
            if data or ends:
                self.send(message(data, ends=ends))
            return
        view = memoryview(data)
        for at in range(0, len(data), wire.CHUNK_BYTES):
            is_end = at + wire.CHUNK_BYTES >= len(data)
            self.send(partial(message, view[at : at + wire.CHUNK_BYTES], ends=ends and is_end))

    def break_off(self) -> None:
        self.broken = True
        if not self.taking:
            self.wake()


class GatewayAnswer:
    def __init__(self, outbox: Outbox, on_status: Callable[[Request, int], None]) -> None:
        """`on_status` counts the status of an answer in the metrics."""
        self.names: list[str] | None = None
        """The header names of the engine's answer; None until its headers have come, or if it has no body."""

        self.has_trailers = False
        """Whether the engine's answer ends with trailers."""

        self.on_status = on_status
        self.memory: BodyReservation | None = None
        """The memory of the request, from the end of its answer until the outbox has the answer's last bytes."""

        self._outbox = outbox
        self._engine_ended = False
        self._end: bytes | None = None  # the last bytes, kept until the engine's answer has ended

    def whole(self, status: int, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        """Send a whole answer, in place of the engine's answer if that has begun."""
        if self.begins(status, headers):
            self.ends(body, broken=False)
        else:
            self._outbox.send(wire.immediate(status, headers, body))
            self._hand_over()

    def lost(self) -> None:
        """Give the memory back, since the gateway takes no more."""
        self._hand_over()
        self._outbox.sent()

    def _hand_over(self) -> None:
        if self.memory is not None:
            self._outbox.memory, self.memory = self.memory, None

    def begins(self, status: int, headers: Iterable[tuple[str, str]]) -> bool:
        """Send the head of an answer. Returns False if the engine's answer has no head or no body to replace."""
        if self.names is None:
            return False
        headers = list(headers)
        own = {name for name, _ in headers}
        removed = [name for name in self.names if name not in own and name not in KEPT_OF_ANSWERS]
        self._outbox.send(wire.answer_headers(status, headers, removed))
        return True

    def goes_on(self, data: bytes) -> None:
        self._outbox.send_body(wire.answer_body, data, ends=False)

    def ends(self, data: bytes, *, broken: bool) -> None:
        """Send the last bytes once the engine's answer has ended. If `broken`, send them at once, and end the stream
        with an error.
        """
        self._end = data
        if broken:
            self._engine_ended = True
            self._outbox.break_off()
        self._send_end()

    def engine_ended(self) -> None:
        """Note that the engine's answer has ended, or that its rest is not needed."""
        self._engine_ended = True
        self._send_end()

    def _send_end(self) -> None:
        data, broken = self._end, self._outbox.broken
        if data is None or not self._engine_ended:
            return
        self._end = None
        self._outbox.send_body(wire.answer_body, data, ends=not (broken or self.has_trailers))
        if self.has_trailers and not broken:
            self._outbox.send(wire.ANSWER_TRAILERS)
        self._hand_over()
