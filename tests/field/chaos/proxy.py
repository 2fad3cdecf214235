"""The proxy under test: its lives, what the journal held open when one was killed, its descriptors and memory."""

import asyncio
import os
import re
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any, Final

from tests.machine import seconds
from tests.subjects.processes import ProxyProcess

from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.server.ledger.ledger import LEDGER_FILE

from .client import Life

LIMITS: Final = """
first_token_timeout_s = 8.0
idle_timeout_s = 4.0
keyed_outlive_s = 3.0
keyed_replay_s = 5.0
"""
"""Short ones, so that what is bound by time is seen to be within the run."""

LIVES: Final = 1_000
"""More than any proxy has in a run."""


class Proxy:
    """The proxy in all its lives. `life` is None while none listens."""

    def __init__(self, process: ProxyProcess, number: int = 0) -> None:
        """`number`: which of several proxies it is."""
        self.process = process
        self._first_life = number * LIVES
        self.life: Life | None = None
        self.open_at_kill: list[set[str]] = []
        self.rss: list[list[tuple[int, int]]] = []
        """For each life: requests ended by then, resident KiB."""

        self._up = asyncio.Event()

    async def start(self) -> None:
        await asyncio.to_thread(self.process.start)
        assert self.process.child is not None
        self.rss.append([])
        pids = [self.process.child.pid, *self.process.line.get("processes", [])]
        self.life = Life(self._first_life + len(self.rss), self.process.url, pids)
        self._up.set()

    async def kill_and_start(self) -> None:
        """SIGKILL, a look at what it left open, and another life."""
        life = await self.alive()
        self._up.clear()
        self.life = None
        life.dead = True  # before the signal: a connection that breaks from now on may have broken by it
        for pid in life.pids:
            os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(self.process.kill)
        self.open_at_kill.append(await asyncio.to_thread(open_entries, self.process.state_dir))
        await self.start()

    async def alive(self) -> Life:
        """The life that listens, once there is one."""
        while self.life is None:
            await self._up.wait()
        return self.life

    async def sample(self, seen: list[Any]) -> None:
        """Note the memory of whatever life there is, for ever."""
        while True:
            if self.life is not None:
                self.rss[-1].append((len(seen), sum(map(rss_kib, self.life.pids))))
            await asyncio.sleep(0.5)

    def descriptors(self) -> int:
        assert self.life is not None
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in self.life.pids)

    def stop(self) -> list[dict[str, Any]]:
        """End it in good order; returns the ledger."""
        self.process.stop()
        return self.process.rows()

    def complaints(self) -> list[str]:
        """Errors in its logs, and what it said when it could not go on, each with the lines that follow it."""
        logs = sorted(self.process.folder.glob("*.log"))
        said = [entry for log in logs for entry in _ENTRY.split(log.read_text(errors="replace"))]
        return [entry.rstrip() for entry in said if " ERROR " in entry or "Traceback" in entry]


_ENTRY: Final = re.compile(r"^(?=\d{4}-\d\d-\d\d )", re.MULTILINE)


def rss_kib(pid: int) -> int:
    """Resident memory; 0 where the process is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")), 0)


def open_entries(state_dir: Path) -> set[str]:
    """The entries that are open, or that a killed proxy left so: by the journal and what was folded of it, read without
    the proxy.
    """
    opened: set[str] = set()
    ended: set[str] = set()
    with sqlite3.connect(f"{(state_dir / LEDGER_FILE).resolve().as_uri()}?mode=ro", uri=True) as db:
        opened.update(row[0] for row in db.execute("SELECT id FROM open_turn"))
        ended.update(row[0] for row in db.execute("SELECT id FROM turn"))
    db.close()
    for path in state_dir.glob("**/journal-*.jsonl"):
        for line in path.read_bytes().split(b"\n")[:-1]:
            entry = Entry.read(line)
            (ended if entry.ended else opened).add(entry.id)
    return opened - ended


async def eventually(condition: Any, timeout_s: float) -> bool:
    """Whether a condition, asked in a thread, came true in time."""
    deadline_s = time.monotonic() + seconds(timeout_s)
    while not await asyncio.to_thread(condition):
        if time.monotonic() > deadline_s:
            return False
        await asyncio.sleep(0.05)
    return True
