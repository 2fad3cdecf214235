"""From logs to figures, and what must hold of them."""

from dataclasses import replace
from typing import Any

import pytest

from warmroute_lab.demo.audit import ClientTurn, Violation
from warmroute_lab.demo.ideal import Ideal
from warmroute_lab.demo.report import table
from warmroute_lab.demo.results import Pass, failures, summarize

RTT_MS = 30.0


def one_pass(cached: int, ttft_ms: float, forwarded_from: str | None = None) -> Pass:
    turns, rows, finished = [], [], []
    for harness, n in (("aider", 1), ("aider", 2), ("codex", 1)):
        receipt_id = f"wr-{harness}-{n}"
        usage: dict[str, Any] = {"prompt_tokens": 1000, "prompt_tokens_details": {"cached_tokens": cached}}
        usage["warmroute"] = {"id": receipt_id}
        turns.append(ClientTurn(harness, harness, n, n, "east", n, n + 0.5, receipt_id, usage))
        money = {"list_nanousd": 100, "price_nanousd": 60}
        row = {"id": receipt_id, "rids": ["first", receipt_id], "proxy_ms": 1.0, "forwarded_from": forwarded_from}
        rows.append({**row, **money})
        finished.append({"rid": receipt_id, "role": "prefill", "ttft_virtual_ms": 1.0})
        finished.append({"rid": receipt_id, "role": "decode", "ttft_virtual_ms": ttft_ms * n})
    return Pass(turns, rows, finished, [])


@pytest.fixture
def ideal() -> dict[str, Ideal]:
    return {label: Ideal(800, 900) for label in ("aider #1", "aider #2", "codex #1")}


def test_the_figures_of_two_passes(ideal: dict[str, Ideal]) -> None:
    off, on = one_pass(200, 100.0), one_pass(800, 10.0, forwarded_from="west")
    summary = summarize(off, on, ideal, RTT_MS, ["aider", "codex"])
    parts = summary.pop("by_harness")
    assert summary == {
        "requests": 6,
        "completed": 6,
        "receipts": 6,
        "ledger_rows": 6,
        "hit_ratio": {"off": 0.2, "on": 0.8, "ideal_session": 0.8, "ideal_shared": 0.9},
        "ttft_ms": {"off": {"p50": 101.0, "p90": 201.0}, "on": {"p50": 41.0, "p90": 51.0}},
        "cost_nanousd": {"list": 300, "charged": 180},
        "invariant_violations": 0,
    }
    assert parts["codex"]["requests"] == parts["codex"]["ledger_rows"] == 2
    assert parts["codex"]["cost_nanousd"] == {"list": 100, "charged": 60}
    assert parts["aider"].keys() == summary.keys()
    assert failures(summary | {"by_harness": parts}) == []


def test_a_hit_ratio_more_than_a_point_below_the_ideal_fails_where_it_is(ideal: dict[str, Ideal]) -> None:
    ideal["codex #1"] = Ideal(820, 900)
    summary = summarize(one_pass(0, 1.0), one_pass(800, 1.0), ideal, RTT_MS, ["aider", "codex"])
    assert failures(summary) == ["The hit ratio of codex is 80.0%, more than a point below the ideal of 82.0%."]


def test_a_turn_that_did_not_complete_fails(ideal: dict[str, Ideal]) -> None:
    on = one_pass(800, 1.0)
    broken = replace(on.turns[0], error="gone", receipt_id=None, usage=None)
    summary = summarize(one_pass(0, 1.0), replace(on, turns=[broken, *on.turns[1:]]), ideal, RTT_MS, ["aider"])
    assert summary["completed"] == summary["receipts"] == 5
    assert "6 requests, 5 completed, 5 receipts and 6 ledger rows" in failures(summary)[0]


def test_a_missing_row_fails(ideal: dict[str, Ideal]) -> None:
    on = one_pass(800, 1.0)
    summary = summarize(one_pass(0, 1.0), replace(on, rows=on.rows[1:]), ideal, RTT_MS, ["aider"])
    assert (summary["ledger_rows"], summary["by_harness"]["aider"]["ledger_rows"]) == (5, 3)
    assert len(failures(summary)) == 1


def test_violations_fail_and_are_counted_where_they_happened(ideal: dict[str, Ideal]) -> None:
    on = replace(one_pass(800, 1.0), violations=[Violation("codex", "wrong"), Violation(None, "wrong")])
    summary = summarize(one_pass(0, 1.0), on, ideal, RTT_MS, ["aider", "codex"])
    assert summary["invariant_violations"] == 2
    assert [part["invariant_violations"] for part in summary["by_harness"].values()] == [0, 1]
    assert failures(summary) == ["2 invariants were violated."]


def test_a_price_that_is_not_below_list_fails(ideal: dict[str, Ideal]) -> None:
    on = one_pass(800, 1.0)
    dear = [{**row, "price_nanousd": 100} for row in on.rows]
    summary = summarize(one_pass(0, 1.0), replace(on, rows=dear), ideal, RTT_MS, ["aider"])
    assert failures(summary) == ["The charged 300 nanodollars are not below the list price of 300."]


def test_percentiles_of_nothing_are_absent(ideal: dict[str, Ideal]) -> None:
    on = replace(one_pass(800, 1.0), finished=[])
    assert summarize(on, on, ideal, RTT_MS)["ttft_ms"]["on"] == {"p50": None, "p90": None}


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_table_of_any_width_cuts_no_figure(ideal: dict[str, Ideal], width: int) -> None:
    off, on = one_pass(200, 100.0), one_pass(800, 10.0)
    lines = table(summarize(off, on, ideal, RTT_MS, ["aider", "codex"]), on, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for figure in ("codex", "2,000", "20.0%", "80.0%", "201 / 21", "0.0000"):  # also the p90, which shows the gain
        assert figure in text
