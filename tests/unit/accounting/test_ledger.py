"""What a tenant reads about its turns, while they run, before they are folded and after."""

import asyncio
import contextlib
import json
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.machine import seconds
from tests.subjects import entries
from tests.subjects.entries import dispatched_entry, settle

from warmroute.contract import receipt as contract
from warmroute_proxy.core.accounting import entry_steps
from warmroute_proxy.core.accounting.entry import COLUMNS, Entry
from warmroute_proxy.core.accounting.entry_steps import dispatch
from warmroute_proxy.core.accounting.receipt import ServedBy
from warmroute_proxy.server.ledger import ledger as module
from warmroute_proxy.server.ledger.journal import JournalError, journal_path
from warmroute_proxy.server.ledger.ledger import LEDGER_FILE, Ledger, LedgerError, read_rows
from warmroute_proxy.server.ledger.schema import connect, prepare

REPORTED = {**entries.REPORTED, "ä": "\n\u2028"}


def opened(ledger: Ledger, number: int, tenant: str = "acme") -> Entry:
    entry = dispatched_entry(number, tenant=tenant, session="0123456789abcdef", stream=True, opened_at=1000.0)
    ledger.open(entry)
    return entry


def written(folder: Path) -> bytes:
    """The journal as it stands."""
    return b"".join(path.read_bytes() for path in sorted(folder.glob("journal-*")))


def settled_row(ledger: Ledger, entry: Entry) -> tuple[bytes, JournalError | None]:
    """The usage object, and what was told of the row."""
    told: list[JournalError | None] = []
    text = bytes(settle(entry, REPORTED, settled_at=1001.5, proxy_ms=0.25, ttft_ms=12.0).usage)
    ledger.settle(entry, told.append)
    assert told == []
    ledger.flush()
    (failure,) = told
    return text, failure


def settled(ledger: Ledger, entry: Entry) -> bytes:
    text, failure = settled_row(ledger, entry)
    assert failure is None
    return text


