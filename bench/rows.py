"""`python -m bench rows`: measures how fast the ledger rows of a full journal reach PostgreSQL.

The journal is the file to which a proxy first writes each turn. This program writes one with many ended turns, as a
killed proxy would leave it, and uses the proxy's code to send the rows. The time is measured from the opening of the
ledger, which moves the journal into the ledger file, until the database has the last row. The server syncs each commit.
"""

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from tests.stores.sending import row, sending
from tests.subjects.stores import Postgres

from bench.process import cpu
from warmroute_proxy.server.ledger.journal import journal_path
from warmroute_proxy.server.ledger.ledger import LEDGER_FILE, Ledger
from warmroute_proxy.server.stores.migrate import migrate

ROWS: Final = 60_000
GOAL_PER_S: Final = 10_000
LONGEST_S: Final = 120.0


async def fold(folder: Path) -> None:
    """Move the rows of a journal into the ledger file (fold), as a start of the proxy does."""
    Ledger(folder, "process", asyncio.get_running_loop()).close()


class Measured(NamedTuple):
    """Seconds of the fold and of the sending, and the processor time of both in this process and at the server."""

    fold_s: float
    send_s: float
    used_s: float
    server_s: float


def measure(folder: Path, postgres: Postgres, rows: int) -> Measured:
    """Fold a journal of `rows` turns, and send its rows."""
    assert postgres.process is not None
    server = postgres.process.pid
    dsn = postgres.new_database()
    migrate(dsn)
    with journal_path(folder, 1).open("wb") as journal:
        journal.writelines(row(number).record() + b"\n" for number in range(rows))
    began_s, cpu_s, server_s = time.monotonic(), time.process_time(), cpu(server).total_s
    asyncio.run(fold(folder))
    folded_s = time.monotonic()
    thread = sending(dsn, folder / LEDGER_FILE)
    try:
        deadline_s = folded_s + LONGEST_S
        while thread.sent < rows:
            assert time.monotonic() < deadline_s, thread.problem
            time.sleep(0.01)
        sent_s, used_s = time.monotonic(), time.process_time() - cpu_s
        server_s = cpu(server).total_s - server_s
    finally:
        thread.close()
    assert postgres.sql("SELECT count(*) FROM turn", dsn) == [str(rows)]
    assert postgres.sql("SELECT sum(turns) FROM usage_hour", dsn) == [str(rows)]
    return Measured(folded_s - began_s, sent_s - folded_s, used_s, server_s)


def main(arguments: list[str]) -> int:
    """Measure and print. Returns 1 if the goal is not reached."""
    parser = argparse.ArgumentParser(prog="python -m bench rows", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args(arguments)
    postgres = Postgres(syncs=True)
    best = 0.0
    try:
        postgres.start()
        for _ in range(asked.rounds):
            with tempfile.TemporaryDirectory(prefix="warmroute-rows-") as folder:
                found = measure(Path(folder), postgres, asked.rows)
            per_s = asked.rows / (found.fold_s + found.send_s)
            best = max(best, per_s)
            here_us, server_us = found.used_s * 1e6 / asked.rows, found.server_s * 1e6 / asked.rows
            print(
                f"{asked.rows} rows: folded in {found.fold_s:.2f} s, sent in {found.send_s:.2f} s"
                f" ({asked.rows / found.send_s:,.0f} a second), {per_s:,.0f} a second in all; CPU of a row:"
                f" {here_us:.0f} us here, {server_us:.0f} us of the server; load average {os.getloadavg()[0]:.1f}"
            )
    finally:
        postgres.stop()
    return int(best < GOAL_PER_S)
