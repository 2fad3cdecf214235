"""Faults on request: the engine behaves like a broken one, to test the proxy or client in front of it.

`POST /engine/faults` arms one fault for the next inference requests. SGLang has no such path. A client sees what it
would see if SGLang, its host or the network were broken. A fault changes the answer, never the computation: the request
runs in the scheduler as always, so `/engine/finished` reports its cost.

    crash          the process ends at once, as from kill -9
    hang           the request is accepted and never answered
    slow           the answer begins `delay_s` late
    drip           each event of a stream comes at least `delay_s` after the event before
    reset          the connection is reset
    cut            the connection closes in the middle of the answer
    truncate       a stream ends in good order without finish, usage and `[DONE]`; a whole answer is half of its JSON
    content_type   200 with an HTML page
    error_first    200, and an error as the first event (a whole answer: an error answer with `status`)
    status         an error answer with `status`
    no_hits        the answer reports no cached tokens
    usage          `usage` replaces members of the usage object (null removes one); without `usage`, it is missing

`crash`, `reset`, `cut` and `truncate` strike a stream after `after_events` events, and a whole answer at its end. With
`containing`, a fault strikes only requests whose body contains that text. Limits: at most `MAX_ARMED` faults are armed,
each for at most `MAX_COUNT` requests.
"""

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import msgspec

from warmroute_lab.engine.http.errors import Refusal
from warmroute_lab.engine.http.http1 import EngineExchange

MAX_ARMED: Final = 64
MAX_COUNT: Final = 1_000_000
MAX_DELAY_S: Final = 3600.0

Name = Literal[
    "crash", "hang", "slow", "drip", "reset", "cut", "truncate", "content_type", "error_first", "status", "usage",
    "no_hits",
]  # fmt: skip
_BREAKS: Final = ("crash", "reset", "cut", "truncate")
_PAGE: Final = b"<html><body>It works!</body></html>"


