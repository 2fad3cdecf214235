"""The checks that any reader of a receipt can run, and what they find."""

import copy
import json
from typing import Any

import pytest

from warmroute.contract import receipt
from warmroute.contract.money import Rates, nano_from_pico, price_nanousd, usd

SOUND: dict[str, Any] = {
    "prompt_tokens": 1000,
    "completion_tokens": 50,
    "prompt_tokens_details": {"cached_tokens": 960},
    "cost": 0.00027,
    "warmroute": {
        "v": 1,
        "id": "wr-1",
        "session": "0123456789abcdef",
        "turn": 2,
        "region": "east",
        "workers": [{"id": "a0", "dp_rank": 0, "role": "aggregated"}],
        "cached": {"device": 896, "host": 64, "storage": 0},
        "predicted_cached": 900,
        "loss": {"new": 30, "page_rounding": 10},
        "rates_usd_per_mtok": {"input": "0.6", "cached": "0.1", "output": "3"},
        "list_nanousd": 750_000,
        "price_nanousd": 270_000,
        "saved_nanousd": 480_000,
        "estimated": [],
        "harness": "opencode",
    },
}


def broken(path: str, value: object) -> list[str]:
    usage = copy.deepcopy(SOUND)
    *parents, last = path.split(".")
    place = usage
    for name in parents:
        place = place[name]
    place[last] = value
    return receipt.check(usage)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("prompt_tokens", 900, "outside [0, 900]"),
        ("prompt_tokens_details.cached_tokens", -1, "outside"),
        ("warmroute.cached.host", 0, "do not sum to 960 cached"),
        ("warmroute.cached", {"device": 960}, "do not sum"),
        ("warmroute.loss.new", 31, "do not sum to 40 uncached"),
        ("warmroute.loss", {"new": 50, "cold": -10}, "do not sum"),
        ("warmroute.estimated", ["mood"], "unknown estimated fields"),
        ("warmroute.continued", {"after_tokens": 51, "by": "text"}, "continued after 51 tokens"),
        ("warmroute.continued", {"by": "text"}, "malformed"),
        ("warmroute.list_nanousd", 750_001, "list_nanousd is 750001, recomputed 750000"),
        ("warmroute.price_nanousd", 0, "price_nanousd is 0, recomputed 270000"),
        ("warmroute.saved_nanousd", 0, "saved_nanousd"),
        ("warmroute.rates_usd_per_mtok.output", "4", "recomputed"),
        ("warmroute.price_book", "", "names no book"),
        ("warmroute.cache_write", {"5m": 41, "1h": 0}, "not within 40 uncached tokens"),
        ("cost", 0.00028, "is not 270000 nanodollars"),
        ("cost", float("nan"), "is not 270000 nanodollars"),
        ("warmroute.v", 2, "version 2"),
        ("warmroute", None, "missing"),
        ("warmroute.rates_usd_per_mtok.output", "free", "malformed"),
        ("warmroute.loss", None, "malformed"),
        ("warmroute.cached", [], "do not sum"),
        ("completion_tokens", float("inf"), "malformed"),
        ("completion_tokens", None, "malformed"),
    ],
)
def test_each_fault_is_found(path: str, value: object, said: str) -> None:
    assert any(said in problem for problem in broken(path, value))


def test_a_large_cost_survives_being_read_as_a_double() -> None:
    rates = Rates.from_usd_per_mtok("999999.999999", "0", "0")
    price = price_nanousd(rates, 2**31 - 1, 0, 0)
    usage = {
        "prompt_tokens": 2**31 - 1,
        "completion_tokens": 0,
        "cost": json.loads(usd(price)),
        "warmroute": {
            "v": 1,
            "cached": {"device": 0, "host": 0, "storage": 0},
            "loss": {"cold": 2**31 - 1},
            "rates_usd_per_mtok": rates.as_usd_per_mtok(),
            "list_nanousd": price,
            "price_nanousd": price,
            "saved_nanousd": 0,
            "estimated": [],
        },
    }
    assert receipt.check(usage) == []


def test_absent_cached_tokens_are_read_as_none_cached() -> None:
    assert receipt.cached_tokens({}) == receipt.cached_tokens({"prompt_tokens_details": None}) == 0


@pytest.mark.parametrize(
    ("pico", "nano"), [(499, 0), (500, 0), (501, 1), (1499, 1), (1500, 2), (2500, 2), (3500, 4), (-500, 0), (-1500, -2)]
)
def test_half_goes_to_even(pico: int, nano: int) -> None:
    assert nano_from_pico(pico) == nano


@pytest.mark.parametrize(
    ("nano", "text"), [(0, "0"), (1, "0.000000001"), (-250_000, "-0.00025"), (10**9, "1"), (1_500_000_000, "1.5")]
)
def test_an_amount_as_json_number(nano: int, text: str) -> None:
    assert usd(nano) == text
