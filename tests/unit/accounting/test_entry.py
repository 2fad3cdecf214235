"""A ledger entry ends once, and bills its last attempt."""

import json
from typing import Any

import pytest
from tests.subjects.entries import opened_entry, settle

from warmroute.contract import receipt as contract
from warmroute_proxy.core.accounting import entry_steps
from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.core.accounting.entry_steps import dispatch, interrupt
from warmroute_proxy.core.accounting.receipt import ServedBy

FIRST, SECOND = ServedBy("east-a0", 0, "aggregated"), ServedBy("east-a1", 1, "aggregated")


def entry() -> Entry:
    return opened_entry(id="wr-1", stream=True, opened_at=5.0)


def fields(made: Entry) -> dict[str, Any]:
    """What is in its record."""
    return dict(zip(Entry.__struct_fields__, json.loads(made.record()), strict=True))


def test_only_the_last_attempt_is_billed() -> None:
    made = entry()
    dispatch(made, "rid-1", (FIRST,), 0)
    dispatch(made, "rid-2", (SECOND,), 64)
    usage = json.loads(bytes(settle(made).usage))
    assert contract.check(usage) == []
    assert [worker["id"] for worker in usage["warmroute"]["workers"]] == ["east-a1"]
    record = fields(made)
    assert record["rids"] == ["rid-1", "rid-2"]
    assert (record["predicted_cached"], record["state"], record["outcome"]) == (64, "settled", "completed")
    assert (record["list_nanousd"], record["price_nanousd"]) == (90_000, 58_000)
    assert record["usage"] == usage


def test_an_interrupted_entry_costs_nothing_and_keeps_its_rid() -> None:
    made = entry()
    dispatch(made, "rid-1", (FIRST,), 64)
    again = Entry.read(made.record())
    assert again == made
    interrupt(again, 7.0)
    usage = json.loads(bytes(again.usage))
    assert contract.check(usage) == []
    assert usage["cost"] == 0
    assert usage["warmroute"]["estimated"] == list(contract.ESTIMATED_FIELDS)
    record = fields(again)
    assert (record["state"], record["outcome"], record["status"]) == ("interrupted", "interrupted", 0)
    assert (record["rids"], record["price_nanousd"], record["usage"]) == (["rid-1"], 0, usage)


def test_a_credit_is_a_row_of_its_own_and_a_void_takes_back_the_rest() -> None:
    made = entry()
    dispatch(made, "rid-1", (FIRST,), 0)
    credit = b'"credit":{"tokens":30,"nanousd":15000}'
    settle(made, loss={"moved": 36}, receipt_fields=credit)
    assert contract.check(json.loads(bytes(made.usage))) == []
    row, void = entry_steps.crediting(made), entry_steps.voiding(made, 10.0)
    assert (row.id, row.outcome, row.price_nanousd, row.prompt_tokens) == ("wr-1-credit", "credited", -15_000, 0)
    assert made.price_nanousd + row.price_nanousd + void.price_nanousd == 0
    assert sum(map(entry_steps.turns_in, (made.id, row.id, void.id))) == 0
    assert Entry.read(row.record()) == row


@pytest.mark.parametrize(
    ("credit", "problem"),
    [
        ({"tokens": 40, "nanousd": 20_000}, "the credit is for 40 tokens, but 36 are moved"),
        ({"tokens": 30, "nanousd": 15_001}, "the credit is 15001, recomputed 15000"),
    ],
)
def test_a_credit_is_checked(credit: dict[str, int], problem: str) -> None:
    made = entry()
    dispatch(made, "rid-1", (FIRST,), 0)
    fields = b'"credit":' + json.dumps(credit).encode()
    settle(made, loss={"moved": 36}, receipt_fields=fields)
    assert contract.check(json.loads(bytes(made.usage))) == [problem]
