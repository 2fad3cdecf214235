"""The rendezvous of prefill and decode: both legs name a room, decode calls, and prefill answers when the KV is there.

Once the decode engine has pages for a request, it posts to `/room/<room>` of the prefill engine's bootstrap port and
waits for the answer. The prefill engine holds its own request in the bootstrap queue until that call has come. Then it
computes, lets the transfer time pass, and answers the call with its modelled times. The open connection shows that both
sides live. If the decode engine disconnects or gives up, the prefill leg (the request at the prefill engine) ends at
once; if the prefill engine disconnects, the decode leg ends.

SGLang exchanges addresses over this port, pushes KV out of band, and notices a dead partner by heartbeat after about
10 s. Here one call stands for exchange and push, and its connection shows a dead partner at once.

If a decode leg gives up before the prefill leg has come, the room is remembered, and the prefill leg fails when it
comes.

Bounds: `MAX_BOOTSTRAP_ROOMS` rooms, and as many remembered ones. If the second leg of a room does not come within
`timeout_s` (wall time), the room fails and is removed.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import httptools
import msgspec

from warmroute_lab.engine.http.errors import Refusal
from warmroute_lab.engine.http.http1 import EngineExchange
from warmroute_lab.engine.request.job import Job

_TEXT = b"text/plain; charset=utf-8"
_JSON = b"application/json; charset=utf-8"
_RANK = re.compile(r"-?[0-9]{1,9}")
MAX_BOOTSTRAP_ROOMS = 16_384
MAX_ANSWER_BYTES = 64 * 1024
WAITING_TIMEOUT_S = 300.0
DECODE_GONE = "Aborted by decode-side abort notification."


class Meet(msgspec.Struct):
    """The body of a decode engine's call."""

    rid: str
    prompt_tokens: int
    prefill_dp_rank: int | None = None


class Handover(msgspec.Struct):
    """The body of a prefill engine's answer: token counts, and modelled times in virtual seconds."""

    cached_tokens: int
    ttft_s: float
    transfer_s: float
    cached_host_tokens: int = 0
    cached_storage_tokens: int = 0


@dataclass(slots=True)
class BootstrapRoom:
    """A rendezvous with the prefill engine's `job`, the decode engine's `call`, or both."""

    timer: asyncio.TimerHandle
    job: Job | None = None
    call: EngineExchange | None = None
    meet: Meet | None = None


