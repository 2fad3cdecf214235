"""The rendezvous of prefill and decode: both legs name the same room, decode calls, prefill answers when KV is there.

Decode posts to `/room/<room>` of the prefill engine's bootstrap port once it has pages for the request, and waits on
that call. Prefill holds its own request in the bootstrap queue until the call has come, computes, lets the transfer
time pass, and answers the call with what it modelled. The open connection is the liveness of the pair: when decode
goes away or gives up, the prefill leg ends at once; when prefill goes away, the decode leg does.

(SGLang exchanges addresses over this port and pushes KV out of band; one call carries both here. It notices a dead
partner by heartbeat after about 10 s; here the connection tells at once.)

Bounds: `MAX_ROOMS` rooms; a room whose second party does not come within `timeout_s` (wall) is failed and removed.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools
import msgspec

from warmroute_backend.engine.errors import Refusal
from warmroute_backend.engine.http1 import Exchange
from warmroute_backend.engine.job import Job

MAX_ROOMS = 16_384
MAX_ANSWER_BYTES = 64 * 1024
WAITING_TIMEOUT_S = 300.0


class Meet(msgspec.Struct):
    """What decode says when it calls."""

    rid: str
    prompt_tokens: int
    prefill_dp_rank: int | None = None


class Handover(msgspec.Struct):
    """What prefill answers: counts, and its modelled times in virtual seconds."""

    cached_tokens: int
    ttft_s: float
    transfer_s: float


@dataclass(slots=True)
class Room:
    """A rendezvous: at least one of `job` (prefill's) and `call` (decode's) is there."""

    timer: asyncio.TimerHandle
    job: Job | None = None
    call: Exchange | None = None
    meet: Meet | None = None


class Rooms:
    """Prefill's table of rooms. `on_meet` starts a job whose partner has come; `on_lost` ends one without partner."""

    def __init__(
        self,
        timeout_s: float,
        on_meet: Callable[[Job, Meet], None],
        on_lost: Callable[[Job, Refusal], None],
    ) -> None:
        self._timeout_s = timeout_s
        self._on_meet = on_meet
        self._on_lost = on_lost
        self._rooms: dict[int, Room] = {}

    def waiting(self) -> int:
        """Jobs in the bootstrap queue."""
        return sum(1 for room in self._rooms.values() if room.job is not None and room.call is None)

    def check(self, number: int) -> None:
        """Refuse a job whose room is taken."""
        room = self._rooms.get(number)
        if room is not None and room.job is not None:
            raise Refusal(500, f"Duplicate or cancelled bootstrap room {number}")
        if room is None and len(self._rooms) >= MAX_ROOMS:
            raise Refusal(503, "The bootstrap queue is full.")

    def offer(self, number: int, job: Job) -> None:
        """A prefill request for this room."""
        room = self._room(number)
        room.job = job
        if room.call is not None and room.meet is not None:
            room.timer.cancel()
            self._on_meet(job, room.meet)

    def call(self, number: int, exchange: Exchange) -> None:
        """Decode calls for this room."""
        try:
            meet = msgspec.json.decode(exchange.body, type=Meet)
        except msgspec.MsgspecError:
            exchange.respond(400, b'{"message":"malformed call"}')
            return
        room = self._rooms.get(number)
        if (room is not None and room.call is not None) or (room is None and len(self._rooms) >= MAX_ROOMS):
            exchange.respond(409, b'{"message":"Duplicate or cancelled bootstrap room"}')
            return
        room = self._room(number)
        room.call, room.meet = exchange, meet
        exchange.on_leave = lambda: self._left(number)
        if room.job is not None:
            room.timer.cancel()
            self._on_meet(room.job, meet)

    def hand_over(self, number: int, handover: Handover) -> None:
        """The transfer has ended: answer decode and forget the room."""
        room = self._forget(number)
        if room is not None and room.call is not None:
            room.call.respond(200, msgspec.json.encode(handover))

    def fail(self, number: int, message: str) -> None:
        """The prefill leg has ended badly: tell decode and forget the room."""
        room = self._forget(number)
        if room is not None and room.call is not None:
            room.call.respond(500, msgspec.json.encode({"message": message}))

    def _room(self, number: int) -> Room:
        room = self._rooms.get(number)
        if room is None:
            timer = asyncio.get_running_loop().call_later(self._timeout_s, self._expire, number)
            room = self._rooms[number] = Room(timer)
        return room

    def _forget(self, number: int) -> Room | None:
        room = self._rooms.pop(number, None)
        if room is not None:
            room.timer.cancel()
        return room

    def _left(self, number: int) -> None:
        room = self._forget(number)
        if room is not None and room.job is not None:
            message = f"Prefill transfer failed for room {number}: the decode side is gone"
            self._on_lost(room.job, Refusal(500, message))

    def _expire(self, number: int) -> None:
        room = self._forget(number)
        if room is None:
            return
        if room.call is not None:
            room.call.respond(500, b'{"message":"no prefill request came for this room in time"}')
        if room.job is not None:
            message = f"Prefill bootstrap failed for room {number}: the decode side did not come in time"
            self._on_lost(room.job, Refusal(500, message))


class Call(asyncio.Protocol):
    """Decode's call to a prefill engine: one request, one answer, one connection."""

    def __init__(
        self, host: str, port: int, room: int, meet: Meet, on_end: Callable[[Handover | None, str], None]
    ) -> None:
        self._on_end: Callable[[Handover | None, str], None] | None = on_end
        self._request = _request(room, msgspec.json.encode(meet))
        self._parser = httptools.HttpResponseParser(self)
        self._body = b""
        self._transport: Any = None
        self._timer = asyncio.get_running_loop().call_later(WAITING_TIMEOUT_S, self._end, None, "timed out")
        self._task = asyncio.get_running_loop().create_task(self._connect(host, port))

    def close(self) -> None:
        """Give up: the prefill engine sees the connection close."""
        self._on_end = None
        self._end(None, "")

    async def _connect(self, host: str, port: int) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self, host, port)
        except (OSError, ValueError) as error:  # ValueError: what is not even a host name
            self._end(None, f"the prefill engine cannot be reached ({error.__class__.__name__})")

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if self._on_end is None:
            transport.close()
        else:
            transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._end(None, "malformed answer")

    def on_body(self, body: bytes) -> None:
        self._body += body
        if len(self._body) > MAX_ANSWER_BYTES:
            self._end(None, "oversized answer")

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        try:
            if status == 200:
                self._end(msgspec.json.decode(self._body, type=Handover), "")
            else:
                self._end(None, str(msgspec.json.decode(self._body).get("message")))
        except (msgspec.MsgspecError, AttributeError):
            self._end(None, f"malformed answer with status {status}")

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._end(None, "lost connection with the prefill engine")

    def _end(self, handover: Handover | None, problem: str) -> None:
        self._timer.cancel()
        if self._transport is not None:
            self._transport.close()
        elif self._task is not asyncio.current_task():
            self._task.cancel()
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(handover, problem)


def _request(room: int, body: bytes) -> bytes:
    head = b"POST /room/%d HTTP/1.1\r\nhost: bootstrap\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (room, len(body)) + body