class Fault(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /engine/faults`."""

    fault: Name
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_COUNT)] = 1
    after_events: Annotated[int, msgspec.Meta(ge=0)] = 2
    delay_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_DELAY_S)] = 0.0
    status: Annotated[int, msgspec.Meta(ge=400, le=599)] = 500
    usage: dict[str, Any] | None = None
    containing: str = ""


_ORDER: Final = msgspec.json.Decoder(Fault)


class Faults:
    """The armed faults of one engine, oldest first."""

    def __init__(self) -> None:
        self._armed: deque[Fault] = deque()
        self.hides_hits = False
        """Whether all answers report no cached tokens."""

    def arm(self, body: bytes) -> None:
        """Arm the fault of a request body. Raises: Refusal, which says what is wrong with the body."""
        try:
            fault = _ORDER.decode(body)
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
            raise Refusal(400, f"not a fault: {error}") from None
        if len(self._armed) >= MAX_ARMED:
            raise Refusal(400, f"{MAX_ARMED} faults are armed already")
        self._armed.append(fault)

    def struck(self, exchange: EngineExchange) -> EngineExchange:
        """The exchange for the next inference request: `exchange` itself, or one that misbehaves as a fault orders."""
        if self.hides_hits:
            return FaultyExchange(exchange, Fault("no_hits"))
        if not self._armed:
            return exchange
        fault = next((each for each in self._armed if each.containing.encode() in exchange.body), None)
        if fault is None:
            return exchange
        fault.count -= 1
        if fault.count <= 0:
            self._armed.remove(fault)
        return FaultyExchange(exchange, fault)


class FaultyExchange(EngineExchange):
    __slots__ = ("_behind", "_events", "_fault", "_last_s")

    def __init__(self, behind: EngineExchange, fault: Fault) -> None:
        super().__init__(behind._protocol, behind.method.encode(), behind.path.encode(), behind.headers)
        self.body = behind.body
        self._behind = behind
        self._fault = fault
        self._events = 0
        self._last_s = 0.0  # when the last event of a drip goes out
        behind.on_leave = self.left

    def respond(self, status: int, body: bytes, content_type: bytes = b"application/json") -> None:
        if self.closed:
            return
        name = self._fault.fault
        if name in _BREAKS:
            self._break(body, content_type)
        elif name == "no_hits" and status == 200:
            self._whole(status, _without_hits(body), content_type)
        elif name == "usage" and status == 200:
            self._whole(status, _with_usage(body, self._fault.usage), content_type)
        elif name == "slow":
            self._later(lambda: self._behind.respond(status, body, content_type))
        elif not self._refused():
            self._whole(status, body, content_type)

    def start_stream(self) -> None:
        if self._fault.fault == "slow":
            self._later(self._behind.start_stream)
        elif self._fault.fault == "error_first" and not self.closed:
            self._behind.start_stream()
            error = Refusal(self._fault.status, "This engine was told to fail.").flat()
            self._behind.send(b"data: " + msgspec.json.encode({"error": error}) + b"\n\n")
            self._behind.send(b"data: [DONE]\n\n")
            self.closed = True
            self._behind.end()
        elif not self._refused():
            self._behind.start_stream()

    def send(self, data: bytes) -> None:
        if self.closed or self._fault.fault == "hang":
            return
        if self._fault.fault == "slow":
            self._later(lambda: self._behind.send(data))
            return
        if self._fault.fault == "drip":
            self._drip(lambda: self._behind.send(data))
            return
        if self._fault.fault in _BREAKS and self._events >= self._fault.after_events:
            self._break(b"", b"")
            return
        self._events += 1
        if self._fault.fault == "no_hits" and data.startswith(b"data: {"):
            data = b"data: " + _without_hits(data[6:]) + b"\n\n"
        self._behind.send(_event_with(data, self._fault.usage) if self._fault.fault == "usage" else data)

    def end(self) -> None:
        if self.closed or self._fault.fault == "hang":
            return
        if self._fault.fault == "slow":
            self._later(self._behind.end)
        elif self._fault.fault == "drip":
            self._drip(self._behind.end)
        elif self._fault.fault in _BREAKS:
            self._break(b"", b"")
        else:
            self.closed = True
            self._behind.end()

    def _refused(self) -> bool:
        fault = self._fault
        if fault.fault == "hang":
            return True
        if fault.fault == "content_type":
            self._whole(200, _PAGE, b"text/html")
        elif fault.fault in {"status", "error_first"}:
            refusal = Refusal(fault.status, "This engine was told to fail.")
            self._whole(fault.status, refusal.body(native=self.path == "/generate"), b"application/json")
        else:
            return self.closed
        return True

    def _whole(self, status: int, body: bytes, content_type: bytes) -> None:
        self.closed = True
        self._behind.respond(status, body, content_type)

    def _break(self, body: bytes, content_type: bytes) -> None:
        """Carry out one of `_BREAKS` in the middle of a stream, or at the end of a whole answer (`body`)."""
        name, transport = self._fault.fault, self._protocol._transport
        if name == "crash":
            os._exit(137)
        if transport is None:
            return
        if name == "truncate":
            if body:
                self._whole(200, body[: len(body) // 2], content_type)
            else:
                self.closed = True
                self._behind.end()
            return
        if name == "cut" and body:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (content_type, len(body))
            transport.write(head + body[: len(body) // 2])
        if name == "reset":
            _reset_on_close(transport)
            transport.abort()
        else:
            transport.close()  # what was written still goes out

    def _drip(self, step: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._last_s = max(self._last_s, loop.time()) + self._fault.delay_s
        loop.call_at(self._last_s, step)

    def _later(self, step: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(self._fault.delay_s, step)


def _reset_on_close(transport: asyncio.BaseTransport) -> None:
    """Make the system send a reset to the other side when this connection closes."""
    raw = transport.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _with_usage(body: bytes, usage: dict[str, Any] | None) -> bytes:
    """A JSON object with `usage` merged into its usage object (None removes a member); no `usage`: no such object."""
    answer = msgspec.json.decode(body)
    if not isinstance(answer.get("usage"), dict):
        return body
    if usage is None:
        del answer["usage"]
    else:
        merged = {**answer["usage"], **usage}
        answer["usage"] = {name: value for name, value in merged.items() if value is not None}
    return msgspec.json.encode(answer)


def _without_hits(body: bytes) -> bytes:
    answer = msgspec.json.decode(body)
    answer.pop("sglext", None)
    if isinstance(answer.get("usage"), dict):
        answer["usage"]["prompt_tokens_details"] = {"cached_tokens": 0}
    return msgspec.json.encode(answer)


def _event_with(data: bytes, usage: dict[str, Any] | None) -> bytes:
    if b'"usage":{' not in data:
        return data
    return b"data: " + _with_usage(data[6:], usage) + b"\n\n"
