"""The schema of receipts in docs/spec says what the contract says, and the SDK's check agrees with it."""

import copy
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from tests.property.test_ladder import entries
from tests.unit.contract.test_money_receipt import SOUND

from warmroute.contract import receipt
from warmroute.contract.identity import KINDS
from warmroute_proxy.core.accounting.entry import Entry

SCHEMA: dict[str, Any] = json.loads((Path(__file__).parents[3] / "docs/spec/receipt.v1.schema.json").read_text())
OF_RECEIPT = SCHEMA["$defs"]["receipt"]["properties"]
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_the_schema_is_one_and_has_the_contracts_names() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert OF_RECEIPT["v"]["const"] == receipt.VERSION
    assert tuple(OF_RECEIPT["loss"]["properties"]) == receipt.LOSS_CLASSES
    assert tuple(OF_RECEIPT["cached"]["properties"]) == receipt.TIERS
    assert tuple(OF_RECEIPT["rates_usd_per_mtok"]["properties"]) == receipt.RATES
    assert tuple(OF_RECEIPT["estimated"]["items"]["enum"]) == receipt.ESTIMATED_FIELDS
    assert tuple(OF_RECEIPT["kind"]["enum"]) == KINDS


@given(entries())
def test_each_receipt_that_the_proxy_makes_is_valid(entry: Entry) -> None:
    usage = json.loads(bytes(entry.usage), parse_float=Decimal)
    VALIDATOR.validate(json.loads(bytes(entry.usage)))
    assert receipt.check(usage) == []


def test_a_sound_receipt_passes_both() -> None:
    VALIDATOR.validate(SOUND)
    assert receipt.check(SOUND) == []


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("v", 2),
        ("cached", {"device": 960}),
        ("cached", {"device": -1, "host": 961, "storage": 0}),
        ("loss", {"new": -100}),
        ("loss", 3),
        ("rates_usd_per_mtok", {"input": "0.6", "cached": "0.1"}),
        ("rates_usd_per_mtok", {"input": "-0.6", "cached": "0.1", "output": "3"}),
        ("rates_usd_per_mtok", {"input": "0.1234567", "cached": "0.1", "output": "3"}),
        ("estimated", ["mood"]),
        ("price_book", ""),
        ("price_nanousd", "x"),
        ("cache_write", {"5m": -1, "1h": 0}),
        ("cache_control", 0),
    ],
)
def test_what_the_schema_refuses_the_sdk_refuses_too(member: str, value: Any) -> None:
    usage = copy.deepcopy(SOUND)
    usage["warmroute"][member] = value
    assert not VALIDATOR.is_valid(usage)
    assert receipt.check(usage) != []


@pytest.mark.parametrize("member", ["cached", "loss", "rates_usd_per_mtok", "price_nanousd", "estimated", "v"])
def test_a_member_that_is_missing_is_seen_by_both(member: str) -> None:
    usage = copy.deepcopy(SOUND)
    del usage["warmroute"][member]
    assert not VALIDATOR.is_valid(usage)
    assert receipt.check(usage) != []
