"""Requests of the APIs that `warmroute conform` tries, and what it announces."""

from types import SimpleNamespace
from typing import cast

import pytest

from warmroute.contract.money import Rates
from warmroute_lab.conform.checks import checks_of, cost_of
from warmroute_lab.conform.conform import APIS, table
from warmroute_lab.conform.shapes import SIGNALS, Asked, key_headers, shape_of
from warmroute_lab.conform.trial import NOT_TRIED, Cell, Trial, TrialOptions
from warmroute_lab.conform.wire import Endpoint, Hider, NotReached


@pytest.mark.parametrize("api", APIS)
def test_no_request_has_a_key_in_it(api: str) -> None:
    shape = shape_of(api, "m", Asked("s", ["one", "two"], tools=True, with_call=True))
    assert not set(key_headers(api, "secret")) & set(shape.headers)


@pytest.mark.parametrize("api", APIS)
def test_each_signal_puts_the_session_into_the_request(api: str) -> None:
    for signal in SIGNALS[api]:
        shape = shape_of(api, "m", Asked("s", ["one"], session="abc123", signal=signal))
        assert ("abc123" in str(shape)) is bool(signal), signal


def test_equal_prefixes_of_turns_are_equal_in_the_body() -> None:
    one, two = (shape_of("openai", "m", Asked("s", turns)).body["messages"] for turns in (["a"], ["a", "b"]))
    assert two[: len(one)] == one


def test_what_is_announced_grows_with_what_is_asked_for() -> None:
    small, large = TrialOptions(turns=1), TrialOptions(turns=3, two_tenants=True)
    costs = [cost_of("openai", checks_of("openai", options), options) for options in (small, large)]
    assert costs[0].requests < costs[1].requests
    assert costs[0].nanousd(Rates(600_000, 100_000, 3_000_000)) < costs[1].nanousd(Rates(600_000, 100_000, 3_000_000))


@pytest.mark.parametrize("url", ["ftp://host", "http://", "//", "http://host:99999", "http://[::1/v1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(NotReached, match="is not an http address"):
        Endpoint(url, ("", ""), 1.0)


def test_a_key_in_an_address_is_not_repeated() -> None:
    with pytest.raises(NotReached) as refused:
        Endpoint("ftp://wr-secret@host", ("wr-secret", ""), 1.0)
    assert "wr-secret" not in str(refused.value)


@pytest.mark.parametrize("most", [60, 80, 120])
def test_a_finding_of_one_long_word_fits_the_table(most: int) -> None:
    word = f'{{"error":"{"x" * 150}"}}'
    cells = [Cell("n > 1", NOT_TRIED, f"refused: answered 400: {word}"), Cell("keeps tools", "pass", "83 tokens more")]
    trial = SimpleNamespace(endpoint=SimpleNamespace(hider=Hider(("key",))), model="tiny")
    lines = table("openai", cast("Trial", trial), cells, most)
    assert max(map(len, lines)) <= most
    assert word in "".join(line.split()[-1] for line in lines[1:])
