"""kill -9 at any point: what was reported durable has its row once, what was open is interrupted.

A child process opens and settles entries like a proxy under load, several at a time, and writes the id of each entry to
a pipe: `o` before it is journalled, `d` when the ledger calls it durable. The parent kills it after a seeded number of
reports, at whatever point it is in then, and starts the next one on the same folder.
"""

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from warmroute.contract import receipt as contract
from warmroute_proxy.server.ledger.ledger import LEDGER_FILE, Ledger, read_rows

pytestmark = pytest.mark.full

CHILD = """
import asyncio, os, random, sys
from pathlib import Path
from warmroute.contract.money import Rates
from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.core.accounting.entry_steps import Ending, dispatch, settle
from warmroute_proxy.core.accounting.receipt import ServedBy
from warmroute_proxy.core.accounting.usage import merge_usage
from warmroute_proxy.server.ledger import journal
from warmroute_proxy.server.ledger import ledger
from warmroute_proxy.server.ledger.ledger import Ledger

folder, sync, first, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
journal.ROTATE_BYTES = 20_000
ledger.FOLD_EVERY_S = 0.005
draw = random.Random(seed)
REPORTED = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 64}}

def report(kind, number):
    os.write(1, b"%b %d\\n" % (kind, number))

async def main():
    book = Ledger(folder, sync, asyncio.get_running_loop())
    running, number = [], first
    while True:
        if len(running) < 8 and draw.random() < 0.6:
            entry = Entry(
                id=f"wr-{number}", tenant="acme", session=None, lineage="00000000000000aa", turn=1, region="east",
                model="m", route="chat", stream=True, rates=Rates(600_000, 100_000, 3_000_000), opened_at=1.0,
            )
            for attempt in range(draw.choice([1, 1, 1, 2])):
                dispatch(entry, f"rid-{number}-{attempt}", (ServedBy("east-a0", 0, "aggregated"),), 0)
                report(b"o", number)
                book.open(entry)
            book.flush()
            report(b"p", number)
            running.append((number, entry))
            number += 1
        elif running:
            settling, entry = running.pop(draw.randrange(len(running)))
            settle(
                entry, merge_usage(REPORTED, None, None, 0), {"cold": 36}, REPORTED,
                Ending(outcome="completed", status=200, settled_at=2.0, proxy_ms=0.1, ttft_ms=1.0),
            )
            report(b"s", settling)
            book.settle(entry, lambda failure, settling=settling: report(b"d", settling))
        await asyncio.sleep(0)

asyncio.run(main())
"""


def run_and_kill(folder: Path, sync: str, first: int, seed: int) -> dict[str, set[int]]:
    """Report kind -> entry numbers that the child reported before it was killed."""
    draw = random.Random(seed)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), sync, str(first), str(seed)], stdout=subprocess.PIPE, bufsize=0
    )
    assert child.stdout is not None
    seen: dict[str, set[int]] = {"o": set(), "p": set(), "s": set(), "d": set()}
    with child, child.stdout:
        received, wanted = bytearray(), draw.randrange(1, 6_000)
        while received.count(b"\n") < wanted:
            part = os.read(child.stdout.fileno(), draw.randrange(1, 4_096))
            assert part, "the child ended by itself"
            received += part
        child.send_signal(signal.SIGKILL)
        while part := os.read(child.stdout.fileno(), 65_536):
            received += part
    assert child.returncode == -signal.SIGKILL
    for line in received.decode().splitlines():
        kind, number = line.split()
        seen[kind].add(int(number))
    return seen


@pytest.mark.parametrize(("sync", "rounds"), [("process", 6), ("disk", 3)])
def test_every_durable_entry_has_its_row_once(sync: str, rounds: int, tmp_path: Path) -> None:
    seen = [run_and_kill(tmp_path, sync, number * 1_000_000, seed=number) for number in range(rounds)]
    opened, journalled, settling, durable = (set[int]().union(*(each[kind] for each in seen)) for kind in "opsd")
    loop = asyncio.new_event_loop()
    ledger = Ledger(tmp_path, "process", loop)
    totals = ledger.totals("acme")
    ledger.close()
    loop.close()

    rows = read_rows(tmp_path / LEDGER_FILE)
    by_number = {int(row["id"].removeprefix("wr-")): row for row in rows}
    assert len(by_number) == len(rows) == totals["turns"]
    settled = {number for number, row in by_number.items() if row["state"] == "settled"}
    interrupted = {number for number, row in by_number.items() if row["state"] == "interrupted"}
    assert len(durable) > 100
    assert durable <= settled <= settling
    assert journalled <= set(by_number) <= opened
    assert interrupted == set(by_number) - settled
    assert journalled - settling <= interrupted
    assert totals["price_nanousd"] == 58_000 * len(settled)
    for number, row in by_number.items():
        usage = json.loads(row["usage"])
        assert contract.check(usage) == []
        assert row["price_nanousd"] == usage["warmroute"]["price_nanousd"] == (58_000 if number in settled else 0)
        assert json.loads(row["rids"])[0] == f"rid-{number}-0"


def test_nothing_is_left_behind_but_the_ledger(tmp_path: Path) -> None:
    run_and_kill(tmp_path, "process", 0, seed=7)
    loop = asyncio.new_event_loop()
    Ledger(tmp_path, "process", loop).close()
    loop.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [LEDGER_FILE, "lock"]
    database = sqlite3.connect(tmp_path / LEDGER_FILE)
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert database.execute("SELECT count(*) FROM open_turn").fetchone() == (0,)
    database.close()
