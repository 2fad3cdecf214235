"""Each kind of violation is injected into a sound pass, and seen."""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.subjects.entries import dispatched_entry, settle

from warmroute_lab.demo.audit import ClientTurn, audit


def usage_of(receipt_id: str, turn: int, prompt: int, cached: int, completion: int) -> dict[str, Any]:
    reported = {"prompt_tokens": prompt, "completion_tokens": completion}
    entry = dispatched_entry(predicted=cached, id=receipt_id, session="0" * 16, turn=turn)
    settle(entry, {**reported, "prompt_tokens_details": {"cached_tokens": cached}}, {"new": prompt - cached})
    found: dict[str, Any] = json.loads(bytes(entry.usage))
    return found


def row_of(usage: dict[str, Any], rid: str, at: float) -> dict[str, Any]:
    receipt = usage["warmroute"]
    return {
        "id": receipt["id"], "rids": [rid], "usage": copy.deepcopy(usage),
        "prompt_tokens": usage["prompt_tokens"], "completion_tokens": usage["completion_tokens"],
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "list_nanousd": receipt["list_nanousd"], "price_nanousd": receipt["price_nanousd"],
        "opened_at": at + 0.1, "settled_at": at + 0.8,
    }  # fmt: skip


@dataclass
class Logs:
    """The three logs of a sound pass: two recordings of two turns."""

    turns: list[ClientTurn]
    rows: list[dict[str, Any]]
    finished: list[dict[str, Any]]

    def violations(self) -> list[str]:
        return [violation.sentence for violation in audit(self.turns, self.rows, self.finished)]

    def usage(self, index: int) -> dict[str, Any]:
        """The usage of a turn, on both sides, so that only the receipt's own arithmetic is wrong."""
        usage = self.turns[index].usage
        assert isinstance(usage, dict)
        self.rows[index]["usage"] = usage
        return usage


@pytest.fixture
def logs() -> Logs:
    turns, rows, finished = [], [], []
    for recording in ("alpha", "beta"):
        for number in (1, 2):
            rid, at = f"rid-{recording}-{number}", 100.0 + number
            usage = usage_of(f"wr-{recording}-{number}", number, 1000 * number, 960 * (number - 1), 20)
            ends = (at, at + 0.9)
            receipt_id = usage["warmroute"]["id"]
            turns.append(ClientTurn(recording, "aider", number, number, "east", *ends, receipt_id, usage))
            rows.append(row_of(usage, rid, at))
            finished.append({"engine": "east-p0", "rid": rid, "role": "prefill", "aborted": False})
            finished.append({"engine": "east-d0", "rid": rid, "role": "decode", "aborted": False})
    return Logs(turns, rows, finished)


def test_a_sound_pass_has_no_violations(logs: Logs) -> None:
    assert logs.violations() == []


def tiers_do_not_sum(logs: Logs) -> None:
    logs.usage(1)["warmroute"]["cached"]["host"] = 1


def receipt_differs(logs: Logs) -> None:
    logs.rows[1]["usage"]["warmroute"]["region"] = "west"


def field_only_in_ledger(logs: Logs) -> None:
    logs.rows[1]["usage"]["reasoning_tokens"] = None


def row_columns_differ(logs: Logs) -> None:
    logs.rows[1]["price_nanousd"] -= 1


def head_names_another_receipt(logs: Logs) -> None:
    logs.usage(1)["warmroute"]["id"] = "wr-other"


def receipt_without_row(logs: Logs) -> None:
    logs.finished[2:4] = []
    del logs.rows[1]


def receipt_with_two_rows(logs: Logs) -> None:
    logs.rows.append({**logs.rows[1], "rids": ["rid-other"]})


def row_without_client(logs: Logs) -> None:
    logs.rows.append({**logs.rows[1], "id": "wr-nobody", "rids": ["rid-other"]})


def completed_without_receipt(logs: Logs) -> None:
    logs.turns[3] = replace(logs.turns[3], receipt_id=None, usage=None)


def receipt_given_twice(logs: Logs) -> None:
    first = logs.turns[0]
    logs.turns[0] = replace(first, n=0, started_at=99.0, ended_at=99.5)
    logs.turns.append(replace(first, recording="gamma"))


def engine_request_without_row(logs: Logs) -> None:
    logs.finished.append({"engine": "west-a0", "rid": "rid-lost", "role": "aggregated", "aborted": False})


def engine_request_with_two_rows(logs: Logs) -> None:
    logs.rows[0]["rids"] = ["rid-alpha-2", "rid-alpha-1"]


def began_too_early(logs: Logs) -> None:
    logs.turns[1] = replace(logs.turns[1], started_at=logs.turns[0].ended_at - 0.01)


def opened_too_early(logs: Logs) -> None:
    logs.rows[1]["opened_at"] = logs.rows[0]["settled_at"] - 0.01


def counted_wrongly(logs: Logs) -> None:
    logs.usage(1)["warmroute"]["turn"] = 1


INJECTIONS: list[tuple[Callable[[Logs], None], str]] = [
    (tiers_do_not_sum, "do not sum to 960 cached tokens"),
    (receipt_differs, "differs from the ledger's in usage.warmroute.region"),
    (field_only_in_ledger, "differs from the ledger's in usage.reasoning_tokens"),
    (row_columns_differ, "the row's price_nanousd is"),
    (head_names_another_receipt, "head names receipt wr-alpha-2, usage wr-other"),
    (receipt_without_row, "receipt wr-alpha-2 has 0 ledger rows"),
    (receipt_with_two_rows, "receipt wr-alpha-2 has 2 ledger rows"),
    (row_without_client, "row wr-nobody: no client has this receipt"),
    (completed_without_receipt, "beta #2: completed without a receipt"),
    (receipt_given_twice, "was given to another turn too"),
    (engine_request_without_row, "west-a0: finished request rid-lost has 0 ledger rows"),
    (engine_request_with_two_rows, "finished request rid-alpha-2 has 2 ledger rows"),
    (began_too_early, "alpha #2: began before #1 had ended"),
    (opened_too_early, "alpha #2: its row was opened before #1 was settled"),
    (counted_wrongly, "alpha #2: is turn 2, the receipt says 1"),
]


@pytest.mark.parametrize(("inject", "sentence"), INJECTIONS, ids=[inject.__name__ for inject, _ in INJECTIONS])
def test_an_injected_violation_is_seen(logs: Logs, inject: Callable[[Logs], None], sentence: str) -> None:
    inject(logs)
    assert any(sentence in found for found in logs.violations()), logs.violations()


def test_what_an_engine_aborted_and_prefill_legs_need_no_row(logs: Logs) -> None:
    logs.finished.append({"engine": "east-d0", "rid": "rid-gone", "role": "decode", "aborted": True})
    logs.finished.append({"engine": "east-p0", "rid": "rid-gone", "role": "prefill", "aborted": False})
    assert logs.violations() == []


def test_a_row_after_a_retry_names_both_attempts_and_is_one_row(logs: Logs) -> None:
    logs.rows[0]["rids"].insert(0, "rid-first-attempt")
    logs.finished.append({"engine": "east-d1", "rid": "rid-first-attempt", "role": "decode", "aborted": False})
    assert logs.violations() == []


def test_violations_are_attributed_to_the_harness(logs: Logs) -> None:
    tiers_do_not_sum(logs)
    row_without_client(logs)
    assert sorted(str(found.harness) for found in audit(logs.turns, logs.rows, logs.finished)) == ["None", "aider"]
