"""The ledger entry of one logical request, as a state machine without I/O.

    open ──dispatch──▶ dispatched ──settle──▶ settled
      │                 │  ▲ │
      │                 └──┘ │   dispatch again: a retry adds a rid
      └──────interrupt───────┴──────────────▶ interrupted

A retry takes a new rid; only the last attempt is billed and named in the receipt. An entry ends exactly once: after
`settle` or `interrupt` every transition raises `TransitionError`. Interrupted entries are charged nothing.

An entry is its own record: its fields are the columns of its row, in their order, and behind them what a restart needs
to settle what was open. `record` writes it to the journal when it is dispatched and when it has ended.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from warmroute.contract.money import Rates
from warmroute_proxy.core.receipt import ServedBy, usage_object, workers_json
from warmroute_proxy.core.usage import NOTHING, Usage

State = Literal["open", "dispatched", "settled", "interrupted"]
Outcome = Literal["completed", "client_left", "refused", "engine_error", "cut_off", "interrupted"]

SETTLE_OUTCOMES: Final = ("completed", "client_left", "refused", "engine_error", "cut_off")
UNDER_WAY: Final = ("open", "dispatched")
_NO_WORKERS: Final = msgspec.Raw(b"[]")
_NO_USAGE: Final = msgspec.Raw(b"null")
_encode: Final = msgspec.json.Encoder().encode


class TransitionError(RuntimeError):
    """A transition that the state of an entry does not allow: a fault of the proxy, never of a client."""


class Entry(msgspec.Struct, gc=False):
    """One logical request from its dispatch to its row. Times are unix seconds, given by the caller.

    `workers` is JSON, of the last attempt like `predicted_cached`; `usage` is what the client gets, null before.
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
    state: State
    outcome: Outcome | None
    status: int
    rids: list[str]
    workers: msgspec.Raw
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    usage: msgspec.Raw
    list_nanousd: int
    price_nanousd: int
    opened_at: float
    settled_at: float
    proxy_ms: float | None
    ttft_ms: float | None
    forwarded_from: str | None
    predicted_cached: int
    rates: Rates

    @classmethod
    def begin(
        cls,
        id_: str,
        tenant: str,
        session: str | None,
        lineage: str,
        turn: int,
        region: str,
        model: str,
        route: str,
        stream: bool,
        rates: Rates,
        opened_at: float,
        forwarded_from: str | None = None,
    ) -> "Entry":
        """An entry that was not dispatched yet."""
        return cls(
            id_, tenant, session, lineage, turn, region, model, route, stream, "open", None, 0, [], _NO_WORKERS, 0, 0,
            0, _NO_USAGE, 0, 0, opened_at, 0.0, None, None, forwarded_from, 0, rates,
        )  # fmt: skip

    @property
    def ended(self) -> bool:
        """Whether it is settled or interrupted."""
        return self.state not in UNDER_WAY

    def dispatch(self, rid: str, workers: tuple[ServedBy, ...], predicted_cached: int) -> None:
        """A first attempt or a retry: open | dispatched -> dispatched."""
        if self.state not in UNDER_WAY:
            raise self._not_allowed("dispatch")
        if rid in self.rids:
            raise TransitionError(f"entry {self.id}: a retry needs a new rid, {rid} was used")
        self.rids.append(rid)
        self.workers = workers_json(workers)
        self.predicted_cached = predicted_cached
        self.state = "dispatched"

    def settle(
        self,
        usage: Usage,
        loss: Mapping[str, int],
        reported: Mapping[str, Any] | None,
        *,
        outcome: Outcome,
        status: int,
        settled_at: float,
        proxy_ms: float,
        ttft_ms: float | None,
    ) -> None:
        """dispatched -> settled, priced by the last attempt; then `usage` is the object for the client.

        `reported` is the engine's own usage object, whose unknown fields are kept; `status` is the HTTP status that the
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

    def record(self) -> bytes:
        """The entry as it stands, one line of JSON; a later record replaces an earlier one."""
        return _encode(self)

    def _close(
        self, state: State, outcome: Outcome, usage: Usage, loss: Mapping[str, int], reported: Mapping[str, Any] | None
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


COLUMNS: Final = Entry.__struct_fields__[:-1]
"""The columns of a row: all but the rates, which the receipt in `usage` shows."""
