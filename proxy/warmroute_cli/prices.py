"""Lists price books (a model's rates from a date on), or adds books to the database."""

import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from warmroute.contract.receipt import RATES
from warmroute.files.documents import toml_in
from warmroute.files.given import UnreadableFile
from warmroute_backend.plan.tables import table
from warmroute_cli.installed import missing
from warmroute_cli.ledger import NEEDED, operator_name
from warmroute_cli.usage import print_rows
from warmroute_proxy.core.accounting.price_books import PriceBook, PriceBooks, instant_text
from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.config_file import ConfigError, load_config
from warmroute_proxy.server.base.config_prices import MAX_BOOKS, read_book
from warmroute_proxy.server.base.config_table import Table
from warmroute_proxy.server.base.secrets import SecretError, load_dsn

CALL_S: Final = 10.0
MAX_FILE_BYTES: Final = 4_194_304
_HEADS: Final = ("model", "book", "from (UTC)", "input", "cached", "output", "in effect", "source")


class NotDone(Exception):
    """The command cannot be carried out."""


def run(arguments: Namespace) -> int:
    """Run the action. Exit status 0: done, 2: not done."""
    from warmroute_proxy.server.stores.price_table import NotLater
    from warmroute_proxy.server.stores.store_state import StoreError

    try:
        config = load_config(arguments.config)
        if config.database is not None and (hint := missing(NEEDED, "postgres")):
            raise NotDone(hint)
        if arguments.action == "list":
            _list(arguments, config)
        else:
            _add(arguments, config)
    except (ConfigError, SecretError, StoreError, NotLater, NotDone) as error:
        print(f"warmroute prices: {error}", file=sys.stderr)
        return 2
    return 0


def _list(arguments: Namespace, config: Config) -> None:
    stored: dict[str, list[PriceBook]] = {}
    if config.database is not None:
        from warmroute_proxy.server.stores.database import ask_once
        from warmroute_proxy.server.stores.price_table import read_books

        dsn = load_dsn(config.database.dsn_file)
        found = ask_once(dsn, lambda connection: read_books(connection, known_version=-1), CALL_S)
        for each in found[1] if found is not None else []:
            stored.setdefault(each.model, []).append(each.book())
    books = PriceBooks({model.name: model.books for model in config.models}, stored)
    names = [model.name for model in config.models]
    names += sorted(set(stored) - set(names))
    chosen = [name for name in names if arguments.model in (None, name)]
    if arguments.toml:
        print("\n".join(book_toml(name, book) for name in chosen for book in reversed(books.of(name))), end="")
        return
    now_s = time.time()
    rows = [
        _row(name, book, in_effect=book is books.in_effect(name, now_s)) for name in chosen for book in books.of(name)
    ]
    print_rows(_HEADS, rows)


def book_toml(model: str, book: PriceBook) -> str:
    """A book as a TOML table `[[price]]`, in the form that `warmroute prices import` reads."""
    head = "[[price]]" if book.from_s is None else f"[[price]]\nfrom = {instant_text(book.from_s)}"
    values = {"model": model, "name": book.name, **book.rates.as_usd_per_mtok(), "source": book.source or None}
    return table(head, values)


def _row(model: str, book: PriceBook, *, in_effect: bool) -> Sequence[str]:
    rates = book.rates.as_usd_per_mtok()
    from_ = "always" if book.from_s is None else instant_text(book.from_s)
    basic = [rates[name] for name in RATES[:3]]
    return (model, book.name, from_, *basic, "yes" if in_effect else "", book.source)


def _add(arguments: Namespace, config: Config) -> None:
    if config.database is None:
        raise NotDone(
            f"{arguments.config} names no database for further books: set dsn_file in [ledger],"
            " or write them as [[model.price]] in the config"
        )
    from warmroute_proxy.server.stores.database import ask_once
    from warmroute_proxy.server.stores.price_table import NewBook, add_books

    problems: list[str] = []
    source, entries = _entries(arguments, problems)
    tables = [Table(values, f"price[{at}]", problems) for at, values in enumerate(entries)]
    new = []
    for each in tables:
        new.append(NewBook(_model_of(each, config), read_book(each)))
        if not each.has("from"):
            each.problem("from", "is missing: from when on the book is in effect, such as 2026-12-01T00:00:00Z")
        each.close()
    if problems:
        raise ConfigError(source, problems)
    dsn, who = load_dsn(config.database.dsn_file), operator_name()
    ask_once(dsn, lambda connection: add_books(connection, new, who), CALL_S)
    for model, book in new:
        print(f"added book {book.name} of {model}, in effect from {instant_text(book.from_s or 0)}")


def _model_of(table: Table, config: Config) -> str:
    model = table.name("model")
    known = [each.name for each in config.models]
    if model and model not in known:
        table.problem("model", f"{model} is the name of no [[model]] of the config")
    return model


def _entries(arguments: Namespace, problems: list[str]) -> tuple[str, list[Any]]:
    """The place of the books (a file or the command line), for error messages, and one table for each book."""
    if arguments.action == "add":
        values = {"model": arguments.model, "name": arguments.name, "source": arguments.source}
        values["from"] = arguments.from_ or datetime.now(UTC).replace(microsecond=0)
        given = vars(arguments)
        return "the command line", [values | {key: given[key] for key in RATES if given[key] is not None}]
    try:
        document = toml_in(arguments.file, MAX_FILE_BYTES)
    except UnreadableFile as error:
        raise NotDone(str(error)) from None
    found = document.get("price")
    if not isinstance(found, list) or not found or len(document) > 1 or len(found) > MAX_BOOKS:
        problems.append(f"price: the file must hold 1 to {MAX_BOOKS} tables [[price]], and nothing else")
        return str(arguments.file), []
    return str(arguments.file), found
