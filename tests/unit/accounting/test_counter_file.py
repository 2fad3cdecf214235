"""The file of the engines' counters, over restarts of the proxy."""

from collections.abc import Callable
from pathlib import Path

import pytest

from warmroute_proxy.core.accounting.engine_counts import CounterReading, EngineCounts
from warmroute_proxy.server.ledger.counter_file import COUNTERS_FILE, CounterFile, read_spans
from warmroute_proxy.server.ledger.schema import LedgerError
from warmroute_proxy.server.stores.sqlite_store import BUDGETS_FILE, SqliteStore

OLD, NEW = "http://10.0.0.1:30000", "http://10.0.0.2:30000"


def note(folder: Path, *readings: tuple[float, str, int]) -> None:
    """Add readings, each of a time, an address and a count, as a proxy that is started and stopped."""
    file = CounterFile(folder)
    for at_s, url, requests in readings:
        file.note(CounterReading("e", url, "aggregated", at_s, EngineCounts(requests)))
    file.close()


def test_what_another_engine_counted_before_it_got_the_id_is_not_counted(tmp_path: Path) -> None:
    note(tmp_path, (10.0, OLD, 900), (15.0, OLD, 1_000))
    note(tmp_path, (20.0, OLD, 1_010), (25.0, NEW, 50_000), (30.0, NEW, 50_005))
    note(tmp_path, (35.0, OLD, 60_000))
    assert [span.counts.requests for span in read_spans(tmp_path, 0)] == [110, 5, 0]


@pytest.mark.parametrize(
    ("file", "opened"),
    [(COUNTERS_FILE, CounterFile), (BUDGETS_FILE, lambda folder: SqliteStore(folder, "boot", []))],
)
def test_a_damaged_file_is_named(file: str, opened: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(LedgerError, match=f"{file} cannot be used: file is not a database"):
        opened(tmp_path)