def answer(ledger: Ledger, tenant: str, receipt_id: str) -> Any:
    found = ledger.receipt(tenant, receipt_id)
    return None if found is None else json.loads(msgspec.json.encode(found))


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def manual_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is folded until close."""
    monkeypatch.setattr(module, "FOLD_EVERY_S", 3600.0)


def folded(path: Path, count: int) -> None:
    """Waits until so many rows are there."""
    end = time.monotonic() + seconds(20)
    while len(read_rows(path)) < count:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_row_holds_what_the_client_got(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    ledger = Ledger(tmp_path, "process", loop)
    text = settled(ledger, opened(ledger, 1))
    ledger.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [LEDGER_FILE, "lock"]
    (row,) = read_rows(tmp_path / LEDGER_FILE)
    assert row["usage"].encode() == text
    assert contract.check(json.loads(row["usage"])) == []
    assert json.loads(row["rids"]) == ["rid-1"]
    assert json.loads(row["workers"]) == [{"id": "east-a0", "dp_rank": 0, "role": "aggregated"}]
    del row["usage"], row["rids"], row["workers"]
    assert row == {
        "id": "wr-000000000000000000000001",
        "tenant": "acme",
        "session": "0123456789abcdef",
        "lineage": "00000000000000aa",
        "turn": 1,
        "region": "east",
        "model": "m",
        "route": "chat",
        "stream": 1,
        "state": "settled",
        "outcome": "completed",
        "status": 200,
        "prompt_tokens": 100,
        "cached_tokens": 64,
        "completion_tokens": 10,
        "list_nanousd": 90_000,
        "price_nanousd": 58_000,
        "opened_at": 1000.0,
        "settled_at": 1001.5,
        "proxy_ms": 0.25,
        "ttft_ms": 12.0,
        "forwarded_from": None,
        "predicted_cached": 64,
    }


@pytest.mark.usefixtures("manual_fold")
def test_a_receipt_is_open_then_settled_and_the_tenants_own(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    ledger = Ledger(tmp_path, "process", loop)
    entry = opened(ledger, 1)
    assert answer(ledger, "acme", entry.id) == {"state": "open"}
    assert answer(ledger, "other", entry.id) is None
    text = settled(ledger, entry)
    before = answer(ledger, "acme", entry.id)
    assert before["usage"] == json.loads(text)
    assert (before["object"], before["state"], before["opened_at"]) == ("warmroute.receipt", "settled", 1000.0)
    assert answer(ledger, "other", entry.id) is None
    assert answer(ledger, "acme", "wr-unknown") is None
    ledger.close()
    again = Ledger(tmp_path, "process", loop)
    assert answer(again, "acme", entry.id) == before
    assert answer(again, "other", entry.id) is None
    again.close()


def test_folding_goes_on_by_itself_and_forgets_what_it_folded(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FOLD_EVERY_S", 0.01)
    ledger = Ledger(tmp_path, "process", loop)
    waiting = opened(ledger, 0)
    for number in range(1, 501):
        settled(ledger, opened(ledger, number))
    folded(tmp_path / LEDGER_FILE, 500)
    assert answer(ledger, "acme", waiting.id) == {"state": "open"}
    assert answer(ledger, "acme", "wr-000000000000000000000007")["state"] == "settled"
    settled(ledger, waiting)
    folded(tmp_path / LEDGER_FILE, 501)
    ledger.close()
    assert ledger._under_way == {}


def test_totals_are_current_and_survive_a_restart(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    ledger = Ledger(tmp_path, "process", loop)
    assert ledger.totals("acme")["hit_ratio"] is None
    for number in range(3):
        settled(ledger, opened(ledger, number))
    settled(ledger, opened(ledger, 3, "other"))
    expected = {
        "object": "warmroute.usage",
        "turns": 3,
        "prompt_tokens": 300,
        "cached_tokens": 192,
        "completion_tokens": 30,
        "hit_ratio": 0.64,
        "list_nanousd": 270_000,
        "price_nanousd": 174_000,
        "saved_nanousd": 96_000,
    }
    assert ledger.totals("acme") == expected
    ledger.close()
    again = Ledger(tmp_path, "process", loop)
    assert again.totals("acme") == expected
    again.close()


def test_what_is_open_at_close_is_interrupted_and_free(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    ledger = Ledger(tmp_path, "process", loop)
    entry = opened(ledger, 1)
    dispatch(entry, "rid-1b", (ServedBy("east-a1", 0, "aggregated"),), 0)
    ledger.open(entry)
    ledger.close()
    (row,) = read_rows(tmp_path / LEDGER_FILE)
    assert (row["state"], row["outcome"], row["price_nanousd"], row["status"]) == ("interrupted", "interrupted", 0, 0)
    assert json.loads(row["rids"]) == ["rid-1", "rid-1b"]
    assert contract.check(json.loads(row["usage"])) == []


def test_what_is_kept_of_turns_is_nobody_elses_to_read(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    ledger = Ledger(tmp_path, "process", loop)
    settled(ledger, opened(ledger, 1))
    folded(tmp_path / LEDGER_FILE, 1)
    files = {path.name: path.stat().st_mode & 0o077 for path in tmp_path.iterdir() if path.is_file()}
    ledger.close()
    assert {LEDGER_FILE, f"{LEDGER_FILE}-wal"} < set(files)
    assert not any(files.values()), files


@pytest.mark.usefixtures("manual_fold")
def test_a_database_that_takes_no_rows_is_named_and_costs_none(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    ledger = Ledger(tmp_path, "process", loop)
    settled(ledger, opened(ledger, 1))
    with sqlite3.connect(tmp_path / LEDGER_FILE) as other:
        other.execute("CREATE TRIGGER t BEFORE INSERT ON turn_record BEGIN SELECT RAISE(ABORT, 'no room'); END")
    refused = re.escape(f"the ledger in {tmp_path} cannot be written: no room")
    with pytest.raises(LedgerError, match=refused):
        ledger.close()
    with pytest.raises(LedgerError, match=refused):
        Ledger(tmp_path, "process", loop)
    other.execute("DROP TRIGGER t")
    other.close()
    Ledger(tmp_path, "process", loop).close()
    assert [row["outcome"] for row in read_rows(tmp_path / LEDGER_FILE)] == ["completed"]


def test_two_proxies_cannot_share_a_folder(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    ledger = Ledger(tmp_path, "process", loop)
    with pytest.raises(LedgerError, match=r"in use by another proxy \(pid \d+\)"):
        Ledger(tmp_path, "process", loop)
    ledger.close()
    Ledger(tmp_path, "process", loop).close()


@pytest.mark.usefixtures("manual_fold")
def test_what_is_dispatched_is_on_record_before_anything_else_happens(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    """Bytes for an engine may leave before the loop's turn ends; who is killed then has asked the engine."""
    ledger = Ledger(tmp_path, "process", loop)
    first = opened(ledger, 1)
    assert b"wr-%024x" % 1 in written(tmp_path)
    told: list[JournalError | None] = []
    settle(first, settled_at=1001.5)
    ledger.settle(first, told.append)
    opened(ledger, 2)
    assert b"wr-%024x" % 2 in written(tmp_path)
    assert told == [], "an end is told of at the end of the loop's turn"
    ledger.flush()
    assert told == [None]
    ledger.close()


