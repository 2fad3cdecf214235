"""Which book prices a turn, and books as text."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from warmroute.contract.money import CacheRates, Rates
from warmroute_cli.prices import book_toml
from warmroute_proxy.core.accounting.price_books import PriceBook, PriceBooks, instant_text
from warmroute_proxy.server.base.config_prices import MAX_SOURCE_CHARS, read_book
from warmroute_proxy.server.base.config_table import Table

times = st.integers(0, 10**6)
rate = st.integers(0, 10**12)
text = st.text(st.characters(codec="utf-8"), max_size=MAX_SOURCE_CHARS)
starts = st.lists(st.none() | times, min_size=1, max_size=6, unique=True)


def book(start: int | None, name: str = "") -> PriceBook:
    return PriceBook(Rates(start or 0, 0, 0, name or f"b{start}"), start)


@given(starts, times)
def test_the_book_in_effect_is_the_latest_that_has_begun(found: list[int | None], now: int) -> None:
    books = PriceBooks({"m": [book(start) for start in found]})
    begun = [start for start in found if start is None or start <= now]
    expected = max(begun, key=lambda start: -1 if start is None else start) if begun else None
    in_effect = books.in_effect("m", now)
    assert (in_effect is not None) == bool(begun)
    if in_effect is not None:
        assert in_effect.from_s == expected
    assert books.settling("m", now) in books.of("m")  # never free because a clock has gone back


@given(starts, times, st.integers(1, 10**6))
def test_a_later_book_changes_no_turn_before_it(found: list[int | None], now: int, later: int) -> None:
    before = [book(start) for start in found]
    newest = max(each or 0 for each in found)
    after = PriceBooks({"m": before}, {"m": [book(max(now, newest) + later)]})
    assert after.settling("m", now) == PriceBooks({"m": before}).settling("m", now)


@given(times)
def test_a_book_of_the_database_replaces_one_of_the_config_with_its_date(start: int) -> None:
    books = PriceBooks({"m": [book(start, "config")]}, {"m": [book(start, "stored")]})
    assert [each.name for each in books.of("m")] == ["stored"]


@given(
    rate, rate, rate, st.none() | st.builds(CacheRates, rate, rate, rate, rate), st.none() | st.integers(0, 2**37), text
)
def test_a_book_survives_its_text(
    input_: int, cached: int, output: int, more: CacheRates | None, start: int | None, source: str
) -> None:
    hits = (cached, more.cached_host, more.cached_storage) if more is not None else (cached,)
    made = PriceBook(Rates(max(input_, *hits), cached, output, "2026-12", more), start, source)
    problems: list[str] = []
    text = book_toml("kimi-k2.5", made)
    assert [line for line in text.splitlines() if line.startswith("from")] == (
        [] if start is None else [f"from = {instant_text(start)}"]
    )
    (entry,) = tomllib.loads(text)["price"]
    table = Table(entry, "price[0]", problems)
    assert (table.name("model"), read_book(table)) == ("kimi-k2.5", made)
    table.close()
    assert problems == []
