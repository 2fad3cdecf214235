"""Old rows leave the ledger file, and their space with them; what is needed stays."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.subjects.entries import opened_entry

from warmroute.contract.money import Rates
from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.core.accounting.entry_steps import interrupt
from warmroute_proxy.server.ledger.fold import Fold
from warmroute_proxy.server.ledger.retention import Pruner, Retention, file_bytes
from warmroute_proxy.server.ledger.schema import connect
from warmroute_proxy.server.ledger.usage_sums import Turns, add_up

DAY_S = 86_400.0
NOW_S = 100 * DAY_S


def ended(id_: str, end_s: float) -> Entry:
    made = opened_entry(id=id_, session="0123456789abcdef", rates=Rates(1, 1, 1), opened_at=end_s)
    interrupt(made, end_s)
    return made


class Book:
    """A ledger file with a turn for each hour of so many days before now."""

    def __init__(self, folder: Path, days: int) -> None:
        self.path = folder / "ledger.sqlite"
        self.folder = folder
        Fold(folder, self.path).close()
        self.db = connect(self.path)
        self.hours = days * 24
        ends = [NOW_S - (self.hours - at) * 3600 for at in range(self.hours)]
        entries = [ended(f"wr-{at:024x}", end) for at, end in enumerate(ends)]
        rows = [(entry.id, entry.record().decode()) for entry in entries]
        with self.db:
            self.db.execute("BEGIN")
            self.db.executemany("INSERT INTO turn_record (id, record) VALUES (?, ?)", rows)

    def prune(self, retention: Retention, confirmed: int | None) -> None:
        pruner = Pruner(self.path, retention, lambda: NOW_S)
        while pruner.step(confirmed):
            pass
        pruner.close()

    def numbers(self) -> list[int]:
        return [number for (number,) in self.db.execute("SELECT rowid FROM turn_record ORDER BY rowid")]


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Book]:
    monkeypatch.setattr("warmroute_proxy.server.ledger.retention.ROWS_AT_ONCE", 10)
    made = Book(tmp_path, days=40)
    yield made
    made.db.close()


def test_rows_that_the_database_has_go_after_some_days(book: Book) -> None:
    book.prune(Retention(days=7), confirmed=book.hours)
    oldest = book.numbers()[0]
    assert book.hours - 7 * 24 - 10 <= oldest <= book.hours - 7 * 24 + 1


def test_rows_that_it_has_not_confirmed_stay_and_the_last_confirmed_one(book: Book) -> None:
    book.prune(Retention(days=7), confirmed=100)
    assert book.numbers() == list(range(100, book.hours + 1))
    book.prune(Retention(days=7, size_bytes=1), confirmed=0)
    assert book.numbers() == list(range(100, book.hours + 1))


def test_without_a_database_the_newest_row_stays_so_that_no_number_is_given_twice(book: Book) -> None:
    book.prune(Retention(size_bytes=1), confirmed=None)
    assert book.numbers() == [book.hours]


def test_without_limits_all_stay(book: Book) -> None:
    book.prune(Retention(), confirmed=None)
    assert len(book.numbers()) == book.hours


def test_the_file_becomes_smaller(book: Book) -> None:
    book.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = file_bytes(book.path)
    book.prune(Retention(days=1), confirmed=None)
    book.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert file_bytes(book.path) < before / 2


def test_sums_over_turns_that_are_gone_say_since_when_they_count(book: Book) -> None:
    book.prune(Retention(days=7), confirmed=None)

    def sums(since_s: float | None) -> tuple[bool, bool]:
        found = add_up(book.folder, book.path, Turns("acme", None, since_s), "day", lambda: False)
        return found.complete, found.counted_since is not None

    assert sums(NOW_S - 5 * DAY_S) == (True, False)
    assert sums(NOW_S - 15 * DAY_S) == sums(None) == (False, True)
