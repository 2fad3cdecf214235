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
from typing import Any, Final

import msgspec

from warmroute.contract.steering import FORWARDED_HEADERS, REMOVED_FIELDS, well_formed_request_id
from warmroute_proxy.server.body import AnyBody

_ROOM_COUNTER_BITS: Final = 39
_ROOM_STEP: Final = 1024  # rooms of one request: room .. room + prompts, and the choice of a rank


class Ids:
    """Rids, rooms and receipt ids of one process; unique over processes by 53 or more random bits."""

    def __init__(self) -> None:
        self._prefix = os.urandom(10).hex()
        self._count = 0
        self._random = ""
        self._second = ""
        self._room_base = int.from_bytes(os.urandom(3), "big") << _ROOM_COUNTER_BITS  # 24 + 39 = 63 bits
        self._rooms = int.from_bytes(os.urandom(4), "big")  # where counting begins: one base may be drawn twice

    def receipt(self) -> str:
        """`wr-` and 24 hex digits: the second in which a few hundred were drawn, then 64 random bits.

        So ids ascend roughly, and the ledger, whose rows are found by them, writes at the end of its index.
        """
        if not self._random:
            self._random = os.urandom(8 * 256).hex()
            self._second = f"wr-{int(time.time()):08x}"
        taken, self._random = self._random[:16], self._random[16:]
        return self._second + taken

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
_NOTHING: Final[dict[str, Any]] = {}
_encode: Final = msgspec.json.Encoder().encode


class EngineBodies:
    """Builds the bodies of one turn's attempts."""

    __slots__ = ("_body", "_instead", "_sglang", "_stream", "_stream_options", "_tagged")

    def __init__(
        self,
        body: AnyBody,
        *,
        stream: bool,
        model: str | None,
        metadata: Mapping[str, Any] | None,
        stream_options: Mapping[str, Any],
        sglang: bool,
        tagged: bool = False,
    ) -> None:
        """`model`: the name to send where the client used an alias; `metadata`: what to send instead of the client's;
        `sglang`: the engine takes SGLang's own fields; `tagged`: its KV events are to name the rid.
        """
        self._body = body
        self._stream = stream
        self._sglang = sglang
        self._tagged = tagged
        self._stream_options = stream_options
        self._instead = _NOTHING
        if model is not None or metadata is not None:
            given = (("model", model), ("metadata", metadata))
            self._instead = {name: value for name, value in given if value is not None}

    def answering(
        self, rid: str, salt: str, dp_rank: int | None, bootstrap: Mapping[str, Any] | None
    ) -> list[bytes | memoryview]:
        """The body for the engine whose answer the client gets: aggregated or decode."""
        if bootstrap is None and dp_rank is None and not self._stream and not self._instead and self._sglang:
            return self._body.rewritten(_REMOVED, self._own(rid, salt).encode())
        add: dict[str, Any] = {}
        if bootstrap is not None:
            add.update(bootstrap)
        if dp_rank is not None:
            add["routed_dp_rank"] = dp_rank
        if not self._stream:
            return self._rewritten(_REMOVED, rid, salt, add)
        add["stream_options"] = {**self._stream_options, "include_usage": True}
        return self._rewritten(_REMOVED_STREAMED, rid, salt, add)

    def prefill(
        self, rid: str, salt: str, dp_rank: int | None, bootstrap: Mapping[str, Any]
    ) -> list[bytes | memoryview]:
        """The body for the prefill leg: the same prompt, not streamed, since nobody reads its one token."""
        add = {**bootstrap, "stream": False}
        if dp_rank is not None:
            add["routed_dp_rank"] = dp_rank
        return self._rewritten(_REMOVED_PREFILL, rid, salt, add)

    def _rewritten(self, drop: frozenset[str], rid: str, salt: str, add: dict[str, Any]) -> list[bytes | memoryview]:
        if self._instead:
            add.update(self._instead)
            drop = drop.union(self._instead)
        text = _encode(add)[1:-1] if add else b""
        if self._sglang:
            own = self._own(rid, salt)
            text = b"%b,%b" % (own.encode(), text) if text else own.encode()
        return self._body.rewritten(drop, text)

    def _own(self, rid: str, salt: str) -> str:
        """What SGLang is told besides; a rid and a salt are hex digits: nothing in them needs an escape."""
        if self._tagged:  # the engine names it in the blocks that the prompt stores, and does nothing else with it
            return f'"rid":"{rid}","cache_salt":"{salt}","return_cached_tokens_details":true,"session_id":"{rid}"'
        return f'"rid":"{rid}","cache_salt":"{salt}","return_cached_tokens_details":true'
