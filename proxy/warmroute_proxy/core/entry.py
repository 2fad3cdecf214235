"""The ledger entry of one logical request, as a state machine without I/O.

    open ──dispatch──▶ dispatched ──settle──▶ settled
      │                 │  ▲ │
      │                 └──┘ │   dispatch again: a retry adds an attempt
      └──────interrupt───────┴──────────────▶ interrupted

A retry takes a new rid; only the last attempt is billed and named in the receipt. An entry ends exactly once: after
`settle` or `interrupt` every transition raises `TransitionError`. Interrupted entries are charged nothing.

The records are what the journal keeps. A settle record is a whole row of the ledger, so that it can be folded without
the open record; the open record is what is left of a request whose proxy died.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from warmroute.contract.money import Rates
from warmroute_proxy.core.receipt import ServedBy, build_receipt, usage_object
from warmroute_proxy.core.usage import NOTHING, Usage

State = Literal["open", "dispatched", "settled", "interrupted"]
Outcome = Literal["completed", "client_left", "refused", "engine_error", "interrupted"]

SETTLE_OUTCOMES: Final = ("completed", "client_left", "refused", "engine_error")
_encode: Final = msgspec.json.Encoder().encode


class TransitionError(RuntimeError):
    """A transition that the state of an entry does not allow: a fault of the proxy, never of a client."""


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One dispatch to one engine, or one pair of engines, under one rid."""

    rid: str
    workers: tuple[ServedBy, ...]
    predicted_cached: int


_NO_ATTEMPT: Final = Attempt("", (), 0)


class OpenRecord(msgspec.Struct, tag_field="k", tag="open", gc=False):
    """The journal record of an entry under way, attempts so far included; a later one replaces an earlier one."""

    id: str
    tenant: str
    session: str | None
    lineage: str
    turn: int
    region: str
    model: str
    route: str
    stream: int
    opened_at: float
    forwarded_from: str | None
    rates: Rates
    attempts: list[Attempt]


class SettleRecord(msgspec.Struct, tag_field="k", tag="settle", gc=False):
    """The journal record of an ended entry: the columns of its row, in their order."""

    id: str
    tenant: str
    session: str | None
    lineage: str
    turn: int
    region: str
    model: str
    route: str
    stream: int
    state: str
    outcome: str
    status: int
    rids: msgspec.Raw
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


class Entry(msgspec.Struct, gc=False):
    """One logical request from its dispatch to its row. Times are unix seconds, given by the caller."""

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
    opened_at_s: float
    forwarded_from: str | None = None
    state: State = "open"
    attempts: list[Attempt] = []
    outcome: Outcome | None = None
    usage: Usage = NOTHING
    list_nanousd: int = 0
    price_nanousd: int = 0
    status: int = 0
    settled_at_s: float = 0.0
    proxy_ms: float | None = None
    ttft_ms: float | None = None

    def dispatch(self, rid: str, workers: Sequence[ServedBy], predicted_cached: int) -> None:
        """A first attempt or a retry: open | dispatched -> dispatched."""
        self._require("dispatch", "open", "dispatched")
        if self.attempts and any(attempt.rid == rid for attempt in self.attempts):
            raise TransitionError(f"entry {self.id}: a retry needs a new rid, {rid} was used")
        self.attempts.append(Attempt(rid, tuple(workers), predicted_cached))
        self.state = "dispatched"

    def settle(
        self,
        usage: Usage,
        loss: Mapping[str, int],
        reported: Mapping[str, Any] | None,
        *,
        outcome: Outcome,
        status: int,
        settled_at_s: float,
        proxy_ms: float,
        ttft_ms: float | None,
    ) -> bytes:
        """dispatched -> settled; returns the usage object for the client as JSON, priced by the last attempt.

        `reported` is the engine's own usage object, whose unknown fields are kept; `status` is the HTTP status that the
        client saw, 0 if none; `ttft_ms` is None where no byte of an answer came.
        """
        self._require("settle", "dispatched")
        if outcome not in SETTLE_OUTCOMES:
            raise TransitionError(f"entry {self.id}: {outcome} is no outcome of a settled entry")
        text = self._close("settled", outcome, usage, loss, reported)
        self.status, self.settled_at_s, self.proxy_ms, self.ttft_ms = status, settled_at_s, proxy_ms, ttft_ms
        return text

    def interrupt(self, now_s: float) -> bytes:
        """open | dispatched -> interrupted, charged 0; returns the usage object, every number of it estimated."""
        self._require("interrupt", "open", "dispatched")
        text = self._close("interrupted", "interrupted", NOTHING, {}, None)
        self.settled_at_s = now_s
        return text

    def open_record(self) -> OpenRecord:
        """What is left of a request whose proxy dies now."""
        self._require("open_record", "open", "dispatched")
        return OpenRecord(
            self.id,
            self.tenant,
            self.session,
            self.lineage,
            self.turn,
            self.region,
            self.model,
            self.route,
            int(self.stream),
            self.opened_at_s,
            self.forwarded_from,
            self.rates,
            self.attempts,
        )

    def settle_record(self, usage_json: bytes) -> SettleRecord:
        """The row of an ended entry."""
        self._require("settle_record", "settled", "interrupted")
        assert self.outcome is not None
        attempts, usage = self.attempts, self.usage
        billed = attempts[-1] if attempts else _NO_ATTEMPT
        return SettleRecord(
            self.id,
            self.tenant,
            self.session,
            self.lineage,
            self.turn,
            self.region,
            self.model,
            self.route,
            int(self.stream),
            self.state,
            self.outcome,
            self.status,
            msgspec.Raw(_encode([attempt.rid for attempt in attempts])),
            msgspec.Raw(_encode(billed.workers)),
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
            msgspec.Raw(usage_json),
            self.list_nanousd,
            self.price_nanousd,
            self.opened_at_s,
            self.settled_at_s,
            self.proxy_ms,
            self.ttft_ms,
            self.forwarded_from,
            billed.predicted_cached,
        )

    @classmethod
    def from_open_record(cls, record: Mapping[str, Any]) -> "Entry":
        """The entry that an open record describes, for the restart after a crash."""
        entry = cls(
            id=record["id"],
            tenant=record["tenant"],
            session=record["session"],
            lineage=record["lineage"],
            turn=record["turn"],
            region=record["region"],
            model=record["model"],
            route=record["route"],
            stream=bool(record["stream"]),
            rates=Rates(*record["rates"]),
            opened_at_s=record["opened_at"],
            forwarded_from=record["forwarded_from"],
        )
        for attempt in record["attempts"]:
            workers = [ServedBy(**worker) for worker in attempt["workers"]]
            entry.dispatch(attempt["rid"], workers, attempt["predicted_cached"])
        return entry

    def _close(
        self, state: State, outcome: Outcome, usage: Usage, loss: Mapping[str, int], reported: Mapping[str, Any] | None
    ) -> bytes:
        billed = self.attempts[-1] if self.attempts else _NO_ATTEMPT
        receipt = build_receipt(
            receipt_id=self.id,
            session=self.session,
            turn=self.turn,
            region=self.region,
            workers=billed.workers,
            usage=usage,
            predicted_cached=billed.predicted_cached,
            loss=loss,
            rates=self.rates,
        )
        text = usage_object(usage, receipt, reported)
        self.state, self.outcome, self.usage = state, outcome, usage
        self.list_nanousd, self.price_nanousd = receipt.list_nanousd, receipt.price_nanousd
        return text

    def _require(self, transition: str, *states: State) -> None:
        if self.state not in states:
            raise TransitionError(f"entry {self.id} is {self.state}: {transition} is not allowed")
