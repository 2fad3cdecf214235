"""A ledger entry ends once, and bills its last attempt."""

import json
from typing import Any

import pytest

from warmroute.contract import receipt as contract
from warmroute.contract.money import Rates
from warmroute_proxy.core.accounting import entry_steps
from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.core.accounting.entry_steps import TransitionError, dispatch, interrupt
from warmroute_proxy.core.accounting.receipt import ServedBy
from warmroute_proxy.core.accounting.usage import merge_usage

REPORTED = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 64}}
FIRST, SECOND = ServedBy("east-a0", 0, "aggregated"), ServedBy("east-a1", 1, "aggregated")


def entry() -> Entry:
    return Entry(
        id="wr-1",
        tenant="acme",
        session=None,
        lineage="00000000000000aa",
        turn=1,
        region="east",
        model="m",
        route="chat",
        stream=True,
        rates=Rates(600_000, 100_000, 3_000_000),
        opened_at=5.0,
    )


def settle(made: Entry) -> bytes:
    usage = merge_usage(REPORTED, None, None, 0)
    entry_steps.settle(
        made,
        usage,
        {"cold": 36},
        REPORTED,
        entry_steps.Ending(outcome="completed", status=200, settled_at=9.0, proxy_ms=0.2, ttft_ms=3.0),
    )
    return bytes(made.usage)


def fields(made: Entry) -> dict[str, Any]:
    """What is in its record."""
    return dict(zip(Entry.__struct_fields__, json.loads(made.record()), strict=True))


def test_only_the_last_attempt_is_billed() -> None:
    made = entry()
    dispatch(made, "rid-1", (FIRST,), 0)
    dispatch(made, "rid-2", (SECOND,), 64)
    usage = json.loads(settle(made))
    assert contract.check(usage) == []
    assert [worker["id"] for worker in usage["warmroute"]["workers"]] == ["east-a1"]
    record = fields(made)
    assert record["rids"] == ["rid-1", "rid-2"]
    assert (record["predicted_cached"], record["state"], record["outcome"]) == (64, "settled", "completed")
    assert (record["list_nanousd"], record["price_nanousd"]) == (90_000, 58_000)
    assert record["usage"] == usage


def test_a_retry_takes_a_new_rid() -> None:
    made = entry()
    dispatch(made, "rid-1", (FIRST,), 0)
    with pytest.raises(TransitionError, match="new rid"):
        dispatch(made, "rid-1", (SECOND,), 0)


def test_nothing_is_settled_that_was_not_dispatched() -> None:
    with pytest.raises(TransitionError):
        settle(entry())


def test_an_ended_entry_stays_ended() -> None:
    made = entry()
    dispatch(made, "rid-1", (FIRST,), 0)
    settle(made)
    with pytest.raises(TransitionError):
        settle(made)
    with pytest.raises(TransitionError):
        interrupt(made, 10.0)
    with pytest.raises(TransitionError):
        dispatch(made, "rid-2", (SECOND,), 0)


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
    ending = entry_steps.Ending("completed", 200, 9.0, 0.2, 3.0, receipt_fields=credit)
    entry_steps.settle(made, merge_usage(REPORTED, None, None, 0), {"moved": 36}, REPORTED, ending)
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
    ending = entry_steps.Ending("completed", 200, 9.0, 0.2, 3.0, receipt_fields=fields)
    entry_steps.settle(made, merge_usage(REPORTED, None, None, 0), {"moved": 36}, REPORTED, ending)
    assert contract.check(json.loads(bytes(made.usage))) == [problem]
