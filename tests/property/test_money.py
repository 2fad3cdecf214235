"""Money is exact: rates survive their text, amounts round once, the order of a bill does not matter."""

import json
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.contract import money
from warmroute.contract.money import CacheRates, Rates

rates = st.integers(0, 10**12)
tokens = st.integers(0, 2**31 - 1)


@given(rates)
def test_a_rate_survives_its_text(rate: int) -> None:
    assert money.rate_from_usd_per_mtok(money.usd_per_mtok(rate)) == rate


@given(st.decimals(0, 1_000_000, places=6))
def test_six_decimals_are_exact(price: Decimal) -> None:
    assert money.rate_from_usd_per_mtok(str(price)) == price * 1_000_000


@given(st.text(max_size=40))
def test_no_text_is_taken_for_a_price_but_one(text: str) -> None:
    try:
        rate = money.rate_from_usd_per_mtok(text)
    except ValueError:
        return
    assert 0 <= rate <= 10**12
    assert Decimal(text) * 1_000_000 == rate


@pytest.mark.parametrize(
    "text", ["0.1234560000000000000000000000001", "1e-7", "-1", "NaN", "Infinity", "1000001", "1,5", ""]
)
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="USD per million tokens"):
        money.rate_from_usd_per_mtok(text)


@given(st.builds(Rates, rates, rates, rates), tokens, tokens, st.data())
def test_the_price_is_the_exact_sum_rounded_once(price: Rates, prompt: int, answer: int, data: st.DataObject) -> None:
    cached = data.draw(st.integers(0, prompt))
    exact = Fraction((prompt - cached) * price.input + cached * price.cached + answer * price.output, 1000)
    assert money.price_nanousd(price, prompt, cached, answer) == round(exact)  # half to even
    assert money.list_nanousd(price, prompt, answer) == money.price_nanousd(price, prompt, 0, answer)


@given(
    st.builds(Rates, rates, rates, rates, st.just("b"), st.builds(CacheRates, rates, rates, rates, rates)), st.data()
)
def test_the_price_is_the_sum_of_its_parts_rounded_once(price: Rates, data: st.DataObject) -> None:
    parts = data.draw(st.lists(tokens, min_size=7, max_size=7))
    plain, device, host, storage, write_5m, write_1h, answer = parts
    of_each = (price.input, price.cached, *(price.cache_rates or ()), price.output)
    exact = Fraction(sum(count * rate for count, rate in zip(parts, of_each, strict=True)), 1000)
    prompt, cached = sum(parts[:-1]), device + host + storage
    full, found = money.list_and_price(price, prompt, cached, answer, host, storage, write_5m, write_1h)
    assert found == round(exact)  # half to even
    assert full == money.list_nanousd(price, prompt, answer) >= plain * price.input // 1000


@given(
    st.builds(Rates, rates, rates, rates, st.just("b"), st.none() | st.builds(CacheRates, rates, rates, rates, rates))
)
def test_rates_survive_their_text(price: Rates) -> None:
    assert Rates.from_texts(price.as_usd_per_mtok(), "b") == price


@given(st.integers(-(10**20), 10**20))
def test_an_amount_is_an_exact_json_number(amount: int) -> None:
    assert json.loads(money.usd(amount), parse_float=Decimal, parse_int=Decimal) * 10**9 == amount
