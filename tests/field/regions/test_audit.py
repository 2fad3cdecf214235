"""The audit of a run, on findings that were made up: it finds what it is for. And a seed names a run."""

import copy
import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from tests.field.chaos.client import Seen

from . import seeds
from .agents import TENANTS, agents
from .audit import audit
from .processes import REGIONS
from .run import Asked, Findings
from .schedule import CLOCKS_APART_S, OF_LINES, clocks_ahead_s, schedule

USAGE: Final[dict[str, Any]] = {
    "prompt_tokens": 100,
    "completion_tokens": 10,
    "total_tokens": 110,
    "prompt_tokens_details": {"cached_tokens": 0},
    "cost": 0.00009,
    "warmroute": {
        "v": 1, "id": "wr-1", "session": None, "turn": 1, "region": "west",
        "workers": [{"id": "west-a0", "dp_rank": 0, "role": "aggregated"}],
        "cached": {"device": 0, "host": 0, "storage": 0}, "predicted_cached": 0, "loss": {"cold": 100},
        "rates_usd_per_mtok": {"input": "0.6", "cached": "0.1", "output": "3"},
        "list_nanousd": 90_000, "price_nanousd": 90_000, "saved_nanousd": 0, "estimated": [],
        "forwarded": {"from": "east", "rtt_ms": 31.5},
    },
}  # fmt: skip


def findings() -> Findings:
    """A run of one turn that entered at east and was served in west, in which everything holds."""
    turn = next(iter(agents(1, 1, REGIONS))).turns[0]
    row = {
        "id": "wr-1", "tenant": "anywhere", "outcome": "completed", "status": 200, "rids": '["r1"]',
        "workers": '[{"id":"west-a0"}]', "usage": json.dumps(USAGE), "price_nanousd": 90_000, "forwarded_from": "east",
    }  # fmt: skip
    seen = Seen(turn.ask, 1, "whole", "", 200, "wr-1", copy.deepcopy(USAGE), b"", 0.0, "west")
    return Findings(
        1,
        [Asked(turn, "east", "east-0", seen, frozenset(), 0.0, 1.0)],
        files={"west-1": [row], "east-0": []},
        database=[dict(row)],
        served={"west-a0": [{"rid": "r1"}]},
        counts={"east-0": {"warmroute_forwards_total": 1.0}, "west-1": {}},
    )


def row(found: Findings) -> dict[str, Any]:
    return found.files["west-1"][0]


def seen(found: Findings) -> Seen:
    return found.tried[0].seen


def receipt(found: Findings, **fields: Any) -> None:
    """Another receipt, in the row and at the client."""
    usage = copy.deepcopy(USAGE)
    usage["warmroute"] |= fields
    seen(found).usage = usage
    row(found)["usage"] = json.dumps(usage)


def void(price_nanousd: int) -> dict[str, Any]:
    return {**row(findings()), "id": "wr-1-void", "outcome": "voided", "price_nanousd": price_nanousd}


def test_a_run_in_which_everything_holds() -> None:
    assert audit(findings()) == []


