"""Sums over rows are those that a person would add up by hand, wherever the rows are: folded, or in a journal still."""

import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.search import searched
from tests.subjects.entries import REPORTED, dispatched_entry, settle

from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.core.accounting.entry_steps import voiding
from warmroute_proxy.server.ledger import all_rows
from warmroute_proxy.server.ledger.fold import Fold
from warmroute_proxy.server.ledger.journal import journal_path
from warmroute_proxy.server.ledger.usage_sums import SUMMED, WARM, By, Turns, add_up, newest

BEGAN_S = 1_700_000_000.0
HOUR_S = 3600.0

turns = st.fixed_dictionaries(
    {
        "tenant": st.sampled_from(["acme", "umbrella", 'q"uote']),
        "session": st.sampled_from(["00000000000000aa", "00000000000000bb", None]),
        "model": st.sampled_from(["m", "n/ä"]),
        "hours": st.integers(0, 60),
        "prompt": st.integers(1, 500),
        "cached": st.integers(0, 500),
        "voided": st.booleans(),
        "warm": st.booleans(),
    }
)


def entry(number: int, turn: dict[str, Any]) -> Entry:
    prompt, cached = turn["prompt"], min(turn["cached"], turn["prompt"])
    named = {name: turn[name] for name in ("tenant", "session", "model")}
    made = dispatched_entry(number, opened_at=BEGAN_S, **named)
    reported = {**REPORTED, "prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}}
    loss = {"cold": (prompt - cached) // 2, "new": (prompt - cached + 1) // 2}
    ended_at = BEGAN_S + turn["hours"] * HOUR_S
    fields = b'"kind":"warm"' if turn["warm"] else b""
    return settle(made, reported, loss, settled_at=ended_at, receipt_fields=fields)


def by_hand(rows: list[Entry]) -> dict[str, int]:
    sums: Counter[str] = Counter(dict.fromkeys((*SUMMED, *WARM), 0))
    for row in rows:
        sums["turns"] += -1 if row.outcome == "voided" else 1
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens", "list_nanousd", "price_nanousd"):
            sums[name] += getattr(row, name)
        receipt = row.receipt()
        sums.update(receipt.loss)
        if receipt.kind == "warm":
            sums["warm_prompt_tokens"] += row.prompt_tokens
            sums["warm_cached_tokens"] += row.cached_tokens
    return dict(sums)


def key_of(row: Entry, by: By) -> str:
    if by == "day":
        return datetime.fromtimestamp(row.settled_at, UTC).strftime("%Y-%m-%d")
    if by == "hour":
        return datetime.fromtimestamp(row.settled_at, UTC).strftime("%Y-%m-%dT%H")
    return str(getattr(row, by) or "")


@searched(60)
@given(
    st.lists(turns, max_size=30),
    st.integers(0, 30),
    st.sampled_from(["session", "model", "tenant", "day", "hour", None]),
    st.sampled_from(["acme", 'q"uote', None]),
    st.sampled_from(["00000000000000aa", None]),
    st.sampled_from([None, 0, 20, 61]),
)
def test_sums_are_those_by_hand(
    given_turns: list[dict[str, Any]],
    folded: int,
    by: By | None,
    tenant: str | None,
    session: str | None,
    since_hours: int | None,
) -> None:
    given_turns.sort(key=lambda turn: int(turn["hours"]))
    rows: list[Entry] = []
    for number, turn in enumerate(given_turns):
        rows.append(entry(number, turn))
        if turn["voided"]:
            rows.append(voiding(rows[-1], rows[-1].settled_at))
    since_s = None if since_hours is None else BEGAN_S + since_hours * HOUR_S
    wanted = [
        row
        for row in rows
        if tenant in {row.tenant, None} and session in {row.session, None} and row.settled_at >= (since_s or 0)
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        database, lines = folder / "ledger.sqlite", [row.record() + b"\n" for row in rows]
        journal = journal_path(folder, 1)
        journal.write_bytes(b"".join(lines[:folded]))
        fold = Fold(folder, database)
        while fold.step():
            pass
        journal.write_bytes(b"".join(lines))
        asked = Turns(tenant, session, since_s)
        found = add_up(folder, database, asked, by, lambda: False)
        listed = newest(folder, database, asked, 5, lambda: False)
        fold.close()
    assert found.complete
    assert found.all == by_hand(wanted)
    groups = (
        {}
        if by is None
        else {key_of(row, by): by_hand([r for r in wanted if key_of(r, by) == key_of(row, by)]) for row in wanted}
    )
    assert {group.key: group.sums for group in found.groups} == groups
    times = sorted((row.settled_at for row in wanted), reverse=True)
    assert [row["settled_at"] for row in listed.rows] == times[:5]


def test_what_is_not_read_for_want_of_time_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    rows = [
        entry(
            number,
            {"tenant": "acme", "session": None, "model": "m", "hours": number, "prompt": 9, "cached": 1, "warm": False},
        )
        for number in range(40)
    ]
    journal_path(tmp_path, 1).write_bytes(b"".join(row.record() + b"\n" for row in rows))
    fold = Fold(tmp_path, tmp_path / "ledger.sqlite")
    while fold.step():
        pass
    fold.close()
    monkeypatch.setattr(all_rows, "ROWS_AT_ONCE", 10)
    monkeypatch.setattr(all_rows, "MAX_ROWS", 20)
    found = add_up(tmp_path, tmp_path / "ledger.sqlite", Turns("acme"), "model", lambda: False)
    assert (found.complete, found.all["turns"]) == (False, 20)
    assert found.counted_since == rows[19].settled_at
    with pytest.raises(all_rows.Closed):
        add_up(tmp_path, tmp_path / "ledger.sqlite", Turns("acme"), "model", lambda: True)
    recent = add_up(tmp_path, tmp_path / "ledger.sqlite", Turns("acme", None, rows[25].settled_at), None, lambda: False)
    assert (recent.complete, recent.all["turns"]) == (True, 15)
