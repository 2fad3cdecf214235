"""Defines the format of a decision record: all calls and decisions of a router, written and replayed by `recorder`.

    file   = MAGIC frame*
    frame  = length xxh32 payload           length and hash of the payload, as 32-bit little-endian numbers
    payload = msgpack of one of the calls below, with named fields: first `Opened`, last `Closed`

A record holds what placement knows of requests (`RoutingRequest`): keyed hashes, sizes, and the names of models,
regions and workers. A record never holds a prompt, a key or a session id. Clients may send any text as their home
region, so a text that is not a region of the fleet is written as `UNKNOWN_REGION`.

The writer of a record bounds the size of the file; a frame has at most `MAX_FRAME_BYTES`.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
from xxhash import xxh32_intdigest

from warmroute_proxy.core.placement.decision import Candidate, Decision, Policy, Reasons
from warmroute_proxy.core.placement.fleet import Peer, Worker
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.replicas.peer_events import Event

VERSION: Final = 2
MAGIC: Final = b"warmroute record 2\n"
MAX_FRAME_BYTES: Final = 64 * 2**20
UNKNOWN_REGION: Final = "?"

_HEAD: Final = struct.Struct("<II")


class Opened(msgspec.Struct, tag="opened", frozen=True):
    """The arguments with which the router was made, and the version of warmroute that made it."""

    software: str
    region: str
    policy: Policy
    workers: list[Worker]
    peers: list[Peer]
    version: int = VERSION


class Placed(msgspec.Struct, tag="placed", frozen=True):
    """A call of `place`, and its decision, which is None if no worker was found."""

    now_s: float
    routing: RoutingRequest = msgspec.field(name="facts")
    exclude: frozenset[str]
    decision: Decision | None
    served: bool = True
    """If no worker was found: whether the model has workers at all."""


class Dispatched(msgspec.Struct, tag="dispatched", frozen=True, omit_defaults=True):
    """A call of `dispatched`. Tickets are numbered in this order. `routing`, `decision`: None if they are those of the
    last `Placed`.
    """

    now_s: float
    routing: RoutingRequest | None = msgspec.field(default=None, name="facts")
    decision: Decision | None = None


class FirstToken(msgspec.Struct, tag="first_token", frozen=True):
    ticket: int
    now_s: float


class RecordedProgress(msgspec.Struct, tag="progress", frozen=True):
    ticket: int
    completion_tokens: int


class Ended(msgspec.Struct, tag="settled", frozen=True, omit_defaults=True):
    """A call of `settled`. `routing`: None if it is that of the dispatch."""

    ticket: int
    now_s: float
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    routing: RoutingRequest | None = msgspec.field(default=None, name="facts")
    streamed_tokens: int | None = None


class Failed(msgspec.Struct, tag="failed", frozen=True):
    ticket: int
    now_s: float
    at_fault: list[str]


class FleetUpdate(msgspec.Struct, tag="told", frozen=True):
    """Any other call, which changes the fleet: the name of the router's method, and its arguments."""

    name: str
    arguments: dict[str, Any]


class Applied(msgspec.Struct, tag="applied", frozen=True):
    """An event of another process of the proxy, or of another proxy, was applied."""

    peer: int
    event: Event
    now_s: float


class Forgotten(msgspec.Struct, tag="forgotten", frozen=True):
    """The requests of another process were forgotten."""

    peer: int
    now_s: float


class Closed(msgspec.Struct, tag="closed", frozen=True):
    """The end of the record, and the reason for it."""

    reason: str


RecordedCall = (
    Opened
    | Placed
    | Dispatched
    | FirstToken
    | RecordedProgress
    | Ended
    | Failed
    | FleetUpdate
    | Applied
    | Forgotten
    | Closed
)


def _made(reasons: object) -> tuple[Candidate, ...]:
    if isinstance(reasons, Reasons):
        return reasons.made()
    raise NotImplementedError(f"a record cannot hold a {type(reasons).__name__}")


def _read(kind: type, found: object) -> Reasons:
    if kind is Reasons:
        return Reasons(msgspec.convert(found, tuple[Candidate, ...]))
    raise NotImplementedError(f"a record cannot hold a {kind.__name__}")


_encode: Final = msgspec.msgpack.Encoder(enc_hook=_made).encode
_CALL: Final = msgspec.msgpack.Decoder(RecordedCall, dec_hook=_read)


class RecordError(ValueError):
    """A record cannot be read or replayed; the message says where."""


def frame(call: RecordedCall) -> bytes:
    """The bytes of one call in a record."""
    payload = _encode(call)
    return _HEAD.pack(len(payload), xxh32_intdigest(payload)) + payload


class Frame(NamedTuple):
    """One call, its number in the record from 1, and the offset of its first byte."""

    number: int
    offset: int
    call: RecordedCall


class Frames:
    """The calls of a record, read piece by piece. Can be iterated only once. If the bytes ended early, `cut_off` says
    where.

    A record that ends early is not an error: a killed process leaves such a record, and all frames before its end are
    intact.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        """`read(n)` returns the next n bytes, and fewer only at the end."""
        self._read = read
        self.cut_off: str | None = None

    def __iter__(self) -> Iterator[Frame]:
        found = self._read(len(MAGIC))
        if found != MAGIC:
            raise RecordError("is not a record of a router: it does not begin with the words 'warmroute record 2'")
        offset, number = len(MAGIC), 1
        while True:
            head = self._read(_HEAD.size)
            if not head:
                self.cut_off = f"at byte {offset}, after frame {number - 1}, without an end marker"
                return
            size, digest = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0)
            if size > MAX_FRAME_BYTES:
                raise RecordError(f"is damaged at byte {offset}: frame {number} cannot be {size} bytes long")
            payload = self._read(size)
            if len(head) < _HEAD.size or len(payload) < size:
                self.cut_off = f"at byte {offset + len(head) + len(payload)}, inside frame {number}"
                return
            call = _call(payload, digest, f"at byte {offset}, frame {number}")
            if isinstance(call, Opened) != (number == 1):
                raise RecordError(f"is damaged at byte {offset}: frame {number} is {type(call).__name__.lower()}")
            yield Frame(number, offset, call)
            if isinstance(call, Closed):
                return
            offset, number = offset + _HEAD.size + size, number + 1


def _call(payload: bytes, digest: int, where: str) -> RecordedCall:
    if xxh32_intdigest(payload) != digest:
        raise RecordError(f"is damaged {where}: the checksum is wrong")
    try:
        found: RecordedCall = _CALL.decode(payload)
    except (msgspec.MsgspecError, ValueError) as error:
        raise RecordError(f"cannot be read {where}: {error}; was it written by another version?") from None
    if isinstance(found, Opened) and found.version != VERSION:
        raise RecordError(f"is of version {found.version}; this warmroute reads version {VERSION}")
    return found