def test_a_lost_answer_that_is_voided_costs_nothing() -> None:
    found = findings()
    seen(found).end, found.tried[0].during = "error", frozenset({"cut"})
    for rows in (found.files["west-1"], found.database or []):
        rows.append(void(-90_000))
    assert audit(found) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda f: setattr(seen(f), "end", "unfinished"), "turn 0 of eastern at east-0"),
        (lambda f: setattr(seen(f), "end", "error"), "though nothing was broken"),
        (lambda f: f.files["west-1"].clear(), "there is no row"),
        (lambda f: f.files["east-0"].append(dict(row(f))), "is in 2 ledger files"),
        (lambda f: f.database.append(dict(row(f))), "is 2 times in the database"),
        (lambda f: f.database.clear(), "is not in the database"),
        (lambda f: f.database.append(dict(row(f), id="wr-2")), "is in no ledger file"),
        (lambda f: f.database[0].update(price_nanousd=1), "and 1 in the database"),
        (lambda f: row(f).update(outcome="client_left"), "is client_left"),
        (lambda f: row(f).update(forwarded_from=None), "the row says None"),
        (lambda f: receipt(f, forwarded={"from": "north", "rtt_ms": 1.0}), "the receipt says north"),
        (lambda f: receipt(f, forwarded={"from": "east", "rtt_ms": 0.0}), "the way took 0.0 ms"),
        (lambda f: receipt(f, region="north"), "served in north, the head names west"),
        (lambda f: f.counts["east-0"].update(warmroute_forwards_total=2.0), "2 forwards of 1 tries"),
        (lambda f: f.counts["east-0"].update(warmroute_forwards_total=0.0), "1 rows were forwarded from east"),
        (lambda f: f.counts["west-1"].update(warmroute_forwards_total=1.0), "west forwarded 1: 0 have rows, 0 failed"),
        (lambda f: row(f).update(tenant="eastern"), "of eastern was served by west-a0"),
        (lambda f: f.leaks.append("a word"), "a word"),
        (lambda f: f.served["west-a0"].append({"rid": "r1"}), "west-a0 served r1 twice"),
        (lambda f: f.served["west-a0"].append({"rid": "r2"}), "served r2, which no row has"),
        (lambda f: f.served.clear(), "no engine served row wr-1"),
        (lambda f: f.still_working.update(west=1), "west still had 1"),
        (lambda f: f.open_at_end.update({"west-1": 1}), "west-1 has 1 open"),
        (lambda f: f.orders_at_end.update({"east-0": 1}), "east-0 has 1 rows to have voided"),
    ],
)
def test_what_the_audit_finds(change: Callable[[Any], Any], problem: str) -> None:
    found = findings()
    change(found)
    assert any(problem in line for line in audit(found)), audit(found)


def test_a_forward_after_the_last_look_at_a_proxy_that_stops_is_no_problem() -> None:
    found = findings()
    found.counts["east-0"].update(warmroute_forwards_total=0.0)
    found.counted_at_s[seen(found).life] = found.tried[0].ended_s
    assert audit(found) != []
    found.counted_at_s[seen(found).life] = found.tried[0].ended_s - 0.1
    assert audit(found) == []


def test_without_affinity_a_turn_may_be_refused_and_no_home_is_kept() -> None:
    found = findings()
    found.tried.append(copy.deepcopy(found.tried[0]))
    found.tried[1].seen.home = "north"
    seen = found.tried[1].seen
    seen.end, seen.status, seen.receipt, seen.usage = "error", 503, "", None
    assert audit(found, affinity=False) == []
    assert "though nothing was broken" in audit(found)[0]
    found.tried += [found.tried[0]] * 40
    assert not any("though nothing was broken" in line for line in audit(found))
    seen.status = 502
    assert "though nothing was broken" in audit(found, affinity=False)[0]


def test_turns_that_leave_home_without_a_fault_are_found() -> None:
    found = findings()
    again = copy.deepcopy(found.tried[0])
    again.seen.home = "north"
    found.tried.append(again)
    assert "0 of 1 turns were served at home" in audit(found)


def test_a_seed_names_a_run() -> None:
    for seed in range(20):
        faults = schedule(seed, REGIONS)
        assert faults == schedule(seed, REGIONS)
        assert all(bool(fault.other) == (fault.kind in OF_LINES) for fault in faults)
        assert all(fault.region != REGIONS[0] for fault in faults if fault.kind == "leave")
        ahead_s = clocks_ahead_s(seed, REGIONS).values()
        assert (min(ahead_s), max(ahead_s)) == (0.0, CLOCKS_APART_S)
    first, again = (list(agents(7, 300, REGIONS)) for _ in range(2))
    assert first == again
    assert {agent.tenant for agent in first} == set(TENANTS)
    assert {turn.entry[0] for agent in first for turn in agent.turns} == set(REGIONS)
    assert any(agent.recorded for agent in first)


def test_the_table_of_seeds_names_what_did_not_hold() -> None:
    held = {"problems": [], "tries": 20, "whole": 19, "at_home": 0.95, "wall_s": 150.0, "faults": [{}, {}]}
    held |= {"calm": {"hit": 0.86}, "calm_errors": {"503 no_worker (eastern at west)": 1}}
    line = seeds.row(1, held)
    assert [each.strip() for each in line.strip("|").split("|")] == [
        "1", "yes", "20", "1", "1 x 503 no_worker (eastern at west)", "0.95", "0.86", "150.0",
    ]  # fmt: skip
    assert line.count("|") == seeds.HEAD[0].count("|")
    broken = {"problems": ["it ended with 1"]}
    assert seeds.row(2, broken).startswith("| 2 | no |")
    assert "1 of 2 seeds hold: 2 faults, 20 tries." in seeds.summary([held, broken])