class BootstrapRooms:
    """The prefill engine's table of rooms.

    `on_meet` starts a job whose partner has come; `on_lost` fails a job without a partner.
    """

    def __init__(
        self, timeout_s: float, on_meet: Callable[[Job, Meet], None], on_lost: Callable[[Job, str], None]
    ) -> None:
        self._timeout_s = timeout_s
        self._on_meet = on_meet
        self._on_lost = on_lost
        self._rooms: dict[int, BootstrapRoom] = {}
        self._given_up: OrderedDict[int, None] = OrderedDict()

    def waiting(self) -> int:
        return sum(1 for room in self._rooms.values() if room.job is not None and room.call is None)

    def taken(self, number: int) -> Refusal | None:
        """The refusal of a job if its room already has a job or the table is full, else None."""
        room = self._rooms.get(number)
        if room is not None and room.job is not None:
            return Refusal(500, f"Duplicate or cancelled bootstrap room {number}")
        if room is None and len(self._rooms) >= MAX_BOOTSTRAP_ROOMS:
            return Refusal(503, "The bootstrap queue is full.")
        return None

    def offer(self, number: int, job: Job) -> None:
        if number in self._given_up:
            del self._given_up[number]
            self._on_lost(job, DECODE_GONE)
            return
        room = self._room(number)
        room.job = job
        if room.call is not None and room.meet is not None:
            room.timer.cancel()
            self._on_meet(job, room.meet)

    def call(self, number: int, exchange: EngineExchange) -> None:
        try:
            meet = msgspec.json.decode(exchange.body, type=Meet)
        except msgspec.MsgspecError:
            exchange.respond(400, b'{"message":"malformed call"}')
            return
        room = self._rooms.get(number)
        if (room is not None and room.call is not None) or (room is None and len(self._rooms) >= MAX_BOOTSTRAP_ROOMS):
            exchange.respond(409, b'{"message":"Duplicate or cancelled bootstrap room"}')
            return
        room = self._room(number)
        room.call, room.meet = exchange, meet
        exchange.on_leave = lambda: self._left(number)
        if room.job is not None:
            room.timer.cancel()
            self._on_meet(room.job, meet)

    def hand_over(self, number: int, handover: Handover) -> None:
        """The transfer has ended: answer the decode engine and forget the room."""
        room = self._forget(number)
        if room is not None and room.call is not None:
            room.call.respond(200, msgspec.json.encode(handover))

    def fail(self, number: int, message: str) -> None:
        """The prefill leg has failed: answer the decode engine and forget the room."""
        room = self._forget(number)
        if room is not None and room.call is not None:
            room.call.respond(500, msgspec.json.encode({"message": message}))

    def _room(self, number: int) -> BootstrapRoom:
        room = self._rooms.get(number)
        if room is None:
            timer = asyncio.get_running_loop().call_later(self._timeout_s, self._expire, number)
            room = self._rooms[number] = BootstrapRoom(timer)
        return room

    def _forget(self, number: int) -> BootstrapRoom | None:
        room = self._rooms.pop(number, None)
        if room is not None:
            room.timer.cancel()
        return room

    def _left(self, number: int) -> None:
        room = self._forget(number)
        if room is not None and room.job is not None:
            self._on_lost(room.job, DECODE_GONE)
        elif room is not None:
            self._given_up[number] = None
            if len(self._given_up) > MAX_BOOTSTRAP_ROOMS:
                self._given_up.popitem(last=False)

    def _expire(self, number: int) -> None:
        room = self._forget(number)
        if room is None:
            return
        problem = f"Request {number} timed out after {self._timeout_s:.1f}s in KVPoll."
        if room.call is not None:
            room.call.respond(500, msgspec.json.encode({"message": f"{problem}WaitingForInput"}))
        if room.job is not None:
            self._on_lost(room.job, f"{problem}Bootstrapping")


def route(query: str, dp_size: int, page_size: int, kv_cache_dtype: str) -> tuple[int, bytes, bytes]:
    """The status, content type and body of `GET /route`.

    If all ranks in the query are -1, the body has facts of the whole engine, else the address of one rank.
    """
    names = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
    ranks = [parse_qs(query).get(name, [""])[0] for name in names]
    if not all(_RANK.fullmatch(rank) for rank in ranks):
        return 400, _TEXT, b"Missing inputs for bootstrap server."
    if all(rank == "-1" for rank in ranks):
        facts = {
            "attn_tp_size": 1, "attn_cp_size": 1, "dp_size": dp_size, "pp_size": 1, "page_size": page_size,
            "kv_cache_dtype": kv_cache_dtype, "follow_bootstrap_room": True,
        }  # fmt: skip
        return 200, _JSON, msgspec.json.encode(facts)
    if int(ranks[0]) in range(dp_size) and ranks[1:] == ["0"] * 3:
        return 200, _JSON, b'{"rank_ip":"127.0.0.1","rank_port":0}'
    found = zip(("dp_rank", "cp_rank", "tp_rank", "pp_rank"), ranks, strict=True)
    return 404, _TEXT, ("Bootstrap info not found for " + " ".join(f"{name}={rank}" for name, rank in found)).encode()


class BootstrapCall(asyncio.Protocol):
    """A decode engine's call to a prefill engine: one request, one answer, one connection."""

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
        self._on_end = None
        self._end(None, "")

    async def _connect(self, host: str, port: int) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self, host, port)
        except (OSError, ValueError) as error:  # ValueError: not a valid host name
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
