"""The usage object that a client gets."""

import json

from tests.subjects.entries import opened_entry

from warmroute.contract import receipt as contract
from warmroute_proxy.core.accounting.receipt import ServedBy, usage_object, workers_json
from warmroute_proxy.core.accounting.usage import merge_usage

REPORTED = {
    "prompt_tokens": 1000,
    "completion_tokens": 50,
    "total_tokens": 9,
    "reasoning_tokens": 7,
    "completion_tokens_details": {"reasoning_tokens": 7},
    "prompt_tokens_details": {"cached_tokens": 1920, "audio_tokens": 1},
    "cost": 99,
    "warmroute": {"id": "forged"},
    "spec": {"accept": 0.5},
}


def text() -> bytes:
    usage = merge_usage(REPORTED, None, None, 0)
    workers = workers_json((ServedBy("east-p0", 0, "prefill"), ServedBy("east-d1", 2, "decode")))
    entry = opened_entry(1, turn=3, opened_at=5.0, workers=workers, predicted_cached=960)
    return usage_object(entry, usage, {}, REPORTED)[0]


def test_the_engines_fields_survive_and_the_settled_numbers_win() -> None:
    usage = json.loads(text())
    assert usage["spec"] == {"accept": 0.5}
    assert usage["reasoning_tokens"] == 7
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 7}
    assert usage["prompt_tokens_details"] == {"cached_tokens": 1000, "audio_tokens": 1}
    assert usage["total_tokens"] == 1050


def test_cost_is_an_exact_decimal_number() -> None:
    assert b'"cost":0.00025,' in text()  # 1,000 cached at 0.10 and 50 answered at 3.00 per million
    assert json.loads(text())["cost"] == 0.00025


def test_an_engine_cannot_write_the_receipt() -> None:
    receipt = json.loads(text())["warmroute"]
    assert receipt["id"] == "wr-000000000000000000000001"
    assert receipt["workers"][1] == {"id": "east-d1", "dp_rank": 2, "role": "decode"}
    assert receipt["rates_usd_per_mtok"] == {"input": "0.6", "cached": "0.1", "output": "3"}
    assert receipt["saved_nanousd"] == receipt["list_nanousd"] - receipt["price_nanousd"] == 500_000
    assert contract.check(json.loads(text())) == []
