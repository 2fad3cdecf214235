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
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from warmroute.contract.money import Rates
from warmroute_proxy.core.receipt import ServedBy, build_receipt, usage_object
from warmroute_proxy.core.usage import NOTHING, Usage

State = Literal["open", "dispatched", "settled", "interrupted"]
Outcome = Literal["completed", "client_left", "refused", "engine_error", "interrupted"]

SETTLE_OUTCOMES: Final = ("completed", "client_left", "refused", "engine_error")


class TransitionError(RuntimeError):
    """A transition that the state of an entry does not allow: a fault of the proxy, never of a client."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One dispatch to one engine, or one pair of engines, under one rid."""

    rid: str
    workers: tuple[ServedBy, ...]
    predicted_cached: int


@dataclass(slots=True)
class Entry:
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
    state: State = field(default="open", init=False)
    attempts: list[Attempt] = field(default_factory=list, init=False)
    outcome: Outcome | None = field(default=None, init=False)
    usage: Usage = field(default=NOTHING, init=False)
    list_nanousd: int = field(default=0, init=False)
    price_nanousd: int = field(default=0, init=False)
    _ended: dict[str, Any] = field(default_factory=dict, init=False)

    def dispatch(self, rid: str, workers: Sequence[ServedBy], predicted_cached: int) -> None:
        """A first attempt or a retry: open | dispatched -> dispatched."""
        self._require("dispatch", "open", "dispatched")
        if any(attempt.rid == rid for attempt in self.attempts):
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
        self._ended = {"status": status, "settled_at": settled_at_s, "proxy_ms": proxy_ms, "ttft_ms": ttft_ms}
        return text

    def interrupt(self, now_s: float) -> bytes:
        """open | dispatched -> interrupted, charged 0; returns the usage object, every number of it estimated."""
        self._require("interrupt", "open", "dispatched")
        text = self._close("interrupted", "interrupted", NOTHING, {}, None)
        self._ended = {"status": 0, "settled_at": now_s, "proxy_ms": None, "ttft_ms": None}
        return text

    def open_record(self) -> dict[str, Any]:
        """The journal record of an entry under way, attempts so far included; a later one replaces an earlier one."""
        self._require("open_record", "open", "dispatched")
        return {
            "k": "open",
            **self._facts(),
            "rates": self.rates,
            "attempts": [self._attempt(attempt) for attempt in self.attempts],
        }

    def settle_record(self, usage_json: bytes) -> dict[str, Any]:
        """The journal record of an ended entry: the columns of its row."""
        self._require("settle_record", "settled", "interrupted")
        billed = self.attempts[-1] if self.attempts else Attempt("", (), 0)
        return {
            "k": "settle",
            **self._facts(),
            "state": self.state,
            "outcome": self.outcome,
            "rids": [attempt.rid for attempt in self.attempts],
            "workers": [worker.as_json() for worker in billed.workers],
            "prompt_tokens": self.usage.prompt_tokens,
            "cached_tokens": self.usage.cached_tokens,
            "completion_tokens": self.usage.completion_tokens,
            "usage": msgspec.Raw(usage_json),
            "list_nanousd": self.list_nanousd,
            "price_nanousd": self.price_nanousd,
            "predicted_cached": billed.predicted_cached,
            **self._ended,
        }

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
        billed = self.attempts[-1] if self.attempts else Attempt("", (), 0)
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
        self.list_nanousd, self.price_nanousd = receipt["list_nanousd"], receipt["price_nanousd"]
        return text

    def _facts(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "tenant": self.tenant,
            "session": self.session,
            "lineage": self.lineage,
            "turn": self.turn,
            "region": self.region,
            "model": self.model,
            "route": self.route,
            "stream": int(self.stream),
            "opened_at": self.opened_at_s,
            "forwarded_from": self.forwarded_from,
        }

    @staticmethod
    def _attempt(attempt: Attempt) -> dict[str, Any]:
        return {
            "rid": attempt.rid,
            "workers": [worker.as_json() for worker in attempt.workers],
            "predicted_cached": attempt.predicted_cached,
        }

    def _require(self, transition: str, *states: State) -> None:
        if self.state not in states:
            raise TransitionError(f"entry {self.id} is {self.state}: {transition} is not allowed")
