"""Sends the answer of a request that came through a gateway, as messages of Envoy's external processing.

Until the engine's answer has begun, the gateway accepts only a whole answer. A stream that begins earlier, such as the
recorded answer of an earlier request, is gathered and sent whole. If a gathered answer finds no memory, the client gets
a 503. The memory of a request is given back when the gateway has taken the answer.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.dialects.dialect import DialectRefusal
from warmroute_proxy.server.dialects.routes import shape_of
from warmroute_proxy.server.http.body_memory import UNCOUNTED_BYTES
from warmroute_proxy.server.http.exchange import Exchange, NextProtocol, Request
from warmroute_proxy.server.picker.answer import GatewayAnswer

_NO_SOCKET: Final = "a gateway's external processing serves no WebSockets: send a POST"

Pairs = Iterable[tuple[str, str]]


def header_pairs(lines: bytes) -> list[tuple[str, str]]:
    """Names and values of an answer's headers. `lines`: each with its line end."""
    found = [line.partition(": ") for line in lines.decode("latin-1").split("\r\n")[:-1]]
    return [(name, value) for name, _, value in found]


class GatewayExchange(Exchange):
    def __init__(self, answer: GatewayAnswer, request: Request) -> None:
        self.request = request
        self.started = False
        self.ended = False
        self._answer = answer
        self._gathered: tuple[int, Pairs, list[bytes]] | None = None
        self._gathered_bytes = 0
        self._lacks: Refusal | None = None  # set if a gathered answer has found no memory

    def respond(self, status: int, headers: Pairs, body: bytes) -> None:
        if self.ended:
            return
        self.started = True
        self._finish()
        self._answer.on_status(self.request, status)
        more = header_pairs(self.request.more_lines)
        self._answer.whole(status, [*headers, *more], b"" if self.request.method == "HEAD" else body)

    def answer(self, lines: bytes, body: bytes) -> None:
        self.respond(200, header_pairs(lines), body)

    def start(self, status: int, headers: Pairs, data: bytes = b"") -> None:
        self.started = True
        if self._answer.begins(status, [*headers, *header_pairs(self.request.more_lines)]):
            self._answer.on_status(self.request, status)
        else:
            self._gathered = status, headers, []
        self.write(data)

    def write(self, data: bytes) -> None:
        if not data or self.ended:
            return
        if self._gathered is not None:
            _, _, parts = self._gathered
            self._gather(parts, data)
        else:
            self._answer.goes_on(data)

    def _gather(self, parts: list[bytes], data: bytes) -> None:
        if self._lacks is not None:
            return
        self._gathered_bytes += len(data)
        memory = self.request.body_reservation
        if self._gathered_bytes <= UNCOUNTED_BYTES or memory is None or memory.cover(self._gathered_bytes):
            parts.append(data)
        else:
            parts.clear()
            self._lacks = memory.refusal()

    def passthrough_target(self) -> Callable[[bytes], None] | None:
        """Always None, since all bytes are sent in messages."""
        return None

    def end(self, data: bytes = b"") -> None:
        self._end(data, broken=False)

    def abort(self, data: bytes = b"") -> None:
        self._end(data, broken=True)

    def _end(self, data: bytes, *, broken: bool) -> None:
        if self.ended:
            return
        gathered, self._gathered = self._gathered, None
        if self._lacks is not None:
            dialect = shape_of(self.request.path)
            self.refuse(self._lacks if dialect is None else DialectRefusal(dialect, self._lacks))
            return
        if gathered is not None:
            status, headers, parts = gathered
            self.respond(status, headers, b"".join((*parts, data)))
            return
        if broken and not self.started:
            self.fail()  # an error answer: if the stream only ended, Envoy might let the request pass
            return
        self._finish()
        self._answer.ends(data, broken=broken)

    def switch(self, head: bytes, protocol_of: Callable[[Any], NextProtocol]) -> None:  # noqa: ARG002
        """Refuse: the exchange has no connection that could be switched."""
        self.refuse(Refusal(426, _NO_SOCKET, code="websocket_not_served", headers=(("upgrade", "HTTP/1.1"),)))

    def leave(self) -> None:
        if self.ended:
            return
        self.ended = True
        on_gone, self.on_gone, self.on_pause = self.on_gone, None, None
        if on_gone is not None:
            on_gone()

    def _finish(self) -> None:
        self.ended = True
        self.on_gone = self.on_pause = None
        self._answer.memory = self.request.body_reservation
