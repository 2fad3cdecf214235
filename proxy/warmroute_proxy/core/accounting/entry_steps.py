"""Moves a ledger entry through its states, as a state machine without I/O.

    open ──dispatch──▶ dispatched ──settle──▶ settled
      │                 │  ▲ │
      │                 └──┘ │   dispatch again: a retry adds a rid
      └──────interrupt───────┴──────────────▶ interrupted

Each attempt has its own request id at the engine (rid); only the last attempt is billed and named in the receipt. An
entry ends exactly once: after `settle` or `interrupt` every transition raises `TransitionError`. Interrupted entries
are charged nothing. If an entry has ended but its row cannot be written, the entry is `withdrawn`, that is, replaced by
an interrupted one. The client has not been told the original end, because it is told only after the row is written. If
an answer is lost on its way to the client, a second row voids the row of the turn. The second row names the first, and
has the first row's tokens, and its price minus its credit, as negative numbers. The credit of a turn also has its own
row, with a negative price and without tokens.

These functions have their own module, so that they can be compiled.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from warmroute.contract.changes import NO_CHANGES, Changes
from warmroute.contract.receipt import VERSION
from warmroute_proxy.core.accounting.entry import UNDER_WAY, Entry, Outcome, State
from warmroute_proxy.core.accounting.receipt import ServedBy, usage_object, workers_json
from warmroute_proxy.core.accounting.usage import NOTHING
from warmroute_proxy.core.accounting.usage_fields import Usage
from warmroute_proxy.core.base.compiled import Frozen

VOID_SUFFIX: Final = "-void"
CREDIT_SUFFIX: Final = "-credit"
SETTLE_OUTCOMES: Final = ("completed", "client_left", "refused", "engine_error", "cut_off")


class TransitionError(Exception):
    """A transition that the state of an entry does not allow: a fault of the proxy, never of a client."""


def dispatch(entry: Entry, rid: str, workers: tuple[ServedBy, ...], predicted_cached: int) -> None:
    """Record a first attempt or a retry: open | dispatched -> dispatched."""
    if entry.state not in UNDER_WAY:
        raise _not_allowed(entry, "dispatch")
    rids = entry.rids
    if rid in rids:
        raise TransitionError(f"entry {entry.id}: a retry needs a new rid, {rid} was used")
    rids.append(rid)
    entry.workers = workers_json(workers)
    entry.predicted_cached = predicted_cached
    entry.state = "dispatched"


def move(entry: Entry, workers: tuple[ServedBy, ...], predicted_cached: int) -> None:
    """Record that the current attempt has moved to other workers than those it was sent to: dispatched ->
    dispatched."""
    if entry.state != "dispatched":
        raise _not_allowed(entry, "move")
    entry.workers = workers_json(workers)
    entry.predicted_cached = predicted_cached


class Ending(Frozen, frozen=True):
    """How a request ended. `status`: the HTTP status that the client got, or 0. `ttft_ms`: None if no byte of an answer
    came. `changes`: what the proxy changed in the request. `receipt_fields`: further members of the receipt, as JSON.
    """

    outcome: Outcome
    status: int
    settled_at: float
    proxy_ms: float
    ttft_ms: float | None
    changes: Changes = NO_CHANGES
    receipt_fields: bytes = b""


def settle(
    entry: Entry,
    usage: Usage,
    loss: Mapping[str, int],
    reported: Mapping[str, Any] | bytes | None,
    ending: Ending,
) -> None:
    """Settle an entry, at the price of its last attempt: dispatched -> settled. Sets `usage`, the object for the
    client.

    `reported`: the engine's own usage object, whose unknown fields are kept. It may be JSON (bytes) if its counts equal
    those of the argument `usage`.
    """
    if entry.state != "dispatched":
        raise _not_allowed(entry, "settle")
    if ending.outcome not in SETTLE_OUTCOMES:
        raise TransitionError(f"entry {entry.id}: {ending.outcome} is not an outcome of a settled entry")
    _close(entry, "settled", ending.outcome, usage, loss, reported, ending)
    entry.status, entry.settled_at = ending.status, ending.settled_at
    entry.proxy_ms, entry.ttft_ms = ending.proxy_ms, ending.ttft_ms


def interrupt(entry: Entry, now_s: float) -> None:
    """End an entry without a charge: open | dispatched -> interrupted. All numbers in `usage` count as estimated."""
    if entry.state not in UNDER_WAY:
        raise _not_allowed(entry, "interrupt")
    _close(entry, "interrupted", "interrupted", NOTHING, {}, None)
    entry.settled_at = now_s


def withdrawn(entry: Entry) -> Entry:
    """A copy of an ended entry whose row could not be written; the copy's state is interrupted."""
    made = msgspec.structs.replace(entry, status=0, proxy_ms=None, ttft_ms=None)
    _close(made, "interrupted", "interrupted", NOTHING, {}, None)
    return made


