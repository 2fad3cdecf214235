"""Keeps price books (the prices of a model from a date on), and chooses the book that is in effect.

A book is never changed: new prices are another book with a later date. A turn is priced by the book in effect when its
ledger row is opened (`opened_at`): the book with the latest date that is not after that time. The row keeps the rates
and the name of its book, so a later book does not alter earlier prices. A model has at most one book without a date,
which is older than all others.

If a clock has gone back to a time before all books of a model, the model's first book is in effect: a wrong clock never
makes a turn free.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from warmroute.contract.money import Rates
from warmroute_proxy.core.base.compiled import Frozen

_ALWAYS: Final = float("-inf")


def instant_text(unix_s: int) -> str:
    """A time as RFC 3339 in UTC."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat().replace("+00:00", "Z")


class PriceBook(Frozen, frozen=True):
    """The rates of one model from a date on. `from_s`: the date in unix seconds, None for a book without a date.
    `source`: where the prices come from, as a text or an address.
    """

    rates: Rates
    from_s: int | None = None
    source: str = ""

    @property
    def name(self) -> str:
        """The name of the book, unique among those of its model."""
        return self.rates.price_book

    @property
    def starts_s(self) -> float:
        """When the book takes effect, in unix seconds."""
        return _ALWAYS if self.from_s is None else self.from_s


class PriceBooks:
    """The books of all models. A `PriceBooks` object is never changed, only replaced."""

    def __init__(self, *books: Mapping[str, Iterable[PriceBook]]) -> None:
        """`books`: mappings from models to books. If two books of a model have one date, that of the later mapping is
        used.
        """
        found: dict[str, dict[float, PriceBook]] = {}
        for each in books:
            for model, of_model in each.items():
                found.setdefault(model, {}).update({book.starts_s: book for book in of_model})
        self._newest_first = {
            model: tuple(by_start[start_s] for start_s in sorted(by_start, reverse=True))
            for model, by_start in found.items()
        }

    def of(self, model: str) -> tuple[PriceBook, ...]:
        return self._newest_first.get(model, ())

    def in_effect(self, model: str, now_s: float) -> PriceBook | None:
        """The book of a model in effect at `now_s` (unix seconds); None if all books of the model begin later."""
        for book in self.of(model):
            if book.starts_s <= now_s:
                return book
        return None

    def settling(self, model: str, opened_s: float) -> PriceBook:
        """The book that prices a turn opened at `opened_s`. Raises LookupError for a model without any book."""
        books = self._newest_first.get(model)
        if not books:
            raise LookupError(f"model {model} has no price book")
        for book in books:
            if book.from_s is None or book.from_s <= opened_s:
                return book
        return books[-1]
