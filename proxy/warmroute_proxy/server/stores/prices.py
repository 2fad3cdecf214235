"""Keeps the price books in effect in this process: those of the config and, if it names one, those of the database.

Requests read one object, `Prices`, whose books are replaced all at once. A request keeps the rates that were in effect
when its ledger row was opened.
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from warmroute.contract.money import Rates
from warmroute_proxy.core.accounting.price_books import PriceBook, PriceBooks, instant_text
from warmroute_proxy.server.base.config import ModelConfig

_HOW: Final = "write its prices at the [[model]], add them with `warmroute prices add`, or set free = true"


class Stored(Protocol):
    @property
    def model(self) -> str: ...
    def book(self) -> PriceBook: ...


class Prices:
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
        """Use the books of another config, in addition to those of the database. The books of a removed model are kept
        for requests that still use the model.
        """
        self._of_config |= {model.name: model.books for model in models}
        self._replace()

    def use_stored(self, stored: Iterable[Stored]) -> None:
        """Use other books of the database, in addition to those of the config."""
        found: dict[str, list[PriceBook]] = {}
        for each in stored:
            found.setdefault(each.model, []).append(each.book())
        self._stored = found
        self._replace()

    def rates(self, model: str, opened_s: float) -> Rates:
        """The rates for a turn of a model. `opened_s`: when the turn was opened, in unix seconds."""
        return self._books.settling(model, opened_s).rates

    def now(self, model: str) -> PriceBook:
        """The book for a turn of `model` if the turn is opened now."""
        return self._books.settling(model, self._clock())

    def problems(self, models: Iterable[ModelConfig]) -> list[str]:
        """One line for each of `models` without a book in effect now, with what is missing and what to do."""
        asked = tuple(models)
        now_s, books = self._clock(), PriceBooks({model.name: model.books for model in asked}, self._stored)
        return [
            f"model {model.name}: has no price{_first(books.of(model.name))}; {_HOW}"
            for model in asked
            if books.in_effect(model.name, now_s) is None
        ]

    def _replace(self) -> None:
        self._books = PriceBooks(self._of_config, self._stored)


def _first(newest_first: tuple[PriceBook, ...]) -> str:
    if not newest_first or (first := newest_first[-1]).from_s is None:
        return ""
    return f" before {instant_text(first.from_s)}, when its book {first.name} begins"
