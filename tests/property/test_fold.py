"""Whatever stands in the journal and wherever the proxy dies: each turn has one row, and the totals are their sum."""

import sqlite3
import tempfile
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.search import searched
from tests.subjects.entries import ENGINE, opened_entry, settle

from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.core.accounting.entry_steps import dispatch
from warmroute_proxy.server.ledger import fold as module
from warmroute_proxy.server.ledger.fold import Fold
from warmroute_proxy.server.ledger.journal import journal_path, journal_sequences
from warmroute_proxy.server.ledger.ledger import read_rows
from warmroute_proxy.server.ledger.schema import connect

GARBAGE = [
    b"", b"null", b"[]", b"null]", b'"null]', b'{"id":3}', b'["wr-1"]', b"\xff\xfe", b'["wr-1","\xff",null]', b'["wr-1',
    b'{"id":"wr-1","tenant":',
]  # fmt: skip
slots = st.integers(0, 3)
events = st.one_of(
    st.tuples(st.just("begin"), slots, st.booleans()),
    st.tuples(st.sampled_from(["end", "again"]), slots, st.booleans()),
    st.tuples(st.just("torn"), slots, st.integers(1, 600)),
    st.tuples(st.just("garbage"), st.sampled_from(GARBAGE), st.none()),
    st.tuples(st.just("rotate"), st.none(), st.none()),
    st.tuples(st.just("fold"), st.sampled_from([1, 700, 4_000_000]), st.none()),
    st.tuples(st.just("die"), st.sampled_from([1, 700, 4_000_000]), st.integers(0, 8)),
)


class Killed(BaseException):
    """The process is gone."""


class Dying:
    """A connection whose process is killed before its so-many-th statement."""

    def __init__(self, connection: sqlite3.Connection, statements: int) -> None:
        self._connection = connection
        self._left = statements

    def __getattr__(self, name: str) -> Any:
        if name.startswith("execute"):
            if not self._left:
                raise Killed
            self._left -= 1
        return getattr(self._connection, name)

    def __enter__(self) -> Self:
        self._connection.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._connection.__exit__(*error)


class Book:
    """A journal as proxies of this version and of earlier ones write it, and its fold."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.database = folder, folder / "ledger.sqlite"
        self.slots: dict[int, Entry] = {}
        self.entries: dict[str, Entry] = {}
        self.sequence = 1
        self.fold = Fold(folder, self.database)

    def write(self, line: bytes) -> None:
        with journal_path(self.folder, self.sequence).open("ab") as file:
            file.write(line + b"\n")

    def record(self, entry: Entry, named: bool) -> None:
        fields = {name: msgspec.Raw(msgspec.json.encode(getattr(entry, name))) for name in Entry.__struct_fields__}
        self.write(msgspec.json.encode(fields) if named else entry.record())

    def under_way(self, slot: int) -> Entry | None:
        entry = self.slots.get(slot)
        return None if entry is None or entry.ended else entry

    def begin(self, slot: int, named: bool) -> None:
        if self.under_way(slot) is None:
            number = len(self.entries)
            tenant, model = "äcme" if slot % 2 else "other", "м" if slot > 1 else "m"
            entry = self.slots[slot] = opened_entry(id=f"wr-{number}", tenant=tenant, model=model)
            self.entries[entry.id] = entry
            self.again(slot, named)

    def again(self, slot: int, named: bool) -> None:
        entry = self.under_way(slot)
        if entry is not None:
            dispatch(entry, f"rid-{len(entry.rids)}", (ENGINE,), 0)
            self.record(entry, named)

    def end(self, slot: int, named: bool) -> None:
        entry = self.under_way(slot)
        if entry is not None:
            settle(entry)
            self.record(entry, named)

    def torn(self, slot: int, kept: int) -> None:
        if slot in self.slots:
            whole = self.slots[slot].record()
            self.write(whole[: min(kept, len(whole) - 1)] + b"#torn")

    def garbage(self, line: bytes, _: None) -> None:
        self.write(line)

    def rotate(self, _: None, __: None) -> None:
        self.sequence += 1
        journal_path(self.folder, self.sequence).touch()

    def die(self, _: None, statements: int) -> None:
        real = self.fold._db
        self.fold._db = Dying(real, statements)  # type: ignore[assignment]
        try:
            while self.fold.step():
                pass
        except Killed:
            real.rollback()
        real.close()
        self.fold = Fold(self.folder, self.database)

    def play(self, event: tuple[str, Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        what, first, second = event
        if what in {"fold", "die"}:
            monkeypatch.setattr(module, "STEP_BYTES", first)
        if what == "fold":
            self.fold.step()
        else:
            getattr(self, what)(first, second)

    def check(self) -> None:
        rows = {row["id"]: row for row in read_rows(self.database)}
        assert set(rows) == set(self.entries)
        assert len(rows) == len(read_rows(self.database))
        sums: dict[str, list[int]] = {}
        for id_, row in rows.items():
            entry = self.entries[id_]
            assert row["state"] == ("settled" if entry.ended else "interrupted")
            assert row["tenant"] == entry.tenant
            assert row["model"] == entry.model
            assert row["rids"].encode() == msgspec.json.encode(entry.rids)
            if entry.ended:
                assert row["usage"].encode() == bytes(entry.usage)
            of_tenant = sums.setdefault(entry.tenant, [0, 0, 0])
            for place, more in enumerate((1, row["prompt_tokens"], row["price_nanousd"])):
                of_tenant[place] += more
        database = connect(self.database, read_only=True)
        totals = database.execute("SELECT tenant, turns, prompt_tokens, price_nanousd FROM total").fetchall()
        assert {tenant: numbers for tenant, *numbers in totals} == sums
        assert database.execute("SELECT count(*) FROM open_turn").fetchone() == (0,)
        database.close()
        assert journal_sequences(self.folder) == []


def played(history: list[tuple[str, Any, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        book = Book(Path(folder))
        for event in history:
            book.play(event, monkeypatch)
        book.fold.recover(9.0)
        book.fold.close()
        book.check()


@searched(60)
@given(st.lists(events, min_size=10, max_size=60))
def test_every_turn_of_a_journal_is_folded_once(history: list[tuple[str, Any, Any]]) -> None:
    played(history)


@pytest.mark.parametrize("statements", range(9))
def test_a_step_that_is_broken_off_anywhere_is_done_again_as_a_whole(statements: int) -> None:
    """It has to insert a row of a turn that was open and of one that was not, and to open another one."""
    begins = [("begin", 0, False), ("begin", 1, False), ("fold", 4_000_000, None)]
    ends = [("end", 0, False), ("begin", 2, False), ("end", 2, False), ("begin", 3, False), ("rotate", None, None)]
    played([*begins, *ends, ("die", 4_000_000, statements)])
