"""Reads price books (rates from a date on) of a [[model]], and of a file for `warmroute prices import`.

input, cached, output               keys of a [[model]] that make a book without a date, which is named `config`
[[model.price]]                     tables that make books with a date and a name
free = true                         makes a book that is named `free`, by which every turn costs nothing
"""

from typing import Any, Final

from warmroute.contract.money import Rates, rate_from_usd_per_mtok
from warmroute.contract.receipt import RATES
from warmroute_proxy.core.accounting.price_books import PriceBook, instant_text
from warmroute_proxy.server.base.config_table import Table, shown

CONFIG_BOOK: Final = "config"
FREE: Final = PriceBook(Rates(0, 0, 0, "free"))
MAX_SOURCE_CHARS: Final = 500
MAX_BOOKS: Final = 1_000
"""The maximum number of price books that one model, or one file, may have."""

_REQUIRED: Final = RATES[:3]
_HOW: Final = (
    "write input, cached and output (USD per million tokens, as text), [[model.price]] with such prices and the date"
    " from which they are in effect, or free = true"
)


def read_model_books(table: Table, model: str, *, is_needed: bool) -> tuple[PriceBook, ...]:
    """The books of a [[model]]. `is_needed`: the table must have one, since there is no database for books."""
    entries = table.tables("price")
    if len(entries) > MAX_BOOKS:
        table.problem("price", f"holds {len(entries)} books; {MAX_BOOKS} are the most")
    has_flat = any(table.has(key) for key in RATES)
    if table.flag("free"):
        if has_flat or entries:
            table.problem("free", "is true, and there are prices: remove one of them")
        return (FREE,)
    books = [PriceBook(_rates(table, CONFIG_BOOK))] if has_flat else []
    books += [read_book(entry) for entry in entries]
    if is_needed and not books:
        table.problem("price", f"is missing: model {shown(model)} has no price; {_HOW}")
    _check_books(table, books, len(entries))
    return tuple(books)


def read_credit_moved(values: Any, problems: list[str]) -> bool:
    """The key `credit_moved` of the table [prices]: whether a turn that placement moves away from the worker that has
    its session's KV gets a credit for the tokens cached there.
    """
    table = Table({} if values is None else values, "prices", problems)
    is_on = table.flag("credit_moved")
    table.close()
    return is_on


def read_book(table: Table) -> PriceBook:
    """One [[model.price]], or one [[price]] of a file. A wrong value becomes a problem of the table."""
    name, from_, source = table.name("name"), table.instant("from"), table.text("source", "")
    if len(source) > MAX_SOURCE_CHARS:
        table.problem("source", f"is {len(source)} characters long; {MAX_SOURCE_CHARS} are the most")
    return PriceBook(_rates(table, name), None if from_ is None else int(from_.timestamp()), source)


def _rates(table: Table, name: str) -> Rates:
    texts: dict[str, str] = {}
    for key in RATES:
        text = table.text(key, None if key in _REQUIRED else "")
        try:
            rate_from_usd_per_mtok(text or "0")
            texts |= {key: text} if text else {}
        except ValueError as error:
            table.problem(key, str(error))
    if not all(key in texts for key in _REQUIRED):
        return Rates(0, 0, 0, name)
    rates = Rates.from_texts(texts, name)
    for key in texts:
        if key.startswith("cached") and rate_from_usd_per_mtok(texts[key]) > rates.input:
            table.problem(key, "is above the input price: a cached token would cost more than an uncached one")
    return rates


def _check_books(table: Table, books: list[PriceBook], entries: int) -> None:
    flat = len(books) - entries
    names: set[str] = {book.name for book in books[:flat]}
    starts: set[float] = {book.starts_s for book in books[:flat]}
    for at, book in enumerate(books[flat:]):
        if book.name and book.name in names:
            table.problem(f"price[{at}].name", f"{shown(book.name)} is the name of another book of this model")
        if book.starts_s in starts:
            table.problem(f"price[{at}].from", _same_start(book))
        names.add(book.name)
        starts.add(book.starts_s)


def _same_start(book: PriceBook) -> str:
    if book.from_s is None:
        return "is missing: another book of this model has no date, and one at most may"
    return f"{instant_text(book.from_s)} is the date of another book of this model"
