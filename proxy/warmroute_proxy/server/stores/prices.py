"""The price books in effect here: those of the config, and those of the database where there is one.

Requests ask one object, `Prices`, whose books are replaced whole. A request keeps the rates that its row began with.

A process asks the database as often as `directory.polling` whether there is another book, and reads all of them where
there is. While the database is away the books that were read last are in effect, also over a restart: they are kept in
`state_dir`.
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from warmroute.contract.money import Rates
from warmroute_proxy.core.accounting.price_books import PriceBook, PriceBooks
from warmroute_proxy.server.base.config import Config, ModelConfig
from warmroute_proxy.server.base.config_prices import instant_text
from warmroute_proxy.server.base.files import read_kept, write_kept
from warmroute_proxy.server.stores.directory.polling import keep_looking
from warmroute_proxy.server.stores.price_table import StoredBook, read_books
from warmroute_proxy.server.stores.store_state import Connection
from warmroute_proxy.server.stores.store_thread import StoreThread

PRICES_FILE: Final = "prices.json"

_HOW: Final = "write its prices at the [[model]], add them with `warmroute prices add`, or set free = true"
_LOG: Final = logging.getLogger(__name__)


class Prices:
    """What requests ask."""

    def __init__(
        self, models: Iterable[ModelConfig], clock: Callable[[], float], *, credit_moved: bool = False
    ) -> None:
        """`clock`: unix seconds."""
        self._clock = clock
        self._of_config: dict[str, tuple[PriceBook, ...]] = {}
        self._stored: dict[str, list[PriceBook]] = {}
        self._books = PriceBooks()
        self.credit_moved = credit_moved
        self.use_models(models)

    def use_models(self, models: Iterable[ModelConfig]) -> None:
        """Use the books of another config, beside those of the database. Those of a model that is gone are kept for
        the requests that have it still.
        """
        self._of_config |= {model.name: model.books for model in models}
        self._replace()

    def use_stored(self, stored: Iterable[StoredBook]) -> None:
        """Use other books of the database, beside those of the config."""
        found: dict[str, list[PriceBook]] = {}
        for each in stored:
            found.setdefault(each.model, []).append(each.book())
        self._stored = found
        self._replace()

    def rates(self, model: str, opened_s: float) -> Rates:
        """The rates that settle a turn of a model that was opened then, unix seconds."""
        return self._books.settling(model, opened_s).rates

    def now(self, model: str) -> PriceBook:
        """The book of a model that is in effect now."""
        return self._books.settling(model, self._clock())

    def problems(self, models: Iterable[ModelConfig]) -> list[str]:
        """The models that would have no book in effect now, each with what to do."""
        asked = tuple(models)
        now_s, books = self._clock(), PriceBooks({model.name: model.books for model in asked}, self._stored)
        return [
            f"model {model.name}: has no price{_first(books.of(model.name))}; {_HOW}"
            for model in asked
            if books.in_effect(model.name, now_s) is None
        ]

    def _replace(self) -> None:
        self._books = PriceBooks(self._of_config, self._stored)


def kept_prices(config: Config, clock: Callable[[], float]) -> Prices:
    """The books of a config, and those that its processes have read of the database last. `clock`: unix seconds."""
    prices = Prices(config.models, clock)
    if config.database is not None:
        prices.use_stored(read_kept(config.proxy.state_dir / PRICES_FILE, list[StoredBook], []))
    return prices


def _first(newest_first: tuple[PriceBook, ...]) -> str:
    if not newest_first or (first := newest_first[-1]).from_s is None:
        return ""
    return f" before {instant_text(first.from_s)}, when its book {first.name} begins"


class StoredPrices:
    """Keeps the books of this process as the database has them. Used in the event loop of requests."""

    def __init__(self, thread: StoreThread, prices: Prices, file: Path) -> None:
        """`file`: where what was read is kept."""
        self._thread = thread
        self._prices = prices
        self._file = file
        self._version = -1  # what is in the file may be of another database
        prices.use_stored(read_kept(file, list[StoredBook], []))

    async def watch(self) -> None:
        """Look for further books until it is cancelled."""
        await keep_looking(self.look, "the price books")

    async def look(self) -> None:
        """Read the books if there is another one. Raises: StoreError, StoreBusy."""
        version = self._version

        async def read(connection: Connection) -> tuple[int, list[StoredBook]] | None:
            return await read_books(connection, version)

        found = await self._thread.ask(read)
        if found is not None:
            self._version, books = found
            self._prices.use_stored(books)
            write_kept(self._file, books)
            _LOG.info("the database has %d price books", len(books))
