"""Computes the ladder of a ledger's newest turns: the steps at which cached tokens were lost, and what that cost.

Reading a row in Python takes about 20 us, so only the newest `MAX_LADDER_ROWS` are read. `warmroute ladder` reads all.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec

from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.ladder.of_entries import turn_of
from warmroute_proxy.ladder.sums import Ladder
from warmroute_proxy.server.ledger.all_rows import RowsPass, field
from warmroute_proxy.server.ledger.usage_sums import Turns

LadderBy = Literal["session", "tenant", "model", "harness", "day", "kind"]

MAX_LADDER_ROWS: Final = 20_000
MAX_LADDER_GROUPS: Final = 100


class Climbed(msgspec.Struct):
    """A ladder. `complete`: false if it leaves out turns; then it only has those that ended since `counted_since`."""

    ladder: Ladder
    complete: bool
    counted_since: float | None


def climb(state_dir: Path, database: Path, turns: Turns, by: LadderBy | None, stopped: Callable[[], bool]) -> Climbed:
    """Compute the ladder of the newest turns that `turns` selects. Raises: Closed, sqlite3.Error."""
    reading = RowsPass(state_dir, database, turns.since_s, stopped)
    found, read, oldest_s = Ladder(by), 0, None
    try:
        for records, where in reading.portions():
            query = f"SELECT record FROM ({records}) WHERE {turns.condition()} ORDER BY {field('settled_at')} DESC"  # noqa: S608
            for (record,) in reading.db.execute(query, turns.values() | where):
                if read >= MAX_LADDER_ROWS:
                    return Climbed(found, complete=False, counted_since=oldest_s)
                try:
                    entry = Entry.read(record)
                except msgspec.DecodeError:
                    continue
                found.add(turn_of(entry))
                read, oldest_s = read + 1, entry.settled_at
    finally:
        reading.close()
    return Climbed(found, reading.complete, reading.began_s)
