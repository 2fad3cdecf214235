"""The ledger entry of one logical request, as a state machine without I/O.

    open ──dispatch──▶ dispatched ──settle──▶ settled
      │                 │  ▲ │
      │                 └──┘ │   dispatch again: a retry adds a rid
      └──────interrupt───────┴──────────────▶ interrupted

A retry takes a new rid; only the last attempt is billed and named in the receipt. An entry ends exactly once: after
`settle` or `interrupt` every transition raises `TransitionError`. Interrupted entries are charged nothing. What ended,
but could not be written, has not ended for anybody else: it is `withdrawn`.

An entry is its own record: an array of its fields in their order, because names would be a third of it. `record` writes
it to the journal when it is dispatched and when it has ended; `Entry.read` reads it, also as it was written before, by
names. First comes what an entry begins with, then what folding adds up, last `usage`: null while it is under way.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from warmroute.contract.money import Rates
from warmroute_proxy.core.account import Usage
from warmroute_proxy.core.receipt import ServedBy, usage_object, workers_json
from warmroute_proxy.core.usage import NOTHING

State = Literal["open", "dispatched", "settled", "interrupted"]
Outcome = Literal["completed", "client_left", "refused", "engine_error", "cut_off", "interrupted"]

SETTLE_OUTCOMES: Final = ("completed", "client_left", "refused", "engine_error", "cut_off")
UNDER_WAY: Final = ("open", "dispatched")
_NO_WORKERS: Final = msgspec.Raw(b"[]")
_NO_USAGE: Final = msgspec.Raw(b"null")
_encode: Final = msgspec.json.Encoder().encode


class TransitionError(Exception):
    """A transition that the state of an entry does not allow: a fault of the proxy, never of a client."""


class Entry(msgspec.Struct, array_like=True, gc=False):
    """One logical request from its dispatch to its row. Times are unix seconds, given by the caller.

    `workers` is JSON, of the last attempt like `predicted_cached`; `usage` is what the client gets.
    """

    id: str
    tenant: str
    session: str | None
    lineage: str
    turn: int
    region: str
    model: str
    route: str
    stream: bool
    rates: Rates
    opened_at: float
    forwarded_from: str | None = None
    state: State = "open"
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    list_nanousd: int = 0
    price_nanousd: int = 0
    outcome: Outcome | None = None
    status: int = 0
    rids: list[str] = []
    workers: msgspec.Raw = _NO_WORKERS
    predicted_cached: int = 0
    settled_at: float = 0.0
    proxy_ms: float | None = None
    ttft_ms: float | None = None
    usage: msgspec.Raw = _NO_USAGE

    @staticmethod
    def read(record: bytes | str) -> "Entry":
        """What `record` wrote. Raises: msgspec.DecodeError."""
        try:
            return _decode(record)
        except msgspec.ValidationError:
            return Entry(**msgspec.structs.asdict(_decode_named(record)))

    @property
    def ended(self) -> bool:
        """Whether it is settled or interrupted."""
        return self.state not in UNDER_WAY

    def dispatch(self, rid: str, workers: tuple[ServedBy, ...], predicted_cached: int) -> None:
        """A first attempt or a retry: open | dispatched -> dispatched."""
        if self.state not in UNDER_WAY:
            raise self._not_allowed("dispatch")
        rids = self.rids
        if rid in rids:
            raise TransitionError(f"entry {self.id}: a retry needs a new rid, {rid} was used")
        rids.append(rid)
        self.workers = workers_json(workers)
        self.predicted_cached = predicted_cached
        self.state = "dispatched"

    def settle(
        self,
        usage: Usage,
        loss: Mapping[str, int],
        reported: Mapping[str, Any] | bytes | None,
        *,
        outcome: Outcome,
        status: int,
        settled_at: float,
        proxy_ms: float,
        ttft_ms: float | None,
    ) -> None:
        """dispatched -> settled, priced by the last attempt; then `usage` is the object for the client.

        `reported` is the engine's own usage object, whose unknown fields are kept: JSON where it says just what `usage`
        does; `status` is the HTTP status that the
        client saw, 0 if none; `ttft_ms` is None where no byte of an answer came.
        """
        if self.state != "dispatched":
            raise self._not_allowed("settle")
        if outcome not in SETTLE_OUTCOMES:
            raise TransitionError(f"entry {self.id}: {outcome} is no outcome of a settled entry")
        self._close("settled", outcome, usage, loss, reported)
        self.status, self.settled_at, self.proxy_ms, self.ttft_ms = status, settled_at, proxy_ms, ttft_ms

    def interrupt(self, now_s: float) -> None:
        """open | dispatched -> interrupted, charged 0; every number of `usage` is estimated."""
        if self.state not in UNDER_WAY:
            raise self._not_allowed("interrupt")
        self._close("interrupted", "interrupted", NOTHING, {}, None)
        self.settled_at = now_s

    def withdrawn(self) -> "Entry":
        """This entry, which has ended, as interrupted: its row could not be written, and nobody was told of it."""
        entry = msgspec.structs.replace(self, status=0, proxy_ms=None, ttft_ms=None)
        entry._close("interrupted", "interrupted", NOTHING, {}, None)
        return entry

    def record(self) -> bytes:
        """The entry as it stands, one line of JSON; a later record replaces an earlier one."""
        return _encode(self)

    def _close(
        self,
        state: State,
        outcome: Outcome,
        usage: Usage,
        loss: Mapping[str, int],
        reported: Mapping[str, Any] | bytes | None,
    ) -> None:
        text, self.list_nanousd, self.price_nanousd = usage_object(
            self.id, self.session, self.turn, self.region, self.workers, usage, self.predicted_cached, loss,
            self.rates, reported,
        )  # fmt: skip
        self.state, self.outcome, self.usage = state, outcome, msgspec.Raw(text)
        self.prompt_tokens, self.cached_tokens = usage.prompt_tokens, usage.cached_tokens
        self.completion_tokens = usage.completion_tokens

    def _not_allowed(self, transition: str) -> TransitionError:
        return TransitionError(f"entry {self.id} is {self.state}: {transition} is not allowed")


COLUMNS: Final = tuple(name for name in Entry.__struct_fields__ if name != "rates")
"""The columns of a row: all but the rates, which the receipt in `usage` shows."""

UNDER_WAY_END: Final = "null]"
"""How a record ends that has no usage yet."""

_Named: Final = msgspec.defstruct("_Named", [(field.name, field.type) for field in msgspec.structs.fields(Entry)])
_decode: Final = msgspec.json.Decoder(Entry).decode
_decode_named: Final = msgspec.json.Decoder(_Named).decode
