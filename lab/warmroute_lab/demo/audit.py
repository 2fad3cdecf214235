"""Audits one pass of the demo: the logs of clients, ledgers and engines must agree.

`audit` is a pure function over three logs that different processes have written. These violations are found:

    from the receipt alone     cached outside [0, prompt]; tiers or losses that do not sum; a price that does not
                               follow from it
    client against ledger      a receipt that is missing on one side, there twice, or different
    engine against ledger      a finished request of an engine that has no ledger row, or several
    order                      a turn that began before the previous turn had ended, or whose number is wrong

If a turn was split over a prefill and a decode engine, only the decode engine's request is looked up, since both have
the same id (`rid`). A request that an engine aborted has no row of its own; the row of the retry names it, too.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from warmroute.contract import receipt as receipts

Row = Mapping[str, Any]
"""A row of a ledger; `rids` is a list and `usage` an object."""

Finished = Mapping[str, Any]
"""An entry of an engine's log of finished requests, with the engine's id in `engine`."""

BILLED_ROLES = frozenset({"decode", "aggregated"})

ROW_TOKENS = ("prompt_tokens", "completion_tokens")
ROW_AMOUNTS = ("list_nanousd", "price_nanousd")


@dataclass(frozen=True, slots=True)
class ClientTurn:
    """One turn as its client saw it. Times are unix seconds."""

    recording: str
    harness: str
    n: int  # the request's number in the recording
    turn: int  # what the receipt must say
    ingress: str
    started_at: float
    ended_at: float
    receipt_id: str | None = None
    usage: Mapping[str, Any] | None = None
    error: str | None = None

    @property
    def label(self) -> str:
        return f"{self.recording} #{self.n}"


class Violation(NamedTuple):
    """What is wrong, as a sentence, and the harness of the turn, if it is known."""

    harness: str | None
    sentence: str


def audit(turns: Sequence[ClientTurn], rows: Sequence[Row], finished: Iterable[Finished]) -> list[Violation]:
    return [
        *_receipts(turns),
        *_client_against_ledger(turns, rows),
        *_engines_against_ledger(turns, rows, finished),
        *_order(turns, rows),
    ]


def _receipts(turns: Iterable[ClientTurn]) -> Iterable[Violation]:
    for turn in turns:
        if turn.usage is not None:
            for problem in receipts.check(turn.usage):
                yield Violation(turn.harness, f"{turn.label}: {problem}")


def _client_against_ledger(turns: Iterable[ClientTurn], rows: Iterable[Row]) -> Iterable[Violation]:
    rows_by_id: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        rows_by_id[row["id"]].append(row)
    seen = Counter(turn.receipt_id for turn in turns if turn.receipt_id)
    for turn in turns:
        if turn.receipt_id is None or turn.usage is None:
            if turn.error is None:
                yield Violation(turn.harness, f"{turn.label}: completed without a receipt")
            continue
        yield from _one_receipt(turn, rows_by_id.get(turn.receipt_id, []))
        if seen[turn.receipt_id] > 1:
            yield Violation(turn.harness, f"{turn.label}: receipt {turn.receipt_id} was given to another turn too")
    for receipt_id in rows_by_id.keys() - seen.keys():
        yield Violation(None, f"row {receipt_id}: no client has this receipt")


def _one_receipt(turn: ClientTurn, rows: Sequence[Row]) -> Iterable[Violation]:
    if len(rows) != 1:
        yield Violation(turn.harness, f"{turn.label}: receipt {turn.receipt_id} has {len(rows)} ledger rows")
        return
    row, usage = rows[0], turn.usage or {}
    receipt = usage.get("warmroute") or {}
    if receipt.get("id") != turn.receipt_id:
        yield Violation(turn.harness, f"{turn.label}: head names receipt {turn.receipt_id}, usage {receipt.get('id')}")
    if row["usage"] != usage:
        changed = ", ".join(sorted(_differences(row["usage"] or {}, usage)))
        yield Violation(turn.harness, f"{turn.label}: the client's receipt differs from the ledger's in {changed}")
    stated = {name: usage.get(name) for name in ROW_TOKENS} | {name: receipt.get(name) for name in ROW_AMOUNTS}
    stated["cached_tokens"] = receipts.cached_tokens(usage)
    for name, value in stated.items():
        if row[name] != value:
            yield Violation(turn.harness, f"{turn.label}: the row's {name} is {row[name]}, the receipt's {value}")


def _differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: str = "usage") -> Iterable[str]:
    for name in ours.keys() | theirs.keys():
        one, other = ours.get(name), theirs.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _differences(one, other, f"{path}.{name}")
        elif one != other or (name in ours) != (name in theirs):
            yield f"{path}.{name}"


def _engines_against_ledger(
    turns: Iterable[ClientTurn], rows: Iterable[Row], finished: Iterable[Finished]
) -> Iterable[Violation]:
    harness_by_receipt = {turn.receipt_id: turn.harness for turn in turns}
    rows_by_rid: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        for rid in row["rids"]:
            rows_by_rid[rid].append(row)
    for entry in finished:
        if entry["role"] not in BILLED_ROLES or entry["aborted"]:
            continue
        found = rows_by_rid.get(entry["rid"], [])
        if len(found) != 1:
            harness = harness_by_receipt.get(found[0]["id"]) if found else None
            yield Violation(harness, f"{entry['engine']}: finished request {entry['rid']} has {len(found)} ledger rows")


def _order(turns: Iterable[ClientTurn], rows: Iterable[Row]) -> Iterable[Violation]:
    row_by_id = {row["id"]: row for row in rows}
    by_recording: dict[str, list[ClientTurn]] = defaultdict(list)
    for turn in turns:
        by_recording[turn.recording].append(turn)
    for recorded in by_recording.values():
        ordered = sorted(recorded, key=lambda turn: turn.n)
        for turn in ordered:
            stated = ((turn.usage or {}).get("warmroute") or {}).get("turn")
            if turn.usage is not None and stated != turn.turn:
                yield Violation(turn.harness, f"{turn.label}: is turn {turn.turn}, the receipt says {stated}")
        for before, turn in itertools.pairwise(ordered):
            if turn.started_at < before.ended_at:
                yield Violation(turn.harness, f"{turn.label}: began before #{before.n} had ended")
            row, row_before = row_by_id.get(turn.receipt_id or ""), row_by_id.get(before.receipt_id or "")
            if row and row_before and row["opened_at"] < row_before["settled_at"]:
                yield Violation(turn.harness, f"{turn.label}: its row was opened before #{before.n} was settled")
