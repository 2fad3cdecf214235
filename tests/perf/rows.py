"""`python -m tests.perf rows`: how fast the rows of a full journal reach PostgreSQL, by the parts that a proxy has.

A journal with so many ended turns is left as by a proxy that was killed. The clock runs from the opening of the ledger,
which folds the journal into the ledger file, until the database has the last row. The server syncs each commit.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.stores.sending import row, sending
from tests.subjects.stores import Postgres
from warmroute_proxy.server.ledger.journal import journal_path
from warmroute_proxy.server.ledger.ledger import LEDGER_FILE, Ledger
from warmroute_proxy.server.stores.migrate import migrate

ROWS: Final = 60_000
GOAL_PER_S: Final = 10_000
LONGEST_S: Final = 120.0


async def fold(folder: Path) -> None:
    """What a start of the proxy does with a journal."""
    Ledger(folder, "process", asyncio.get_running_loop()).close()


def measure(folder: Path, postgres: Postgres, rows: int) -> tuple[float, float, float]:
    """Seconds for the fold and for the sending, and seconds of processor time of both, here."""
    dsn = postgres.new_database()
    migrate(dsn)
    with journal_path(folder, 1).open("wb") as journal:
        journal.writelines(row(number).record() + b"\n" for number in range(rows))
    began_s, cpu_s = time.monotonic(), time.process_time()
    asyncio.run(fold(folder))
    folded_s = time.monotonic()
    thread = sending(dsn, folder / LEDGER_FILE)
    try:
        deadline_s = folded_s + LONGEST_S
        while thread.sent < rows:
            assert time.monotonic() < deadline_s, thread.problem
            time.sleep(0.01)
        sent_s, used_s = time.monotonic(), time.process_time() - cpu_s
    finally:
        thread.close()
    assert postgres.sql("SELECT count(*) FROM turn", dsn) == [str(rows)]
    assert postgres.sql("SELECT sum(turns) FROM usage_hour", dsn) == [str(rows)]
    return folded_s - began_s, sent_s - folded_s, used_s


def main(arguments: list[str]) -> int:
    """Measure and print; 1 where the goal is not reached."""
    parser = argparse.ArgumentParser(prog="python -m tests.perf rows", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args(arguments)
    postgres = Postgres(syncs=True)
    best = 0.0
    try:
        postgres.start()
        for _ in range(asked.rounds):
            with tempfile.TemporaryDirectory(prefix="warmroute-rows-") as folder:
                fold_s, send_s, used_s = measure(Path(folder), postgres, asked.rows)
            per_s = asked.rows / (fold_s + send_s)
            best = max(best, per_s)
            print(
                f"{asked.rows} rows: folded in {fold_s:.2f} s, sent in {send_s:.2f} s ({asked.rows / send_s:,.0f} a"
                f" second), {per_s:,.0f} a second in all, {used_s * 1e6 / asked.rows:.0f} us of CPU a row here"
            )
    finally:
        postgres.stop()
    return int(best < GOAL_PER_S)
