"""What an engine is sent: the client's bytes, without what may not pass, with what the proxy adds.

SGLang's PD protocol: prefill and decode get the same body with the same bootstrap host, port and room and the same
rid, both at once; neither can finish without the other. Decode's answer is the client's, prefill's is only watched.

Rids have one fixed length, because an engine matches abort ids by prefix. Rooms are unique over all processes of a
fleet, never 0, and leave space below 2^63 for the prompts of a request; where prefill has several DP ranks, room modulo
ranks chooses the rank (SGLang's `follow_bootstrap_room`).
"""

import os
import time
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from warmroute.contract.steering import FORWARDED_HEADERS, REMOVED_FIELDS, well_formed_request_id
from warmroute_proxy.server.intake.body import AnyBody

_ROOM_COUNTER_BITS: Final = 39
_ROOM_STEP: Final = 1024  # rooms of one request: room .. room + prompts, and the choice of a rank


class Ids:
    """Rids, rooms and receipt ids of one process; unique over processes by 53 or more random bits."""

    def __init__(self) -> None:
        self._prefix = os.urandom(10).hex()
        self._count = 0
        self._random: list[str] = []  # drawn for the next receipts, the next one last
        self._second = ""
        self._room_base = int.from_bytes(os.urandom(3), "big") << _ROOM_COUNTER_BITS  # 24 + 39 = 63 bits
        self._rooms = int.from_bytes(os.urandom(4), "big")  # where counting begins: one base may be drawn twice

    def receipt(self) -> str:
        """`wr-` and 24 hex digits: the second in which a few hundred were drawn, then 64 random bits.

        So ids ascend roughly, and the ledger, whose rows are found by them, writes at the end of its index.
        """
        if not self._random:
            drawn = os.urandom(8 * 256).hex()
            self._random = [drawn[at : at + 16] for at in range(len(drawn) - 16, -1, -16)]
            self._second = f"wr-{int(time.time()):08x}"
        return self._second + self._random.pop()

    def rid(self) -> str:
        """32 hex digits."""
        self._count += 1
        return f"{self._prefix}{self._count & 0xFFFFFFFFFFFF:012x}"

    def room(self, rank: int, ranks: int, prompts: int) -> int:
        """A room whose remainder by `ranks` is `rank`, and one for each further prompt; from 1 to 2^63 - 1,024."""
        assert prompts + ranks <= _ROOM_STEP
        self._rooms += 1
        space = (1 << _ROOM_COUNTER_BITS) // _ROOM_STEP - 2
        room = self._room_base + (1 + self._rooms % space) * _ROOM_STEP
        return room - room % ranks + rank


CONTENT_TYPE: Final = "content-type: application/json\r\n"
"""The header block of almost every request."""

_MAY_PASS: Final = FORWARDED_HEADERS - {"content-type"}


def engine_headers(request_headers: Mapping[str, str]) -> str:
    """The header block for an engine, by allow-list."""
    if _MAY_PASS.isdisjoint(request_headers):
        return CONTENT_TYPE
    lines = [CONTENT_TYPE]
    for name in FORWARDED_HEADERS:
        value = request_headers.get(name)
        if value is None or name == "content-type" or (name == "x-request-id" and not well_formed_request_id(value)):
            continue
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines)


_REMOVED: Final = REMOVED_FIELDS
_REMOVED_STREAMED: Final = REMOVED_FIELDS | {"stream_options"}
_REMOVED_PREFILL: Final = REMOVED_FIELDS | {"stream", "stream_options"}
_encode: Final = msgspec.json.Encoder().encode


class Asked(Protocol):
    """What goes to engines of a request: its members that are read, and the rest as it came.

    `wire_model`: the name to send where the client used an alias; `metadata`: what to send instead of the client's.
    """

    @property
    def body(self) -> AnyBody: ...
    @property
    def stream(self) -> bool: ...
    @property
    def keep_sglext(self) -> bool: ...
    @property
    def stream_options(self) -> Mapping[str, Any]: ...
    @property
    def wire_model(self) -> str | None: ...
    @property
    def metadata(self) -> dict[str, Any] | None: ...
    @property
    def salt(self) -> str: ...
    @property
    def prompts(self) -> int: ...


Parts = list[bytes | memoryview]


def answering_body(asked: Asked, own: str, dp_rank: int | None, bootstrap: Mapping[str, Any] | None) -> Parts:
    """The body for the engine whose answer the client gets, aggregated or decode. `own`: see `own_fields`."""
    add: dict[str, Any] | None = None
    if bootstrap is not None or dp_rank is not None:
        add = _placed(bootstrap, dp_rank)
    if not asked.stream:
        return _rewritten(asked, _REMOVED, own, add)
    add = add or {}
    add["stream_options"] = {**asked.stream_options, "include_usage": True}
    return _rewritten(asked, _REMOVED_STREAMED, own, add)


def prefill_body(asked: Asked, own: str, dp_rank: int | None, bootstrap: Mapping[str, Any]) -> Parts:
    """The body for the prefill leg: the same prompt, not streamed, since its one token is dropped."""
    return _rewritten(asked, _REMOVED_PREFILL, own, {**_placed(bootstrap, dp_rank), "stream": False})


def own_fields(rid: str, salt: str, *, tagged: bool) -> str:
    """The members that SGLang gets besides; `tagged`: its KV events are to name the rid. Other engines get none.

    A rid and a salt are hex digits: nothing in them needs an escape.
    """
    if tagged:  # the engine names it in the blocks that the prompt stores, and does nothing else with it
        return f'"rid":"{rid}","cache_salt":"{salt}","return_cached_tokens_details":true,"session_id":"{rid}"'
    return f'"rid":"{rid}","cache_salt":"{salt}","return_cached_tokens_details":true'


def _placed(bootstrap: Mapping[str, Any] | None, dp_rank: int | None) -> dict[str, Any]:
    add = dict(bootstrap) if bootstrap is not None else {}
    if dp_rank is not None:
        add["routed_dp_rank"] = dp_rank
    return add


def _rewritten(asked: Asked, drop: frozenset[str], own: str, add: dict[str, Any] | None) -> Parts:
    model, metadata = asked.wire_model, asked.metadata
    if model is not None or metadata is not None:
        given = (("model", model), ("metadata", metadata))
        instead = {name: value for name, value in given if value is not None}
        add = {**add, **instead} if add is not None else instead
        drop = drop.union(instead)
    text = own.encode()
    if add:
        text = b"%b,%b" % (text, _encode(add)[1:-1]) if text else _encode(add)[1:-1]
    return asked.body.rewritten(drop, text)