def void_id(entry_id: str) -> str:
    """The id of the row that voids this entry. At most one such row exists."""
    return f"{entry_id}{VOID_SUFFIX}"


def turns_in(entry_id: str) -> int:
    """The number of turns that a row adds: 1, -1 for a row that voids a turn, 0 for a credit."""
    if entry_id.endswith(VOID_SUFFIX):
        return -1
    return 0 if entry_id.endswith(CREDIT_SUFFIX) else 1


def crediting(entry: Entry) -> Entry:
    """The row that books the credit named in the receipt of a settled entry."""
    credited, id_ = entry.receipt(), f"{entry.id}{CREDIT_SUFFIX}"
    key = {"key": credited.key} if credited.key else {}
    receipt = {"v": VERSION, "id": id_, "credits": entry.id, **key, "loss": {}}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "warmroute": receipt}
    return msgspec.structs.replace(
        entry,
        id=id_,
        prompt_tokens=0,
        cached_tokens=0,
        completion_tokens=0,
        list_nanousd=0,
        price_nanousd=-credited.credit_nanousd,
        outcome="credited",
        status=0,
        rids=[],
        proxy_ms=None,
        ttft_ms=None,
        usage=msgspec.Raw(msgspec.json.encode(usage)),
    )


def voiding(entry: Entry, now_s: float) -> Entry:
    """The row that voids a settled entry, with the negated sums of that entry."""
    voided = entry.receipt()
    credit = voided.credit_nanousd
    receipt = {
        "v": VERSION,
        "id": void_id(entry.id),
        "voids": entry.id,
        **({"key": voided.key} if voided.key else {}),
        **({"kind": voided.kind} if voided.kind else {}),
        "loss": {name: -tokens for name, tokens in voided.loss.items()},
        "list_nanousd": -entry.list_nanousd,
        "price_nanousd": -entry.price_nanousd,
        **({"credit": {"nanousd": -credit}} if credit else {}),
    }
    usage = {
        "prompt_tokens": -entry.prompt_tokens,
        "completion_tokens": -entry.completion_tokens,
        "total_tokens": -entry.prompt_tokens - entry.completion_tokens,
        "warmroute": receipt,
    }
    return msgspec.structs.replace(
        entry,
        id=void_id(entry.id),
        prompt_tokens=-entry.prompt_tokens,
        cached_tokens=-entry.cached_tokens,
        completion_tokens=-entry.completion_tokens,
        list_nanousd=-entry.list_nanousd,
        price_nanousd=credit - entry.price_nanousd,
        outcome="voided",
        status=0,
        rids=[],
        opened_at=now_s,
        settled_at=now_s,
        proxy_ms=None,
        ttft_ms=None,
        usage=msgspec.Raw(msgspec.json.encode(usage)),
    )


def _close(
    entry: Entry,
    state: State,
    outcome: Outcome,
    usage: Usage,
    loss: Mapping[str, int],
    reported: Mapping[str, Any] | bytes | None,
    ending: Ending | None = None,
) -> None:
    changes, caller = (NO_CHANGES, b"") if ending is None else (ending.changes, ending.receipt_fields)
    text, entry.list_nanousd, entry.price_nanousd = usage_object(entry, usage, loss, reported, changes, caller)
    entry.state, entry.outcome, entry.usage = state, outcome, msgspec.Raw(text)
    entry.prompt_tokens, entry.cached_tokens = usage.prompt_tokens, usage.cached_tokens
    entry.completion_tokens = usage.completion_tokens


def _not_allowed(entry: Entry, transition: str) -> TransitionError:
    return TransitionError(f"entry {entry.id} is {entry.state}: {transition} is not allowed")