@pytest.mark.usefixtures("manual_fold")
def test_a_settle_that_cannot_be_written_is_not_durable_and_not_lost_silently(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path, "process", loop)
    entry = opened(ledger, 1)

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.write", full)
        _, failure = settled_row(ledger, entry)
    assert isinstance(failure, JournalError)
    assert ledger.totals("acme")["turns"] == 0
    ledger.close()
    (row,) = read_rows(tmp_path / LEDGER_FILE)
    assert row["state"] == "interrupted"


@pytest.mark.usefixtures("manual_fold")
def test_torn_and_foreign_lines_are_skipped(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    ledger = Ledger(tmp_path, "process", loop)
    settled(ledger, opened(ledger, 1))
    (path,) = tmp_path.glob("journal-*")
    with path.open("ab") as file:
        file.write(b'\n{"id":"wr-1","tenant":\nnull\n[]\n{"id":3}\n\xff\xfe\n')
    settled(ledger, opened(ledger, 2))
    with path.open("ab") as file:
        file.write(b'{"id":"wr-torn"')
    ledger.close()
    assert [row["id"][-1] for row in read_rows(tmp_path / LEDGER_FILE)] == ["1", "2"]


def test_a_lost_database_is_rebuilt_from_the_journal_that_is_left(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    ledger = Ledger(tmp_path, "process", loop)
    settled(ledger, opened(ledger, 1))
    lines = next(iter(tmp_path.glob("journal-*"))).read_bytes()
    ledger.close()
    (tmp_path / LEDGER_FILE).unlink()
    journal_path(tmp_path, 9).write_bytes(lines)
    Ledger(tmp_path, "process", loop).close()
    assert len(read_rows(tmp_path / LEDGER_FILE)) == 1


def test_a_ledger_of_another_version_is_left_alone(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    database = sqlite3.connect(tmp_path / LEDGER_FILE)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(LedgerError, match=r"schema version 99.*a newer warmroute has written it"):
        Ledger(tmp_path, "process", loop)


def test_a_file_that_is_no_database(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    (tmp_path / LEDGER_FILE).write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(LedgerError, match="cannot use"):
        Ledger(tmp_path, "process", loop)


def test_a_ledger_of_the_schema_before_is_taken_over(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    columns = "id, tenant, session, lineage, turn, region, model, route, stream, state, outcome, status, rids, workers"
    columns += ", prompt_tokens, cached_tokens, completion_tokens, usage, list_nanousd, price_nanousd, opened_at"
    columns += ", settled_at, proxy_ms, ttft_ms, forwarded_from, predicted_cached"
    database = sqlite3.connect(tmp_path / LEDGER_FILE)
    database.executescript(
        f"""CREATE TABLE turn ({columns}, PRIMARY KEY (id));
        CREATE INDEX turn_tenant ON turn (tenant);
        CREATE TABLE open_turn (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, record TEXT NOT NULL);
        CREATE TABLE fold (one INT PRIMARY KEY, sequence INT NOT NULL, offset INT NOT NULL, skipped INT NOT NULL);
        INSERT INTO fold VALUES (1, 1, 0, 0);
        PRAGMA user_version = 1;"""
    )
    values: list[Any] = ["wr-1", "acme", None, "aa", 1, "east", "m", "chat", 0, "settled", "completed", 200]
    values += ['["rid-1"]', "[]", 100, 64, 10, '{"cost":1}', 90_000, 58_000, 1000.0, 1001.5, 0.25, None, None, 64]
    database.execute(f"INSERT INTO turn VALUES ({', '.join('?' * len(values))})", values)
    database.commit()
    database.close()
    ledger = Ledger(tmp_path, "process", loop)
    assert ledger.totals("acme")["price_nanousd"] == 58_000
    assert answer(ledger, "acme", "wr-1")["usage"] == {"cost": 1}
    ledger.close()
    (row,) = read_rows(tmp_path / LEDGER_FILE)
    assert row == dict(zip(columns.split(", "), values, strict=True))


def named(entry: Entry) -> str:
    """Its record as it was written before version 4."""
    record = {name: msgspec.Raw(msgspec.json.encode(getattr(entry, name))) for name in Entry.__struct_fields__}
    return msgspec.json.encode(record).decode()


def made(number: int, *, ends: bool) -> Entry:
    """An entry as a proxy of whatever version makes it."""
    entry = dispatched_entry(number, opened_at=1795283949.0925705)
    return settle(entry, REPORTED, settled_at=1795283950.1234567, proxy_ms=0.25) if ends else entry


def test_a_ledger_whose_records_have_names_is_taken_over_with_its_journal(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    """One row is folded; a turn is open in SQLite and ended in the journal, another one only open in each."""
    columns = ", ".join(f"json_extract(record, '$.{name}') AS {name}" for name in Entry.__struct_fields__)
    database = sqlite3.connect(tmp_path / LEDGER_FILE)
    database.executescript(
        f"""CREATE TABLE turn_record (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, record TEXT NOT NULL);
        CREATE VIEW turn AS SELECT rowid AS number, {columns} FROM turn_record;
        CREATE TABLE total (tenant TEXT PRIMARY KEY, turns INT NOT NULL, prompt_tokens INT NOT NULL,
            cached_tokens INT NOT NULL, completion_tokens INT NOT NULL, list_nanousd INT NOT NULL,
            price_nanousd INT NOT NULL);
        CREATE TABLE open_turn (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, record TEXT NOT NULL,
            process INT NOT NULL DEFAULT 0);
        CREATE TABLE fold (process INT PRIMARY KEY, sequence INT NOT NULL, offset INT NOT NULL, skipped INT NOT NULL);
        INSERT INTO total VALUES ('acme', 1, 100, 64, 10, 90000, 58000);
        INSERT INTO fold VALUES (0, 5, 0, 0);
        PRAGMA user_version = 3;"""
    )
    folded_row = made(1, ends=True)
    database.execute("INSERT INTO turn_record VALUES (?, 'acme', ?)", (folded_row.id, named(folded_row)))
    for number in (2, 3):
        entry = made(number, ends=False)
        database.execute("INSERT INTO open_turn VALUES (?, 'acme', ?, 0)", (entry.id, named(entry)))
    database.commit()
    database.close()
    in_journal = [made(2, ends=True), made(4, ends=False), made(5, ends=False), made(5, ends=True)]
    journal_path(tmp_path, 5).write_text("".join(named(entry) + "\n" for entry in in_journal))

    ledger = Ledger(tmp_path, "process", loop)
    assert ledger.totals("acme")["turns"] == 5
    assert ledger.totals("acme")["price_nanousd"] == 3 * 58_000
    settled(ledger, opened(ledger, 6))
    ledger.close()
    rows = {int(row["id"].removeprefix("wr-"), 16): row for row in read_rows(tmp_path / LEDGER_FILE)}
    assert {number: row["state"] for number, row in rows.items()} == {
        1: "settled", 2: "settled", 3: "interrupted", 4: "interrupted", 5: "settled", 6: "settled",
    }  # fmt: skip
    for number in (1, 2, 5):
        expected = made(number, ends=True)
        for name in COLUMNS:
            value = getattr(expected, name)
            if name in {"rids", "workers", "usage"}:
                assert rows[number][name].encode() == msgspec.json.encode(value)
            else:
                assert rows[number][name] == value, name


def test_a_row_is_voided_once_by_a_row_that_names_it(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    ledger = Ledger(tmp_path, "process", loop)
    done: list[JournalError | None] = []
    entry = opened(ledger, 1)
    assert ledger.void("acme", entry.id, done.append) == "open"
    settled(ledger, entry)
    settled(ledger, opened(ledger, 2))
    assert ledger.void("umbrella", entry.id, done.append) == "unknown"
    assert ledger.void("acme", "wr-000000000000000000000009", done.append) == "unknown"
    assert ledger.void("acme", entry.id, done.append) == "voided"
    ledger.flush()
    assert done == [None]
    assert ledger.void("acme", entry.id, done.append) == "free"
    totals = ledger.totals("acme")
    assert (totals["turns"], totals["prompt_tokens"], totals["price_nanousd"]) == (1, 100, 58_000)
    folded(tmp_path / LEDGER_FILE, 3)
    assert ledger.void("acme", entry.id, done.append) == "free"
    assert ledger.totals("acme") == totals
    assert answer(ledger, "acme", entry.id)["voided_by"] == f"{entry.id}-void"
    assert "voided_by" not in answer(ledger, "acme", "wr-000000000000000000000002")
    ledger.close()
    row = read_rows(tmp_path / LEDGER_FILE)[-1]
    assert (row["id"], row["outcome"], row["price_nanousd"]) == (f"{entry.id}-void", "voided", -58_000)
    assert json.loads(row["usage"])["warmroute"]["voids"] == entry.id


def test_two_processes_that_void_one_row_at_once_count_as_one(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, manual_fold: None
) -> None:
    ledger = Ledger(tmp_path, "process", loop)
    entry = opened(ledger, 1)
    settled(ledger, entry)
    ledger.close()
    again = Ledger(tmp_path, "process", loop)
    assert again.void("acme", entry.id, lambda _: None) == "voided"
    again.close()
    with journal_path(tmp_path, 99).open("wb") as journal:  # as another process' journal would have it
        journal.write(entry_steps.voiding(entry, 1002.0).record() + b"\n")
    last = Ledger(tmp_path, "process", loop)
    assert last.totals("acme")["price_nanousd"] == 0
    assert last.totals("acme")["turns"] == 0
    last.close()
    assert [row["outcome"] for row in read_rows(tmp_path / LEDGER_FILE)] == ["completed", "voided"]


def test_rows_of_before_price_books_are_read_with_those_after(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    before, open_before = (json.loads(made(number, ends=number == 1).record()) for number in (1, 2))
    before[9], open_before[9] = before[9][:3], open_before[9][:3]  # the rates, which had no more members
    after = made(3, ends=True)
    after.rates = after.rates._replace(price_book="2026-12")
    file = tmp_path / LEDGER_FILE
    with contextlib.closing(sqlite3.connect(file)) as database:
        prepare(database, file)
        database.executescript(
            """DROP VIEW turn; CREATE VIEW turn AS SELECT 1;
            ALTER TABLE turn_record DROP COLUMN start; ALTER TABLE fold DROP COLUMN start;
            PRAGMA user_version = 4;"""
        )
        database.execute("INSERT INTO turn_record VALUES (?, ?)", (before[0], json.dumps(before)))
        database.commit()
    journal_path(tmp_path, 1).write_text(f"{json.dumps(open_before)}\n{after.record().decode()}\n")
    Ledger(tmp_path, "process", loop).close()
    with contextlib.closing(sqlite3.connect(file)) as database:
        found = database.execute("SELECT state, price_book FROM turn ORDER BY number").fetchall()
    assert found == [("settled", None), ("settled", "2026-12"), ("interrupted", "")]


def test_a_new_file_is_opened_by_several_processes_at_once(tmp_path: Path) -> None:
    """SQLite said "database is locked" to 11 of 1,200, and the proxy did not start."""
    failed: list[Exception] = []

    def open_it(path: Path, together: threading.Barrier) -> None:
        together.wait()
        try:
            connect(path).close()
        except Exception as error:
            failed.append(error)

    for number in range(150):
        together = threading.Barrier(4)
        openers = [threading.Thread(target=open_it, args=(tmp_path / f"{number}.sqlite", together)) for _ in range(4)]
        for each in openers:
            each.start()
        for each in openers:
            each.join()
    assert failed == []
