"""Reads and adds price books in the database. A book has the rates of a model from a date on, and never changes.

Books that are added together are added in one transaction. It first raises the version of prices, so additions wait for
one another, and a reader sees by the version that there are new books.

Each process asks for the version every `directory.polling.POLL_S`, and reads all books if it has changed. While the
database is away, the last books stay in effect, even across a restart, since they are kept in `state_dir`.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from warmroute.contract.money import CacheRates, Rates
from warmroute.contract.receipt import RATES
from warmroute_proxy.core.accounting.price_books import PriceBook, instant_text
from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.files import read_kept, write_kept
from warmroute_proxy.server.stores.directory.changing import next_version
from warmroute_proxy.server.stores.directory.polling import keep_looking
from warmroute_proxy.server.stores.prices import Prices
from warmroute_proxy.server.stores.store_state import Connection
from warmroute_proxy.server.stores.store_thread import StoreThread

PRICES_FILE: Final = "prices.json"

_LOG: Final = logging.getLogger(__name__)

MAX_STORED: Final = 100_000

_COLUMNS: Final = ", ".join(("model", "name", "source", *RATES))
_VERSION: Final = "SELECT version FROM directory_version WHERE kind = 'price'"
_READ: Final = f"""
SELECT {_COLUMNS}, extract(epoch FROM effective_from)::bigint AS from_s FROM price_book
    ORDER BY version, model, effective_from LIMIT {MAX_STORED}
"""
_OF_MODEL: Final = """
SELECT name, extract(epoch FROM effective_from)::bigint AS from_s FROM price_book WHERE model = $1
    ORDER BY effective_from DESC
"""
_ADD: Final = f"""
INSERT INTO price_book (version, added_by, effective_from, {_COLUMNS})
    VALUES ($1, $2, to_timestamp($3), {", ".join(f"${at + 4}" for at in range(len(RATES) + 3))})
"""
_AUDIT: Final = (
    "INSERT INTO audit (who, action, subject, tenant, kind, new) VALUES ($1, 'add', $2, '', 'price', $3::jsonb)"
)


class NotLater(Exception):
    """A new book has the name of a known book, or does not begin after all known books of its model."""


class StoredBook(msgspec.Struct, array_like=True, frozen=True):
    """A book as in the table: its rates in picodollars per token, its date (`from_s`) in unix seconds."""

    model: str
    name: str
    source: str
    from_s: int
    rates: list[int]
    """The rates `input`, `cached`, `output`, then those of `CacheRates` if the book has them."""

    def book(self) -> PriceBook:
        input_, cached, output, *more = self.rates
        rates = Rates(input_, cached, output, self.name, CacheRates(*more) if more else None)
        return PriceBook(rates, self.from_s, self.source)


class NewBook(NamedTuple):
    """A book to add, which must have a date."""

    model: str
    book: PriceBook


async def read_books(connection: Connection, known_version: int) -> tuple[int, list[StoredBook]] | None:
    """The version and all books; None if the version is still `known_version`."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        version = await connection.fetchval(_VERSION)
        if version == known_version:
            return None
        rows = await connection.fetch(_READ)
    return version, [
        StoredBook(
            row["model"], row["name"], row["source"], row["from_s"],
            [row[name] for name in RATES if row[name] is not None],
        )
        for row in rows
    ]  # fmt: skip


async def add_books(connection: Connection, new: Sequence[NewBook], who: str) -> None:
    """Add all books or none. Each must begin after all books of its model. Raises: NotLater."""
    async with connection.transaction():
        version = await next_version(connection, "price")
        for model, book in sorted(new, key=lambda each: (each.model, each.book.starts_s)):
            rates = book.rates
            assert book.from_s is not None
            _check(model, book, [tuple(row) for row in await connection.fetch(_OF_MODEL, model)])
            more = rates.cache_rates or (None,) * len(CacheRates._fields)
            columns = model, book.name, book.source, rates.input, rates.cached, rates.output, *more
            await connection.execute(_ADD, version, who, book.from_s, *columns)
            await connection.execute(_AUDIT, who, f"{model} {book.name}", _shown(book))


def _shown(book: PriceBook) -> str:
    shown = {"from": instant_text(book.from_s or 0), **book.rates.as_usd_per_mtok(), "source": book.source}
    return msgspec.json.encode(shown).decode()


def _check(model: str, book: PriceBook, known: Sequence[tuple[str, int]]) -> None:
    """Check a new book. `known`: names and dates of its model's books, newest first. Raises: NotLater."""
    if any(name == book.name for name, _ in known):
        raise NotLater(f"model {model} has a book {book.name}; a book is never changed: add one with another name")
    if known and book.starts_s <= known[0][1]:
        name, from_s = known[0]
        raise NotLater(
            f"book {book.name} of model {model} must begin after {instant_text(from_s)}, as its book {name} does:"
            " books that are known are never changed, and rows have been settled by them"
        )


def kept_prices(config: Config, clock: Callable[[], float]) -> Prices:
    """The books of a config, and the books last read from its database. `clock`: unix seconds."""
    prices = Prices(config.models, clock)
    if config.database is not None:
        prices.use_stored(read_kept(config.proxy.state_dir / PRICES_FILE, list[StoredBook], []))
    return prices


class StoredPrices:
    """Keeps this process's stored books equal to the database's books. Used in the event loop of requests."""

    def __init__(self, thread: StoreThread, prices: Prices, file: Path) -> None:
        """`file`: the file that keeps the books on disk."""
        self._thread = thread
        self._prices = prices
        self._file = file
        self._version = -1  # so all books are read: those in the file may be from another database
        prices.use_stored(read_kept(file, list[StoredBook], []))

    async def watch(self) -> None:
        await keep_looking(self.look, "the price books")

    async def look(self) -> None:
        """Read all books if any were added. Raises: StoreError, StoreBusy."""
        version = self._version

        async def read(connection: Connection) -> tuple[int, list[StoredBook]] | None:
            return await read_books(connection, version)

        found = await self._thread.ask(read)
        if found is not None:
            self._version, books = found
            self._prices.use_stored(books)
            write_kept(self._file, books)
            _LOG.info("the database has %d price books", len(books))
