"""A disk that is full now and then, at any byte: every turn has one row, and it says what was told of the turn."""

import asyncio
import os
import tempfile
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from tests.search import searched
from tests.subjects.entries import opened_entry, settle

from warmroute.contract.money import Rates
from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.core.accounting.entry_steps import dispatch, interrupt
from warmroute_proxy.server.ledger import ledger as module
from warmroute_proxy.server.ledger.journal import JournalError
from warmroute_proxy.server.ledger.ledger import LEDGER_FILE, Ledger, read_rows

REPORTED = {"prompt_tokens": 100, "completion_tokens": 10}
RECORD_BYTES = 400  # and more


class Disk:
    """Has room for so many bytes. A mock of `os.write`, for its boundaries; the proxy's tests fill a real file."""

    def __init__(self) -> None:
        self.room = 1 << 40

    def write(self, fd: int, data: bytes) -> int:
        if not self.room:
            raise OSError(28, "No space left on device")
        some = data[: self.room]
        self.room -= len(some)
        return self._real(fd, some)

    _real: Callable[[int, bytes], int] = staticmethod(os.write)


def opened(ledger: Ledger, number: int) -> Entry | None:
    entry = opened_entry(number, rates=Rates(600_000, 1, 1))
    entry.rids = []
    dispatch(entry, f"rid-{number}", (), 0)
    try:
        ledger.open(entry)
    except JournalError:
        return None
    return entry


Step = str | int
STEPS: st.SearchStrategy[list[list[Step]]] = st.lists(
    st.one_of(
        st.sampled_from([["open"], ["open"], ["settle"], ["crash"], ["flush"], ["sweep"], ["look"], [1 << 40]]),
        st.integers(0, 3 * RECORD_BYTES).map(lambda room: ["open", "open", room, "settle", "settle", "flush"]),
        st.integers(0, 3 * RECORD_BYTES).map(lambda room: [room]),
    ),
    max_size=12,
)


@searched(30)
@given(STEPS)
def test_each_turn_has_one_row_that_says_what_was_told(groups: list[list[Step]]) -> None:
    loop, disk = asyncio.new_event_loop(), Disk()
    told: dict[str, JournalError | None] = {}
    crashed: set[str] = set()
    with (
        tempfile.TemporaryDirectory() as name,
        patch.object(module, "FOLD_EVERY_S", 3600.0),
        patch("os.write", disk.write),
    ):
        ledger, under_way, number = Ledger(Path(name), "process", loop), [], 0
        for step in chain.from_iterable(groups):
            if isinstance(step, int):
                disk.room = step
            elif step == "open":
                number += 1
                entry = opened(ledger, number)
                under_way += [entry] if entry is not None else []
            elif step in {"settle", "crash"} and under_way:
                entry = under_way.pop(0)
                if step == "crash":
                    crashed.add(entry.id)
                end(ledger, entry, told, crash=step == "crash")
            elif step == "flush":
                ledger.flush()
            elif step == "sweep":
                ledger.sweep()
            elif step == "look" and ledger.healthy:
                assert ledger.waiting == 0, "who waits comes first"
        ledger.flush()
        disk.room = 1 << 40
        assert ledger.healthy
        totals = ledger.totals("acme")
        ledger.close()
        rows = {row["id"]: row for row in read_rows(Path(name) / LEDGER_FILE)}
    loop.close()
    assert set(told) | {entry.id for entry in under_way} == set(rows)
    for id_, failure in told.items():
        assert rows[id_]["outcome"] == ("completed" if failure is None and id_ not in crashed else "interrupted")
    assert totals["turns"] == len(told)
    assert totals["price_nanousd"] == sum(row["price_nanousd"] for row in rows.values())
    assert sum(row["price_nanousd"] > 0 for row in rows.values()) == sum(
        failure is None and id_ not in crashed for id_, failure in told.items()
    )


def end(ledger: Ledger, entry: Entry, told: dict[str, JournalError | None], *, crash: bool) -> None:
    if crash:
        interrupt(entry, 2.0)
    else:
        settle(entry, REPORTED)

    def tell(failure: JournalError | None) -> None:
        assert entry.id not in told
        told[entry.id] = failure

    ledger.settle(entry, tell)
