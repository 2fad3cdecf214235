"""Reports on the turns since a program started: sums, losses by class, agents, and turns whose prefix was not cached.

The report goes to stderr, so that a program's output can be piped.
"""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from warmroute.contract.meanings import MEANINGS
from warmroute.contract.money import usd
from warmroute.files.printable import number_of
from warmroute_cli.api import Api, ApiError
from warmroute_cli.names import MOST, agent_names, session_names
from warmroute_cli.tables import Column, Row, fitted, width
from warmroute_cli.usage import losses_listed

BREAKS: Final = ("prefix_changed", "moved", "not_computed_yet", "evicted", "forgotten", "salt_changed", "unknown")
"""Loss classes that the report shows as broken prefixes: tokens that could have been cached."""

POSSIBLE: Final = (
    "moved", "elsewhere", "not_computed_yet", "evicted", "forgotten", "salt_changed", "not_kept", "engine_misreport",
    "unknown",
)  # fmt: skip
"""Loss classes of tokens that the fleet had computed before. The ideal hit ratio counts these tokens as cached."""

NO_TURNS: Final = ("voided", "credited")
COLUMNS: Final = (
    Column("agent"), Column("turns", is_number=True), Column("prompt", is_number=True),
    Column("cached", is_number=True), Column("hit", is_number=True), Column("ideal", is_number=True),
    Column("cost USD", is_number=True),
)  # fmt: skip
MAX_LISTED: Final = 5
MAX_READ: Final = 50


def show(api: Api, since_s: float) -> None:
    """Print the report. If the proxy does not answer or no longer answers, a sentence replaces the rest."""
    lines: list[str] = []
    try:
        for line in _lines(api, since_s):
            lines.append(line)  # noqa: PERF402 - those before an error stay
    except ApiError as error:
        lines.append(f"{'the rest' if lines else 'the cost of the turns'} is unknown: {error}")
    with contextlib.suppress(OSError):  # the terminal may be gone
        print("\n".join(["", *lines]), file=sys.stderr, flush=True)


def _lines(api: Api, since_s: float) -> Iterator[str]:
    since = {"since": f"{since_s:.3f}"}
    sums = api.ask("/usage", {"by": "session", **since})
    if not sums["turns"]:
        yield "warmroute: no turn came to the proxy" if sums["complete"] else "warmroute: no turn is known"
        yield from _missing(sums)
        return
    hit = sums["hit_ratio"]
    share = f" ({hit:.1%})" if hit is not None else ""
    sessions = len(sums["groups"]) + sums["groups_left_out"]
    yield (
        f"warmroute: {number_of(sums['turns'], 'turn')} in {number_of(sessions, 'session')}, "
        f"{sums['prompt_tokens']:,} prompt tokens, {sums['cached_tokens']:,} cached{share}, "
        f"{sums['completion_tokens']:,} of answers"
    )
    yield f"cost:      {usd(sums['price_nanousd'])} USD, {usd(sums['saved_nanousd'])} USD saved by the cache"
    yield from _missing(sums)
    losses = sums["losses"] or {}
    if losses:
        yield f"computed:  {', '.join(losses_listed(losses))}"
    rows = api.ask("/usage/receipts", {"limit": MOST, **since})["data"]
    yield from by_agent(rows, width())
    lost = sum(losses.get(name, 0) for name in BREAKS)
    if not lost:
        yield "prefixes:  nothing broke them"
        return
    yield f"prefixes:  {lost:,} tokens were computed again"
    yield from _broken(api, rows)


def _missing(sums: Mapping[str, Any]) -> Iterator[str]:
    if not sums["complete"]:
        silent = ", ".join(f"{region} ({state})" for region, state in sums["regions"].items() if state != "counted")
        yield f"missing:   turns of {silent}" if silent else "missing:   some turns"


def by_agent(rows: Sequence[Mapping[str, Any]], most: int) -> list[str]:
    """A table of the newest turns by agent, with the actual and the ideal hit ratio."""
    turns: dict[str, list[Mapping[str, Any]]] = {}
    for row, agent in zip(rows, agent_names(rows), strict=True):
        if row["outcome"] not in NO_TURNS and row.get("kind") != "warm":
            turns.setdefault(agent, []).append(row)
    return ["", *fitted(COLUMNS, [_agents_row(agent, of) for agent, of in turns.items()], "", most), ""]


def _agents_row(agent: str, turns: Sequence[Mapping[str, Any]]) -> Row:
    prompt, cached = (sum(int(turn[name]) for turn in turns) for name in ("prompt_tokens", "cached_tokens"))
    possible = cached + sum(int((turn["loss"] or {}).get(name, 0)) for turn in turns for name in POSSIBLE)
    shares = [f"{tokens / prompt:.1%}" if prompt else "-" for tokens in (cached, possible)]
    cost = usd(sum(int(turn["price_nanousd"]) for turn in turns))
    return Row([agent, f"{len(turns):,}", f"{prompt:,}", f"{cached:,}", *shares, cost])


def _broken(api: Api, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    turns, names = [row for row in rows if row["outcome"] not in NO_TURNS], session_names(rows)
    coldest = sorted(turns, key=lambda row: row["cached_tokens"] - row["prompt_tokens"])[:MAX_READ]
    read = [_receipt(api, row["id"]) for row in coldest]
    receipts = [each for each in read if each is not None]
    found = [(receipt["loss"].get(name, 0), name, receipt) for receipt in receipts for name in BREAKS]
    worst = sorted((each for each in found if each[0]), key=lambda each: -each[0])
    for tokens, name, receipt in worst[:MAX_LISTED]:
        why = MEANINGS[name].partition(".")[0]
        if name == "prefix_changed" and "prefix_break" in receipt:
            why = "in {where}: {cause}".format_map(receipt["prefix_break"])
        of = names.get(receipt["session"] or "", "an unnamed session")
        yield f"  turn {receipt['turn']} of {of}: {tokens:,} tokens ({name}) {why}; {receipt['id']}"
    if len(worst) > MAX_LISTED:
        yield f"  and {len(worst) - MAX_LISTED} more; `warmroute receipts show ID` explains a turn"
    if len(receipts) < len(read):
        yield f"  {number_of(len(read) - len(receipts), 'receipt')} could not be read"


def _receipt(api: Api, receipt_id: str) -> Mapping[str, Any] | None:
    """A turn's receipt; None if the proxy refuses it. Raises: ApiError, if the proxy does not answer."""
    try:
        found: Mapping[str, Any] = api.ask(f"/usage/receipts/{receipt_id}")["usage"]["warmroute"]
    except ApiError as error:
        if not error.status:
            raise
        return None
    return found
